//! The world of a test: a network namespace, a cgroup with hooks on it, and where captured traffic
//! arrives.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use tabane_base::Prefix;
use tabane_linux::{
    capture::{Capture, CapturedCall, CapturedDatagram, CapturedFlow},
    cgroup::Cgroup,
    hooks::{HookConfig, Hooks, Original, Protocol},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::attached::attached;

/// Of requests that are let go on.
pub(super) const RELEASE_MARK: u32 = 0x7ac;

/// A test that takes longer hangs.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// A connection that has been told yes.
pub(super) struct Accepted {
    pub(super) stream: TcpStream,
    pub(super) original: Original,
}

pub(super) struct World {
    pub(super) capture: Capture,
    pub(super) hooks: Hooks,
    pub(super) cgroup: Cgroup,
    /// Who has asked while another was told yes.
    pub(super) waiting: RefCell<VecDeque<CapturedCall>>,
}

pub(super) fn config(port: u16) -> HookConfig {
    HookConfig {
        port,
        capture_tcp: true,
        capture_udp: true,
        capture_udp6: true,
        exclude: vec![
            Prefix {
                address: "203.0.113.0".parse().unwrap(),
                bits: 24,
            },
            Prefix {
                address: "2001:db8:bad::".parse().unwrap(),
                bits: 48,
            },
        ],
        bypass_mark: Some(0x7ab),
        leave_few_hops: true,
        open: true,
    }
}

/// Runs `test` in a fresh network namespace with hooks on a fresh cgroup.
pub(super) fn with_hooks<F: Future<Output = ()>>(test: impl FnOnce(World) -> F) {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: needs root");
        return;
    }
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
    ip(&["link", "set", "lo", "up"]);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut capture = Capture::open(None).unwrap();
        capture.listener.hold_requests(RELEASE_MARK).unwrap();
        assert!(capture.udp.has_v6());
        let cgroup = Cgroup::create().unwrap();
        let hooks = Hooks::attach(&cgroup, &config(capture.port)).unwrap();
        let world = World {
            capture,
            hooks,
            cgroup,
            waiting: RefCell::default(),
        };
        timeout(PATIENCE, test(world))
            .await
            .expect("the test hangs");
    });
}

impl World {
    /// Starts this binary as a program in the cgroup.
    pub(super) fn run(&self, role: &str) -> Child {
        let mut command = exe("client");
        command.env("TABANE_TEST_ROLE", role).stdout(Stdio::null());
        self.cgroup.place_child(&mut command).unwrap();
        command.spawn().unwrap()
    }

