//! Datagrams by a neighbour's link: who may send them where, and how that ends.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tabane_base::{Bytes, Rate};
use tabane_neighbour::{Leash, Terms};
use tokio::net::UdpSocket;

use super::{Street, on_this_thread, terms};

/// A socket that nobody has connected, on loopback.
async fn socket(address: &str) -> UdpSocket {
    UdpSocket::bind((address, 0)).await.unwrap()
}

async fn lent(street: &Street, to: SocketAddr) -> std::io::Result<Leash> {
    let at = ("127.0.0.1", street.address.port());
    Leash::open(&street.borrower, at, street.sharer.public_key(), to, None).await
}

async fn refusal(street: &Street, to: SocketAddr) -> String {
    match lent(street, to).await {
        Ok(_) => panic!("datagrams pass to {to}"),
        Err(error) => error.to_string(),
    }
}

/// What comes next, and from where.
async fn next(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = [0; 2_000];
    let (count, from) = socket.recv_from(&mut buffer).await.unwrap();
    (buffer[..count].to_vec(), from)
}

#[test]
fn datagrams_pass_both_ways_as_they_are_and_are_counted() {
    on_this_thread(async {
        let origin = socket("127.0.0.1").await;
        let to = origin.local_addr().unwrap();
        let street = Street::with_friend(&[to.port()], terms()).await;
        let leash = lent(&street, to).await.unwrap();
        let friend = socket("127.0.0.1").await;
        // Somebody else near by who has seen the port gets nothing through.
        let other = socket("127.0.0.2").await;
        other.send_to(b"not mine", leash.at()).await.unwrap();
        for size in [1_200, 1_200, 1_200, 300, 1, 1_400, 0, 1_200] {
            let sent = vec![size as u8; size];
            friend.send_to(&sent, leash.at()).await.unwrap();
            let (got, from) = next(&origin).await;
            assert_eq!(got, sent);
            // Whom the origin does not answer is not heard.
            other.send_to(b"forged", from).await.unwrap();
            origin.send_to(&sent, from).await.unwrap();
            assert_eq!(next(&friend).await, (sent, leash.at()));
        }
        assert_eq!(street.carried(), 2 * 6_501);
        // Each socket of the friend's is another one to the far end.
        let second = socket("127.0.0.1").await;
        friend.send_to(b"one", leash.at()).await.unwrap();
        let (_, one) = next(&origin).await;
        second.send_to(b"two", leash.at()).await.unwrap();
        let (_, two) = next(&origin).await;
        assert_ne!(one, two);
        origin.send_to(b"to two", two).await.unwrap();
        assert_eq!(next(&second).await.0, b"to two");
    });
}

#[test]
fn a_train_of_datagrams_stays_whole() {
    on_this_thread(async {
        let origin = socket("127.0.0.1").await;
        let to = origin.local_addr().unwrap();
        let street = Street::with_friend(&[to.port()], terms()).await;
        let leash = lent(&street, to).await.unwrap();
        let friend = socket("127.0.0.1").await;
        let sizes = [900, 900, 900, 400, 900, 1_200, 1_200, 30];
        for (number, size) in sizes.into_iter().enumerate() {
            let sent = vec![number as u8; size];
            friend.send_to(&sent, leash.at()).await.unwrap();
        }
        for (number, size) in sizes.into_iter().enumerate() {
            assert_eq!(next(&origin).await.0, vec![number as u8; size]);
        }
    });
}

#[test]
fn what_is_over_the_rate_waits_for_its_turn() {
    on_this_thread(async {
        let origin = socket("127.0.0.1").await;
        let to = origin.local_addr().unwrap();
        let capped = Terms {
            cap: Some(Rate::from_bps(800_000)),
            ..terms()
        };
        let street = Street::with_friend(&[to.port()], capped).await;
        let leash = lent(&street, to).await.unwrap();
        let friend = socket("127.0.0.1").await;
        let begun_at = Instant::now();
        for number in 0..20_u8 {
            friend.send_to(&[number; 1_000], leash.at()).await.unwrap();
        }
        // Each takes 10 ms, so the fifth comes after 40; timers are exact to one.
        for number in 0..5_u8 {
            assert_eq!(next(&origin).await.0, [number; 1_000]);
        }
        assert!(begun_at.elapsed() >= Duration::from_millis(39));
        // Those that would have waited longer than 50 ms are not even counted.
        assert!(street.carried() < 20_000, "{}", street.carried());
    });
}

#[test]
fn only_what_is_lent_is_passed_on() {
    on_this_thread(async {
        let origin = socket("127.0.0.1").await;
        let to = origin.local_addr().unwrap();
        let street = Street::with_friend(&[1], terms()).await;
        let text = refusal(&street, to).await;
        assert!(text.contains("403 This address or port"), "{text}");
        street.friends.remove(street.borrower.public_key());
        let text = refusal(&street, to).await;
        assert!(text.contains("403 Not paired"), "{text}");
    });
}

#[test]
fn terms_end_the_leash_and_the_leash_ends_the_port() {
    on_this_thread(async {
        let origin = socket("127.0.0.1").await;
        let to = origin.local_addr().unwrap();
        let budget = Terms {
            allowance: Some(Bytes::new(1_000)),
            ..terms()
        };
        let street = Street::with_friend(&[to.port()], budget).await;
        let friend = socket("127.0.0.1").await;
        let mut leash = lent(&street, to).await.unwrap();
        friend.send_to(&[7; 600], leash.at()).await.unwrap();
        next(&origin).await;
        friend.send_to(&[7; 600], leash.at()).await.unwrap();
        leash.lost().await;
        assert_eq!(street.carried(), 600);
        let text = refusal(&street, to).await;
        assert!(text.contains("429 Your data budget"), "{text}");
        street.friends.set(street.borrower.public_key(), terms());
        let leash = lent(&street, to).await.unwrap();
        friend.connect(leash.at()).await.unwrap();
        drop(leash);
        // Nobody listens there any more: the kernel says so, sooner or later.
        while friend.send(b"late").await.is_ok() {
            tokio::task::yield_now().await;
        }
    });
}
