//! The client against a real etcd, and against what is none.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;

use super::server::{Server, wait_for};
use super::*;
use tabane_store::Scratch;

fn put(key: &str, value: &[u8]) -> Change {
    Change::put(key.to_owned(), value.to_vec())
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(future)
}

#[test]
fn keys_are_written_once_read_in_their_order_and_watched() {
    let Some(server) = Server::start(1) else {
        return;
    };
    block_on(async {
        let etcd = server.client().await;
        assert!(etcd.check_version().await.unwrap().starts_with("3."));
        let mut watch = etcd.watch("test/", 1).await.unwrap();
        // Bytes that are no text, in more keys than a page has.
        let many = (0..PAGE + 7).rev();
        let many: Vec<Change> = many
            .map(|n| put(&format!("test/{n:04}"), &[0xff, n as u8]))
            .collect();
        for part in many.chunks(MAX_OPERATIONS) {
            assert!(etcd.change(&[], part).await.unwrap().is_some());
        }
        let snapshot = etcd.list("test/").await.unwrap();
        assert_eq!(snapshot.entries.len(), PAGE + 7);
        let first = &snapshot.entries[0];
        assert!(
            first.key.as_str() > "test/0380" && first.value[0] == 0xff,
            "the oldest first"
        );
        let mut seen = 0;
        while seen < PAGE + 7 {
            seen += watch.next().await.unwrap().entries.len();
        }

        let unseen = [("test/new".to_owned(), 0)];
        let made = etcd
            .change(&unseen, &[put("test/new", b"1")])
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            etcd.change(&unseen, &[put("test/new", b"2")])
                .await
                .unwrap(),
            None
        );
        let entry = etcd.get("test/new").await.unwrap().unwrap();
        assert_eq!(
            (entry.value.as_slice(), entry.changed_at),
            (&b"1"[..], made)
        );
        let keys = ["test/0003", "test/none", "test/new"].map(str::to_owned);
        let seen = etcd.get_all(&keys).await.unwrap();
        let values = seen.iter().map(|it| it.as_ref().map(|it| &it.value[..]));
        let values: Vec<_> = values.collect();
        assert_eq!(values, [Some(&[0xff, 3][..]), None, Some(b"1")]);
        let key = "test/new".to_owned();
        let gone = etcd
            .change(&[(key.clone(), made)], &[Change::Delete { key }])
            .await;
        assert!(gone.unwrap().is_some());
        let changed = watch.next().await.unwrap();
        assert_eq!(changed.entries[0].0, "test/new");
        assert!(
            watch.next().await.unwrap().entries[0].1.is_none(),
            "deleted"
        );
        assert_eq!(etcd.get("test/new").await.unwrap(), None);
        assert!(etcd.list("tesu/").await.unwrap().entries.is_empty());

        let lease = etcd.grant(30).await.unwrap();
        let leased = Change::Put {
            key: "test/leased".to_owned(),
            value: Vec::new(),
            lease,
        };
        etcd.change(&[], &[leased]).await.unwrap();
        assert!(etcd.keep_alive(lease).await.unwrap());
        assert_eq!(etcd.get("test/leased").await.unwrap().unwrap().lease, lease);
        etcd.revoke(lease).await.unwrap();
        assert_eq!(etcd.get("test/leased").await.unwrap(), None);
        assert!(!etcd.keep_alive(lease).await.unwrap());
        assert!(etcd.ahead_s().abs() <= 1, "it is this machine's clock");
    });
}

/// From what it says was seen another watch begins, where the connection is another one.
#[test]
fn a_watch_that_catches_up_has_seen_no_more_than_it_told() {
    let Some(server) = Server::start(1) else {
        return;
    };
    block_on(async {
        let etcd = server.client().await;
        for n in 0..3 {
            etcd.change(&[], &[put("test/a", &[n])]).await.unwrap();
        }
        let mut watch = etcd.watch("test/", 1).await.unwrap();
        let mut told = 0;
        while told < 3 {
            let changed = watch.next().await.unwrap();
            let entries = changed
                .entries
                .iter()
                .filter_map(|(_, entry)| entry.as_ref());
            let seen = entries.map(|entry| entry.changed_at).max();
            assert_eq!(changed.revision, seen.unwrap_or(0));
            told += changed.entries.len();
        }
        // What is deleted counts as well.
        let key = "test/a".to_owned();
        let gone = etcd.change(&[], &[Change::Delete { key }]).await.unwrap();
        assert_eq!(Some(watch.next().await.unwrap().revision), gone);
    });
    // Only where it says that there was nothing else has everything been told.
    let progress = br#"{"result":{"header":{"revision":"9"}}}"#;
    assert_eq!(watch::read(progress).unwrap().revision, 9);
}