    /// Starts a program in the cgroup; `None` where it is not installed.
    pub(super) fn run_program(&self, program: &[&str]) -> Option<tokio::process::Child> {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).stdout(Stdio::piped());
        self.cgroup.place_child(&mut command).unwrap();
        match tokio::process::Command::from(command).spawn() {
            Ok(child) => Some(child),
            Err(error) => {
                println!("skipped {}: {error}", program[0]);
                None
            }
        }
    }

    /// The next program that asks.
    pub(super) async fn call(&self) -> CapturedCall {
        let waiting = self.waiting.borrow_mut().pop_front();
        match waiting {
            Some(call) => call,
            None => self.next_call().await,
        }
    }

    pub(super) async fn next_call(&self) -> CapturedCall {
        let flows = self.hooks.flows();
        self.capture.listener.accept(&flows).await.unwrap()
    }

    /// Tells the next program yes.
    pub(super) async fn accept(&self) -> Accepted {
        let CapturedCall { caller, original } = self.call().await;
        let accepting = caller.accept();
        tokio::pin!(accepting);
        let stream = loop {
            tokio::select! {
                stream = &mut accepting => break stream.expect("the program waits"),
                another = self.next_call() => self.waiting.borrow_mut().push_back(another),
            }
        };
        // As a plain one: its end is in order.
        let plain = std::net::TcpStream::from(stream.as_fd().try_clone_to_owned().unwrap());
        stream.finish();
        let stream = TcpStream::from_std(plain).unwrap();
        Accepted { stream, original }
    }

    /// Accepts a connection and sends back what comes in capitals.
    pub(super) async fn echo_one(&mut self) -> (SocketAddr, Protocol, bool) {
        let mut captured = self.accept().await;
        let local = as_v4(captured.stream.local_addr().unwrap());
        assert_eq!(self.hooks.original(local), Some(captured.original));
        let mut text = [0; 5];
        captured.stream.read_exact(&mut text).await.unwrap();
        text.make_ascii_uppercase();
        captured.stream.write_all(&text).await.unwrap();
        let original = captured.original;
        (original.dest, original.protocol, original.captured_dns)
    }

    /// Sends `count` datagrams back in capitals; returns their destinations, sorted.
    pub(super) async fn echo_datagrams(&mut self, count: usize) -> Vec<String> {
        let mut dests = Vec::new();
        self.echo(count, |original| dests.push(original.dest.to_string()))
            .await;
        dests.sort();
        dests
    }

    /// The next datagram.
    pub(super) async fn datagram(&mut self) -> (CapturedFlow, Original) {
        let flows = self.hooks.flows();
        let mut seen = None;
        while seen.is_none() {
            let see =
                |datagram: CapturedDatagram<'_>| seen = Some((datagram.flow, datagram.original));
            self.capture.udp.recv(&flows, see).await.unwrap();
        }
        seen.unwrap()
    }

    pub(super) fn assert_no_datagram(&mut self) {
        let mut seen = 0;
        let flows = self.hooks.flows();
        self.capture.udp.try_recv(&flows, |_| seen += 1).unwrap();
        assert_eq!(seen, 0, "datagrams were captured");
    }

    pub(super) async fn echo(&mut self, count: usize, see: impl FnMut(Original)) {
        self.answer(count, see, |payload| payload.make_ascii_uppercase())
            .await;
    }

    /// Sends `count` datagrams back as `change` leaves them.
    pub(super) async fn answer(
        &mut self,
        count: usize,
        mut see: impl FnMut(Original),
        change: impl Fn(&mut [u8]),
    ) {
        let sender = self.capture.udp.sender();
        let flows = self.hooks.flows();
        let mut answers = Vec::new();
        while answers.len() < count {
            let received = self.capture.udp.recv(&flows, |datagram| {
                assert_eq!(datagram.original.protocol, Protocol::Udp);
                see(datagram.original);
                change(datagram.payload);
                answers.push((datagram.flow, datagram.payload.to_vec()));
            });
            received.await.unwrap();
        }
        for (flow, answer) in answers {
            sender.writable(flow).await.unwrap();
            sender.try_send(flow, &answer, None).unwrap();
        }
    }
}

pub(super) async fn ended(client: &mut Child) -> ExitStatus {
    loop {
        if let Some(status) = client.try_wait().unwrap() {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub(super) async fn finish(client: &mut Child) {
    let status = ended(client).await;
    assert!(
        status.success(),
        "the client saw something else; its output is above"
    );
}

/// Links go with their descriptors, which another test's child may have until it executes, and
/// which the kernel's workers free soon after.
pub(super) async fn until_detached(cgroup: &Cgroup) {
    let detached = async {
        while attached(cgroup) > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, detached)
        .await
        .expect("the hooks outlive their holder");
}

pub(super) fn exe(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    command
}

pub(super) fn ip(arguments: &[&str]) {
    assert!(
        Command::new("ip")
            .args(arguments)
            .status()
            .unwrap()
            .success(),
        "ip {arguments:?}"
    );
}

pub(super) fn as_v4(address: SocketAddr) -> std::net::SocketAddrV4 {
    let SocketAddr::V4(v4) = address else {
        panic!("{address} is not IPv4")
    };
    v4
}
