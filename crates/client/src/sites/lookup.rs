//! Names that a program gives to a proxy, looked up at the site whose they are.
//!
//! Owns the questions and whose answers count. Nobody but that site hears of such a name.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};

use tabane_base::Duration;
use tabane_tunnel::{Client, UdpFlow};
use tokio::time::{Instant, timeout_at};

use super::Sites;
use crate::dns_answer;
use crate::proxy::Refusal;

/// How often is asked, and for how long an answer is waited for each time.
const ATTEMPTS: usize = 3;
const WAIT: Duration = Duration::from_secs(2);
/// IPv4 and IPv6 (RFC 1035 §3.2.2, RFC 3596 §2.1).
const TYPES: [u8; 2] = [1, 28];
const MAX_LABEL: usize = 63;

impl Sites {
    /// The resolver of another site that knows this name.
    pub(crate) fn resolver_of(&self, name: &str) -> Option<SocketAddr> {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        self.0.routes.borrow().resolver_of(&name)
    }
}

/// The addresses that a site's resolver gives for a name.
pub(crate) async fn lookup(
    relay: &Client,
    resolver: SocketAddr,
    name: &str,
) -> Result<Vec<IpAddr>, Refusal> {
    let number = RandomState::new().hash_one(name) as u16;
    let numbers = [number, number.wrapping_add(1)];
    let questions: Option<Vec<_>> = numbers
        .iter()
        .zip(TYPES)
        .map(|(number, kind)| question(*number, name, kind))
        .collect();
    let questions = questions.ok_or(Refusal::NameNotFound)?;
    let flow = relay.open_udp(resolver.into()).await;
    let flow = flow.map_err(|_| Refusal::HostUnreachable)?;
    let mut answers = [None, None];
    for _ in 0..ATTEMPTS {
        for (question, answer) in questions.iter().zip(&answers) {
            if answer.is_none() {
                flow.send(question).map_err(|_| Refusal::HostUnreachable)?;
            }
        }
        take_answers(&flow, &questions, &mut answers).await?;
        if answers.iter().all(Option::is_some) {
            break;
        }
    }
    let found: Vec<IpAddr> = answers.iter().flatten().flatten().copied().collect();
    match found.is_empty() && answers.iter().any(Option::is_none) {
        true => Err(Refusal::HostUnreachable),
        false => Ok(found),
    }
}

/// Takes what is answered until nothing is open, or for so long.
async fn take_answers(
    flow: &UdpFlow,
    questions: &[Vec<u8>],
    answers: &mut [Option<Vec<IpAddr>>; 2],
) -> Result<(), Refusal> {
    let ends_at = Instant::now() + WAIT;
    while answers.iter().any(Option::is_none) {
        let Ok(received) = timeout_at(ends_at, flow.recv()).await else {
            return Ok(());
        };
        let message = received.map_err(|_| Refusal::HostUnreachable)?;
        for (question, answer) in questions.iter().zip(answers.iter_mut()) {
            if let Some(found) = answer_to(question, &message) {
                *answer = Some(found);
            }
        }
    }
    Ok(())
}

/// The addresses in a message that answers this question.
fn answer_to(question: &[u8], message: &[u8]) -> Option<Vec<IpAddr>> {
    let (asked, _) = crate::near_names::question(question)?;
    let (name, found) = dns_answer::addresses(message)?;
    (message.get(..2)? == question.get(..2)? && name == asked).then_some(found)
}

/// A question of this type (RFC 1035 §4.1); `None` for what is no name.
fn question(number: u16, name: &str, kind: u8) -> Option<Vec<u8>> {
    // It is to be asked for recursively.
    let mut message = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    message[..2].copy_from_slice(&number.to_be_bytes());
    for label in name.trim_end_matches('.').split('.') {
        let length = u8::try_from(label.len()).ok()?;
        if label.is_empty() || label.len() > MAX_LABEL {
            return None;
        }
        message.push(length);
        message.extend(label.as_bytes());
    }
    message.extend([0, 0, kind, 0, 1]);
    Some(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(question: &[u8], addresses: &[[u8; 4]]) -> Vec<u8> {
        let mut message = question.to_vec();
        message[2] = 0x81;
        message[7] = addresses.len() as u8;
        for address in addresses {
            message.extend(b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04");
            message.extend(address);
        }
        message
    }

    #[test]
    fn only_what_was_asked_for_is_answered() {
        let asked = question(7, "NAS.lan-b.example.", 1).unwrap();
        let address = [192, 168, 20, 2];
        let found = answer_to(&asked, &answer(&asked, &[address])).unwrap();
        assert_eq!(found, [IpAddr::from(address)]);
        // There is no such name, or none of that family.
        assert_eq!(answer_to(&asked, &answer(&asked, &[])), Some(Vec::new()));
        for other in [
            question(8, "nas.lan-b.example", 1).unwrap(),
            question(7, "www.lan-b.example", 1).unwrap(),
        ] {
            assert_eq!(answer_to(&asked, &answer(&other, &[address])), None);
        }
        assert_eq!(answer_to(&asked, &asked), None);
    }

    #[test]
    fn what_is_no_name_is_not_asked_for() {
        for name in ["", "a..example", &"a".repeat(64)] {
            assert_eq!(question(7, name, 1), None, "{name}");
        }
    }
}
