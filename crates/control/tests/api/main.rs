//! The server as its clients meet it: good requests, bad ones, and clients that misbehave. The
//! instance behind it is this test.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command as Process;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Uid;
use tabane_control::{
    Bridge, Client, ClientError, Directory, HttpConfig, LinkChange, Naming, Pace, Server,
    ServerConfig, State,
};

mod asked;
mod browser;
mod dashboard;
mod instance;

use instance::{Instance, STATE, TOKEN, answer, block_on};

#[test]
fn state_changes_and_metrics() {
    let instance = Instance::start(false);
    let client = instance.client();
    block_on(async {
        let state = client.state().await.unwrap();
        assert_eq!(state.links[0].name, "wlan0");
        assert!(state.process.memory_bytes > 0);
        let change = LinkChange {
            weight: Some(0.5),
            paused: None,
        };
        let link = client.change_link("wlan0", change).await.unwrap();
        assert_eq!((link.weight, link.paused), (0.5, false));
        let change = LinkChange {
            weight: None,
            paused: Some(true),
        };
        let link = client.change_link("wlan0", change).await.unwrap();
        assert_eq!((link.weight, link.paused), (0.5, true));
        assert!(client.state().await.unwrap().links[0].paused);
        let metrics = client.metrics().await.unwrap();
        assert!(
            metrics.contains("tabane_link_paused{link=\"wlan0\"} 1"),
            "{metrics}"
        );
    });
}

#[test]
fn updates_come_as_they_happen_and_end_with_the_instance() {
    let mut instance = Instance::start(false);
    let client = instance.client();
    block_on(async {
        let mut updates = client.updates().await.unwrap();
        assert_eq!(updates.next().await.unwrap().unwrap().totals.streams, 0);
        instance.publish(|state| state.totals.streams = 7);
        assert_eq!(updates.next().await.unwrap().unwrap().totals.streams, 7);
        drop(instance.server.take());
        // Cut short or ended in order: over it is.
        assert!(!matches!(updates.next().await, Ok(Some(_))));
        assert!(matches!(client.state().await, Err(ClientError::Gone(_))));
    });
    assert!(instance.directory.running().is_empty());
}

