//! Programs that are run and watched: their lines, their end, their processor time.
//!
//! Every wait has a deadline, and no program outlives its value here.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How long a program may take to end after it was asked to.
const FAREWELL: Duration = Duration::from_secs(3);

/// The kernel's unit of processor time in /proc, the same on all machines it runs on today.
const TICKS_PER_SECOND: f64 = 100.0;

/// Runs iproute2 with `arguments`, separated by spaces, to its end.
pub(super) fn ip(arguments: &str) -> Result<()> {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .context("cannot start ip (is iproute2 installed?)")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {arguments}: {}", said.trim());
    Ok(())
}

/// A program at work. Ended when dropped.
#[derive(Debug)]
pub(super) struct Running {
    name: String,
    child: Child,
    pidfd: OwnedFd,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
    ended: bool,
}

/// What a program has left.
#[derive(Debug)]
pub(super) struct Finished {
    status: ExitStatus,
    pub(super) stdout: String,
    stderr: String,
    /// Of the program itself, without those it started.
    pub(super) cpu: Cpu,
}

/// Processor time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Cpu {
    /// In the program's own code.
    pub(super) user: Duration,
    /// In the kernel on its behalf.
    pub(super) system: Duration,
}

impl Cpu {
    pub(super) fn total(self) -> Duration {
        self.user + self.system
    }

    pub(super) fn since(self, before: Self) -> Self {
        Self {
            user: self.user.saturating_sub(before.user),
            system: self.system.saturating_sub(before.system),
        }
    }
}

impl Running {
    /// Starts `command`; `name` is what messages call it.
    pub(super) fn start(name: &str, command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| {
                let program = command.get_program().to_string_lossy();
                format!("cannot start {program} (is it installed?)")
            })?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.context("a process has a number")?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).context("cannot watch a process")?;
        let stdout = lines(child.stdout.take().context("stdout is piped")?);
        let stderr = lines(child.stderr.take().context("stderr is piped")?);
        Ok(Self {
            name: name.to_owned(),
            child,
            pidfd,
            stdout,
            stderr,
            ended: false,
        })
    }

    /// Waits until the program prints a line that contains `text`, and returns the line.
    pub(super) fn wait_for_line(&mut self, text: &str, within: Duration) -> Result<String> {
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.stdout.recv_timeout(left) {
                Ok(line) if line.contains(text) => return Ok(line),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => bail!("{}: silent", self.name),
                Err(RecvTimeoutError::Disconnected) => {
                    let said = last_line(&self.drain_stderr());
                    let said = if said.is_empty() {
                        "ended without a word"
                    } else {
                        &said
                    };
                    bail!("{}: {said}", self.name);
                }
            }
        }
    }

    /// Processor time so far.
    pub(super) fn cpu(&self) -> Cpu {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        stat.ok().and_then(|text| cpu_of(&text)).unwrap_or_default()
    }

    /// Resident memory now, in units of 1000 bytes.
    pub(super) fn memory_kb(&self) -> Result<f64> {
        self.status_kb("VmRSS:")
    }

    /// The most it ever was.
    pub(super) fn peak_memory_kb(&self) -> Result<f64> {
        self.status_kb("VmHWM:")
    }

    /// How many entries a directory of the process's in /proc has.
    pub(super) fn entries(&self, directory: &str) -> Result<f64> {
        let path = format!("/proc/{}/{directory}", self.child.id());
        Ok(std::fs::read_dir(&path).context(path)?.count() as f64)
    }

    /// Ends it without a word, and waits for that.
    pub(super) fn end_at_once(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        self.ended = true;
        Ok(())
    }

    fn status_kb(&self, key: &str) -> Result<f64> {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(&path).context(path)?;
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        let kib = line.and_then(|line| line.trim().strip_suffix("kB"));
        let kib: f64 = kib.with_context(|| format!("no {key}"))?.trim().parse()?;
        Ok(kib * 1.024)
    }

    /// Waits for the end.
    pub(super) fn finish(mut self, within: Duration) -> Result<Finished> {
        let deadline = Instant::now() + within;
        if !self.wait_until(deadline) {
            let seconds = within.as_secs();
            bail!("{}: not done after {seconds} s", self.name);
        }
        // Ended but not yet waited for: its times are still to be read.
        let cpu = self.cpu();
        let status = self.child.wait().context("cannot wait for a process")?;
        self.ended = true;
        let finished = Finished {
            status,
            stdout: drain(&self.stdout),
            stderr: self.drain_stderr(),
            cpu,
        };
        Ok(finished)
    }

    fn wait_until(&self, deadline: Instant) -> bool {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).ok();
            let mut watched = [PollFd::new(&self.pidfd, PollFlags::IN)];
            match poll(&mut watched, timeout.as_ref()) {
                Ok(0) => return false,
                Ok(_) => return true,
                Err(rustix::io::Errno::INTR) => {}
                // Not to be watched is not to be trusted: it will be killed.
                Err(_) => return false,
            }
        }
    }

    fn drain_stderr(&self) -> String {
        drain(&self.stderr)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // Fails only if it has ended already.
        let _ = pidfd_send_signal(&self.pidfd, Signal::TERM);
        if !self.wait_until(Instant::now() + FAREWELL) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

impl Finished {
    /// Itself if the program was content, else the last it said.
    pub(super) fn succeeded(self) -> Result<Self> {
        if self.status.success() {
            return Ok(self);
        }
        let said = last_line(&self.stderr);
        let status = self.status;
        Err(if said.is_empty() {
            anyhow!("{status}")
        } else {
            anyhow!("{said}")
        })
    }
}

/// How long output of a program that has ended may still be on its way: one it started may hold
/// the pipe open for good.
const LAST_WORDS: Duration = Duration::from_millis(500);

fn drain(lines: &Receiver<String>) -> String {
    let mut text = String::new();
    while let Ok(line) = lines.recv_timeout(LAST_WORDS) {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                // Nobody listens any more; the pipe closes, and the program may mind.
                return;
            }
        }
    });
    receiver
}

