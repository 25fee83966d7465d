//! The web mode as a user meets it: `tabane get`, `tabane web` and `tabane share` with real links,
//! nginx and curl.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../bond/asking.rs"]
mod asking;
mod intercepting;
#[path = "../bond/leaving.rs"]
mod leaving;
mod leaving_links;
mod neighbours;
mod street;

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;
use street::{Running, SERVER, SIZE, Street, content};

/// Where the proxy listens.
const PROXY: &str = "127.0.0.1:4512";

/// What a record says a link has carried.
fn carried(record: &Value, link: &str) -> u64 {
    let links = record["links"].as_array().unwrap();
    let found = links.iter().find(|it| it["name"] == link);
    found.map_or(0, |it| it["carried_bytes"].as_u64().unwrap())
}

/// `tabane web --json` with these flags, once it listens.
fn serve(street: &Street, flags: &[&str]) -> Running {
    let mut command = street.tabane(&["web", "--json"]);
    command.args(flags);
    let running = Running::start(command);
    while !street.curl(&format!("http://{PROXY}/")).status.success() {
        std::thread::sleep(Duration::from_millis(20));
    }
    running
}

#[test]
fn curl_gets_the_same_through_the_proxy_and_by_both_links() {
    let Some(street) = Street::new() else {
        return;
    };
    let mut proxy = serve(&street, &[]);
    let mut record = |status: u64| loop {
        let record = proxy.record();
        // Those before were to see whether it listens.
        if record["status"] != 404 || status == 404 {
            assert_eq!(record["status"], status, "{record}");
            return record;
        }
    };
    let before = [street.received("c1"), street.received("c2")];
    let got = street.curl(&format!("-x {PROXY} http://{SERVER}/big.bin"));
    assert!(
        got.stdout == content(),
        "{}",
        String::from_utf8_lossy(&got.stderr)
    );
    let split = record(200);
    assert_eq!(split["carried"], "split", "{split}");
    for (link, before) in ["c1", "c2"].into_iter().zip(before) {
        assert!(carried(&split, link) > SIZE as u64 / 10, "{split}");
        // Sockets are bound to devices: the bytes came in where we say.
        assert!(
            street.received(link) - before >= carried(&split, link),
            "{split}"
        );
    }
    // One connection, several requests; heads, parts and errors as they are without us.
    let url = format!("http://{SERVER}");
    let direct = street.curl(&format!("-r 2-4 {url}/big.bin {url}/small {url}/none"));
    let through = street.curl(&format!(
        "-x {PROXY} -r 2-4 {url}/big.bin {url}/small {url}/none"
    ));
    assert_eq!(through.stdout, direct.stdout);
    assert_eq!(
        (record(206)["carried"].as_str(), &record(206)["carried"]),
        (Some("whole"), &Value::from("whole"))
    );
    record(404);
    let head = street.curl(&format!("-x {PROXY} -I {url}/big.bin"));
    let head = String::from_utf8(head.stdout).unwrap().to_lowercase();
    assert!(
        head.contains(&format!("content-length: {SIZE}\r\n")),
        "{head}"
    );
    record(200);
    let post = street.curl(&format!(
        "-x {PROXY} -d a=b -o /dev/null -w %{{http_code}} {url}/small"
    ));
    assert_eq!(post.stdout, b"405");
    record(405);
    // Tunnels: as many as there are, over both links.
    let cert = street.directory.join("cert.pem");
    let tunnels = format!("-x {PROXY} --cacert {} -Z --no-keepalive", cert.display());
    let secure = format!("https://{SERVER}/big.bin");
    let outputs = "-o /dev/null ".repeat(4);
    let got = street.curl(&format!(
        "{tunnels} {outputs}{secure} {secure} {secure} {secure}"
    ));
    assert!(got.status.success(), "{got:?}");
    let tunnels = [record(200), record(200), record(200), record(200)];
    for link in ["c1", "c2"] {
        let carried: u64 = tunnels.iter().map(|tunnel| carried(tunnel, link)).sum();
        assert!(carried > SIZE as u64, "{tunnels:?}");
    }
}

#[test]
fn what_network_manager_calls_metered_waits() {
    let Some(street) = Street::new() else {
        return;
    };
    let directory = street.directory.join("bin");
    fs::create_dir(&directory).unwrap();
    let nmcli = directory.join("nmcli");
    let says = "GENERAL.DEVICE:c2\\nGENERAL.METERED:yes\\n";
    fs::write(&nmcli, format!("#!/bin/sh\nprintf '{says}'\n")).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&nmcli, executable).unwrap();
    let url = format!("http://{SERVER}/big.bin");
    let got = street.directory.join("got");
    let mut get = street.tabane(&["get", "--json", &url, "-o", got.to_str().unwrap()]);
    let path = format!("{}:{}", directory.display(), env!("PATH"));
    let output = get.env("PATH", path).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(fs::read(&got).unwrap() == content());
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(carried(&record, "c1") > SIZE as u64 / 2, "{record}");
    // Until the rates are known it may be needed; as any other link it carries a third.
    assert!(carried(&record, "c2") < SIZE as u64 / 6, "{record}");
}

