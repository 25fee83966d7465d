//! Child processes of tests: what they say first, when they are ready, how they end.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// More than any step takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const UP: &str = "STATUS=over all links";

pub(crate) fn pid(child: &Child) -> nix::unistd::Pid {
    nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap())
}

/// The end of a child that must end soon.
pub(crate) fn wait_for(child: &mut Child, patience: Duration) -> ExitStatus {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(
            Instant::now() < deadline,
            "still running after {patience:?}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    line.trim().to_owned()
}

pub(crate) fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}

/// What a daemon tells systemd.
pub(crate) struct Notices(UnixDatagram);

impl Notices {
    /// For the daemon that `command` starts.
    pub(crate) fn of(command: &mut Command, path: &Path) -> Self {
        let _ = fs::remove_file(path);
        let notices = UnixDatagram::bind(path).unwrap();
        notices.set_read_timeout(Some(PATIENCE)).unwrap();
        command.env("NOTIFY_SOCKET", path);
        Self(notices)
    }

    /// What `find` makes of the first message, if it makes something of one in time.
    pub(crate) fn find<T>(&self, find: impl Fn(&str) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + PATIENCE;
        let mut buffer = [0; 256];
        while Instant::now() < deadline {
            let heard = self.0.recv(&mut buffer);
            let text = String::from_utf8_lossy(&buffer[..heard.unwrap_or(0)]);
            if let Some(found) = find(&text) {
                return Some(found);
            }
        }
        None
    }

    /// Whether the daemon says this in time.
    pub(crate) fn hear(&self, wanted: &str) -> bool {
        self.find(|text| (text == wanted).then_some(())).is_some()
    }
}
