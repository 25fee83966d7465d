//! A client and a server in one namespace, whose links are two addresses of the loopback device.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use super::*;
use crate::netns::Netns;

/// The first interface of every namespace.
const LOOPBACK: u32 = 1;
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Runs `work` in a namespace of its own, whose loopback device is up.
fn in_namespace(name: &str, work: impl FnOnce() + Send) {
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: namespaces need root");
    }
    let name = format!("mp{}{name}", std::process::id());
    let netns = Netns::create(&name).unwrap();
    let mut ip = netns.command("ip");
    let up = ip.args(["link", "set", "lo", "up"]).status();
    assert!(up.unwrap().success());
    let done = netns.run(|| match available() {
        Ok(()) => work(),
        Err(lack) => println!("skipped: {lack}"),
    });
    drop(netns);
    Netns::remove(&name).unwrap();
    done.unwrap();
}

fn listener(protocol: Option<Protocol>) -> TcpListener {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, protocol).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    socket.listen(4).unwrap();
    socket.into()
}

/// A connection to `listener`, and its far end.
fn connect(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = Socket::from(socket(false).unwrap());
    client.set_nonblocking(false).unwrap();
    client
        .connect(&listener.local_addr().unwrap().into())
        .unwrap();
    (client.into(), listener.accept().unwrap().0)
}

fn established(tcp: &TcpStream) -> Vec<IpAddr> {
    let all = subflows(tcp).unwrap().into_iter();
    let alive = all.filter(|subflow| subflow.is_established);
    alive.map(|subflow| subflow.local.ip()).collect()
}

#[test]
fn subflows_come_and_go_as_they_are_told() {
    in_namespace("a", || {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut manager, mut news) = PathManager::open().unwrap();
            let listener = listener(Some(Protocol::MPTCP));
            let (mut client, mut server) = connect(&listener);
            let remote = listener.local_addr().unwrap();
            let token = token(&client).expect("both ends speak it");
            client.write_all(b"four").unwrap();
            server.read_exact(&mut [0; 4]).unwrap();
            let patience = Duration::from_secs(10);
            let mut changed = async || {
                let news = tokio::time::timeout(patience, news.next()).await;
                news.expect("nothing was told").unwrap()
            };
            while manager.join(token, (1, OTHER, LOOPBACK), remote).is_err() {
                assert_eq!(changed().await, token);
            }
            while established(&client).len() < 2 {
                changed().await;
            }
            let all = subflows(&client).unwrap();
            assert_eq!(all[1].local.ip(), OTHER);
            assert_eq!(all[0].bytes, 4);
            // The first one as well as any other.
            manager.leave(token, &all[0]).unwrap();
            assert_eq!(established(&client), [OTHER]);
            server.write_all(b"three").unwrap();
            client.read_exact(&mut [0; 5]).unwrap();
            // The other end may still send by the one that only this end has closed, whose end
            // counts as a byte; and the kernel may have sent the five by both.
            let carried: u64 = subflows(&client).unwrap().iter().map(|it| it.bytes).sum();
            assert!(matches!(carried, 9 | 10 | 14 | 15), "{carried}");
            // None is left, and nothing was said of an end.
            manager.leave(token, &all[1]).unwrap();
            assert!(established(&client).is_empty() && !has_ended(&client));
        });
    });
}

#[test]
fn who_does_not_speak_it_gets_plain_tcp() {
    in_namespace("b", || {
        let (mut client, mut server) = connect(&listener(None));
        assert_eq!(token(&client), None);
        assert!(subflows(&client).is_err());
        client.write_all(b"four").unwrap();
        server.read_exact(&mut [0; 4]).unwrap();
        drop(server);
        assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
        assert!(has_ended(&client));
    });
}

#[test]
fn the_switch_is_turned_for_a_moment_and_never_another_s() {
    in_namespace("c", || {
        let switch = || std::fs::read(SWITCH).unwrap()[0];
        drop(socket(true).unwrap());
        assert_eq!(switch(), KERNEL);
        {
            let _other_instance = hold_switch(Path::new(SWITCH)).unwrap();
            assert!(socket(false).is_err());
        }
        std::fs::write(SWITCH, "1").unwrap();
        assert!(socket(false).is_err());
        assert_eq!((switch(), available()), (PROGRAM, Err(Unusable::Managed)));
        turn_back().unwrap();
        assert_eq!((switch(), available()), (KERNEL, Ok(())));
        std::fs::write(ENABLED, "0").unwrap();
        assert_eq!(available(), Err(Unusable::Off));
        assert!(socket(false).is_err());
        assert_eq!(switch(), KERNEL);
    });
}
