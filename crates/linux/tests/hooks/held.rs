//! Programs that wait in `connect()`: what they see is the kernel's own doing.

use std::io::ErrorKind;
use std::process::Stdio;

use tabane_linux::{abortive::AbortiveStream, syn_hold::SynRefusal};
use tokio::io::AsyncReadExt;

use super::world::{Accepted, exe, finish, with_hooks};

#[test]
fn a_program_is_connected_when_it_is_told_so_and_not_before() {
    with_hooks(|world| async move {
        for role in ["waits-blocking", "waits-polling", "waits-polling-v6"] {
            let mut command = exe("client");
            command.env("TABANE_TEST_ROLE", role).stdout(Stdio::piped());
            world.cgroup.place_child(&mut command).unwrap();
            let mut client = tokio::process::Command::from(command).spawn().unwrap();
            let call = world.call().await;
            // It says so when it has found itself waiting.
            let mut said = String::new();
            let mut output = client.stdout.take().unwrap();
            while !said.contains("waiting") {
                let mut byte = [0];
                assert_eq!(output.read(&mut byte).await.unwrap(), 1, "{said}");
                said.push(byte[0].into());
            }
            let stream = tokio::select! {
                stream = call.caller.accept() => stream.unwrap(),
                _ = world.call() => panic!("only one asks"),
            };
            // In order: a reset might overtake the client.
            stream.finish();
            assert!(client.wait().await.unwrap().success(), "{role}");
        }
    });
}

#[test]
fn a_refusal_is_the_errno_of_a_plain_one() {
    with_hooks(|world| async move {
        for (why, kind) in [
            (SynRefusal::Refused, ErrorKind::ConnectionRefused),
            (
                SynRefusal::NetworkUnreachable,
                ErrorKind::NetworkUnreachable,
            ),
            (SynRefusal::HostUnreachable, ErrorKind::HostUnreachable),
        ] {
            for socket in ["tcp4", "tcp6", "tcp4-bound-early", "polling"] {
                let mut client = world.run(&format!("refused-{socket}-{kind:?}"));
                world.call().await.caller.refuse(why);
                // The kernel passes over ICMP errors that come while a system call has the
                // socket; then the program's next repetition is a new call.
                let told_again = async {
                    loop {
                        world.call().await.caller.refuse(why);
                    }
                };
                tokio::select! {
                    () = finish(&mut client) => {}
                    () = told_again => {}
                }
            }
        }
    });
}

#[test]
fn who_is_told_nothing_asks_again_until_its_own_patience_ends() {
    with_hooks(|world| async move {
        let mut client = world.run("times-out");
        let first = world.call().await;
        let from = first.caller.from;
        // Its repetition is no second call while the first is under way.
        let mut caller = first.caller;
        tokio::select! {
            () = caller.gone() => {}
            another = world.call() => panic!("{another:?}"),
        }
        assert_eq!(caller.from, from);
        finish(&mut client).await;

        // Forgotten, it is a new call.
        let mut client = world.run("asks-twice");
        drop(world.call().await);
        let Accepted { stream, .. } = world.accept().await;
        drop(stream);
        finish(&mut client).await;
    });
}

#[test]
fn a_thousand_calls_at_once_are_all_answered() {
    with_hooks(|world| async move {
        let mut client = world.run("crowd");
        let mut callers = Vec::new();
        while callers.len() < 1_000 {
            callers.push(world.call().await.caller);
        }
        let accepting = futures_util::future::join_all(callers.into_iter().map(|it| it.accept()));
        let streams = tokio::select! {
            streams = accepting => streams,
            another = world.call() => panic!("{another:?}"),
        };
        let streams = streams.into_iter().map(|it| it.expect("it waits"));
        streams.for_each(AbortiveStream::finish);
        finish(&mut client).await;
    });
}
