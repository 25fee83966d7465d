//! A download that lasts as long as a test wants it to, however slow the machine is.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::text;
use crate::world::World;

/// Reads slowly until a file appears, then as fast as it can, and says how much came.
const READER: &str = "import os, sys, time\n\
                      total = 0\n\
                      while block := sys.stdin.buffer.read1(65536):\n\
                      \x20   total += len(block)\n\
                      \x20   if not os.path.exists(sys.argv[1]): time.sleep(len(block) / 3e6)\n\
                      print(total)";

/// `curl` that is held back to 3 MB/s, until it is told to [`finish`](Self::finish).
pub(crate) struct Download {
    child: Option<Child>,
    bytes: u64,
    go: PathBuf,
}

impl Download {
    /// 100 MB, over half a minute if nobody ends it, as `run` runs a line of the shell.
    pub(crate) fn start(world: &World, flags: &str, mut run: Command) -> Self {
        let bytes = 100_000_000;
        let go = world.path("go");
        let curl = format!("curl -sS {flags} http://203.0.113.2:8000/{bytes}");
        let reader = format!("python3 -c '{READER}' {}", go.display());
        run.args(["sh", "-c", &format!("{curl} | {reader}")]);
        let child = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Self {
            child: Some(child.unwrap()),
            bytes,
            go,
        }
    }

    /// Asserts that it is still under way.
    pub(crate) fn assert_under_way(&mut self) {
        let over = self.child.as_mut().unwrap().try_wait().unwrap();
        assert!(over.is_none(), "over too soon: {over:?}");
    }

    /// Lets the rest come, asserts that every byte did, and gives their number.
    pub(crate) fn finish(mut self) -> u64 {
        self.assert_under_way();
        fs::write(&self.go, "").unwrap();
        let output = self.child.take().unwrap().wait_with_output().unwrap();
        assert_eq!(
            text(&output.stdout).trim(),
            self.bytes.to_string(),
            "{output:?}"
        );
        self.bytes
    }

    /// Waits for a stretch in which the download went on and `quiet` carried next to nothing.
    pub(crate) fn await_quiet(&mut self, carried: impl Fn() -> u64, quiet: impl Fn() -> u64) {
        const STRETCH: u64 = 2_000_000;
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut begin = (carried(), quiet());
        loop {
            self.assert_under_way();
            let now = (carried(), quiet());
            if now.1 - begin.1 > STRETCH / 20 {
                begin = now;
            }
            if now.0 - begin.0 > STRETCH {
                return;
            }
            assert!(Instant::now() < deadline, "never quiet");
        }
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        // Only after a failed assertion; the file ends the pipe's reader soon enough.
        let _ = fs::write(&self.go, "");
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
