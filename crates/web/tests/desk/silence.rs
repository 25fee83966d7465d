//! Links that fall silent without a word, as a neighbour that walks away.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use tabane_base::Rate;
use tabane_fetch::{BoxStream, Connecting, DeviceWay, Links, Stream, Way};
use tabane_ranges::LinkLimits;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Desk;
use super::on_this_thread;
use super::origin::{Origin, Reply};

/// A way that leads on, until it is silent: then connections stay as they are, and new ones never
/// come about.
struct Walker {
    is_silent: Arc<AtomicBool>,
    way: DeviceWay,
}

struct Held {
    is_silent: Arc<AtomicBool>,
    stream: BoxStream,
}

impl Way for Walker {
    fn connect<'a>(&'a self, host: &'a str, port: u16) -> Connecting<'a> {
        Box::pin(async move {
            if self.is_silent.load(Relaxed) {
                return std::future::pending().await;
            }
            let stream = self.way.connect(host, port).await?;
            let is_silent = self.is_silent.clone();
            Ok(Box::new(Held { is_silent, stream }) as BoxStream)
        })
    }
}

impl Stream for Held {}

impl AsyncRead for Held {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.is_silent.load(Relaxed) {
            true => Poll::Pending,
            false => Pin::new(&mut self.stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Held {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.is_silent.load(Relaxed) {
            // Into the kernel's buffer, and no further.
            true => Poll::Ready(Ok(bytes.len())),
            false => Pin::new(&mut self.stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A proxy whose best link is a walker's; the other one leads on for ever.
async fn desk() -> (Desk, Arc<AtomicBool>) {
    let is_silent = Arc::new(AtomicBool::new(false));
    let walker = Walker {
        is_silent: is_silent.clone(),
        way: DeviceWay::unbound(),
    };
    let best = LinkLimits {
        rate_hint: Some(Rate::from_mbps(90)),
        ..LinkLimits::default()
    };
    let other = LinkLimits {
        rate_hint: Some(Rate::from_mbps(1)),
        ..LinkLimits::default()
    };
    let links = Links::default();
    links.add("walker", Rc::new(walker), best);
    links.add("other", Rc::new(DeviceWay::unbound()), other);
    (Desk::over(links, &[]).await, is_silent)
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx";

#[test]
fn a_request_on_a_kept_connection_of_a_dead_link_goes_by_another() {
    on_this_thread(async {
        let origin = Origin::start(|_, _| Reply::Say(ANSWER.to_vec())).await;
        let (desk, is_silent) = desk().await;
        for (number, link) in ["walker", "walker", "other", "other"].iter().enumerate() {
            is_silent.store(number >= 2, Relaxed);
            let answer = desk.program().await.get(&origin.url(), "").await;
            assert_eq!((answer.status, &answer.body[..]), (200, &b"x"[..]));
            let record = desk.record(number).await;
            assert_eq!(record.links.keys().collect::<Vec<_>>(), [link], "{number}");
        }
        assert_eq!(
            origin.heard().len(),
            4,
            "what the dead link swallowed is lost"
        );
    });
}

#[test]
fn an_origin_that_thinks_is_asked_once() {
    on_this_thread(async {
        let count = Cell::new(0);
        let origin = Origin::start(move |_, _| {
            count.set(count.get() + 1);
            match count.get() {
                1 => Reply::Say(ANSWER.to_vec()),
                // Longer than anybody doubts in silence.
                _ => Reply::SayLater(Duration::from_millis(1_500), ANSWER.to_vec()),
            }
        })
        .await;
        let (desk, _) = desk().await;
        for number in 0..2 {
            let answer = desk.program().await.get(&origin.url(), "").await;
            assert_eq!(answer.body, b"x");
            assert!(desk.record(number).await.links.contains_key("walker"));
        }
        assert_eq!(origin.heard().len(), 2);
    });
}