#[test]
fn a_command_gets_the_proxy_and_a_local_address_is_split_https() {
    let Some(street) = Street::new() else {
        return;
    };
    let map = format!("iso=https://{SERVER}/");
    let local = format!("http://{PROXY}/iso");
    let flags = ["web", "--stats", "--listen", PROXY, "--map", &map, "--"];
    let run = |words: &str| {
        let mut command = street.tabane(&flags);
        command.args(words.split(' ')).output().unwrap()
    };
    // curl finds the proxy by the environment, and the local address in spite of it.
    let got = run(&format!("curl -sS http://{SERVER}/big.bin"));
    let stats = String::from_utf8_lossy(&got.stderr).into_owned();
    assert!(got.status.success() && got.stdout == content(), "{stats}");
    assert!(
        stats.contains("1 split, 0 whole, 0 tunnels, 0 refused"),
        "{stats}"
    );
    let got = run(&format!("curl -sS {local}/big.bin {local}/small"));
    let stats = String::from_utf8_lossy(&got.stderr).into_owned();
    assert!(
        got.stdout == [&content(), &b"small\n"[..]].concat(),
        "{stats}"
    );
    assert!(stats.contains("1 split, 1 whole"), "{stats}");
    // A redirect to what is mapped leads to the local address; from TLS to plain text we lead
    // nobody, but tell.
    let got = run(&format!(
        "curl -sS -o /dev/null -w %{{redirect_url}} {local}/moved/"
    ));
    assert_eq!(
        String::from_utf8_lossy(&got.stdout),
        format!("{local}/big.bin")
    );
    let got = run(&format!(
        "curl -sS -o /dev/null -w %{{redirect_url}} {local}/away/"
    ));
    assert_eq!(
        String::from_utf8_lossy(&got.stdout),
        format!("http://{SERVER}/small")
    );
    // The command's own status is ours.
    assert_eq!(
        run(&format!("curl -f -s {local}/none")).status.code(),
        Some(22)
    );
}

#[test]
fn a_neighbours_link_helps_until_it_is_gone() {
    let Some(street) = Street::new() else {
        return;
    };
    let mut lending = street.lend();
    let mut proxy = serve(&street, &[]);
    let mut fetch = || {
        let got = street.curl(&format!("-x {PROXY} http://{SERVER}/big.bin"));
        assert!(
            got.stdout == content(),
            "{}",
            String::from_utf8_lossy(&got.stderr)
        );
        loop {
            let record = proxy.record();
            if record["status"] == 200 {
                return record;
            }
        }
    };
    // Who lends looks up its friends once a second.
    let mut with = fetch();
    for _ in 0..5 {
        if carried(&with, "nextdoor") == 0 {
            with = fetch();
        }
    }
    for link in ["c1", "c2", "nextdoor"] {
        assert!(carried(&with, link) > SIZE as u64 / 20, "{link}: {with}");
    }
    // A link like any other: it is listed, and the policy holds for it while things run.
    let json = |words: &[&str]| -> Value {
        let output = street.tabane(words).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let row = |rows: &Value, key: &str| {
        let mut rows = rows.as_array().unwrap().iter();
        rows.find(|row| row[key] == "nextdoor").unwrap().clone()
    };
    // Seen while it runs; links are looked at twice a second.
    let deadline = Instant::now() + Duration::from_secs(20);
    let state = loop {
        let state = json(&["status", "--json"]);
        let received = &row(&state["links"], "name")["traffic"]["received_bytes"];
        if received.as_u64().unwrap() >= carried(&with, "nextdoor") {
            break state;
        }
        assert!(Instant::now() < deadline, "{state}");
    };
    assert_eq!(state["instance"]["kind"], "web");
    assert_eq!(row(&state["links"], "name")["is_lent"], true);
    assert_eq!(state["links"][0]["is_lent"], false);
    let shown = street.tabane(&["status"]).output().unwrap().stdout;
    let shown = String::from_utf8(shown).unwrap();
    assert!(
        shown.contains("tabane web on http://127.0.0.1:4512"),
        "{shown}"
    );
    let listed = row(&json(&["links", "--json"]), "interface");
    assert_eq!(
        (&listed["kind"], &listed["usable"]),
        (&"neighbour".into(), &true.into())
    );
    let set = ["policy", "set", "nextdoor", "--budget", "100kB/month"];
    assert!(street.tabane(&set).status().unwrap().success());
    for _ in 0..5 {
        if carried(&with, "nextdoor") > 0 {
            with = fetch();
        }
    }
    assert_eq!(carried(&with, "nextdoor"), 0, "used up: {with}");
    // What was counted is written down every two seconds.
    let deadline = Instant::now() + Duration::from_secs(20);
    while row(&json(&["policy", "--json"]), "link")["allowed"] == true {
        assert!(Instant::now() < deadline, "not written down");
    }
    let unset = ["policy", "unset", "nextdoor"];
    assert!(street.tabane(&unset).status().unwrap().success());
    for _ in 0..5 {
        if carried(&with, "nextdoor") == 0 {
            with = fetch();
        }
    }
    assert!(carried(&with, "nextdoor") > 0, "{with}");
    let status = street
        .friend(&["share", "status", "--json"])
        .output()
        .unwrap();
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status[0]["name"], "client");
    lending.kill();
    let without = fetch();
    assert!(
        carried(&without, "nextdoor") == 0 && carried(&without, "c2") > 0,
        "{without}"
    );
}

