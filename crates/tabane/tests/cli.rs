//! The command line as a user meets it: help, exit statuses, one-line errors, the files of join
//! and relay. Nothing here needs privilege or a network.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

const KEY: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE";
const TOKEN: &str = "ABCDEFGHIJKLMNOPQRSTUV";

struct Home(PathBuf);

impl Home {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tabane-cli-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn tabane(&self, arguments: &[&str]) -> Output {
        tabane(&self.0, arguments)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn tabane(home: &Path, arguments: &[&str]) -> Output {
    command(home, arguments).output().unwrap()
}

fn command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tabane"));
    command
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", home)
        .env("COLUMNS", "100");
    command
}

#[test]
fn a_trace_is_told_at_once_that_it_cannot_be_written() {
    let home = Home::new();
    let place = |name: &str| home.0.join(name).to_str().unwrap().to_owned();
    fs::write(home.0.join("file"), "").unwrap();
    for (output, why) in [
        (place(""), "is a directory"),
        (place("file/trace.qlog"), "cannot make the directory"),
    ] {
        let (_, line) = failure(&home.tabane(&["trace", "-o", &output]));
        assert!(line.contains(why), "{line}");
    }
    // What is not there yet is made; here nothing runs that could be recorded.
    failure(&home.tabane(&["trace", "-o", &place("new/er/trace.qlog")]));
    assert!(home.0.join("new/er").is_dir());
}

fn join_string() -> String {
    format!("tabane://192.0.2.1:4510?key={KEY}&token={TOKEN}")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The one line that a failure prints, and its status.
fn failure(output: &Output) -> (i32, String) {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "one line: {text:?}");
    assert!(text.starts_with("tabane: "), "{text}");
    assert!(output.stdout.is_empty());
    (output.status.code().unwrap(), text)
}

const COMMANDS: &[&str] = &[
    "",
    "relay",
    "relay user",
    "relay user set",
    "relay token",
    "relay token new",
    "relay clients",
    "gateway",
    "gateway status",
    "gateway top",
    "join",
    "leave",
    "relays",
    "relays prefer",
    "run",
    "open",
    "up",
    "down",
    "service",
    "service install",
    "service uninstall",
    "service status",
    "proxy",
    "expose",
    "expose list",
    "expose remove",
    "share",
    "share pair",
    "share status",
    "share revoke",
    "share list",
    "share forget",
    "get",
    "web",
    "web ca",
    "web ca create",
    "web ca show",
    "web ca remove",
    "status",
    "top",
    "dashboard",
    "trace",
    "doctor",
    "links",
    "speed",
    "peer",
    "peer add",
    "peer list",
    "peer remove",
    "policy",
    "policy set",
    "policy unset",
    "policy check",
    "policy explain",
    "demo",
    "sctp",
    "sctp send",
    "sctp recv",
    "sctp forward",
    "lab",
    "lab up",
    "lab run",
    "lab down",
    "lab list",
    "lab set",
    "sim",
    "sim run",
    "sim paper",
    "sim radio",
    "completion",
];

/// The help of every command is what users learn tabane from: a change shows in review. After a
/// change that is meant, run with TABANE_UPDATE_HELP=1 and look at the difference.
#[test]
fn help_is_as_reviewed() {
    let home = Home::new();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help");
    for &command in COMMANDS {
        let mut arguments: Vec<&str> = command.split_whitespace().collect();
        arguments.push("--help");
        let output = home.tabane(&arguments);
        assert!(output.status.success());
        let name = if command.is_empty() {
            "tabane"
        } else {
            command
        };
        let path = directory.join(name.replace(' ', "-") + ".txt");
        let text = stdout(&output);
        assert!(
            text.lines().all(|line| line.chars().count() <= 100),
            "{command}: too wide"
        );
        if std::env::var_os("TABANE_UPDATE_HELP").is_some() {
            fs::write(&path, text).unwrap();
        } else {
            let reviewed = fs::read_to_string(&path).unwrap_or_default();
            assert_eq!(
                text,
                reviewed,
                "`tabane {command} --help` and {}",
                path.display()
            );
        }
    }
}

#[test]
fn wrong_usage_is_status_2_and_one_line() {
    let home = Home::new();
    for arguments in [
        &["jion"][..],
        &["join"],
        &["join", "https://example.org"],
        &["join", "a", "b"],
        &["run"],
        &["run", "--scheduler", "fastest", "--", "true"],
        &["run", "--bogus", "true"],
        &["leave", "../x"],
        // A shell's variable that is not set.
        &["policy", "set", "", "--use", "never"],
        &["relay", "token", "revoke", ""],
        &["relay", "--listen", "nowhere"],
        &["relay", "token"],
        &["relay", "clients", "revoke", "short"],
        &["--log-format", "xml", "relays"],
        &["--log", "bogus", "relays"],
        &["--log", "tabane_core=loud", "relays"],
        &["--log", "", "relays"],
    ] {
        let output = home.tabane(arguments);
        if arguments == ["relay", "token"] {
            // A missing subcommand shows the whole help.
            assert_eq!(output.status.code(), Some(2));
            continue;
        }
        let (status, text) = failure(&output);
        assert_eq!(status, 2, "{arguments:?}: {text}");
    }
}

#[test]
fn a_log_that_is_set_for_other_programs_stops_nothing() {
    let home = Home::new();
    let config = home.0.join(".config/tabane");
    fs::create_dir_all(&config).unwrap();
    let asked = |variable: &str, arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tabane"));
        command.env_clear().env("HOME", &home.0).args(arguments);
        command.env("RUST_LOG", variable).output().unwrap()
    };
    for variable in [
        "mine",
        "mine=debug",
        "[span{x=1}]=trace",
        "",
        "info,mine=loud",
    ] {
        let output = asked(variable, &["relays"]);
        assert!(output.status.success(), "{variable}: {output:?}");
    }
    let (status, text) = failure(&asked("info", &["--log", "bogus", "relays"]));
    assert_eq!(status, 2);
    assert!(
        text.contains("'bogus'") && text.contains("warn, info, debug"),
        "{text}"
    );
}

