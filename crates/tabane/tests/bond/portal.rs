//! A link behind a login page (a captive portal): named as such, with the page; logged in at by a
//! command over that link alone, while the other link carries on.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::control::{link, state};
use crate::process::PATIENCE;
use crate::running::Running;
use crate::text;
use crate::up::Up;
use crate::world::{TABANE, World, first_line, wait_for};

/// Answers in the place of everybody; `200` for everything, or redirects to its page.
const PORTAL: &str = "
import http.server, sys
class Portal(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        is_page = sys.argv[1] == '200' or self.path == '/login'
        self.send_response(200 if is_page else 302)
        if not is_page:
            self.send_header('Location', 'http://10.71.2.2:8080/login')
        self.end_headers()
        self.wfile.write(b'please log in' if is_page else b'')
    def log_message(self, *arguments):
        pass
server = http.server.HTTPServer(('10.71.2.2', 8080), Portal)
print('ready', flush=True)
server.serve_forever()
";

/// What a portal does to everybody behind r2: web pages are its own, and nothing else passes.
const RULES: &str = "table ip portal { \
    chain pages { type nat hook prerouting priority -100; \
        iifname r2 tcp dport 80 dnat to 10.71.2.2:8080; }; \
    chain here { type filter hook input priority 0; \
        iifname r2 tcp dport 8080 accept; iifname r2 drop; }; \
    chain beyond { type filter hook forward priority 0; iifname r2 drop; }; }";

struct Portal {
    _server: Running,
}

impl Portal {
    /// `None` without nft.
    fn start(world: &World, manner: &str) -> Option<Self> {
        let made = world.in_relay("nft").arg(RULES).status();
        if !made.is_ok_and(|status| status.success()) {
            println!("skipped: no nft");
            return None;
        }
        let mut python = world.in_relay("python3");
        let _server = Running::ready(python.args(["-c", PORTAL, manner]));
        Some(Self { _server })
    }

    fn log_in(world: &World) {
        let mut nft = world.in_relay("nft");
        let gone = nft.args(["delete", "table", "ip", "portal"]).status();
        assert!(gone.unwrap().success());
    }
}

fn set_probe(world: &World) {
    let settings = world.path(".config/tabane");
    fs::create_dir_all(&settings).unwrap();
    // No host is needed there: whoever asks over c2 is answered by the portal.
    let probe = "portal_probe = \"http://203.0.113.2/generate_204\"\n";
    fs::write(settings.join("config.toml"), probe).unwrap();
}

/// Waits until the state of the link, as the command's tabane has it, is as wanted.
fn wait_until(world: &World, of: &Child, name: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
    wait_for_state(world, &format!("run-{}", of.id()), name, is_wanted)
}

fn wait_for_state(
    world: &World,
    instance: &str,
    name: &str,
    is_wanted: impl Fn(&Value) -> bool,
) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let state = state(world, instance);
        let found = link(&state, name);
        if is_wanted(found) {
            return found.clone();
        }
        assert!(Instant::now() < deadline, "{found}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn start(world: &World) -> Child {
    let mut command = world.tabane(&["run", "--", "sh", "-c", "echo up; cat"]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    assert_eq!(first_line(&mut child), "up");
    child
}

#[test]
fn a_login_page_is_named_and_opened_over_its_link_and_the_other_goes_on() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    set_probe(&world);
    let Some(_portal) = Portal::start(&world, "302") else {
        return;
    };
    let mut child = start(&world);
    let page = "http://10.71.2.2:8080/login";
    wait_until(&world, &child, "c2", |link| link["portal"] == page);
    let other = wait_until(&world, &child, "c1", |link| link["state"] == "active");
    assert!(other["portal"].is_null(), "{other}");
    let instance = format!("run-{}", child.id());
    for command in [&["status", "--instance", &instance][..], &["links"]] {
        // The link may be dialed at the moment: it is named again as soon as that has failed.
        let named = (0..200).any(|_| {
            let shown = world.tabane(command).output().unwrap();
            let text = text(&shown.stdout);
            text.contains("behind a login page") && text.contains(page)
        });
        assert!(named, "{command:?} names no login page");
    }
    // The other link goes on, by the relay and not.
    let url = "http://203.0.113.2:8000/1000";
    let fetched = world.run(&[], &format!("curl -sS --fail -o /dev/null {url}"));
    assert!(fetched.status.success(), "{fetched:?}");

    // Where the routing table would go by c1, past the portal, the command meets it.
    let curl = [
        "curl",
        "-sS",
        "-L",
        "--max-time",
        "10",
        "http://203.0.113.2/",
    ];
    let mut open = world.tabane(&["open", "c2", "--"]);
    let opened = open.args(curl).output().unwrap();
    assert_eq!(text(&opened.stdout), "please log in", "{opened:?}");
    // As an ordinary user, too.
    let mut nobody = world.in_client("setpriv");
    nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    let nobody = nobody.args([TABANE, "open", "c2", "--"]).args(curl);
    let opened = nobody.current_dir("/").output().unwrap();
    assert_eq!(text(&opened.stdout), "please log in", "{opened:?}");
    let mut open = world.tabane(&["open", "c9", "--", "true"]);
    let refused = open.output().unwrap();
    assert!(!refused.status.success());
    let said = text(&refused.stderr);
    assert!(
        said.contains("c9 is no link: there is no such interface"),
        "{said}"
    );

    Portal::log_in(&world);
    let active = wait_until(&world, &child, "c2", |link| link["state"] == "active");
    assert!(active["portal"].is_null(), "{active}");
    drop(child.stdin.take());
    assert!(wait_for(&mut child, PATIENCE).success());
}

#[test]
fn a_portal_that_says_200_to_everything_is_recognised() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    set_probe(&world);
    let Some(_portal) = Portal::start(&world, "200") else {
        return;
    };
    let mut child = start(&world);
    wait_until(&world, &child, "c2", |link| {
        link["portal"] == "http://203.0.113.2/generate_204"
    });
    drop(child.stdin.take());
    assert!(wait_for(&mut child, PATIENCE).success());
}

