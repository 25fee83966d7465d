//! Bytes of one borrowed connection, in both directions, counted before they are passed on.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use tabane_fetch::{Abortive, BoxStream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::time::{Instant, sleep_until};

use crate::friends::{Ended, Friend};

/// One TLS record.
const CHUNK: usize = 16 * 1024;
/// A connection over which nothing passes is kept for so long: longer than web servers keep theirs.
const IDLE_TIME: Duration = Duration::from_secs(300);

/// Why a direction ended early.
enum Stop {
    Io(io::Error),
    Terms(Ended),
    Idle,
}

/// Passes bytes on until both sides have said all, and then closes both. When it ends early they
/// are dropped without a farewell, so that the friend and the far end notice that something is
/// missing.
pub(crate) async fn carry<A>(friend: &Friend, near: A, far: BoxStream) -> &'static str
where
    A: AsyncRead + AsyncWrite + Unpin,
{
    let (near_read, near_write) = split(near);
    let (far_read, far_write) = split(Abortive::from(far));
    let last_at = Cell::new(Instant::now());
    let both = async {
        tokio::try_join!(
            pass(friend, &last_at, near_read, far_write),
            pass(friend, &last_at, far_read, near_write)
        )
    };
    let stopped = tokio::select! {
        passed = both => passed.err(),
        ended = friend.end() => Some(Stop::Terms(ended)),
        () = idle(&last_at) => Some(Stop::Idle),
    };
    match stopped {
        None => "closed",
        Some(Stop::Io(error)) => {
            tracing::debug!(%error, "a borrowed connection broke");
            "broke"
        }
        Some(Stop::Terms(ended)) => ended.word(),
        Some(Stop::Idle) => "idle",
    }
}

async fn pass(
    friend: &Friend,
    last_at: &Cell<Instant>,
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
) -> Result<(), Stop> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = from.read(&mut buffer).await.map_err(Stop::Io)?;
        last_at.set(Instant::now());
        if count == 0 {
            return to.shutdown().await.map_err(Stop::Io);
        }
        friend.on_carried(count).await.map_err(Stop::Terms)?;
        to.write_all(&buffer[..count]).await.map_err(Stop::Io)?;
        to.flush().await.map_err(Stop::Io)?;
        last_at.set(Instant::now());
    }
}

/// Comes back when nothing has passed in either direction for too long.
async fn idle(last_at: &Cell<Instant>) {
    while last_at.get().elapsed() < IDLE_TIME {
        sleep_until(last_at.get() + IDLE_TIME).await;
    }
}