#[test]
fn output_that_cannot_be_written_is_named() {
    let home = Home::new();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    for arguments in [
        &["relays", "--json"][..],
        &["--help"],
        &["help", "run"],
        &["--version"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tabane"));
        command.args(arguments).env("HOME", &home.0);
        let full = full.try_clone().unwrap();
        let (status, text) = failure(&command.stdout(full).output().unwrap());
        assert_eq!(status, 1, "{arguments:?}");
        assert!(text.contains("standard output: No space left"), "{text}");
    }
}

#[test]
fn version_names_the_protocol() {
    let home = Home::new();
    let text = stdout(&home.tabane(&["--version"]));
    assert!(
        text.starts_with("tabane ") && text.contains("(protocol "),
        "{text}"
    );
}

#[test]
fn join_relays_leave() {
    let home = Home::new();
    assert!(stdout(&home.tabane(&["relays"])).contains("tabane join"));
    let joined = home.tabane(&["join", &join_string()]);
    assert!(joined.status.success(), "{joined:?}");
    assert!(
        stdout(&joined).contains("joined relay 192.0.2.1"),
        "{joined:?}"
    );
    let by_input = |line: &str| {
        let file = home.0.join("line");
        fs::write(&file, line).unwrap();
        let mut command = command(&home.0, &["join", "-"]);
        let output = command.stdin(fs::File::open(&file).unwrap()).output();
        fs::remove_file(file).unwrap();
        output.unwrap()
    };
    let again = by_input(&format!("{}\n", join_string()));
    assert!(
        stdout(&again).contains("updated relay 192.0.2.1"),
        "{again:?}"
    );
    let (status, text) = failure(&by_input(""));
    assert!(status == 2 && text.contains("tabane://"), "{text}");
    let list = stdout(&home.tabane(&["relays", "--json"]));
    assert!(
        list.contains("\"192.0.2.1:4510\"") && list.contains(KEY),
        "{list}"
    );
    assert!(stdout(&home.tabane(&["join", &join_string()])).contains("updated"));
    let other = join_string()
        .replace("AQE&", "AgI&")
        .replace("key=AQ", "key=Bg");
    let (status, text) = failure(&home.tabane(&["join", &other]));
    assert!(status == 1 && text.contains("--name"), "{text}");
    let join = |arguments: &[&str]| {
        let joined = home.tabane(&[&["join", &other], arguments].concat());
        assert!(joined.status.success(), "{joined:?}");
        stdout(&joined)
    };
    assert!(join(&["--name", "two"]).contains("joined relay two"));
    assert!(home.tabane(&["leave", "two"]).status.success());
    // As the error of a session says that meets another key.
    assert!(join(&["--replace"]).contains("updated relay 192.0.2.1"));
    let list = stdout(&home.tabane(&["relays", "--json"]));
    assert!(!list.contains(KEY), "{list}");
    assert!(home.tabane(&["leave", "192.0.2.1"]).status.success());
    assert!(join(&["--name", "home"]).contains("joined relay home"));
    let again = home.tabane(&["join", "--replace", &join_string()]);
    assert!(stdout(&again).contains("updated relay home"), "{again:?}");
    assert!(join(&["--name", "two"]).contains("joined relay two"));
    assert!(stdout(&home.tabane(&["relays"])).contains("two"));
    assert!(home.tabane(&["leave", "two"]).status.success());
    let (status, text) = failure(&home.tabane(&["leave", "two"]));
    assert!(status == 1 && text.contains("tabane relays"), "{text}");
}

#[test]
fn a_join_string_cut_short_is_named_and_stores_nothing() {
    let home = Home::new();
    let whole = join_string();
    for length in [12, 25, 40, 80, whole.len() - 1] {
        let (status, text) = failure(&home.tabane(&["join", &whole[..length]]));
        assert_eq!(status, 2, "{text}");
    }
    assert_eq!(fs::read_dir(&home.0).unwrap().count(), 0);
}

#[test]
fn a_fault_in_the_settings_names_file_line_and_key() {
    let home = Home::new();
    let directory = home.0.join(".config/tabane");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("config.toml"), "\nlink = ['eth0']\n").unwrap();
    let (status, text) = failure(&home.tabane(&["relays"]));
    assert!(
        status == 1 && text.contains("config.toml:2:") && text.contains("`link`"),
        "{text}"
    );
}

