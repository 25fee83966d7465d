//! Whoever sits on a link costs that link, and nothing else [P-1.2].

use std::net::{SocketAddr, UdpSocket as StdUdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustls::quic::Version;
use tabane_base::Duration;
use tabane_core::PROTOCOL_VERSION;
use tabane_tunnel::{Client, ClientState};

use super::world::{RelayOptions, RunningRelay, client_config, run};

/// An Initial of the server as anybody makes it who sees the attempt.
fn forged_initial(attempt: &[u8], frames: &[u8]) -> Vec<u8> {
    let keys = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256
        .tls13()
        .and_then(|suite| suite.quic_suite())
        .unwrap()
        .keys(attempt, rustls::Side::Server, Version::V1);
    let mut packet = vec![0xc3];
    packet.extend_from_slice(&PROTOCOL_VERSION.to_be_bytes());
    packet.extend_from_slice(attempt);
    packet.extend_from_slice(&[9, 9, 9, 9, 0]);
    let mut payload = frames.to_vec();
    payload.resize(payload.len().max(20), 0);
    packet.push((4 + payload.len() + 16) as u8);
    let pn_offset = packet.len();
    packet.extend_from_slice(&[0; 4]);
    let local = &keys.local;
    let tag = local.packet.encrypt_in_place(0, &packet, &mut payload);
    packet.extend_from_slice(&payload);
    packet.extend_from_slice(tag.unwrap().as_ref());
    let (head, tail) = packet.split_at_mut(pn_offset + 4);
    let (first, rest) = head.split_first_mut().unwrap();
    let number = &mut rest[pn_offset - 1..];
    local
        .header
        .encrypt_in_place(&tail[..16], first, number)
        .unwrap();
    packet
}

fn unauthorised(attempt: &[u8]) -> Vec<u8> {
    forged_initial(attempt, &[0x1c, 1, 0])
}

fn revoked(attempt: &[u8]) -> Vec<u8> {
    forged_initial(attempt, &[0x1c, 12, 0])
}

fn no_frame(attempt: &[u8]) -> Vec<u8> {
    forged_initial(attempt, &[0x7f])
}

fn no_tls(attempt: &[u8]) -> Vec<u8> {
    forged_initial(attempt, &[0x06, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8])
}

fn other_versions(attempt: &[u8]) -> Vec<u8> {
    let mut packet = vec![0xc0, 0, 0, 0, 0];
    packet.extend_from_slice(attempt);
    packet.extend_from_slice(&7_u32.to_be_bytes());
    packet
}

fn long_retry(attempt: &[u8]) -> Vec<u8> {
    let mut packet = vec![0xe3];
    packet.extend_from_slice(&PROTOCOL_VERSION.to_be_bytes());
    packet.extend_from_slice(attempt);
    packet.resize(60_000, 7);
    packet
}

/// A hotspot that knows no key: silent, then it answers Initials by a forged packet.
fn hotspot(strikes: Arc<AtomicBool>, forge: fn(&[u8]) -> Vec<u8>) -> SocketAddr {
    let socket = StdUdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 65_536];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            if strikes.load(Ordering::Relaxed) && len >= 1_200 && buffer[0] & 0xf0 == 0xc0 {
                // Forged packets without end, whoever still listens.
                let _ = socket.send_to(&forge(&buffer[5..13]), from);
            }
        }
    });
    address
}

/// Link a is hostile, link b leads to the relay undisturbed; the relay restarts while a session is
/// up, as relays do.
fn restart_beside(forge: fn(&[u8]) -> Vec<u8>) {
    run(async move {
        let relay = RunningRelay::start(RelayOptions::default());
        let address = relay.address;
        let strikes = Arc::new(AtomicBool::new(false));
        let evil = hotspot(strikes.clone(), forge);
        let mut config = client_config(&relay);
        config.links[0].relay_addrs = Some(vec![vec![evil]]);
        let client = Client::connect(config).await.unwrap();
        strikes.store(true, Ordering::Relaxed);
        relay.vanish();
        let relay = RunningRelay::start(RelayOptions {
            listen: address,
            ..RelayOptions::default()
        });
        tokio::select! {
            reason = client.closed() => panic!("the client is over for good: {reason}"),
            () = async {
                while client.snapshot().sessions < 2 {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            } => {}
        }
        assert_eq!(client.snapshot().state, ClientState::Connected);
        client.close().await;
        relay.stop();
    });
}

#[test]
fn a_forged_refusal_on_one_link_costs_that_link() {
    restart_beside(unauthorised);
    restart_beside(revoked);
}

#[test]
fn forged_handshakes_on_one_link_cost_that_link() {
    restart_beside(no_frame);
    restart_beside(no_tls);
}

#[test]
fn a_forged_version_on_one_link_costs_that_link() {
    restart_beside(other_versions);
}

#[test]
fn a_forged_retry_on_one_link_costs_that_link() {
    restart_beside(long_retry);
}

/// Whoever redirects a link to a relay of their own, or lets nothing through once TLS is done,
/// needs to forge nothing.
#[test]
fn another_relay_behind_one_link_costs_that_link() {
    run(async {
        let relay = RunningRelay::start(RelayOptions::default());
        let other = RunningRelay::start(RelayOptions {
            identity: [7; 32],
            ..RelayOptions::default()
        });
        let mut config = client_config(&relay);
        config.links[0].relay_addrs = Some(vec![vec![other.address]]);
        let client = Client::connect(config).await.unwrap();
        assert_eq!(client.snapshot().state, ClientState::Connected);
        client.close().await;
        relay.stop();
        other.stop();
    });
}

#[test]
fn a_link_that_goes_silent_once_keys_are_agreed_costs_that_link() {
    run(async {
        let relay = RunningRelay::start(RelayOptions::default());
        let way = half_way(relay.address);
        let mut config = client_config(&relay);
        config.links[0].relay_addrs = Some(vec![vec![way]]);
        let began = std::time::Instant::now();
        let client = Client::connect(config).await.unwrap();
        // Less than a handshake's time-out, far more than the other link needs.
        let took = began.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
        client.close().await;
        relay.stop();
    });
}

/// Lets long headers through to the relay and back, and nothing else.
fn half_way(relay: SocketAddr) -> SocketAddr {
    let socket = StdUdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 65_536];
        let mut client = None;
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let to = if from == relay { client } else { Some(relay) };
            if from != relay {
                client = Some(from);
            }
            if let (Some(to), true) = (to, buffer[0] & 0x80 != 0) {
                let _ = socket.send_to(&buffer[..len], to);
            }
        }
    });
    address
}
