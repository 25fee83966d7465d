//! Processes that end with the test, commands that must succeed, and what has to be so in time.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::process::first_line;
use crate::text;

/// A process that does not outlive the test.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// With the first line that it says.
    pub(crate) fn start(command: &mut Command) -> (Self, String) {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let line = first_line(&mut child);
        (Self(child), line)
    }

    /// A server that says so when it is ready.
    pub(crate) fn ready(command: &mut Command) -> Self {
        let (server, line) = Self::start(command);
        assert_eq!(line, "ready");
        server
    }

    pub(crate) fn kill(&mut self) {
        // It may be gone already, which is as well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until it is so. What is asked for takes its time, so that nothing is asked in a hurry.
pub(crate) fn within(patience: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {patience:?}: {what}");
    }
}

/// What a command says that must succeed.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    text(&output.stdout).trim().to_owned()
}