#[test]
fn the_configuration_may_be_elsewhere() {
    let home = Home::new();
    let elsewhere = home.0.join("elsewhere");
    let config = elsewhere.to_str().unwrap();
    assert!(
        home.tabane(&["--config", config, "join", &join_string()])
            .status
            .success()
    );
    assert!(elsewhere.join("client.key").exists());
    assert!(stdout(&home.tabane(&["relays", "--config", config])).contains("192.0.2.1:4510"));
}

#[test]
fn relay_state_can_be_managed_offline() {
    let home = Home::new();
    let state = home.0.join("state");
    let state = state.to_str().unwrap();
    let (status, text) = failure(&home.tabane(&["relay", "token", "new", "--state", state]));
    assert!(
        status == 1 && text.contains("start `tabane relay` once"),
        "{text}"
    );
    assert!(stdout(&home.tabane(&["relay", "clients", "--state", state])).contains("no client"));
    assert!(stdout(&home.tabane(&["relay", "token", "list", "--state", state])).contains("no tok"));
    let revoke = ["relay", "clients", "revoke", KEY, "--state", state];
    assert_eq!(failure(&home.tabane(&revoke)).0, 1);
}

#[test]
fn commands_that_cannot_start_have_the_shells_status() {
    let home = Home::new();
    let (status, text) = failure(&home.tabane(&["run", "--", "no-such-command-here", "x"]));
    assert!(
        status == 127 && text.contains("no-such-command-here"),
        "{text}"
    );
    let (status, _) = failure(&home.tabane(&["run", "--", "/etc/passwd"]));
    assert_eq!(status, 126);
    let (status, _) = failure(&home.tabane(&["run", "/"]));
    assert_eq!(status, 126);
}