#[test]
fn bad_requests_are_told_why_and_change_nothing() {
    let instance = Instance::start(false);
    let link = "/v1/links/wlan0";
    let cases = [
        (link, "{}", 400, "nothing to change"),
        (link, r#"{"weight": 1.5}"#, 400, "0 to 1"),
        (link, r#"{"weight": -0.1}"#, 400, "0 to 1"),
        (
            link,
            r#"{"weight": null, "paused": null}"#,
            400,
            "nothing to change",
        ),
        (link, r#"{"weight": NaN}"#, 400, "expected"),
        (link, r#"{"wait": 1}"#, 400, "unknown field"),
        (link, r#"{"paused": true"#, 400, "EOF"),
        (link, "", 400, "EOF"),
        (link, r#"{"weight": 0.25}"#, 409, "not today"),
        ("/v1/links/eth9", r#"{"weight": 0.5}"#, 404, "wlan0"),
        ("/v1/links/%zz", r#"{"weight": 0.5}"#, 400, "no name"),
        ("/v1/links/", r#"{"weight": 0.5}"#, 400, "no name"),
        ("/v1/state", "{}", 405, "PUT"),
        ("/v2/state", "{}", 404, "/v1/schema"),
    ];
    for (path, body, status, word) in cases {
        let (got, text) = instance.put(path, body);
        assert!(
            got == status && text.contains(word),
            "{path} {body}: {got} {text}"
        );
        assert!(text.contains("\"error\""), "{text}");
    }
    let (status, _) = instance.get("/v1/links/wlan0");
    assert_eq!(status, 405);
    let link = &instance.state.lock().unwrap().links[0];
    assert_eq!((link.weight, link.paused), (1.0, false));
}

#[test]
fn huge_and_half_requests_are_ended_and_others_served_meanwhile() {
    let instance = Instance::start(false);
    let huge = "x".repeat(1_000_000);
    assert_eq!(instance.put("/v1/links/wlan0", &huge).0, 413);
    let head = format!("GET /v1/state HTTP/1.1\r\nHost: x\r\nX: {huge}\r\n\r\n");
    let (status, _) = instance.raw(&head);
    assert!(status == 431 || status == 400 || status == 0, "{status}");
    assert_eq!(instance.raw("\0\x01\x02 not HTTP\r\n\r\n").0, 400);

    let begun = Instant::now();
    let mut half_head = UnixStream::connect(instance.socket()).unwrap();
    half_head.write_all(b"GET /v1/state HT").unwrap();
    let mut half_body = UnixStream::connect(instance.socket()).unwrap();
    half_body
        .write_all(b"PUT /v1/links/wlan0 HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
        .unwrap();
    assert_eq!(instance.get("/v1/state").0, 200);
    let patience = Some(Duration::from_secs(30));
    for stream in [&mut half_head, &mut half_body] {
        stream.set_read_timeout(patience).unwrap();
        let (status, _) = answer(stream);
        assert!(status == 408 || status == 0, "{status}");
    }
    // By the server's patience, not by ours.
    assert!(begun.elapsed() < Duration::from_secs(25));
}

#[test]
fn too_many_connections_are_closed_and_room_is_made_again() {
    let instance = Instance::start(false);
    let idle: Vec<_> = (0..40)
        .map(|_| UnixStream::connect(instance.socket()).unwrap())
        .collect();
    // The last ones find no place.
    let (mut surplus, _kept) = (idle.last().unwrap(), &idle);
    assert_eq!(surplus.read(&mut [0; 16]).unwrap(), 0);
    drop(idle);
    let deadline = Instant::now() + Duration::from_secs(10);
    while instance.get("/v1/state").0 != 200 {
        assert!(Instant::now() < deadline, "no room again");
    }
}

#[test]
fn strangers_at_the_http_door_keep_nobody_from_the_socket() {
    let instance = Instance::start(true);
    let idle: Vec<_> = (0..40)
        .map(|_| TcpStream::connect(instance.http()).unwrap())
        .collect();
    // The first ones make room.
    let mut displaced = idle.first().unwrap();
    assert_eq!(displaced.read(&mut [0; 16]).unwrap(), 0);
    assert_eq!(instance.get("/v1/state").0, 200);
}

/// Long before who says nothing is sent away.
#[test]
fn strangers_at_the_http_door_keep_nobody_from_it_who_has_the_token() {
    const ASKED: &str = "GET /v1/state HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ";
    let instance = Instance::start(true);
    let ask = |stream: &mut TcpStream| {
        stream
            .set_read_timeout(Some(Duration::from_secs(2)))
            .unwrap();
        let asked = format!("{ASKED}{TOKEN}\r\n\r\n");
        stream.write_all(asked.as_bytes()).unwrap();
        let mut status = [0; 15];
        stream.read_exact(&mut status).map(|()| status)
    };
    let knock = || TcpStream::connect(instance.http()).unwrap();
    let mut kept = knock();
    assert_eq!(&ask(&mut kept).unwrap(), b"HTTP/1.1 200 OK");
    let _idle: Vec<_> = (0..100).map(|_| knock()).collect();
    assert_eq!(&ask(&mut knock()).unwrap(), b"HTTP/1.1 200 OK");
    // Nor is who has shown it sent away; the rest of its first answer comes first.
    let asked = format!("{ASKED}{TOKEN}\r\nConnection: close\r\n\r\n");
    kept.write_all(asked.as_bytes()).unwrap();
    let mut rest = String::new();
    kept.read_to_string(&mut rest).unwrap();
    assert_eq!(rest.matches("HTTP/1.1 200 OK").count(), 1, "{rest}");
}

#[test]
fn who_does_not_read_is_not_written_to_for_ever() {
    let instance = Instance::start(true);
    let mut stream = TcpStream::connect(instance.http()).unwrap();
    stream.set_nonblocking(true).unwrap();
    let request = b"GET /dashboard.js HTTP/1.1\r\nHost: x\r\n\r\n";
    // Until the server reads no more, since it cannot write; or, at last, resets.
    let reset = loop {
        match stream.write(request) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut polled = [PollFd::new(&stream, PollFlags::OUT)];
                let minute = Timespec {
                    tv_sec: 60,
                    tv_nsec: 0,
                };
                if poll(&mut polled, Some(&minute)).unwrap() == 0 {
                    break false;
                }
            }
            Err(_) => break true,
        }
    };
    assert!(reset, "the place is held for a minute already");
}

#[test]
fn who_listens_as_another_user_is_not_believed() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: being other users needs root");
        return;
    }
    let directory = std::env::temp_dir().join(format!("tabane-foreign-{}", std::process::id()));
    fs::create_dir(&directory).unwrap();
    let everybody = |path: &Path| {
        fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    };
    everybody(&directory);
    let socket = directory.join("up.sock");
    // Of this thread alone.
    let become_user = |uid| {
        let uid = Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
    };
    let path = socket.clone();
    let listening = std::thread::spawn(move || {
        become_user(65_533);
        UnixListener::bind(path).unwrap()
    });
    let _listener = listening.join().unwrap();
    everybody(&socket);
    let asking = std::thread::spawn(move || {
        become_user(65_534);
        block_on(async { Client::new(&socket).state().await.unwrap_err().to_string() })
    });
    let said = asking.join().unwrap();
    fs::remove_dir_all(directory).unwrap();
    assert!(said.contains("another user"), "{said}");
}

#[test]
fn an_instance_of_another_user_is_none() {
    let instance = Instance::start(false);
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: giving a directory away needs root");
        return;
    }
    assert_eq!(instance.directory.running().len(), 1);
    let nobody = Some(65_534);
    std::os::unix::fs::chown(instance.directory.path(), nobody, nobody).unwrap();
    assert_eq!(instance.directory.running(), []);
    assert!(instance.directory.find(None).is_err());
}

#[test]
fn a_reader_that_sleeps_gets_the_newest_state_and_nothing_piles_up() {
    let instance = Instance::start(false);
    let client = instance.client();
    block_on(async {
        let mut updates = client.updates().await.unwrap();
        for streams in 1..=20_000 {
            instance.publish(|state| state.totals.streams = streams);
        }
        let mut seen = 0;
        let mut states = 0;
        while seen < 20_000 {
            seen = updates.next().await.unwrap().unwrap().totals.streams;
            states += 1;
        }
        assert!(states < 20_000, "{states}");
    });
}

/// A GET over HTTP.
fn ask(address: SocketAddr, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    answer(&mut stream)
}

#[test]
fn http_wants_the_token_whatever_is_asked() {
    let instance = Instance::start(true);
    let path = instance.directory.path().join("run-1.token");
    assert_eq!(fs::read_to_string(&path).unwrap().trim(), TOKEN);
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let ask = |path: &str, headers: &str| ask(instance.http(), path, headers);
    for headers in [
        "",
        "Authorization: Bearer\r\n",
        "Authorization: Bearer 0123456789abcdee\r\n",
        "Authorization: Bearer 0123456789abcdef0\r\n",
        "Authorization: Basic 0123456789abcdef\r\n",
    ] {
        for path in ["/v1/state", "/metrics", "/nothing"] {
            assert_eq!(ask(path, headers).0, 401, "{path} {headers}");
        }
    }
    let good = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(ask("/v1/state", &good).0, 200);
    assert!(ask("/metrics", &good).1.contains("tabane_info"));
    drop(instance);
    assert!(!path.exists());
}

#[test]
fn http_is_for_loopback_only() {
    let refused = Server::start(ServerConfig {
        directory: Directory::at("/nonexistent/tabane"),
        name: "run-1".to_owned(),
        naming: Naming::WithPid,
        http: Some(HttpConfig {
            address: "0.0.0.0:0".parse().unwrap(),
            token: TOKEN.to_owned(),
        }),
        policy: None,
        pace: Pace::ByItself,
    });
    assert!(refused.unwrap_err().to_string().contains("loopback"));
}

#[test]
fn another_user_is_not_served_even_with_a_socket_left_open() {
    let instance = Instance::start(false);
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: becoming another user needs root");
        return;
    }
    let socket = instance.socket();
    let ask = || {
        let mut process = Process::new("setpriv");
        process.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "curl",
            "-sS",
        ]);
        process
            .args(["--max-time", "5", "--unix-socket"])
            .arg(&socket);
        process.arg("http://x/v1/state").output().unwrap()
    };
    assert_eq!(ask().status.code(), Some(7), "not even connected");
    fs::set_permissions(instance.directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    fs::set_permissions(&socket, PermissionsExt::from_mode(0o777)).unwrap();
    let output = ask();
    assert!(
        !output.status.success() && output.stdout.is_empty(),
        "{output:?}"
    );
    assert_eq!(instance.get("/v1/state").0, 200);
}

#[test]
fn the_policy_is_changed_only_for_a_sound_one_and_only_from_the_one_that_was_seen() {
    let instance = Instance::start(false);
    let file = instance.directory.path().join("policy.toml");
    let (status, text) = instance.get("/v1/policy");
    assert!(status == 200 && text.contains(r#""text":"""#), "{text}");
    let put = |body: &str| instance.put("/v1/policy", body);
    assert_eq!(put(r#"{"text": "good\n", "was": ""}"#).0, 200);
    assert_eq!(fs::read_to_string(&file).unwrap(), "good\n");
    for (body, status, word) in [
        (r#"{"text": "bad"}"#, 422, "line 2"),
        (r#"{"text": "good 2", "was": ""}"#, 409, "meantime"),
        (r#"{"txt": "good"}"#, 400, "unknown field"),
        ("", 400, "EOF"),
    ] {
        let (got, text) = put(body);
        assert!(got == status && text.contains(word), "{body}: {got} {text}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "good\n");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert_eq!(instance.get("/v1/policy").0, 500);
    assert_eq!(put(r#"{"text": "good"}"#).0, 500);
}

/// A PUT over HTTP.
fn put(address: SocketAddr, path: &str, headers: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let request = format!(
        "PUT {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\
         {headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    answer(&mut stream)
}

#[test]
fn a_command_to_run_is_not_taken_over_http() {
    let instance = Instance::start(true);
    let address = instance.server.as_ref().unwrap().http().unwrap();
    let good = format!("Authorization: Bearer {TOKEN}\r\n");
    let file = instance.directory.path().join("policy.toml");
    fs::write(&file, "good").unwrap();
    let put = |text: &str| {
        let body = serde_json::json!({ "text": text }).to_string();
        put(address, "/v1/policy", &good, &body)
    };
    let (status, why) = put("good, run");
    assert_eq!(status, 403, "{why}");
    assert!(why.contains("write it into the file itself"), "{why}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "good");
    assert_eq!(put("good as well").0, 200);
    // One that is there does not keep the rest from being changed; nor does the socket ask.
    let body = serde_json::json!({ "text": "good, run" }).to_string();
    let (status, _) = instance.put("/v1/policy", &body);
    assert_eq!(status, 200);
    assert_eq!(put("good, run, and more").0, 200);
}

#[test]
fn one_entry_of_the_policy_is_changed_as_carefully_as_all_of_it() {
    let instance = Instance::start(true);
    let file = instance.directory.path().join("policy.toml");
    fs::write(&file, "good # mine").unwrap();
    let path = "/v1/policy/link";
    let body = r#"{"entry": {"name": "usb*", "budget-from": 3}, "was": "good # mine"}"#;
    for headers in ["", "Authorization: Bearer another\r\n", "Cookie: token\r\n"] {
        let (status, text) = put(instance.http(), path, headers, body);
        assert_eq!(status, 401, "{headers} {text}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "good # mine");
    let good = format!("Authorization: Bearer {TOKEN}\r\n");
    let (status, text) = put(instance.http(), path, &good, body);
    assert!(
        status == 200 && text.contains(r#""links":[{"name":"usb*","budget-from":3}]"#),
        "{text}"
    );
    let written = "good # mine\n{\"name\":\"usb*\",\"budget-from\":3}";
    assert_eq!(fs::read_to_string(&file).unwrap(), written);
    for (body, status, word) in [
        (
            r#"{"entry": {"name": "usb*", "weight": 1.5}}"#,
            422,
            "from 0 to 1",
        ),
        (body, 409, "meantime"),
        (
            r#"{"entry": {"name": "usb*", "wait": 1}}"#,
            400,
            "unknown field",
        ),
        (r#"{"name": "usb*"}"#, 400, "unknown field"),
    ] {
        let (got, text) = instance.put(path, body);
        assert!(got == status && text.contains(word), "{body}: {got} {text}");
    }
    assert_eq!(instance.get(path).0, 405);
    assert_eq!(fs::read_to_string(&file).unwrap(), written);
    let body = r#"{"entry": {"name": "usb*"}, "forget": true}"#;
    assert_eq!(instance.put(path, body).0, 200);
    assert_eq!(fs::read_to_string(&file).unwrap(), "good # mine");
}

#[test]
fn a_bridge_opens_a_socket_to_browsers_that_have_its_token() {
    let instance = Instance::start(false);
    let any = "127.0.0.1:0".parse().unwrap();
    let bridge = Bridge::open(any, "another".to_owned(), &instance.socket()).unwrap();
    let address = bridge.address();
    let client = std::thread::spawn(move || {
        let page = ask(address, "/", "");
        assert!(page.0 == 200 && page.1.contains("dashboard.js"), "{page:?}");
        assert_eq!(ask(address, "/v1/state", "").0, 401);
        let instances = format!("Authorization: Bearer {TOKEN}\r\n");
        assert_eq!(ask(address, "/v1/state", &instances).0, 401);
        let good = "Authorization: Bearer another\r\n";
        let state = ask(address, "/v1/state", good);
        assert!(state.0 == 200 && state.1.contains("wlan0"), "{state:?}");
        assert_eq!(ask(address, "/nothing", good).0, 404);
        drop(instance);
        let gone = ask(address, "/v1/state", good);
        assert!(
            gone.0 == 503 && gone.1.contains("does not answer"),
            "{gone:?}"
        );
    });
    block_on(tokio::task::LocalSet::new().run_until(async {
        #[expect(
            clippy::disallowed_methods,
            reason = "here a panic is a test that fails"
        )]
        let asked = tokio::task::spawn_blocking(move || client.join());
        tokio::select! {
            served = bridge.serve() => served.unwrap(),
            asked = asked => asked.unwrap().unwrap(),
        }
    }));
}

#[test]
fn the_schema_is_served_as_it_is_committed() {
    let (status, text) = Instance::start(false).get("/v1/schema");
    let committed = include_str!("../../../../docs/control.schema.json");
    assert_eq!((status, text.as_str()), (200, committed));
}

#[test]
fn dashboards_and_alert_rules_ask_for_metrics_that_there_are() {
    let mut state: State = serde_json::from_str(STATE).unwrap();
    let fleet = serde_json::json!({
        "key": "x", "epoch": 1, "etcd": "3", "users": 0, "tokens": 0, "clients": 0, "odd": [],
        "relays": [{
            "name": "oslo", "state": "up", "region": "", "addresses": [], "key": "y",
            "sessions": 0, "capacity": 0, "carried_bytes": 0, "up_s": null, "version": "0",
            "clock_behind_s": 0,
        }],
    });
    state.fleet = Some(serde_json::from_value(fleet).unwrap());
    let metrics = tabane_control::render_metrics(&state);
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/grafana");
    for file in fs::read_dir(directory).unwrap() {
        let path = file.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        if path.extension().is_some_and(|it| it == "json") {
            let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert!(dashboard["panels"].as_array().unwrap().len() > 4);
        }
        let mut names = 0;
        for (at, _) in text.match_indices("tabane_") {
            let name: String = text[at..].chars().take_while(|c| is_name(*c)).collect();
            let declared = format!("# TYPE {name} ");
            assert!(metrics.contains(&declared), "{name} in {}", path.display());
            names += 1;
        }
        assert!(names > 7, "{names} in {}", path.display());
    }
}