/// Says every moment that there is a portal.
const ROUTER: &str = "
import socket, struct, time
said = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
said.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'r2')
said.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
head = struct.pack('!BBHBBHII', 134, 0, 0, 64, 0, 0, 0, 0)
option = bytes([37, 4]) + b'https://portal.test/api'.ljust(30, bytes(1))
print('ready', flush=True)
while True:
    try:
        said.sendto(head + option, ('ff02::1', 0, 0, socket.if_nametoindex('r2')))
    except OSError:
        pass
    time.sleep(0.1)
";

#[test]
fn a_portal_that_answers_nothing_is_named_by_its_router() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    set_probe(&world);
    let nothing = "table ip portal { chain in { type filter hook prerouting priority -300; \
                   iifname r2 drop; }; }";
    let made = world.in_relay("nft").arg(nothing).status();
    if !made.is_ok_and(|status| status.success()) {
        println!("skipped: no nft");
        return;
    }
    let mut python = world.in_relay("python3");
    let _server = Running::ready(python.args(["-c", ROUTER]));
    let mut child = start(&world);
    wait_until(&world, &child, "c2", |link| {
        link["portal"] == "https://portal.test/api"
    });
    drop(child.stdin.take());
    assert!(wait_for(&mut child, PATIENCE).success());
}

/// Knows every name, as 10.71.2.2.
const RESOLVER: &str = "
import socket
asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asked.bind(('10.71.2.2', 53))
print('ready', flush=True)
while True:
    question, who = asked.recvfrom(512)
    end = question.index(bytes(1), 12) + 5
    is_v4 = question[end - 3] == 1
    answer = bytes([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 10, 71, 2, 2]) if is_v4 else b''
    head = question[:2] + bytes([0x81, 0x80, 0, 1, 0, len(answer) // 16, 0, 0, 0, 0])
    asked.sendto(head + question[12:end] + answer, who)
";

#[test]
fn a_portal_s_name_is_asked_of_the_link_s_own_resolver() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let Some(_portal) = Portal::start(&world, "200") else {
        return;
    };
    Portal::log_in(&world);
    let mut python = world.in_relay("python3");
    let _server = Running::ready(python.args(["-c", RESOLVER]));
    let bin = world.path("bin");
    fs::create_dir(&bin).unwrap();
    let script = "#!/bin/sh\n[ \"$*\" = 'dns c2' ] && echo 'Link 3 (c2): 10.71.2.2'\n";
    fs::write(bin.join("resolvectl"), script).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(bin.join("resolvectl"), executable).unwrap();
    let path = format!("{}:{}", bin.display(), env!("PATH"));
    // This host's resolvers are nobody here.
    let resolv = PathBuf::from("/etc/netns").join(world.client_ns());
    fs::create_dir_all(&resolv).unwrap();
    fs::write(resolv.join("resolv.conf"), "nameserver 192.0.2.53\n").unwrap();
    let page = "http://login.test:8080/";
    let mut open = world.tabane(&[
        "open",
        "c2",
        "--",
        "curl",
        "-sS",
        "-L",
        "--max-time",
        "20",
        page,
    ]);
    let opened = open.env("PATH", &path).output().unwrap();
    assert_eq!(text(&opened.stdout), "please log in", "{opened:?}");
}

#[test]
fn while_the_whole_machine_is_carried_a_command_meets_the_portal_all_the_same() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    set_probe(&world);
    let Some(_portal) = Portal::start(&world, "302") else {
        return;
    };
    let _up = Up::start(&world, &[]);
    // The relay is reached, by the other link.
    wait_for_state(&world, "up", "c1", |link| link["state"] == "active");
    wait_for_state(&world, "up", "c2", |link| link["portal"].is_string());
    let curl = [
        "curl",
        "-sS",
        "-L",
        "--max-time",
        "10",
        "http://203.0.113.2/",
    ];
    let mut root = world.tabane(&["open", "c2", "--"]);
    let mut nobody = world.in_client("setpriv");
    nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    nobody.args([TABANE, "open", "c2", "--"]).current_dir("/");
    for open in [&mut root, &mut nobody] {
        let opened = open.args(curl).output().unwrap();
        assert_eq!(text(&opened.stdout), "please log in", "{opened:?}");
    }
}