#[test]
fn without_a_relay_the_next_step_is_named() {
    let home = Home::new();
    let (status, text) = failure(&home.tabane(&["run", "true"]));
    assert!(status == 1 && text.contains("tabane join"), "{text}");
    let (status, text) = failure(&home.tabane(&["proxy"]));
    assert!(status == 1 && text.contains("tabane join"), "{text}");
}

#[test]
fn completion_scripts_name_the_commands() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&home.tabane(&["completion", shell]));
        for word in ["relays", "scheduler", "round-robin", "cubic"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn bash_completes_the_command_after_two_dashes() {
    let home = Home::new();
    let script = home.0.join("completion");
    fs::write(&script, stdout(&home.tabane(&["completion", "bash"]))).unwrap();
    let ask = "source $0; complete -p tabane | grep -o '_tabane[a-z_]*' > $0.by
               COMP_WORDS=(\"${@:2}\"); COMP_CWORD=$1; word=${COMP_WORDS[$1]}
               $(cat $0.by) \"${COMP_WORDS[0]}\" \"$word\" \"${COMP_WORDS[$1 - 1]}\"
               echo ${COMPREPLY[@]}";
    let completed = |line: &[&str]| {
        let mut bash = Command::new("bash");
        bash.args(["-c", ask]).arg(&script).env("HOME", &home.0);
        let last = (line.len() - 1).to_string();
        stdout(&bash.arg(last).args(line).output().unwrap())
    };
    let words = completed(&["tabane", "run", "--", "mkd"]);
    assert!(
        words.split_whitespace().any(|word| word == "mkdir"),
        "{words}"
    );
    let words = completed(&["tabane", "run", "--sta"]);
    assert_eq!(words.trim(), "--stats");
    let words = completed(&["tabane", "run", "--scheduler", "r"]);
    assert_eq!(words.trim(), "round-robin redundant");
    let words = completed(&["tabane", "run", "--congestion", "b"]);
    assert_eq!(words.trim(), "bbr");
    // What there is here.
    let tabane = env!("CARGO_BIN_EXE_tabane");
    let joined = home.tabane(&["join", &join_string(), "--name", "paris"]);
    assert!(joined.status.success(), "{joined:?}");
    for (line, expected) in [
        (&["run", "--link", "l"][..], "lo"),
        (&["up", "--relay", ""], "paris"),
        (&["leave", "p"], "paris"),
        (&["lab", "run", "rtt"], "rtt-skew"),
        (&["demo", "unequ"], "unequal"),
        (&["leave", "--lo"], "--log --log-format"),
    ] {
        let words = completed(&[&[tabane], line].concat());
        assert_eq!(words.trim(), expected, "{line:?}");
    }
}

#[test]
fn without_a_home_the_system_s_word_counts() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tabane"));
    let output = command.env_clear().arg("relays").output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!told.contains("set HOME"), "{told}");
}

#[test]
fn a_policy_that_is_not_there_is_nothing_to_be_checked() {
    let home = Home::new();
    let said = stdout(&home.tabane(&["policy", "check"]));
    assert!(said.contains("tabane policy set"), "{said}");
}

