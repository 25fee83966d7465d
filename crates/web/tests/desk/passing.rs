//! Requests that are passed on as they are.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tabane_fetch::Links;
use tabane_ranges::LinkLimits;
use tabane_web::Carried;

use super::origin::{Origin, Reply, file_answer};
use super::program::Program;
use super::{DeadWay, Desk, nobody, on_this_thread};

fn say(text: &str) -> Reply {
    Reply::Say(text.as_bytes().to_vec())
}

#[test]
fn bodies_pass_in_both_directions_however_they_are_framed() {
    on_this_thread(async {
        let origin = Origin::start(|head, body| {
            let body = String::from_utf8_lossy(body);
            let text = format!("{}|{body}", head.split(' ').next().unwrap());
            let head = "HTTP/1.1 200 OK\r\nX-Two: 1\r\nX-Two: 2\r\n";
            say(&match head.len() + text.len() {
                n if n % 2 == 0 => format!("{head}Content-Length: {}\r\n\r\n{text}", text.len()),
                _ => format!(
                    "{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{text}\r\n0\r\n\r\n",
                    text.len()
                ),
            })
        })
        .await;
        let desk = Desk::start(&[]).await;
        let mut program = desk.program().await;
        let url = origin.url();
        for (method, body) in [
            ("POST", "12345"),
            ("PUT", "123456"),
            ("DELETE", ""),
            ("BREW", "1"),
        ] {
            let length = body.len();
            let head = format!("{method} {url} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}");
            program
                .say(format!("{head}\r\n\r\n{body}").as_bytes())
                .await;
            let answer = program.answer(false).await;
            let expected = format!("{}|{body}", method.to_lowercase());
            assert_eq!(String::from_utf8_lossy(&answer.body), expected);
            assert!(answer.is_whole && answer.head.contains("x-two: 1\r\nx-two: 2\r\n"));
        }
        let head = format!("POST {url} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked");
        program
            .say(format!("{head}\r\n\r\n3\r\nabc\r\n").as_bytes())
            .await;
        program.say(b"2\r\nde\r\n0\r\n\r\n").await;
        let answer = program.answer(false).await;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(text.contains("abc") && text.contains("de"), "{text}");
        assert!(origin.heard()[4].contains("transfer-encoding: chunked"));
    });
}

