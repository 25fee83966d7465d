//! Telling whoever started us that everything is in place, in systemd's words (sd_notify(3)).
//!
//! Silent without `NOTIFY_SOCKET`. Owns both ends: `--detach` waits for the same word that systemd
//! does.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Child, ExitStatus};
use std::time::Instant;

use tabane_base::Duration;

/// The variable that names the socket.
pub const VARIABLE: &str = "NOTIFY_SOCKET";
/// What [`ready`] tells.
pub const READY: &str = "READY=1";
/// The variable that says within how many microseconds to hear from us again.
const WATCHDOG: &str = "WATCHDOG_USEC";
const ALIVE: &str = "WATCHDOG=1";
/// How often to look whether a child that says nothing has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Everything is in place.
pub fn ready() {
    tell(READY);
}

/// One line on how things stand, for `systemctl status`.
pub fn status(text: &str) {
    tell(&status_line(text));
}

/// What [`status`] tells.
pub fn status_line(text: &str) -> String {
    format!("STATUS={text}")
}

/// Tells whoever watches us that this thread still takes its turns, as often as it wants to hear;
/// for ever. A thread that hangs falls silent, and is ended and started anew; so is one whose
/// `pulse` does not come, which asks other threads.
pub async fn keep_alive(pulse: impl AsyncFn()) {
    let asked = std::env::var(WATCHDOG).ok();
    let Some(patience) = asked.and_then(|text| text.parse().ok()) else {
        return std::future::pending().await;
    };
    loop {
        pulse().await;
        tell(ALIVE);
        tokio::time::sleep(Duration::from_micros(patience) / 2).await;
    }
}

/// Another process goes on in this one's place, and is to be watched.
pub fn succeeded_by(process: u32) {
    tell(&format!("MAINPID={process}\nREADY=1"));
}

/// The end has begun.
pub fn stopping() {
    tell("STOPPING=1");
}

fn tell(message: &str) {
    let Some(name) = std::env::var_os(VARIABLE) else {
        return;
    };
    let told = (|| -> io::Result<()> {
        let name = name.as_encoded_bytes();
        let address = match name.split_first() {
            Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(std::path::Path::new(
                std::str::from_utf8(name).map_err(io::Error::other)?,
            ))?,
        };
        UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address)?;
        Ok(())
    })();
    if let Err(error) = told {
        tracing::debug!(%error, "cannot notify");
    }
}

/// Hears the word of a child.
pub struct Listener {
    socket: UnixDatagram,
    name: String,
}

/// What came of waiting for a child.
pub enum Heard {
    /// The word that was waited for.
    Told,
    /// It has ended before.
    Ended(ExitStatus),
    /// Neither, until the deadline.
    Nothing,
}

impl Listener {
    /// At a socket of its own.
    pub fn open() -> io::Result<Self> {
        let name = format!("tabane-notify-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        socket.set_read_timeout(Some(LOOK_INTERVAL))?;
        Ok(Self { socket, name })
    }

    /// What the variable must say.
    pub fn value(&self) -> String {
        format!("@{}", self.name)
    }

    /// Waits until `child` says one of `words`, or has ended, or it is too late.
    pub fn wait(
        &self,
        child: &mut Child,
        words: &[&str],
        deadline: Option<Instant>,
    ) -> io::Result<Heard> {
        let mut buffer = [0; 1024];
        loop {
            match self.socket.recv(&mut buffer) {
                Ok(length) => {
                    let text = String::from_utf8_lossy(&buffer[..length]);
                    if text.lines().any(|line| words.contains(&line)) {
                        return Ok(Heard::Told);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if let Some(status) = child.try_wait()? {
                return Ok(Heard::Ended(status));
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(Heard::Nothing);
            }
        }
    }
}
