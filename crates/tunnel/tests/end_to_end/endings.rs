//! How carried connections end: what a program or a server learns of the other's end, and when.

use std::io::ErrorKind;

use tabane_base::{Bytes, Seed};
use tabane_tunnel::{Ending, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::task::spawn_local;

use super::world::{carry, listener, pair, run, world};

/// Waits for the reset that makes the next write fail.
async fn until_reset(tcp: &TcpStream) {
    tcp.ready(Interest::ERROR).await.unwrap();
}

/// Plainly: the server's kernel answers the first write by a reset, and the second fails.
#[test]
fn the_second_write_to_a_server_that_has_closed_fails() {
    run(async {
        let (relay, client) = world().await;
        let (server, address) = listener().await;
        spawn_local(async move {
            let (mut tcp, _) = server.accept().await.unwrap();
            tcp.read_exact(&mut [0; 1]).await.unwrap();
        });
        let (mut program, carried) = pair().await;
        let carrying = spawn_local(carry(&client, carried, Target::Address(address)));
        program.write_all(b"1").await.unwrap();
        assert_eq!(program.read(&mut [0; 1]).await.unwrap(), 0);
        program.write_all(b"2").await.unwrap();
        until_reset(&program).await;
        let failed = program.write_all(b"3").await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::BrokenPipe);
        assert_eq!(carrying.await.unwrap().unwrap().ending, Ending::ResetThere);
        client.close().await;
        relay.stop();
    });
}

/// The same towards a server that goes on writing to a program that has closed.
#[test]
fn the_second_write_to_a_program_that_has_closed_fails() {
    run(async {
        let (relay, client) = world().await;
        let (server, address) = listener().await;
        let (mut program, carried) = pair().await;
        let carrying = spawn_local(carry(&client, carried, Target::Address(address)));
        program.write_all(b"1").await.unwrap();
        drop(program);
        let (mut tcp, _) = server.accept().await.unwrap();
        let mut heard = Vec::new();
        tcp.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, b"1");
        tcp.write_all(b"2").await.unwrap();
        until_reset(&tcp).await;
        let failed = tcp.write_all(b"3").await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::BrokenPipe);
        assert_eq!(carrying.await.unwrap().unwrap().ending, Ending::ResetHere);
        client.close().await;
        relay.stop();
    });
}

/// Who has said all and is then reset is noticed although nobody writes to it.
#[test]
fn a_reset_after_a_half_close_passes_through_in_silence() {
    run(async {
        let (relay, client) = world().await;
        let (server, address) = listener().await;
        let (mut program, carried) = pair().await;
        spawn_local(carry(&client, carried, Target::Address(address)));
        program.write_all(b"1").await.unwrap();
        program.shutdown().await.unwrap();
        let (mut tcp, _) = server.accept().await.unwrap();
        tcp.read_to_end(&mut Vec::new()).await.unwrap();
        program.set_zero_linger().unwrap();
        drop(program);
        until_reset(&tcp).await;
        client.close().await;
        relay.stop();
    });
}

/// What waits in the kernel when a connection has ended in order is not thrown away with it.
#[test]
fn an_orderly_end_loses_nothing_however_late_it_is_read() {
    const ROUNDS: u64 = 60;
    run(async {
        let (relay, client) = world().await;
        let (server, address) = listener().await;
        let mut rng = Seed(15).rng("sizes");
        for round in 0..ROUNDS {
            let is_late = round % 2 == 0;
            // What is read late must find room on its way.
            let [up, down] = [false, is_late].map(|is_small| {
                let bits = if is_small { 15 } else { 21 };
                let bits = rng.below(bits + 1);
                1 + rng.below(1 << bits) as usize
            });
            let (program, carried) = pair().await;
            let carrying = spawn_local(carry(&client, carried, Target::Address(address)));
            let (mut hears, mut says) = program.into_split();
            spawn_local(async move {
                says.write_all(&pattern(up)).await.unwrap();
                says.shutdown().await.unwrap();
            });
            let served = spawn_local(answer(server.accept().await.unwrap().0, down));
            if is_late {
                assert!(served.await.unwrap() == pattern(up), "{round}: {up} up");
                let carried = carrying.await.unwrap().unwrap();
                assert_eq!(carried.ending, Ending::Finished);
                assert_eq!(carried.received, Bytes::from(down));
            }
            let mut heard = Vec::new();
            hears.read_to_end(&mut heard).await.unwrap();
            assert!(heard == pattern(down), "{round}: {down} down");
        }
        client.close().await;
        relay.stop();
    });
}

/// Says all, hears all and closes.
async fn answer(tcp: TcpStream, size: usize) -> Vec<u8> {
    let (mut hears, mut says) = tcp.into_split();
    let mut heard = Vec::new();
    let pattern = pattern(size);
    let (said, read) = tokio::join!(says.write_all(&pattern), hears.read_to_end(&mut heard));
    said.unwrap();
    read.unwrap();
    heard
}

fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|i| (i % 251) as u8).collect()
}