#[test]
fn heads_without_bodies_pass_as_they_are() {
    on_this_thread(async {
        let origin = Origin::start(|head, _| {
            let path = head.split(' ').nth(1).unwrap();
            match path {
                "/304" => say("HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n"),
                "/204" => say("HTTP/1.1 204 No Content\r\n\r\n"),
                "/early" => say("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
                     HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
                "/302" => say("HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n"),
                "/404" => say("HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone"),
                _ => Reply::Say(file_answer(head, &[7; 100_000], "\"1\"")),
            }
        })
        .await;
        let desk = Desk::start(&[]).await;
        let mut program = desk.program().await;
        let base = format!("http://127.0.0.1:{}", origin.port);
        let head = program.ask("HEAD", &format!("{base}/f"), "").await;
        assert_eq!(
            (head.status, head.header("content-length")),
            (200, Some("100000"))
        );
        for (path, status, body) in [
            ("/304", 304, ""),
            ("/204", 204, ""),
            ("/early", 200, "ok"),
            ("/302", 302, ""),
            ("/404", 404, "gone"),
        ] {
            let answer = program.get(&format!("{base}{path}"), "").await;
            assert_eq!((answer.status, &answer.body[..]), (status, body.as_bytes()));
        }
        let location = program.get(&format!("{base}/302"), "").await;
        assert_eq!(location.header("location"), Some("/x"));
        // All by one connection on either side.
        assert_eq!((origin.left(), origin.heard().len()), (0, 7));
    });
}

#[test]
fn what_concerns_one_hop_stays_on_it() {
    on_this_thread(async {
        let origin = Origin::start(|_, _| {
            say(
                "HTTP/1.1 200 OK\r\nConnection: X-Hop\r\nX-Hop: 1\r\nX-End: 2\r\n\
                 Proxy-Authenticate: Basic\r\nKeep-Alive: timeout=5\r\nContent-Length: 0\r\n\r\n",
            )
        })
        .await;
        let desk = Desk::start(&[]).await;
        let lines = "Connection: keep-alive, X-Mine\r\nX-Mine: 1\r\nX-Theirs: 2\r\n\
                     Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic eDp5\r\n\
                     Upgrade: websocket\r\n";
        let answer = desk.program().await.get(&origin.url(), lines).await;
        assert!(answer.head.contains("x-end: 2"), "{}", answer.head);
        for hop in ["x-hop", "proxy-auth", "keep-alive"] {
            assert!(!answer.head.contains(hop), "{}", answer.head);
        }
        let heard = origin.heard().remove(0);
        assert!(heard.starts_with("get /file http/1.1\r\n"), "{heard}");
        assert!(
            heard.contains("x-theirs: 2") && heard.contains("via: 1.1 tabane-"),
            "{heard}"
        );
        assert!(
            heard.contains(&format!("host: 127.0.0.1:{}\r\n", origin.port)),
            "{heard}"
        );
        for hop in ["x-mine", "proxy-", "upgrade", "keep-alive"] {
            assert!(!heard.contains(hop), "{heard}");
        }
    });
}

#[test]
fn failures_have_a_status_and_words() {
    on_this_thread(async {
        let desk = Desk::start(&[]).await;
        let garbage = Origin::start(|_, _| Reply::SayAndClose(b"220 mail ESMTP\r\n\r\n".to_vec()));
        let nothing = Origin::start(|_, _| Reply::SayAndClose(Vec::new()));
        let (garbage, nothing) = (garbage.await, nothing.await);
        let itself = format!("http://localhost:{}/", desk.port);
        let refused = format!("http://{}/", nobody().await);
        for (url, status) in [
            (refused.as_str(), 502),
            ("http://nobody.invalid/", 502),
            (&garbage.url(), 502),
            (&nothing.url(), 502),
            (&itself, 508),
            ("ftp://127.0.0.1/", 400),
            ("/no/map", 404),
        ] {
            let answer = desk.program().await.get(url, "").await;
            assert_eq!(answer.status, status, "{url}");
            let text = String::from_utf8(answer.body).unwrap();
            assert!(
                text.starts_with("tabane: ") && text.ends_with('\n'),
                "{text}"
            );
        }
        // GET may be asked again, by both links; POST never where it may have arrived.
        assert_eq!(nothing.heard().len(), 4);
        let answer = desk
            .program()
            .await
            .ask("POST", &nothing.url(), "Content-Length: 0\r\n")
            .await;
        assert_eq!((answer.status, nothing.heard().len()), (502, 5));
        let trace = "Max-Forwards: 0\r\n";
        let answer = desk
            .program()
            .await
            .ask("TRACE", &nothing.url(), trace)
            .await;
        assert_eq!((answer.status, nothing.heard().len()), (200, 5));
    });
}

#[test]
fn a_connection_that_was_closed_while_idle_is_no_failure() {
    on_this_thread(async {
        let count = Rc::new(Cell::new(0));
        let origin = Origin::start(move |_, body| {
            count.set(count.get() + 1);
            let text = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            let answer = [text.as_bytes(), body].concat();
            // Closes without having said so.
            match count.get() % 2 {
                1 => Reply::SayAndClose(answer),
                _ => Reply::Say(answer),
            }
        })
        .await;
        let desk = Desk::start(&[]).await;
        let mut program = desk.program().await;
        for _ in 0..6 {
            let text = format!(
                "POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
                origin.url()
            );
            program.say(text.as_bytes()).await;
            assert_eq!(program.answer(false).await.body, b"abc");
        }
    });
}

#[test]
fn an_answer_that_breaks_off_does_not_look_whole() {
    on_this_thread(async {
        let origin = Origin::start(|head, _| match head.contains("/chunked") {
            true => Reply::SayAndClose(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n".to_vec(),
            ),
            false => {
                Reply::SayAndClose(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabcde".to_vec())
            }
        })
        .await;
        let desk = Desk::start(&[]).await;
        for (number, path) in ["/length", "/chunked"].into_iter().enumerate() {
            let url = format!("http://127.0.0.1:{}{path}", origin.port);
            let answer = desk.program().await.get(&url, "").await;
            assert_eq!(
                (answer.is_whole, &answer.body[..]),
                (false, &b"abcde"[..]),
                "{path}"
            );
            assert!(desk.record(number).await.trouble.is_some());
        }
    });
}

#[test]
fn a_link_that_leads_nowhere_costs_a_second_once() {
    for way in [DeadWay::Fails, DeadWay::Hangs] {
        on_this_thread(async {
            let links = Links::default();
            links.add("dead", Rc::new(way), LinkLimits::default());
            let alive = Rc::new(tabane_fetch::DeviceWay::unbound());
            links.add("alive", alive, LinkLimits::default());
            let origin =
                Origin::start(|_, _| say("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")).await;
            let desk = Desk::over(links, &[]).await;
            for number in 0..3 {
                let began_at = std::time::Instant::now();
                let answer = desk.program().await.get(&origin.url(), "").await;
                assert_eq!(answer.body, b"x");
                let record = desk.record(number).await;
                assert_eq!((record.carried, record.links["alive"]), (Carried::Whole, 1));
                // The next ones do not wait for the dead one's head start.
                assert!(number == 0 || began_at.elapsed() < Duration::from_millis(900));
            }
        });
    }
}

#[test]
fn without_a_link_there_is_an_answer_all_the_same() {
    on_this_thread(async {
        let desk = Desk::over(Links::default(), &[]).await;
        let answer = desk.program().await.get("http://127.0.0.1:9/", "").await;
        assert_eq!(answer.status, 503);
        let text = String::from_utf8(answer.body).unwrap();
        assert!(text.contains("tabane links"), "{text}");
    });
}

#[test]
fn a_link_that_goes_away_ends_what_it_carries() {
    on_this_thread(async {
        // More is promised than comes.
        let origin =
            Origin::start(|_, _| say("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome")).await;
        let desk = Desk::start(&[]).await;
        let mut program = Program::connect(desk.port).await;
        let text = format!("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", origin.url());
        program.say(text.as_bytes()).await;
        assert!(program.head().await.starts_with("http/1.1 200"));
        for name in desk.links.names() {
            desk.links.remove(&name);
        }
        let trouble = desk.record(0).await.trouble.unwrap();
        assert_eq!(trouble, "the link is gone");
    });
}