#[test]
fn a_neighbours_link_is_a_path_of_a_session_until_it_is_gone() {
    let Some(street) = Street::new() else {
        return;
    };
    let _relay = street.join_relay();
    let mut lending = street.lend();
    let url = format!("http://{SERVER}/big.bin");
    let fetch = |times: usize| {
        let flags = ["run", "--link", "c1", "--neighbour", "nextdoor", "--"];
        let mut run = street.tabane(&flags);
        run.args(["curl", "-sS", "--max-time", "60"]);
        run.args(vec![&url; times]);
        run
    };
    // Who lends looks up its friends once a second; until then it has no path.
    let mut by_friend = 0;
    for _ in 0..5 {
        if by_friend < SIZE as u64 / 20 {
            let before = street.received("c9");
            let got = fetch(1).output().unwrap();
            let errors = String::from_utf8_lossy(&got.stderr);
            assert!(got.stdout == content(), "{errors}");
            by_friend = street.received("c9") - before;
        }
    }
    assert!(by_friend >= SIZE as u64 / 20, "{by_friend} bytes");
    let status = street
        .friend(&["share", "status", "--json"])
        .output()
        .unwrap();
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert!(status[0]["used_bytes"].as_u64().unwrap() > 0, "{status}");
    // It dies in the middle.
    let before = street.received("c9");
    let got = street.directory.join("got");
    let file = fs::File::create(&got).unwrap();
    let mut run = fetch(4).stdout(file).spawn().unwrap();
    street.await_bytes(&["c9"], before, SIZE as u64 / 20);
    lending.kill();
    assert!(run.wait().unwrap().success());
    assert!(fs::read(&got).unwrap() == content().repeat(4));
}

#[test]
fn a_link_that_is_cut_in_the_middle_costs_no_byte() {
    let Some(street) = Street::new() else {
        return;
    };
    let mut proxy = serve(&street, &[]);
    let output = street.directory.join("got");
    let mut curl = street.client("curl");
    curl.args(["-sS", "--max-time", "60", "-x", PROXY, "-o"])
        .arg(&output);
    let before = street.received("c1");
    let mut curl = curl
        .arg(format!("http://{SERVER}/big.bin"))
        .spawn()
        .unwrap();
    // The link that began, with a good part of the file behind it.
    street.await_bytes(&["c1"], before, 1_500_000);
    street.ip("c", "link set c1 down");
    assert!(curl.wait().unwrap().success());
    assert!(fs::read(&output).unwrap() == content(), "other bytes");
    let record = loop {
        let record = proxy.record();
        if record["status"] == 200 {
            break record;
        }
    };
    assert!(carried(&record, "c2") > SIZE as u64 / 2, "{record}");
}

#[test]
fn a_killed_proxy_resets_its_tunnels() {
    let Some(street) = Street::new() else {
        return;
    };
    let mut proxy = serve(&street, &[]);
    let url = format!("http://{SERVER}/big.bin");
    let mut curl = street.client("curl");
    curl.args([
        "-sS",
        "--max-time",
        "60",
        "--proxytunnel",
        "-x",
        PROXY,
        "-o",
    ]);
    curl.arg(street.directory.join("got")).arg(&url);
    let before = street.received("c1") + street.received("c2");
    let mut curl = curl.spawn().unwrap();
    street.await_bytes(&["c1", "c2"], before, SIZE as u64 / 20);
    proxy.kill();
    // 56: receiving failed, by a reset. By an orderly end it would be 18, part of a file, and
    // nothing at all for a file whose length nobody has told.
    assert_eq!(curl.wait().unwrap().code(), Some(56));
}

