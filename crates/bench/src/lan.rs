//! `cargo xtask bench lan`: a household behind `tabane up --lan`.
//!
//! Owns what is asked of it: 50 hosts with 20 TCP connections each, all open at once, each with a
//! whole answer; how many are refused or cut, and what the daemon costs in memory. Hosts are
//! addresses of one namespace behind the machine; the links and the relay are the lab's.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::net::{AddressFamily, SocketType, bind, connect, listen, socket};
use tabane_lab::{host_name, load_scenarios};
use tabane_linux::netns::Netns;

use super::bond::Bond;
use super::options::Options;
use super::process::{Running, ip};
use super::stage::Stage;

const HOSTS: u8 = 50;
const FLOWS: usize = 20;
/// What each connection fetches, in bytes.
const ANSWER: usize = 64 * 1024;
const PORT: u16 = 7_510;
/// The interface that the hosts are behind, on the machine.
const INTERFACE: &str = "lan0";
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 72, 0, 1);
/// Nothing may take longer, on whatever machine.
const PATIENCE: Duration = Duration::from_secs(60);
const START_WITHIN: Duration = Duration::from_secs(20);
/// What the daemon says once it has a session. Before that, the hosts' connections go plainly.
const CARRIES: &str = "the relay answers: new connections";

/// Measures and prints; `false` where a connection was refused or cut.
pub(super) fn run(root: &Path, binary: &Path, options: &Options) -> Result<bool> {
    let mut scenarios = load_scenarios(&root.join("scenarios/twin.toml"), &[])?;
    let scenario = scenarios.pop().context("scenarios/twin.toml is empty")?;
    let stage = Stage::up(&scenario)?;
    let bond = Bond::up(&stage, binary, options.congestion.as_deref())?;
    let hosts = Hosts::behind(stage.client())?;
    let service = SocketAddrV4::new(stage.service(), PORT);
    serve(stage.server(), service)?;
    let mut up = bond.up_command(&stage);
    up.args(["up", "--all", "--no-ping", "--lan", INTERFACE]);
    let mut up = Running::start("tabane up", &mut up)?;
    up.wait_for_line(CARRIES, START_WITHIN)?;
    let before = up.memory_kb()?;
    let begin = Instant::now();
    let (opened_s, outcomes) = hosts.fetch(service)?;
    let took = begin.elapsed().as_secs_f64();
    let peak = up.peak_memory_kb()?;

    let whole = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    let all = usize::from(HOSTS) * FLOWS;
    let mbps = (whole * ANSWER * 8) as f64 / took / 1e6;
    println!("connections         {all}, from {HOSTS} hosts, all open at once");
    println!("refused or cut      {} (promised: none)", all - whole);
    if let Some(Err(why)) = outcomes.iter().find(|outcome| outcome.is_err()) {
        println!("                    the first: {why}");
    }
    println!("all open after      {opened_s:.2} s");
    println!("all answered after  {took:.2} s ({mbps:.1} Mbit/s)");
    println!(
        "memory              {:.1} MB before, {:.1} MB at most: {:.1} kB a connection",
        before / 1e3,
        peak / 1e3,
        (peak - before) / all as f64
    );
    Ok(whole == all)
}

/// The hosts, with as many addresses.
struct Hosts {
    netns: Netns,
    name: String,
}

impl Hosts {
    fn behind(machine: &Netns) -> Result<Self> {
        let name = host_name("lan");
        let netns = Netns::create(&name)?;
        let hosts = Self { netns, name };
        let (machine_name, own) = (machine.name(), &hosts.name);
        ip(&format!(
            "-n {machine_name} link add {INTERFACE} type veth peer name eth0 netns {own}"
        ))?;
        ip(&format!(
            "-n {machine_name} addr add {ROUTER}/16 dev {INTERFACE}"
        ))?;
        ip(&format!("-n {machine_name} link set {INTERFACE} up"))?;
        ip(&format!("-n {own} link set eth0 up"))?;
        for host in 0..HOSTS {
            ip(&format!("-n {own} addr add {}/16 dev eth0", address(host)))?;
        }
        ip(&format!("-n {own} route add default via {ROUTER}"))?;
        let path = "/proc/sys/net/ipv4/ip_forward";
        machine.run(|| std::fs::write(path, "1"))?.context(path)?;
        Ok(hosts)
    }

    /// Opens all connections, then has all answered; when all were open, and what became of each.
    fn fetch(&self, service: SocketAddrV4) -> Result<(f64, Vec<Result<(), String>>)> {
        let all_open = Barrier::new(usize::from(HOSTS) + 1);
        let begin = Instant::now();
        std::thread::scope(|scope| {
            let host = |host: u8| {
                let all_open = &all_open;
                scope.spawn(move || -> Result<Vec<Result<(), String>>> {
                    self.netns.enter()?;
                    let open = || open(address(host), service).map_err(|e| format!("{e:#}"));
                    let opened: Vec<_> = (0..FLOWS).map(|_| open()).collect();
                    all_open.wait();
                    // All ask before any waits: the answers come side by side.
                    let ask = |mut tcp: TcpStream| tcp.write_all(b"?").map(|()| tcp);
                    let asked = opened
                        .into_iter()
                        .map(|tcp| ask(tcp?).map_err(|e| e.to_string()));
                    let asked: Vec<_> = asked.collect();
                    Ok(asked.into_iter().map(|tcp| answered(tcp?)).collect())
                })
            };
            let hosts: Vec<_> = (0..HOSTS).map(host).collect();
            all_open.wait();
            let opened_s = begin.elapsed().as_secs_f64();
            let mut outcomes = Vec::new();
            for host in hosts {
                let host = host.join().ok().context("a host's thread broke")?;
                outcomes.extend(host?);
            }
            Ok((opened_s, outcomes))
        })
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // The interface goes with it.
        let _ = Netns::remove(&self.name);
    }
}

fn address(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 72, 1, host + 1)
}

/// A connection from one of the hosts.
fn open(from: Ipv4Addr, to: SocketAddrV4) -> Result<TcpStream> {
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&fd, &SocketAddrV4::new(from, 0))?;
    connect(&fd, &to).context("not connected")?;
    let tcp = TcpStream::from(fd);
    tcp.set_read_timeout(Some(PATIENCE))?;
    Ok(tcp)
}

fn answered(mut tcp: TcpStream) -> Result<(), String> {
    let mut answer = Vec::new();
    let read = tcp.read_to_end(&mut answer);
    read.map_err(|error| error.to_string())?;
    match answer.len() {
        ANSWER => Ok(()),
        length => Err(format!("{length} bytes of {ANSWER}")),
    }
}

/// Answers everybody who asks, for as long as the process lives.
fn serve(netns: &Netns, at: SocketAddrV4) -> Result<()> {
    let listener = netns.run(|| listen_at(at))??;
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let small = std::thread::Builder::new().stack_size(64 * 1024);
            let answer = move || {
                let mut question = [0];
                if stream.read_exact(&mut question).is_ok() {
                    // Who has gone is missed at its own end.
                    let _ = stream.write_all(&[5; ANSWER]);
                }
            };
            // Fails only beyond the machine's threads; the figures would show it.
            drop(small.spawn(answer));
        }
    });
    Ok(())
}

/// The standard library's queue of 128 is too short for all of them at once.
fn listen_at(at: SocketAddrV4) -> Result<TcpListener> {
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&fd, &at)?;
    listen(&fd, i32::from(HOSTS) * FLOWS as i32)?;
    Ok(TcpListener::from(fd))
}
