//! What the kernel tells of a TCP connection (`TCP_INFO`), and whether its far end reads.

use std::os::fd::{AsFd, AsRawFd};

use tabane_base::Duration;

/// Where the kernel puts what we look for (`linux/tcp.h`), all of it since Linux 5.4; not
/// every libc's type has it.
const ROUND_TRIP_AT: usize = 68;
const ACKNOWLEDGED_AT: usize = 120;
const WINDOW_AT: usize = 228;
const LENGTH: usize = 232;

/// By so much a kernel whose program does not read offers more than at first: at most its whole
/// receive buffer, 128 kB on Linux, where 64 kB are offered at first.
const OFFERED_UNREAD: u64 = 72 * 1024;

/// To the far end of `tcp`, as the kernel measured it; zero where it does not tell.
pub(crate) fn round_trip(tcp: &impl AsFd) -> Duration {
    let micros = read(tcp).map_or(0, |info| u32::from_ne_bytes(number(&info, ROUND_TRIP_AT)));
    Duration::from_micros(micros.into())
}

/// Segments that were sent again.
#[cfg(test)]
pub(crate) fn repeated(tcp: &impl AsFd) -> Option<u32> {
    const REPEATED_AT: usize = 100;
    Some(u32::from_ne_bytes(number(&read(tcp)?, REPEATED_AT)))
}

/// Whether the program at the far end of a connection reads, as its kernel's offers show: one whose
/// program stands still fills its buffer and offers no more.
#[derive(Debug)]
pub struct Reading {
    /// Up to which byte the kernel offered to take at first.
    first: Option<u64>,
}

impl Reading {
    /// Of the program at the far end of `tcp`, to which nothing was written yet.
    #[must_use]
    pub fn of(tcp: &impl AsFd) -> Self {
        Self {
            first: offered(tcp),
        }
    }

    /// Whether it is known to read. Kernels that do not tell of windows show it later.
    pub fn is_shown(&self, tcp: &impl AsFd) -> bool {
        let (first, now) = (self.first, offered(tcp));
        first.is_some_and(|first| now.is_some_and(|now| now > first + OFFERED_UNREAD))
    }
}

/// Up to which byte the far end's kernel has offered to take what we send.
fn offered(tcp: &impl AsFd) -> Option<u64> {
    let info = read(tcp)?;
    let acknowledged = u64::from_ne_bytes(number(&info, ACKNOWLEDGED_AT));
    let window = u32::from_ne_bytes(number(&info, WINDOW_AT));
    Some(acknowledged + u64::from(window))
}

/// `None` as well of a kernel that tells less than we look for.
fn read(tcp: &impl AsFd) -> Option<[u8; LENGTH]> {
    let mut info = [0; LENGTH];
    let mut length = LENGTH as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes.
    let done = unsafe {
        libc::getsockopt(
            tcp.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    (done == 0 && length as usize == LENGTH).then_some(info)
}

fn number<const N: usize>(info: &[u8; LENGTH], at: usize) -> [u8; N] {
    info[at..at + N].try_into().expect("N bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        crate::buffers::allow_small_buffers(&listener).unwrap();
        let program = TcpStream::connect(listener.local_addr().unwrap()).await;
        (listener.accept().await.unwrap().0, program.unwrap())
    }

    #[tokio::test]
    async fn who_reads_is_known_after_little_and_who_does_not_never() {
        let (mut ours, mut program) = pair().await;
        let reading = Reading::of(&ours);
        let mut read = 0;
        while !reading.is_shown(&ours) {
            assert!(read < 128 * 1024, "not known after {read} bytes");
            ours.write_all(&[7; 8 * 1024]).await.unwrap();
            read += program.read_exact(&mut [0; 8 * 1024]).await.unwrap();
        }

        let (ours, _program) = pair().await;
        let reading = Reading::of(&ours);
        // Until the kernel takes no more, and a little longer.
        while ours.writable().await.is_ok() && ours.try_write(&[7; 8 * 1024]).is_ok() {
            assert!(!reading.is_shown(&ours));
        }
        assert!(!reading.is_shown(&ours));
    }
}
