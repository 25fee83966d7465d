//! CONNECT.

use std::rc::Rc;

use tabane_fetch::{DeviceWay, Links};
use tabane_ranges::LinkLimits;
use tabane_web::Carried;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::program::Program;
use super::{DeadWay, Desk, nobody, on_this_thread};

/// Says everything back, and `bye` at the end.
async fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::task::spawn_local(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            tokio::task::spawn_local(async move {
                let (mut from, mut to) = connection.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
                let _ = to.write_all(b"bye").await;
            });
        }
    });
    port
}

async fn open(desk: &Desk, port: u16) -> Program {
    let mut program = desk.program().await;
    let to = format!("127.0.0.1:{port}");
    // What follows the head at once belongs to the tunnel.
    let text = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\nearly ");
    program.say(text.as_bytes()).await;
    let head = program.head().await;
    assert!(head.starts_with("http/1.1 200"), "{head:?}");
    program
}

#[test]
fn a_tunnel_carries_bytes_both_ways_until_both_have_said_all() {
    on_this_thread(async {
        let (port, desk) = (echo().await, Desk::start(&[]).await);
        let mut program = open(&desk, port).await;
        program.say(b"and late").await;
        assert_eq!(program.raw(14).await, b"early and late");
        program.say_no_more().await;
        assert_eq!(program.raw(3).await, b"bye");
        assert!(program.is_closed().await);
        let record = desk.record(0).await;
        assert_eq!((record.carried, record.trouble), (Carried::Tunnel, None));
        assert_eq!(record.links.values().sum::<u64>(), 14 + 14 + 3);
        assert_eq!(record.links.len(), 1);
    });
}

#[test]
fn tunnels_spread_over_links() {
    on_this_thread(async {
        let (port, desk) = (echo().await, Desk::start(&[]).await);
        let mut tunnels = Vec::new();
        for _ in 0..4 {
            tunnels.push(open(&desk, port).await);
        }
        drop(tunnels);
        let mut used = Vec::new();
        for number in 0..4 {
            used.extend(desk.record(number).await.links.into_keys());
        }
        assert!(
            used.contains(&"fast".to_owned()) && used.contains(&"slow".to_owned()),
            "{used:?}"
        );
    });
}

#[test]
fn a_tunnel_falls_over_to_another_link_or_is_refused() {
    on_this_thread(async {
        let port = echo().await;
        let links = Links::default();
        links.add("dead", Rc::new(DeadWay::Hangs), LinkLimits::default());
        links.add(
            "alive",
            Rc::new(DeviceWay::unbound()),
            LinkLimits::default(),
        );
        let desk = Desk::over(links, &[]).await;
        let mut program = open(&desk, port).await;
        assert_eq!(program.raw(6).await, b"early ");
        drop(program);
        assert!(desk.record(0).await.links.contains_key("alive"));
        let desk = Desk::start(&[]).await;
        let own = format!("127.0.0.1:{}", desk.port);
        for (to, status) in [
            (nobody().await.to_string(), 502),
            (own, 508),
            ("nobody.invalid:443".to_owned(), 502),
            ("127.0.0.1".to_owned(), 400),
        ] {
            let mut program = desk.program().await;
            let text = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n");
            program.say(text.as_bytes()).await;
            assert_eq!(program.answer(false).await.status, status, "{to}");
        }
    });
}

#[test]
fn a_tunnel_ends_with_its_link() {
    on_this_thread(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let desk = Desk::start(&[]).await;
        let mut program = open(&desk, port).await;
        let (mut far, _) = listener.accept().await.unwrap();
        let mut early = [0; 6];
        far.read_exact(&mut early).await.unwrap();
        for name in desk.links.names() {
            desk.links.remove(&name);
        }
        assert!(program.is_closed().await);
        assert!(!matches!(far.read(&mut early).await, Ok(1..)));
        assert_eq!(
            desk.record(0).await.trouble.as_deref(),
            Some("the link is gone")
        );
    });
}
