//! `tabane sctp` over IPv6: alone, beside IPv4 in one association, and where it cannot be.

use std::process::Stdio;

use tabane_linux::netns::Netns;

use super::{World, await_that, carried, success};

/// The receiver, by its links' addresses of IPv6, and by the one that both links lead to.
const BOTH: &str = "fd77:0:0:1::1,[fd77:0:0:2::1]:9899";
const ONE: &str = "fd78::1";
/// Each link's, of another family.
const MIXED: &str = "10.77.1.1,fd77:0:0:2::1";
/// The same, with an address of IPv4 that is none of a private network.
const GLOBAL: &str = "198.51.100.1,fd77:0:0:2::1";

impl World {
    fn ip(&self, host: &Netns, arguments: &str) {
        let mut ip = host.command("ip");
        let done = ip.args(arguments.split(' ')).stdin(Stdio::null()).status();
        assert!(done.unwrap().success(), "ip {arguments}");
    }

    /// Takes a family of addresses from a link of the sender's.
    fn take(&self, family: &str, link: &str) {
        self.ip(
            self.lab.client(),
            &format!("-{family} addr flush dev {link}"),
        );
    }

    /// The first link has IPv4 alone, the second one IPv6.
    fn mix(&self) {
        self.take("6", "link1");
        self.take("4", "link2");
        for (host, last) in [(self.lab.client(), 2), (self.lab.server(), 1)] {
            self.ip(host, &format!("addr add 198.51.100.{last}/24 dev link1"));
        }
    }
}

#[test]
fn links_without_ipv4_carry() {
    let Some(world) = World::new() else { return };
    for link in ["link1", "link2"] {
        world.take("4", link);
    }
    let file = world.file(3_000_000);
    for (to, least) in [(BOTH, 400_000), (ONE, 400_000)] {
        let (sent, received) = world.transfer(to, &file, &[]);
        assert_eq!(sent["confirmed"], true);
        assert_eq!(received["bytes"], 3_000_000);
        for link in ["link1", "link2"] {
            assert!(carried(&sent, link) > least, "{to}: {sent}");
        }
        let paths = sent["paths"].as_array().unwrap();
        let is_v6 = |path: &serde_json::Value| path["remote"].as_str().unwrap().starts_with("[fd7");
        assert!(paths.len() >= 2 && paths.iter().all(is_v6), "{sent}");
    }
}

#[test]
fn one_association_has_paths_of_both_families() {
    let Some(world) = World::new() else { return };
    world.mix();
    let file = world.file(3_000_000);
    for to in [MIXED, GLOBAL] {
        let (sent, _) = world.transfer(to, &file, &[]);
        for link in ["link1", "link2"] {
            assert!(carried(&sent, link) > 400_000, "{to}: {sent}");
        }
    }
}

#[test]
fn a_link_that_is_cut_leaves_the_other_family() {
    let Some(world) = World::new() else { return };
    world.mix();
    let file = world.file(6_000_000);
    for (to, cut) in [(MIXED, 0), (GLOBAL, 1)] {
        let receiver = world.receive(&[]);
        let sender = world.sender(to, &[file.to_str().unwrap()]);
        world.await_bytes(1_000_000);
        world.lab.set_outage(cut, true);
        success(sender.wait_with_output().unwrap());
        let received = success(receiver.end());
        world.assert_same(&file);
        world.lab.set_outage(cut, false);
        let silence = received["longest_silence_ms"].as_u64().unwrap();
        assert!(silence < 5_000, "{to}: {received}");
        std::fs::remove_file(world.path("got")).unwrap();
    }
}

/// A link gets an address of IPv6 in the middle, which the receiver is told of.
#[test]
fn an_address_that_comes_is_used() {
    let Some(world) = World::new() else { return };
    world.take("6", "link1");
    for family in ["4", "6"] {
        world.take(family, "link2");
    }
    let file = world.file(8_000_000);
    let receiver = world.receive(&[]);
    let sender = world.sender(MIXED, &[file.to_str().unwrap()]);
    world.await_bytes(500_000);
    let address = "addr add fd77:0:0:2::2/64 dev link2 nodad";
    world.ip(world.lab.client(), address);
    let sent = success(sender.wait_with_output().unwrap());
    success(receiver.end());
    world.assert_same(&file);
    assert!(carried(&sent, "link2") > 100_000, "{sent}");
}

/// A link with both families loses one, and goes on with the other.
#[test]
fn an_address_that_goes_leaves_the_link_its_other_one() {
    let Some(world) = World::new() else { return };
    let file = world.file(6_000_000);
    let receiver = world.receive(&[]);
    let to = "10.77.1.1,fd77:0:0:1::1";
    let sender = world.sender(to, &["--link", "link1", file.to_str().unwrap()]);
    world.await_bytes(500_000);
    world.take("4", "link1");
    let sent = success(sender.wait_with_output().unwrap());
    success(receiver.end());
    world.assert_same(&file);
    assert!(carried(&sent, "link1") >= 6_000_000, "{sent}");
}

#[test]
fn a_receiver_that_is_not_ours_takes_it() {
    let Some(world) = World::new() else { return };
    let file = world.file(2_000_000);
    let start = super::foreign_receiver(&world);
    let flags = [file.to_str().unwrap(), "--port", "5555"];
    for to in [BOTH, MIXED] {
        let mut receiver = start(&["-1", "::"]);
        let sent = success(world.sender(to, &flags).wait_with_output().unwrap());
        assert!(receiver.wait().unwrap().success());
        world.assert_same(&file);
        assert_eq!(sent["confirmed"], false);
        for link in ["link1", "link2"] {
            assert!(carried(&sent, link) > 200_000, "{to}: {sent}");
        }
    }
}

#[test]
fn who_has_no_way_there_is_told_so() {
    let Some(world) = World::new() else { return };
    let file = world.file(1_000);
    let send = |to: &str, code: i32| {
        let sender = world.sender(to, &[file.to_str().unwrap(), "--timeout", "2"]);
        let output = sender.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = send("fe80::1%link1", 2);
    assert!(said.contains("means something on one link alone"), "{said}");
    let said = send(ONE, 1);
    assert!(
        said.contains("no SCTP answer from [fd78::1]:9899"),
        "{said}"
    );
    for link in ["link1", "link2"] {
        world.take("6", link);
    }
    await_that("the addresses go", || {
        let mut ip = world.lab.client().command("ip");
        let output = ip.args(["-6", "addr", "show", "dev", "link2"]).output();
        output.unwrap().stdout.is_empty()
    });
    let said = send(ONE, 1);
    assert!(said.contains("no link has an IPv6 address"), "{said}");
}