#[test]
fn an_authority_is_made_when_its_user_says_so_and_can_be_read_by_nobody_else() {
    let home = Home::new();
    let (status, text) = failure(&home.tabane(&["web", "ca", "create", "files.example.org"]));
    assert!(status == 2 && text.contains("--yes"), "{text}");
    let intercept = ["web", "--intercept", "files.example.org", "--", "true"];
    let (status, text) = failure(&home.tabane(&intercept));
    let hint = "tabane web ca create files.example.org";
    assert!(status == 1 && text.contains(hint), "{text}");
    let create = [
        "web",
        "ca",
        "create",
        "files.example.org,*.example.net",
        "--yes",
    ];
    let made = home.tabane(&create);
    let risks = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(made.status.success(), "{risks}");
    assert!(risks.contains("pretend to be these hosts"), "{risks}");
    let key = home.0.join(".config/tabane/web-ca/ca.toml");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&key), 0o600);
    let show = || stdout(&home.tabane(&["web", "ca", "show"]));
    let first = show();
    for word in [
        "example.net, files.example.org",
        "in 90 d",
        "SHA-256",
        "Firefox",
    ] {
        assert!(first.contains(word), "{word}: {first}");
    }
    let pem = stdout(&home.tabane(&["web", "ca", "show", "--pem"]));
    assert!(pem.starts_with("-----BEGIN CERTIFICATE-----") && !pem.contains("KEY"));
    // Another one takes its place only when that is meant.
    let (status, text) = failure(&home.tabane(&create));
    assert!(status == 1 && text.contains("--replace"), "{text}");
    let beyond = ["web", "--intercept", "files.example.com", "--", "true"];
    let (status, text) = failure(&home.tabane(&beyond));
    let hint = "create example.net files.example.org files.example.com --replace";
    assert!(status == 1 && text.contains(hint), "{text}");
    let again = [&create[..], &["--replace", "--days", "7"]].concat();
    assert!(home.tabane(&again).status.success());
    let text = show();
    assert!(text.contains("in 7 d") && text != first, "{text}");
    // A key that others can read is used for nothing.
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let (status, text) = failure(&home.tabane(&intercept));
    assert!(status == 1 && text.contains("chmod 600"), "{text}");
    let removed = stdout(&home.tabane(&["web", "ca", "remove"]));
    assert!(removed.contains("removed"), "{removed}");
    assert!(!key.parent().unwrap().exists());
    let (status, text) = failure(&home.tabane(&["web", "ca", "remove"]));
    assert!(
        status == 1 && text.contains("no certificate authority"),
        "{text}"
    );
}

#[test]
fn neighbours_pair_by_a_code_and_part_again() {
    let (desk, laptop) = (Home::new(), Home::new());
    let (_serving, line) = Running::start(&desk, &["share", "--listen", "127.0.0.1:0"]);
    let port = line.split("port ").nth(1).unwrap();
    let host = format!("127.0.0.1:{}", port.split(' ').next().unwrap());
    let pair = ["share", "pair", "--budget", "5GB/month"];
    let (mut offering, line) = Running::start(&desk, &pair);
    let code = line.trim().strip_prefix("code: ").unwrap();
    let join = || laptop.tabane(&["share", "pair", code, &host, "--name", "laptop"]);
    assert!(join().status.success());
    assert!(offering.0.wait().unwrap().success());
    let (status, text) = failure(&join());
    assert!(status == 1 && text.contains("does not expect"), "{text}");
    assert!(stdout(&laptop.tabane(&["share", "list"])).contains(&host));
    let status = || stdout(&desk.tabane(&["share", "status"]));
    assert!(
        status().contains("laptop  0.0 kB  5GB/month"),
        "{}",
        status()
    );
    assert!(desk.tabane(&["share", "revoke", "laptop"]).status.success());
    assert!(status().contains("no friend yet"), "{}", status());
}

/// A command whose reader has gone before the first byte; `SIGPIPE` ignored, as services have it.
fn unread(home: &Home, arguments: &[&str], is_ignored: bool) -> Output {
    let mut words = vec!["-c", "exec \"$@\"", "sh"];
    if is_ignored {
        words[1] = "trap '' PIPE; exec \"$@\"";
    }
    words.push(env!("CARGO_BIN_EXE_tabane"));
    let mut shell = Command::new("sh");
    shell.args(words).args(arguments).env("HOME", &home.0);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    shell.stdout(writer).stderr(Stdio::piped());
    shell.spawn().unwrap().wait_with_output().unwrap()
}

#[test]
fn who_reads_no_further_ends_a_command_as_it_ends_cat() {
    const SIGPIPE: i32 = 13;
    let home = Home::new();
    for arguments in [
        &["completion", "bash"][..],
        &["--help"],
        &["--version"],
        &["run", "--help"],
        &["policy", "check"],
        &["relays", "--json"],
        &["lab", "list"],
        &["sim", "run", "twin", "--seconds", "1"],
    ] {
        let output = unread(&home, arguments, false);
        assert_eq!(
            output.status.signal(),
            Some(SIGPIPE),
            "{arguments:?}: {output:?}"
        );
        assert!(output.stderr.is_empty(), "{arguments:?}: {output:?}");
        let (status, line) = failure(&unread(&home, arguments, true));
        assert!(
            status == 1 && line.contains("Broken pipe"),
            "{arguments:?}: {line}"
        );
    }
}

