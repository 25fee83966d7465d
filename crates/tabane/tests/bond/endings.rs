//! Who is killed in the middle of a transfer ends it by a reset: nobody takes a part for the whole.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::lan::Host;
use crate::rules::write;
use crate::running::Running;
use crate::up::{LOST, UP, Up};
use crate::world::{World, first_line};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bond/endings.py");
const WAYS: [&str; 2] = ["download", "upload"];
/// More than any of them takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);

/// One end, and what it says.
struct End {
    child: Child,
    lines: Receiver<String>,
}

impl End {
    fn start(mut command: Command, arguments: &[&str]) -> Self {
        let command = command.arg(SCRIPT).args(arguments);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (tell, lines) = channel();
        let output: BufReader<ChildStdout> = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            // Ends with the child, or with who listens.
            for line in output.lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    fn server(world: &World) -> Self {
        let server = Self::start(world.in_servers("python3"), &["serve"]);
        server.says("ready");
        server
    }

    fn says(&self, wanted: &str) {
        assert_eq!(self.lines.recv_timeout(PATIENCE).as_deref(), Ok(wanted));
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_client_that_is_killed_resets_its_programs() {
    let Some(world) = World::new(&[]) else { return };
    let host = Host::new(&world);
    world.join();
    // The relay waits for a client that is silent, and the servers with it.
    let _server = End::server(&world);
    for way in WAYS {
        let mut up = Up::start(&world, &["--lan", "c9"]);
        up.wait_until(UP);
        let here = End::start(world.in_client("python3"), &[way]);
        let behind = End::start(host.command("python3"), &[way]);
        here.says("under way");
        behind.says("under way");
        up.kill();
        here.says("program ended by a reset");
        behind.says("program ended by a reset");
    }
}

#[test]
fn a_proxy_that_is_killed_resets_its_programs() {
    const PORT: &str = "1080";
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let _server = End::server(&world);
    for way in WAYS {
        let mut command = world.tabane(&["proxy", "--listen", &format!("127.0.0.1:{PORT}")]);
        let mut proxy = Running(command.stdout(Stdio::piped()).spawn().unwrap());
        first_line(&mut proxy.0);
        let program = End::start(world.in_client("python3"), &[way, PORT]);
        program.says("under way");
        proxy.kill();
        program.says("program ended by a reset");
    }
}

#[test]
fn what_goes_without_the_relay_ends_so_at_both_ends() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    write(
        &world,
        "[[rule]]\nname = 'near'\nport = 7001\ndirect = true\n",
    );
    let server = End::server(&world);
    for way in WAYS {
        let mut up = Up::start(&world, &[]);
        up.wait_until(UP);
        let program = End::start(world.in_client("python3"), &[way]);
        program.says("under way");
        up.kill();
        program.says("program ended by a reset");
        server.says("server ended by a reset");
    }
}

#[test]
fn a_relay_that_is_killed_resets_servers_and_programs() {
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    world.join();
    world.stop_relay();
    let server = End::server(&world);
    for way in WAYS {
        let mut relay = Running(world.spawn_relay(&[]));
        let up = Up::start(&world, &[]);
        up.wait_until(UP);
        let program = End::start(world.in_client("python3"), &[way]);
        program.says("under way");
        relay.kill();
        server.says("server ended by a reset");
        up.wait_until(LOST);
        // The next one knows nothing of it.
        let _relay = Running(world.spawn_relay(&[]));
        program.says("program ended by a reset");
    }
}
