//! What a command of an ordinary user meets beside its sockets: itself, its files, its terminal's
//! signals, pings, resolvers on loopback; and what it gets on a system that lets it have nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;

use super::SEED;
use super::world::{TABANE, World, script};

/// As `nobody` of Debian.
const NOBODY: u32 = 65_534;

#[test]
fn an_ordinary_users_command_is_itself_and_reaches_what_it_would() {
    let Some(world) = World::new(SEED) else {
        return;
    };
    let output = |line: &str| {
        let mut command = world.ordinary_user(&["run", "--", "sh", "-c", line]);
        command.output().unwrap()
    };
    assert_eq!(output("exit 7").status.code(), Some(7));
    assert_eq!(output("kill -TERM $$").status.signal(), Some(15));
    let touched = output("echo $PPID >$HOME/touched; id -u; cat; echo oops >&2");
    let said = String::from_utf8_lossy(&touched.stdout);
    assert_eq!(said.trim(), NOBODY.to_string(), "{touched:?}");
    assert_eq!(String::from_utf8_lossy(&touched.stderr), "oops\n");
    let file = fs::metadata(world.home().join("touched")).unwrap();
    assert_eq!((file.uid(), file.gid()), (NOBODY, NOBODY));
    // Not even in a network of its own.
    assert!(!output("ip link set lo down").status.success());
    let mut reaching = world.ordinary_user(&["run", "--", "python3"]);
    let reached = reaching.arg(script("reach.py")).output().unwrap();
    let said = String::from_utf8_lossy(&reached.stdout);
    let all = [
        "ping 203.0.113.2",
        "ping 2001:db8:ffff::2",
        "resolver 127.0.0.53",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), all, "{reached:?}");
}

#[test]
fn within_the_network_of_a_run_another_goes_by_it() {
    let Some(world) = World::new(SEED) else {
        return;
    };
    let mut command = world.ordinary_user(&["run", "--", TABANE, "run", "--", TABANE, "run"]);
    let output = command.args(["--", "sh", "-c", "id -u; exit 7"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(output.stdout, b"65534\n", "{output:?}");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(told.lines().count(), 2, "{told}");
    assert!(told.contains("the network of another tabane run"), "{told}");
}

#[test]
fn where_no_network_can_be_had_there_is_a_proxy_and_a_line_that_says_why() {
    let Some(world) = World::new(SEED) else {
        return;
    };
    let mut command = world.ordinary_user(&["run", "--", "sh", "-c", "echo $ALL_PROXY; exit 3"]);
    let output = command.env("TUN", "/dev/null").output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.starts_with("socks5"), "{output:?}");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(told.contains("only programs that know proxies"), "{told}");
    assert!(told.contains("TUN device"), "{told}");
}

#[test]
fn that_ssh_will_refuse_root_s_settings_is_said_with_what_helps() {
    let Some(world) = World::new(SEED) else {
        return;
    };
    let show = |flags: &[&str]| {
        let mut ssh = world.ordinary_user(&["run", "--", "ssh"]);
        ssh.args(flags).args(["-G", "203.0.113.2"]);
        // What belongs to nobody would be nobody's own.
        ssh.env("ROOTS", "/etc/ssh/ssh_config.d")
            .env("WHO", "daemon");
        ssh.output().unwrap()
    };
    let refused = show(&[]);
    assert_eq!(refused.status.code(), Some(255), "{refused:?}");
    let told = String::from_utf8_lossy(&refused.stderr);
    let first = told.lines().next().unwrap();
    assert!(first.contains("ssh -F none"), "{told}");
    assert!(told.contains("Bad owner or permissions"), "{told}");
    let helped = show(&["-F", "none"]);
    assert!(helped.status.success(), "{helped:?}");
    let told = String::from_utf8_lossy(&helped.stderr);
    assert!(!told.contains("tabane: "), "{told}");
}