#[test]
fn a_fetch_that_was_killed_goes_on_where_it_was() {
    let Some(street) = Street::new() else {
        return;
    };
    let output = street.directory.join("big.bin");
    let shown = output.display().to_string();
    let source = street.directory.join("site/big.bin");
    let digest = street.client("sha256sum").arg(source).output().unwrap();
    let digest = String::from_utf8(digest.stdout).unwrap();
    let digest = digest.split(' ').next().unwrap();
    let url = format!("https://{SERVER}/big.bin");
    let get = ["get", "--json", &url, "-o", &shown, "--sha256", digest];
    for (link, rate) in [("c1", "12mbit"), ("c2", "6mbit")] {
        let mut set = street.tabane(&["policy", "set", link, "--down", rate]);
        assert!(set.output().unwrap().status.success());
    }
    let mut first = Running::start(street.tabane(&get));
    let note = street.directory.join("big.bin.part.json");
    let noted = || -> u64 {
        let text = fs::read_to_string(&note).unwrap_or_default();
        let note: Value = serde_json::from_str(&text).unwrap_or_default();
        let ranges = note["ranges"].as_array().cloned().unwrap_or_default();
        let length = |range: &Value| range[1].as_u64().unwrap() - range[0].as_u64().unwrap();
        ranges.iter().map(length).sum()
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while noted() < 1_000_000 {
        assert!(Instant::now() < deadline, "nothing is noted");
        std::thread::sleep(Duration::from_millis(10));
    }
    first.kill();
    let kept = noted();
    assert!(!output.exists());
    let second = street.tabane(&get).output().unwrap();
    assert!(second.status.success(), "{second:?}");
    assert!(fs::read(&output).unwrap() == content(), "other bytes");
    let told: Value = serde_json::from_slice(&second.stdout).unwrap();
    let sum = carried(&told, "c1") + carried(&told, "c2");
    assert!(
        sum < SIZE as u64 - kept / 2,
        "what was there ({kept}) is not fetched again: {told}"
    );
    assert!(
        carried(&told, "c1") > 0 && carried(&told, "c2") > 0,
        "{told}"
    );
}

#[test]
fn a_full_disk_keeps_what_fits() {
    let Some(street) = Street::new() else {
        return;
    };
    let (disk, whole) = (
        street.directory.join("disk"),
        street.directory.join("whole"),
    );
    fs::create_dir(&disk).unwrap();
    let (disk, whole) = (disk.display(), whole.display());
    let get = format!(
        "{} get --json http://{SERVER}/big.bin -o {disk}/big.bin",
        street::TABANE
    );
    // What is mounted here nobody else sees: commands have a mount namespace of their own.
    let script = format!(
        "mount -t tmpfs -o size=3m none {disk}; {get}; echo status $?
         mount -o remount,size=20m {disk}; {get} && cp {disk}/* {whole}"
    );
    let mut shell = street.client("sh");
    let output = shell.args(["-c", &script]).output().unwrap();
    let (told, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    let (first, second) = told.split_once('\n').unwrap_or_default();
    assert_eq!(first, "status 1", "{told} {errors}");
    for words in ["big.bin: No space left on device", "goes on from there"] {
        assert!(errors.contains(words), "{errors}");
    }
    let told: Value = serde_json::from_str(second).unwrap();
    let sum = carried(&told, "c1") + carried(&told, "c2");
    assert!(sum < SIZE as u64 - 2_000_000, "some was there: {told}");
    assert!(fs::read(street.directory.join("whole")).unwrap() == content());
}

/// Root's `tabane get -o /dev/null` once put a file into the device's place.
#[test]
fn a_device_or_a_pipe_takes_the_file_and_stays() {
    use std::os::unix::fs::FileTypeExt;
    let Some(street) = Street::new() else {
        return;
    };
    let [null, pipe, whole] = ["null", "pipe", "whole"].map(|name| street.directory.join(name));
    let script = format!(
        "mknod {null} c 1 3; mkfifo {pipe}; cat {pipe} > {whole} &
         {get} -o {null} && {get} -o {pipe} && wait",
        null = null.display(),
        pipe = pipe.display(),
        whole = whole.display(),
        get = format_args!("{} get --quiet http://{SERVER}/big.bin", street::TABANE),
    );
    let mut shell = street.client("sh");
    let output = shell.args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let kind = |path| fs::symlink_metadata(path).unwrap().file_type();
    assert!(kind(&null).is_char_device() && kind(&pipe).is_fifo());
    assert!(fs::read(whole).unwrap() == content());
}
