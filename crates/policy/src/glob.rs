//! Patterns for names: `*` stands for any characters, `?` for one.

/// Whether all of `name` fits `pattern`. Works byte by byte; names of interfaces and hosts are
/// ASCII.
pub(crate) fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    // Where to go on when what followed the last star does not fit.
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p + 1, n));
                p += 1;
            }
            Some(&byte) if byte == b'?' || byte == name[n] => {
                p += 1;
                n += 1;
            }
            _ => {
                let Some((after_star, taken)) = retry else {
                    return false;
                };
                retry = Some((after_star, taken + 1));
                (p, n) = (after_star, taken + 1);
            }
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, name) in [
            ("wlan0", "wlan0"),
            ("*", "anything"),
            ("*", ""),
            ("usb*", "usb"),
            ("wlp?s0", "wlp3s0"),
            ("*a*b*", "xxaxxaxb"),
            ("e*0", "eth0"),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("wlan", "wlan0"),
            ("", "x"),
            ("?", ""),
            ("*a", "ab"),
            ("usb?", "usb"),
        ] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }
}