#[test]
fn what_a_policy_s_check_finds_is_there_for_programs() {
    let home = Home::new();
    let file = home.0.join("p.toml");
    let path = file.to_str().unwrap();
    let asked = |arguments: &[&str]| {
        let output = home.tabane(&[&["policy", "check", "--json"], arguments].concat());
        assert!(output.stderr.is_empty(), "{output:?}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), report)
    };
    let (status, report) = asked(&[]);
    let expected = serde_json::json!({
        "file": home.0.join(".config/tabane/policy.toml"),
        "exists": false, "faults": [], "notes": [],
    });
    assert_eq!((status, report), (Some(0), expected));

    fs::write(
        &file,
        "[[rule]]\nname = 'it'\nprocess = 'curl'\nlinks = ['a']\n",
    )
    .unwrap();
    let (status, report) = asked(&[path]);
    assert_eq!((status, report["exists"].as_bool()), (Some(0), Some(true)));
    let note = &report["notes"][0];
    assert_eq!(note["line"], 1);
    assert!(
        note["what"]
            .as_str()
            .unwrap()
            .starts_with("process is known")
    );

    fs::write(&file, "[[link]]\nname = 3\n\n[[link]]\nuse = 'sometimes'\n").unwrap();
    let (status, report) = asked(&[path]);
    let lines: Vec<_> = report["faults"].as_array().unwrap().iter().collect();
    assert_eq!((status, lines.is_empty()), (Some(1), false));
    assert!(
        lines
            .iter()
            .all(|it| it["line"].is_u64() && it["what"].is_string())
    );
    // What cannot be read is told as ever.
    let missing = home.0.join("none.toml");
    let (_, line) =
        failure(&home.tabane(&["policy", "check", "--json", missing.to_str().unwrap()]));
    assert!(line.contains("none.toml"), "{line}");
}

/// What a program is called with, every user of the machine can read.
#[test]
fn a_browser_is_led_to_the_dashboard_by_a_file_that_nobody_else_can_read() {
    let home = Home::new();
    let (bin, called) = (home.0.join("bin"), home.0.join("called"));
    fs::create_dir(&bin).unwrap();
    let made = Command::new("mkfifo").arg(&called).status().unwrap();
    assert!(made.success());
    let browser = bin.join("xdg-open");
    fs::write(
        &browser,
        "#!/bin/sh\nprintf '%s' \"$*\" > \"$HOME/called\"\n",
    )
    .unwrap();
    fs::set_permissions(&browser, PermissionsExt::from_mode(0o755)).unwrap();
    let mut child = command(
        &home.0,
        &["dashboard", "--open", "--instance", "/nowhere.sock"],
    );
    child.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    let mut child = Running(child.stdout(Stdio::piped()).spawn().unwrap());
    let mut address = String::new();
    let mut lines = BufReader::new(child.0.stdout.as_mut().unwrap());
    lines.read_line(&mut address).unwrap();
    let address = address.trim_end();
    let (_, token) = address.rsplit_once('#').unwrap();
    // Once it has been written.
    let file = fs::read_to_string(&called).unwrap();
    assert!(!file.contains(token), "{file}");
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let page = fs::read_to_string(&file).unwrap();
    assert!(page.contains(&format!("url={address}\"")), "{page}");
    let ended = Command::new("kill").arg(child.0.id().to_string()).status();
    assert!(ended.unwrap().success());
    child.0.wait().unwrap();
    assert!(!Path::new(&file).exists());
}

/// A command that goes on, ended when dropped.
struct Running(Child);

impl Running {
    /// Starts it, and waits for the first line it prints.
    fn start(home: &Home, arguments: &[&str]) -> (Self, String) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tabane"))
            .args(arguments)
            .env_clear()
            .env("HOME", &home.0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        (Self(child), line)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
