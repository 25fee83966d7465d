//! Bytes in both directions, by one link as long as it lasts: what CONNECT asks for, and what a
//! connection has become that HTTP was left on. Each side's connection ends by a reset until the
//! other side has said all, however we end: half a file must not look whole.

use std::io::{self, Cursor};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tabane_fetch::{Abortive, BoxStream, Link};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::balance::{Balance, Seat};
use crate::journal::Entry;
use crate::race;
use crate::refusal::Refusal;

/// One TLS record.
const CHUNK: usize = 16 * 1024;
/// When one side has said all, the other is waited for so long: not for ever, because many never
/// close.
const FAREWELL_TIME: Duration = Duration::from_secs(120);

/// A tunnel that is open on the far side.
pub(crate) struct Tunnel {
    far: BoxStream,
    link: Rc<Link>,
    seat: Seat,
}

impl Tunnel {
    /// Connects by the best link, by another where that fails.
    pub(crate) async fn open(balance: &Balance, host: &str, port: u16) -> Result<Self, Refusal> {
        let links = balance.order(Instant::now(), host);
        let reached = race::first(balance, links, host, |link| {
            let host = host.to_owned();
            async move {
                let connected = link.connect(&host, port).await;
                connected.map_err(|error| Refusal::from(&error))
            }
        });
        let (link, seat, far) = reached.await?;
        Ok(Self { far, link, seat })
    }

    /// One that is open already.
    pub(crate) fn over(far: BoxStream, link: Rc<Link>, seat: Seat) -> Self {
        Self { far, link, seat }
    }

    /// Passes bytes on until both sides have said all, or the link is gone.
    pub(crate) async fn carry(self, near: Upgraded, entry: &Entry) {
        let Self { far, link, seat } = self;
        let (near, early) = bare(near);
        let (near_read, near_write) = split(Abortive::from(near));
        let near_read = early.chain(near_read);
        let (far_read, far_write) = split(Abortive::from(far));
        let name = link.name();
        let moved = |amount: usize| {
            seat.on_moved(Instant::now());
            entry.add(name, amount as u64);
        };
        let up = pass(near_read, far_write, async |amount| {
            moved(amount);
            link.on_sent(amount);
        });
        let down = pass(far_read, near_write, async |amount| {
            moved(amount);
            link.on_read(amount).await;
        });
        tokio::pin!(up, down);
        let both = async {
            let other = tokio::select! {
                done = &mut up => done.map(|()| true)?,
                done = &mut down => done.map(|()| false)?,
            };
            let rest = async {
                match other {
                    true => down.await,
                    false => up.await,
                }
            };
            // Whoever has not closed by then has nothing to say.
            timeout(FAREWELL_TIME, rest).await.unwrap_or(Ok(()))
        };
        tokio::select! {
            done = both => match done {
                Ok(()) => entry.over(),
                Err(error) => entry.failed(error),
            },
            () = link.gone() => entry.failed("the link is gone"),
        }
    }
}

/// A program's own connection, and what it has said after its request.
fn bare(near: Upgraded) -> (BoxStream, Cursor<Bytes>) {
    match near.downcast::<TokioIo<TcpStream>>() {
        Ok(parts) => (Box::new(parts.io.into_inner()), Cursor::new(parts.read_buf)),
        Err(near) => (Box::new(TokioIo::new(near)), Cursor::default()),
    }
}

/// Bytes of one direction; `on_read` is told of them first and may take its time.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    on_read: impl AsyncFn(usize),
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        on_read(count).await;
        to.write_all(&buffer[..count]).await?;
        to.flush().await?;
    }
}
