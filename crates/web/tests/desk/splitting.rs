//! Files that come over several links.

use std::cell::Cell;
use std::rc::Rc;

use tabane_web::Carried;

use super::origin::{Origin, Reply, file, file_answer};
use super::{Desk, on_this_thread};

const SIZE: usize = 3_000_000;

#[test]
fn a_large_file_comes_over_both_links_and_looks_as_it_did() {
    on_this_thread(async {
        let (origin, desk) = (Origin::with_file(SIZE).await, Desk::start(&[]).await);
        let mut program = desk.program().await;
        let answer = program
            .get(&origin.url(), "Cookie: a=b\r\nX-Mine: 1\r\n")
            .await;
        assert!(answer.status == 200 && answer.is_whole, "{}", answer.head);
        assert!(answer.body == file(SIZE), "other bytes");
        assert_eq!(answer.header("content-range"), None);
        assert_eq!(answer.header("etag"), Some("\"1\""));
        assert!(
            answer
                .header("via")
                .is_some_and(|via| via.starts_with("1.1 tabane-"))
        );
        let record = desk.record(0).await;
        assert_eq!((record.carried, record.trouble), (Carried::Split, None));
        for link in ["fast", "slow"] {
            assert!(record.links[link] > SIZE as u64 / 10, "{:?}", record.links);
        }
        let heard = origin.heard();
        assert!(
            !heard[0].contains("range"),
            "the first goes out as it came: {}",
            heard[0]
        );
        assert!(heard[1].contains("range: bytes=") && heard[1].contains("if-range: \"1\""));
        for head in heard {
            assert!(
                head.contains("cookie: a=b\r\n") && head.contains("x-mine: 1\r\n"),
                "{head}"
            );
        }
        // The same connection serves the next one.
        let again = program.get(&origin.url(), "").await;
        assert!(again.body == file(SIZE), "other bytes");
    });
}

#[test]
fn what_cannot_be_split_comes_by_one_link() {
    let cases: [(&str, usize, &str); 7] = [
        ("small", 9_000, ""),
        ("no ranges", 400_000, ""),
        ("weak tag", 400_000, ""),
        ("encoded", 400_000, ""),
        ("part", 400_000, "Range: bytes=1000-300000\r\n"),
        ("condition", 400_000, "If-None-Match: \"0\"\r\n"),
        ("credentials", 400_000, "Authorization: Basic eDp5\r\n"),
    ];
    for (what, size, lines) in cases {
        on_this_thread(async {
            let origin = Origin::start(move |head, _| {
                let text = file_answer(head, &file(size), "\"1\"");
                let change = |from: &str, to: &str| {
                    let at = text.windows(from.len()).position(|w| w == from.as_bytes());
                    let at = at.unwrap();
                    [&text[..at], to.as_bytes(), &text[at + from.len()..]].concat()
                };
                Reply::Say(match what {
                    "no ranges" => change("Accept-Ranges: bytes", "Accept-Ranges: none"),
                    "weak tag" => change("\"1\"", "W/\"1\""),
                    "encoded" => change("Accept-R", "Content-Encoding: gzip\r\nAccept-R"),
                    _ => text,
                })
            })
            .await;
            let desk = Desk::start(&[]).await;
            let answer = desk.program().await.get(&origin.url(), lines).await;
            let (status, bytes) = match what {
                "part" => (206, file(size)[1_000..=300_000].to_vec()),
                _ => (200, file(size)),
            };
            assert!(
                answer.status == status && answer.is_whole,
                "{what}: {}",
                answer.head
            );
            assert!(answer.body == bytes, "{what}: other bytes");
            let record = desk.record(0).await;
            assert_eq!(
                (record.carried, record.links.len()),
                (Carried::Whole, 1),
                "{what}"
            );
            assert_eq!((record.trouble, origin.heard().len()), (None, 1), "{what}");
        });
    }
}