#[test]
fn a_member_that_is_killed_is_passed_over_and_without_a_majority_etcd_is_away() {
    let Some(mut server) = Server::start(3) else {
        return;
    };
    block_on(async {
        let etcd = server.client().await;
        etcd.change(&[], &[put("test/a", b"1")]).await.unwrap();
        server.kill(0);
        let read = etcd.get("test/a").await.unwrap().unwrap();
        assert_eq!(read.value, b"1");
        wait_for(&etcd).await;
        server.kill(1);
        let error = etcd.change(&[], &[put("test/a", b"2")]).await.unwrap_err();
        assert!(matches!(error, EtcdError::Away(_)), "{error}");
        server.run(0);
        wait_for(&etcd).await;
        assert!(etcd.get("test/a").await.unwrap().is_some());
    });
}

#[test]
fn a_full_etcd_says_what_to_do() {
    let more = ["--quota-backend-bytes=200000".to_owned()];
    let Some(server) = Server::start_with(1, "http", &more) else {
        return;
    };
    block_on(async {
        let etcd = server.client().await;
        let mut error = None;
        // How full it is, it sees ten times a second.
        for n in 0..5_000 {
            let change = put(&format!("test/{n}"), &[b'x'; 20_000]);
            error = etcd.change(&[], &[change]).await.err();
            if error.is_some() {
                break;
            }
        }
        let error = error.unwrap();
        assert!(matches!(error, EtcdError::Full), "{error}");
        assert!(
            etcd.get("test/0").await.unwrap().is_some(),
            "it still answers"
        );
    });
}

#[test]
fn a_password_lets_in_and_a_wrong_one_is_named() {
    let Some(server) = Server::start(1) else {
        return;
    };
    let scratch = Scratch::make();
    let secret = scratch.path().join("password");
    std::fs::write(&secret, "sesame\n").unwrap();
    let ctl = |words: &str| {
        let done = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints=127.0.0.1:{}", server.port()))
            .args(words.split(' '))
            .output()
            .unwrap();
        assert!(done.status.success(), "{words}: {done:?}");
    };
    let as_ann = |port: u16| -> FleetAddress {
        let file = secret.display();
        format!("etcd://ann@127.0.0.1:{port}/test?password-file={file}")
            .parse()
            .unwrap()
    };
    block_on(async {
        server.client().await;
        ctl("user add root:root");
        ctl("user add ann:sesame");
        ctl("role add tabane");
        ctl("role grant-permission tabane --prefix=true readwrite test/");
        ctl("user grant-role ann tabane");
        ctl("user grant-role root root");
        ctl("auth enable");
        let etcd = Etcd::new(as_ann(server.port()).with_password().unwrap());
        etcd.change(&[], &[put("test/a", b"1")]).await.unwrap();
        let mut watch = etcd.watch("test/", 1).await.unwrap();
        assert_eq!(next(&mut watch).await, 1);
        let error = etcd.change(&[], &[put("else/a", b"1")]).await.unwrap_err();
        assert!(matches!(error, EtcdError::Denied(_)), "{error}");
        std::fs::write(&secret, "open").unwrap();
        let etcd = Etcd::new(as_ann(server.port()).with_password().unwrap());
        let error = etcd.get("test/a").await.unwrap_err();
        assert!(matches!(error, EtcdError::Denied(_)), "{error}");
        let etcd = Etcd::new(
            format!("etcd://127.0.0.1:{}", server.port())
                .parse()
                .unwrap(),
        );
        let error = etcd.get("test/a").await.unwrap_err();
        assert!(matches!(error, EtcdError::Denied(_)), "{error}");
    });
}

