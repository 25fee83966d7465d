//! `tabane service`, with a systemctl that only says what it is told; and what its units let the
//! program do.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use crate::process::UP;
use crate::up::{Up, is_plain, peer};
use crate::world::{TABANE, World};
use crate::{complaint, status, text};

const PEER: &str = "http://203.0.113.2:8000/peer";

/// Says what systemd's does of a service that does not start.
const SYSTEMCTL: &str = "#!/bin/sh
case \"$*\" in
    *--quiet*) ;;
    enable*) echo 'Created symlink a -> b.' >&2 ;;
esac
case \"$*\" in
    start* | enable*--now*)
        echo 'Job for tabane-relay.service failed because of a reason.' >&2
        echo 'See \"journalctl -xeu tabane-relay.service\" for details.' >&2
        exit 1 ;;
esac
";

/// `tabane service install ARGUMENTS` of the program as `place/tabane`, on a machine that was
/// booted by systemd and has `settings`; what is installed then comes on stdout.
fn install(world: &World, place: &str, settings: &str, arguments: &str) -> Output {
    let systemctl = world.path("systemctl");
    fs::write(&systemctl, SYSTEMCTL).unwrap();
    fs::set_permissions(&systemctl, fs::Permissions::from_mode(0o755)).unwrap();
    let line = format!(
        "mount -t tmpfs none /mnt && touch /mnt/tabane && mount --bind \"$0\" /mnt/tabane &&
         if [ {place} != /mnt ]; then
             mount -t tmpfs none {place} && touch {place}/tabane &&
                 mount --bind /mnt/tabane {place}/tabane
         fi &&
         mount -t tmpfs none /etc && mkdir -p /etc/tabane /etc/systemd/system &&
         mount -t tmpfs none /run && mkdir -p /run/systemd/system || exit 9
         printf '{settings}' >/etc/tabane/config.toml
         PATH={}:$PATH {place}/tabane service install {arguments}
         status=$?
         cat /etc/systemd/system/*.service 2>/dev/null
         exit $status",
        world.path("").display()
    );
    let mut command = world.in_client("unshare");
    command.args(["--mount", "sh", "-c", &line, TABANE]);
    command.output().unwrap()
}

#[test]
fn a_service_that_does_not_start_says_why_and_is_not_installed() {
    let Some(world) = World::new(&[]) else { return };
    let refused = install(&world, "/mnt", "", "relay");
    assert_eq!(status(&refused), Some(1), "{refused:?}");
    let said = complaint(&refused);
    assert!(said.contains("because of a reason"), "{said}");
    assert!(
        said.contains("journalctl -u tabane-relay.service"),
        "{said}"
    );
    assert_eq!(text(&refused.stdout), "");
}

#[test]
fn a_program_that_systemd_would_not_find_is_not_installed() {
    let Some(world) = World::new(&[]) else { return };
    let refused = install(&world, "/root", "", "relay");
    assert_eq!(status(&refused), Some(2), "{refused:?}");
    let said = complaint(&refused);
    assert!(said.contains("/root/tabane"), "{said}");
    assert!(said.contains("/usr/local/bin"), "{said}");
    assert_eq!(text(&refused.stdout), "");
}

#[test]
fn the_relay_s_service_has_the_pool_of_the_settings() {
    let Some(world) = World::new(&[]) else { return };
    let settings = r#"relay_pool = ["100.64.16.0/20", "fd00:1::/64"]"#;
    let exec = |arguments: &str| {
        let shown = install(
            &world,
            "/mnt",
            settings,
            &format!("relay --print {arguments}"),
        );
        let shown = text(&shown.stdout);
        let line = shown.lines().find(|line| line.starts_with("ExecStart="));
        let (_, flags) = line.unwrap().split_once("/var/lib/tabane").unwrap();
        assert_eq!(
            shown.contains("/dev/net/tun"),
            flags.contains("--pool"),
            "{shown}"
        );
        flags.to_owned()
    };
    assert_eq!(exec(""), " --pool 100.64.16.0/20 --pool fd00:1::/64");
    assert_eq!(exec("-- --pool=10.9.0.0/16"), " --pool=10.9.0.0/16");
    assert_eq!(exec("-- --peer"), " --peer");
}

/// `tabane up` with the rights of its unit and `fewer`, and a rule for curl.
fn up_with_rights<'a>(world: &'a World, fewer: &str) -> Up<'a> {
    world.join();
    let rule = "[[rule]]\nname = 'curl'\nprocess = 'curl'\ndirect = true\n";
    fs::write(world.path(".config/tabane/policy.toml"), rule).unwrap();
    let mut unit = Command::new(TABANE);
    let unit = unit.args(["service", "install", "up", "--print"]).output();
    let unit = text(&unit.unwrap().stdout);
    let rights = unit
        .lines()
        .find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let rights = rights.unwrap().to_lowercase().replace("cap_", "+");
    // Mounted where systemd runs; this root may not.
    let line = format!(
        "mount -t cgroup2 none /sys/fs/cgroup &&
         exec setpriv --bounding-set -all,{}{fewer} --inh-caps=-all \"$0\" \"$@\"",
        rights.replace(' ', ",")
    );
    let mut up = world.in_client("unshare");
    up.args(["--mount", "sh", "-c", &line, TABANE]);
    let up = Up::start_by(world, up, &[]);
    up.wait_until(UP);
    up
}

#[test]
fn a_rule_for_a_program_holds_with_the_service_s_rights() {
    let Some(world) = World::new(&[]) else { return };
    let _up = up_with_rights(&world, "");
    assert!(is_plain(&peer(&world, PEER)));
}

#[test]
fn that_programs_cannot_be_told_is_said_once() {
    let Some(world) = World::new(&[]) else { return };
    let _up = up_with_rights(&world, ",-sys_ptrace");
    for _ in 0..2 {
        assert!(!is_plain(&peer(&world, PEER)));
    }
    let log = fs::read_to_string(world.path("up.log")).unwrap();
    assert_eq!(log.matches("CAP_SYS_PTRACE").count(), 1, "{log}");
}