#[test]
fn two_versions_never_mix() {
    on_this_thread(async {
        // Every answer but the first is of another version.
        let count = Rc::new(Cell::new(0));
        let origin = Origin::start(move |head, _| {
            count.set(count.get() + 1);
            let (mut bytes, tag) = (file(SIZE), format!("\"{}\"", count.get()));
            bytes[SIZE - 1] = count.get();
            let answer = file_answer(head, &bytes, &tag);
            match count.get() {
                1 => Reply::SayAndClose(answer[..SIZE / 2].to_vec()),
                _ => Reply::Say(answer),
            }
        })
        .await;
        let desk = Desk::start(&[]).await;
        let answer = desk.program().await.get(&origin.url(), "").await;
        assert!(
            !answer.is_whole,
            "half of one version must not be given out as whole"
        );
        assert!(file(SIZE).starts_with(&answer.body));
        let trouble = desk.record(0).await.trouble;
        assert_eq!(
            trouble.as_deref(),
            Some("the file changed while it was fetched")
        );
    });
}

#[test]
fn a_program_that_hangs_up_ends_the_fetch() {
    on_this_thread(async {
        let (origin, desk) = (Origin::with_file(40_000_000).await, Desk::start(&[]).await);
        let mut program = desk.program().await;
        let head = format!("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", origin.url());
        program.say(head.as_bytes()).await;
        program.raw(100_000).await;
        drop(program);
        let record = desk.record(0).await;
        assert_eq!(record.trouble.as_deref(), Some("the program hung up"));
        while origin.left() < origin.heard().len() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    });
}

#[test]
fn a_slow_program_does_not_fill_the_memory() {
    on_this_thread(async {
        let links = tabane_fetch::Links::default();
        for name in ["a", "b"] {
            let way = Rc::new(tabane_fetch::DeviceWay::unbound());
            links.add(name, way, tabane_ranges::LinkLimits::default());
        }
        let size = 60_000_000;
        let (origin, desk) = (Origin::with_file(size).await, Desk::over(links, &[]).await);
        let mut program = desk.program().await;
        let head = format!("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", origin.url());
        program.say(head.as_bytes()).await;
        program.raw(1_000_000).await;
        let carried = || {
            let names = desk.links.names();
            names
                .iter()
                .map(|name| desk.links.carried(name).get())
                .sum::<u64>()
        };
        let mut before = 0;
        while carried() > before {
            before = carried();
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        }
        // The window, sockets' buffers, and what is asked for twice.
        assert!(carried() < 40_000_000, "{}", carried());
        program.raw(size - 1_000_000).await;
    });
}

#[test]
fn a_local_address_stands_for_an_origin() {
    on_this_thread(async {
        let elsewhere = Origin::with_file(SIZE).await;
        let far = elsewhere.url();
        let origin = Origin::start(move |head, _| {
            let to = match head.split(' ').nth(1).unwrap() {
                "/base/here" => "http://mapped/base/file?x".to_owned(),
                "/base/away" => far.clone(),
                _ => return Reply::Say(file_answer(head, &file(SIZE), "\"1\"")),
            };
            let text =
                format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 4\r\n\r\nthat");
            Reply::Say(text.into_bytes())
        })
        .await;
        let map = format!("a/b=http://127.0.0.1:{}/base/", origin.port);
        let desk = Desk::start(&[&map, "m=http://mapped/base"]).await;
        let mut program = desk.program().await;
        let answer = program.get("/a/b/file", "").await;
        assert!(answer.body == file(SIZE), "{}", answer.head);
        assert!(origin.heard()[0].contains(&format!("host: 127.0.0.1:{}\r\n", origin.port)));
        assert_eq!(desk.record(0).await.carried, Carried::Split);
        // A redirect to what is mapped leads to where we have it.
        let answer = program.get("/a/b/here", "").await;
        assert_eq!((answer.status, &answer.body[..]), (302, &b"that"[..]));
        assert_eq!(answer.header("location"), Some("http://127.0.0.1/m/file?x"));
        // Another is followed, and what is the first origin's stays with it.
        let secrets = "Cookie: a=b\r\nX-Mine: 1\r\n";
        let answer = program.get("/a/b/away", secrets).await;
        assert!(
            answer.status == 200 && answer.body == file(SIZE),
            "{}",
            answer.head
        );
        let heard = elsewhere.heard();
        assert!(heard.len() > 1, "split there, too");
        for head in heard {
            assert!(
                !head.contains("cookie") && head.contains("x-mine"),
                "{head}"
            );
        }
        assert_eq!(program.get("/c", "").await.status, 404);
    });
}
