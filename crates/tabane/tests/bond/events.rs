//! Who is told of what happens: commands and web hooks of the policy file.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::PATIENCE;
use crate::text;
use crate::world::{World, first_line, ip, wait_for};

/// A web hook that prints what it is told.
const HOOK: &str = "
import http.server
class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers['content-length']))
        self.send_response(204)
        self.end_headers()
        print(body.decode(), flush=True)
    def log_message(self, *arguments):
        pass
server = http.server.HTTPServer(('127.0.0.1', 8123), Hook)
print('ready', flush=True)
server.serve_forever()
";

/// What was told so far, as lines of JSON in the file `told`.
struct Told {
    seen: usize,
}

impl Told {
    /// Waits for the next thing that is told, whatever it is.
    fn next(&mut self, world: &World) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let told = fs::read_to_string(world.path("told")).unwrap_or_default();
            let whole = told.rsplit_once('\n').map_or("", |(whole, _)| whole);
            if let Some(line) = whole.lines().nth(self.seen) {
                self.seen += 1;
                return serde_json::from_str(line).unwrap();
            }
            assert!(Instant::now() < deadline, "nothing more than {told}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The next is this, of that link.
    fn expect(&mut self, world: &World, event: &str, link: &str) -> Value {
        let next = self.next(world);
        let found = (next["event"].as_str(), next["link"].as_str());
        assert_eq!(found, (Some(event), Some(link)), "{next}");
        next
    }

    fn wait_until(&mut self, world: &World, event: &str) {
        while self.next(world)["event"] != event {}
    }
}

fn write_policy(world: &World, policy: &str) {
    let settings = world.path(".config/tabane");
    fs::create_dir_all(&settings).unwrap();
    fs::write(settings.join("policy.toml"), policy).unwrap();
}

/// An entry that has everything told to the file `told`, where environment and input say the same.
fn teller(world: &World) -> String {
    let (script, told) = (world.path("tell"), world.path("told"));
    let lines = format!(
        "#!/bin/sh\njson=$(cat)\n\
         case $json in *\"\\\"event\\\":\\\"$TABANE_EVENT\\\"\"*) echo \"$json\" >> {};; esac\n",
        told.display()
    );
    fs::write(&script, lines).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    format!("[[on-event]]\nrun = {script:?}\n")
}

/// A command that runs until its input ends; what tabane says is kept for its end.
fn start(world: &World) -> Child {
    let mut command = world.tabane(&["run", "--", "sh", "-c", "echo up; cat"]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut child), "up");
    child
}

/// Has the command end, and gives what tabane said.
fn end(mut child: Child) -> String {
    drop(child.stdin.take());
    assert!(wait_for(&mut child, PATIENCE).success());
    let mut said = Vec::new();
    child.stderr.unwrap().read_to_end(&mut said).unwrap();
    text(&said)
}

#[test]
fn links_and_relays_that_go_and_return_are_told_to_a_command() {
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    world.join();
    let hanging = "[[on-event]]\nrun = [\"/bin/sleep\", \"1000\"]\n";
    write_policy(&world, &format!("{}{hanging}", teller(&world)));
    let child = start(&world);
    let mut told = Told { seen: 0 };
    let mut both = [(); 2].map(|()| told.next(&world)["link"].as_str().unwrap().to_owned());
    both.sort();
    assert_eq!(both, ["c1", "c2"]);

    let (router, client) = (world.relay_ns().to_owned(), world.client_ns().to_owned());
    ip(&format!("-n {router} link set r2 down"));
    let down = told.expect(&world, "link-down", "c2");
    let says = |key: &str| down[key].as_str().unwrap_or_default();
    assert!(!says("reason").is_empty(), "{down}");
    assert!(says("instance").starts_with("run"), "{down}");
    ip(&format!("-n {router} link set r2 up"));
    ip(&format!(
        "-n {client} route replace default via 10.71.2.2 dev c2 metric 2"
    ));
    told.expect(&world, "link-up", "c2");

    world.stop_relay();
    told.wait_until(&world, "relay-lost");
    world.start_relay(&[]);
    told.wait_until(&world, "relay-back");

    // What hangs has kept nobody, and ends with us, which is said.
    let began = Instant::now();
    let said = end(child);
    assert!(began.elapsed() < Duration::from_secs(10));
    let ended = "on-event: what is under way is ended with this process";
    assert!(said.contains(ended), "{said}");
}

#[test]
fn a_budget_is_told_to_a_web_hook_and_a_faulty_entry_says_its_line() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    // Less than the program reads: c2 is needed.
    world.limit_rates([40, 40]);
    let mut python = world.in_client("python3");
    let mut server = python
        .args(["-c", HOOK])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let entry = "[[on-event]]\nevent = [\"budget-low\", \"budget-spent\"]\n\
                 post = \"http://127.0.0.1:8123/hook\"\n\
                 [[link]]\nname = \"c2\"\nbudget = \"1MB/day\"\n";
    write_policy(&world, entry);
    let url = "http://203.0.113.2:8000/20000000";
    let fetched = world.run(&[], &format!("curl -sS -o /dev/null --limit-rate 6M {url}"));
    assert!(fetched.status.success(), "{fetched:?}");
    let mut events = Vec::new();
    // Tabane has waited for the hook before it ended.
    server.kill().unwrap();
    server.wait().unwrap();
    for line in lines {
        let told: Value = serde_json::from_str(&line.unwrap()).unwrap();
        assert_eq!(told["link"], "c2");
        assert_eq!(told["budget_bytes"], 1_000_000);
        events.push(told["event"].as_str().unwrap().to_owned());
    }
    assert_eq!(events.pop().as_deref(), Some("budget-spent"));
    assert!(
        events.iter().all(|event| event == "budget-low"),
        "{events:?}"
    );
    assert!(events.len() <= 1, "{events:?}");

    write_policy(
        &world,
        "[[on-event]]\nevent = \"link-dead\"\nrun = \"/bin/true\"\n",
    );
    let refused = world.run(&[], "true");
    assert!(!refused.status.success());
    let said = text(&refused.stderr);
    let wanted = "line 2: event = \"link-dead\": expected one of";
    assert!(said.contains(wanted), "{said}");
}