fn last_line(text: &str) -> String {
    let mut lines = text.lines().rev().map(str::trim);
    lines
        .find(|line| !line.is_empty())
        .unwrap_or_default()
        .to_owned()
}

/// Fields 14 and 15 of `/proc/PID/stat`, counted after the name, which may contain anything.
fn cpu_of(stat: &str) -> Option<Cpu> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut time = || -> Option<Duration> {
        let ticks: u64 = fields.next()?.parse().ok()?;
        Some(Duration::from_secs_f64(ticks as f64 / TICKS_PER_SECOND))
    };
    Some(Cpu {
        user: time()?,
        system: time()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Running {
        Running::start("sh", Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn output_and_failure_are_told() {
        let finished = shell("echo a; echo b").finish(FAREWELL).unwrap();
        assert_eq!(finished.succeeded().unwrap().stdout, "a\nb\n");
        let failed = shell("echo out; echo why >&2; exit 3")
            .finish(FAREWELL)
            .unwrap();
        assert_eq!(failed.succeeded().unwrap_err().to_string(), "why");
        let mute = shell("exit 3").finish(FAREWELL).unwrap();
        assert!(mute.succeeded().unwrap_err().to_string().contains('3'));
    }

    #[test]
    fn nothing_is_waited_for_without_end() {
        let short = Duration::from_millis(100);
        let error = shell("exec sleep 60")
            .finish(short)
            .unwrap_err()
            .to_string();
        assert!(error.contains("not done"), "{error}");
        let mut quiet = shell("exec sleep 60");
        assert!(
            quiet
                .wait_for_line("x", short)
                .unwrap_err()
                .to_string()
                .contains("silent")
        );
        let mut gone = shell("echo no port >&2");
        assert!(
            gone.wait_for_line("x", FAREWELL)
                .unwrap_err()
                .to_string()
                .contains("no port")
        );
        let mut talks = shell("echo one; echo the two; exec sleep 60");
        assert_eq!(talks.wait_for_line("two", FAREWELL).unwrap(), "the two");
    }

    #[test]
    fn processor_time_is_read_past_odd_names() {
        let stat = "42 (a) b) S 1 1 1 0 -1 4194560 100 0 0 0 150 50 7 7 20 0 1 0 100 0 0";
        let (user, system) = (Duration::from_millis(1_500), Duration::from_millis(500));
        assert_eq!(cpu_of(stat), Some(Cpu { user, system }));
        let busy = shell("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done");
        let cpu = busy.finish(Duration::from_secs(20)).unwrap().cpu;
        assert!(cpu.total() > Duration::ZERO);
    }
}
