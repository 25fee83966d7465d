//! Which names mean something only near this machine, so that the relay's resolver cannot know
//! them.
//!
//! Pure over the question as it is on the wire (RFC 1035 §4.1). Total: what is no question is not
//! near.

/// Where resolvers are asked.
pub(crate) const DNS_PORT: u16 = 53;
const HEADER: usize = 12;
/// RFC 1035 §2.3.4, with room for the dots.
const MAX_NAME: usize = 255;
/// Multicast DNS (RFC 6762), homes (RFC 8375), private use by ICANN's word, and by custom.
pub(crate) const SUFFIXES: [&str; 8] = [
    "local",
    "home.arpa",
    "internal",
    "lan",
    "home",
    "localdomain",
    "fritz.box",
    "localhost",
];
/// Where the names of private addresses are looked up (RFC 6303).
const REVERSE: [&str; 5] = [
    "10.in-addr.arpa",
    "168.192.in-addr.arpa",
    "254.169.in-addr.arpa",
    "d.f.ip6.arpa",
    "8.e.f.ip6.arpa",
];

/// Whether the question is for such a name.
pub(crate) fn asks_for_near(message: &[u8]) -> bool {
    let Some((name, _)) = question(message) else {
        return false;
    };
    // A single word is somebody's here; the root itself is not.
    let is_word = !name.is_empty() && !name.contains('.');
    let ends = |suffix: &&str| {
        name.strip_suffix(*suffix)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    is_word || SUFFIXES.iter().chain(&REVERSE).any(ends) || is_private_172(&name)
}

/// 172.16.0.0/12 is sixteen zones.
fn is_private_172(name: &str) -> bool {
    let Some(rest) = name.strip_suffix(".172.in-addr.arpa") else {
        return false;
    };
    let second = rest.rsplit('.').next().unwrap_or_default();
    second
        .parse::<u8>()
        .is_ok_and(|second| (16..32).contains(&second))
}

/// The name of the first question, in small letters and without the last dot, and what follows it.
pub(crate) fn question(message: &[u8]) -> Option<(String, &[u8])> {
    let questions = message.get(4..6)?;
    if questions == [0, 0] {
        return None;
    }
    let mut rest = message.get(HEADER..)?;
    let mut name = String::new();
    loop {
        let (&length, after) = rest.split_first()?;
        let length = usize::from(length);
        if length == 0 {
            return Some((name, after));
        }
        // Two high bits would be a pointer, which no first name is.
        if length > 63 || name.len() + length >= MAX_NAME {
            return None;
        }
        let (label, after) = after.split_at_checked(length)?;
        if !name.is_empty() {
            name.push('.');
        }
        name.extend(
            label
                .iter()
                .map(|byte| char::from(byte.to_ascii_lowercase())),
        );
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(name: &str) -> Vec<u8> {
        let mut message = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.').filter(|label| !label.is_empty()) {
            message.push(label.len() as u8);
            message.extend(label.as_bytes());
        }
        message.extend([0, 0, 1, 0, 1]);
        message
    }

    #[test]
    fn near_names_are_told_from_those_of_the_world() {
        for near in [
            "printer",
            "Printer.LOCAL",
            "nas.lan",
            "fritz.box",
            "a.home.arpa",
            "1.1.168.192.in-addr.arpa",
            "1.0.31.172.in-addr.arpa",
            "1.0.0.10.in-addr.arpa",
        ] {
            assert!(asks_for_near(&question(near)), "{near}");
        }
        for far in [
            "",
            "example.org",
            "local.example",
            "notlan.example",
            "a.islan",
            "1.0.32.172.in-addr.arpa",
            "8.8.8.8.in-addr.arpa",
        ] {
            assert!(!asks_for_near(&question(far)), "{far}");
        }
    }

    #[test]
    fn what_is_cut_is_not_near() {
        let whole = question("printer");
        for length in 0..whole.len() - 4 {
            assert!(!asks_for_near(&whole[..length]), "{length}");
        }
        let pointer = [&question("")[..HEADER], &[0xc0, 12]].concat();
        assert!(!asks_for_near(&pointer));
    }
}