/// How much the next message says that says anything.
async fn next(watch: &mut Watch) -> usize {
    loop {
        match watch.next().await.unwrap().entries.len() {
            // The watch is there, or is still.
            0 => {}
            some => return some,
        }
    }
}

/// A certificate's authority, and one for 127.0.0.1, by openssl.
fn certificates(scratch: &Scratch) -> impl Fn(&str) -> String {
    let directory = scratch.path().to_owned();
    let script = "set -e
        for who in ca stranger; do
            openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
                -keyout $who.key -out $who.pem -subj /CN=$who
        done
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout own.key \
            -out own.csr -subj /CN=own
        printf 'subjectAltName=IP:127.0.0.1' >own.ext
        openssl x509 -req -in own.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
            -extfile own.ext -out own.pem";
    let made = Command::new("sh")
        .args(["-c", script])
        .current_dir(&directory)
        .output();
    let made = made.unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    move |name| directory.join(name).display().to_string()
}

#[test]
fn tls_is_spoken_with_certificates_of_both_ends_and_a_strangers_is_refused() {
    let scratch = Scratch::make();
    let file = certificates(&scratch);
    let words = [
        format!("--cert-file={}", file("own.pem")),
        format!("--key-file={}", file("own.key")),
        format!("--trusted-ca-file={}", file("ca.pem")),
        "--client-cert-auth".to_owned(),
    ];
    let Some(server) = Server::start_with(1, "https", &words) else {
        return;
    };
    let with = |ca: &str, own: Option<&str>| {
        let own = own.map(|it| format!("&cert={}&key={}", file("own.pem"), file(it)));
        let text = format!(
            "etcd://127.0.0.1:{}/test?ca={}{}",
            server.port(),
            file(ca),
            own.unwrap_or_default()
        );
        Etcd::new(text.parse().unwrap())
    };
    block_on(async {
        let etcd = with("ca.pem", Some("own.key"));
        wait_for(&etcd).await;
        etcd.change(&[], &[put("test/a", b"1")]).await.unwrap();
        let mut watch = etcd.watch("test/", 1).await.unwrap();
        assert_eq!(next(&mut watch).await, 1);
        let error = with("stranger.pem", Some("own.key"))
            .get("test/a")
            .await
            .unwrap_err();
        assert!(matches!(error, EtcdError::Tls(_)), "{error}");
        assert!(
            with("ca.pem", None).get("test/a").await.is_err(),
            "it asks for one of ours"
        );
        let error = with("own.csr", None).get("test/a").await.unwrap_err();
        assert!(error.to_string().contains("own.csr"), "{error}");
    });
}

/// Answers whatever is asked with `answer`, once per connection.
fn stub(answer: &'static str) -> Etcd {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // Ends with the test's process.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut question = [0; 4_096];
            let _ = stream.read(&mut question);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    Etcd::new(format!("etcd://127.0.0.1:{port}").parse().unwrap())
}

#[test]
fn what_is_no_etcd_of_ours_is_named_and_a_clock_is_seen() {
    let answers = [
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 24\r\n\r\n{\"etcdserver\":\"3.3.27\"} ",
            "3.3.27",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]",
            "3.4 or newer",
        ),
        (
            "HTTP/1.1 404 Not Found\r\ncontent-length: 19\r\n\r\n404 page not found\n",
            "3.4 or newer",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{\"e",
            "not understood",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{\"etcd",
            "cannot be reached",
        ),
        ("SSH-2.0-OpenSSH_9.2\r\n", "cannot be reached"),
        ("", "cannot be reached"),
    ];
    block_on(async {
        for (answer, word) in answers {
            let error = stub(answer).check_version().await.unwrap_err().to_string();
            assert!(
                error.contains(word) && !error.contains('\n'),
                "{answer}: {error}"
            );
        }
        let answer = "HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2122 00:00:00 GMT\r\n\
                      content-length: 22\r\n\r\n{\"etcdserver\":\"3.5.9\"}";
        let etcd = stub(answer);
        etcd.check_version().await.unwrap();
        let now = connection::unix_seconds();
        assert!((etcd.ahead_s() + now - 4_796_668_800).abs() <= 2);
    });
}
