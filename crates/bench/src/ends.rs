//! Both ends of what is measured apart from goodput: fetches, probes, and flows of datagrams.
//!
//! Owns what the ends are asked and what they answer, and how a contender's are started. The far
//! end serves everything on one port, TCP and UDP; a near end does one job and prints a report.
//! Both are this program, run by `bench` as `tabane-bench end`.

mod far;
pub(super) mod flow;
mod near;
pub(super) mod probe;
mod sockets;

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::bench::Bench;
use super::contender::{Contender, Direction};
use super::process::Running;
use flow::Tally;
use probe::Probed;

/// In no range that the system gives to others.
const PORT: u16 = 5203;

/// What the far end prints when it can be reached.
const LISTENING: &str = "listening";

/// How exactly a [`Course`] is known.
pub(super) const COURSE_STEP: Duration = Duration::from_millis(20);

/// What a far end may take until it listens.
const FAR_END_WITHIN: Duration = Duration::from_secs(5);

/// What a near end may take beyond the time it should: starting, connecting, a last answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a near end does, once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Job {
    /// The source address of everything, where one link is meant.
    pub(super) from: Option<Ipv4Addr>,
    /// A TCP connection that carries as much as it can all the time.
    pub(super) bulk: Option<Direction>,
    /// How long the bulk is alone first, in seconds.
    pub(super) head_start_s: u64,
    pub(super) task: Task,
}

/// What is measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Task {
    /// TCP connections one after the other, each of `bytes`.
    Fetch {
        bytes: u64,
        times: u32,
        direction: Direction,
    },
    /// Small datagrams that come back.
    Probe { seconds: u64, every_ms: u64 },
    /// Numbered datagrams at a steady rate, counted at IP level.
    Flow {
        bps: u64,
        seconds: u64,
        direction: Direction,
        /// Later than this after it was sent, a datagram is late.
        in_time_ms: u64,
    },
    /// A TCP connection into which as much is written as it takes.
    Ahead { seconds: u64 },
    /// Downloads that nobody reads, and after [`sockets::UNREAD_FOR`] one that is read.
    Unread { connections: usize, seconds: u64 },
    /// TCP connections that carry nothing, one after the other.
    Connect { times: u32 },
    /// A download, and what of it had come by when.
    Course { seconds: u64 },
}

/// What came of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Done {
    /// Each fetch, from the request to connect to the last byte.
    pub(super) fetched_s: Vec<f64>,
    pub(super) probed: Option<Probed>,
    pub(super) flow: Option<Tally>,
    pub(super) bulk_bps: Option<f64>,
    /// What was written and had not arrived, at most.
    pub(super) ahead_bytes: Option<u64>,
    pub(super) unread: Option<Unread>,
    /// Each, from the request to connect to its answer.
    pub(super) connected_s: Vec<f64>,
    pub(super) course: Option<Course>,
}

/// What had come of a download by when.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Course {
    /// When its connection was asked for, by [`now_ns`].
    pub(super) began_at_ns: u64,
    /// In each [`COURSE_STEP`] since.
    pub(super) bytes: Vec<u64>,
}

/// What downloads cost that nobody reads.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Unread {
    /// Over the links for each, headers and all.
    pub(super) bytes_each: u64,
    /// What another gets beside them.
    pub(super) beside_bps: f64,
}

impl Job {
    /// Without anything beside it.
    pub(super) fn alone(task: Task) -> Self {
        Self {
            from: None,
            bulk: None,
            head_start_s: 0,
            task,
        }
    }

    pub(super) fn beside_bulk(self, direction: Direction, head_start_s: u64) -> Self {
        Self {
            bulk: Some(direction),
            head_start_s,
            ..self
        }
    }

    /// How long it takes by its nature. Fetches have none; theirs is the patience.
    fn seconds(&self) -> u64 {
        let task = match self.task {
            Task::Fetch { .. } | Task::Connect { .. } => 0,
            Task::Probe { seconds, .. }
            | Task::Flow { seconds, .. }
            | Task::Ahead { seconds }
            | Task::Course { seconds } => seconds,
            Task::Unread { seconds, .. } => seconds + sockets::UNREAD_FOR.as_secs(),
        };
        self.head_start_s + task
    }
}

/// A near end at work.
#[derive(Debug)]
pub(super) struct Errand {
    near: Running,
    within: Duration,
}

impl Errand {
    /// Waits for the report.
    pub(super) fn finish(self) -> Result<Done> {
        let finished = self.near.finish(self.within)?.succeeded()?;
        let report = finished.stdout.lines().last();
        let report = report.context("the near end gave no report")?;
        serde_json::from_str(report).context("the near end's report")
    }
}

impl Bench {
    /// Serves until it is dropped.
    pub(super) fn far_end(&self, contender: &Contender) -> Result<Running> {
        let mut command = self.server(contender, &own_file()?);
        command.args(["end", "serve", &self.stage().service().to_string()]);
        let mut far = Running::start("far end", &mut command)?;
        far.wait_for_line(LISTENING, FAR_END_WITHIN)?;
        Ok(far)
    }

    /// Begins `job` with `contender`. `fetches_s` is what its fetches may take together.
    pub(super) fn start(&self, contender: &Contender, job: &Job, fetches_s: u64) -> Result<Errand> {
        let mut job = job.clone();
        if let Contender::Tcp { link } = contender {
            job.from = Some(self.stage().links()[*link].client);
        }
        let mut command = self.client(contender, &own_file()?)?;
        command.args(["end", "ask", &self.stage().service().to_string()]);
        command.arg(serde_json::to_string(&job)?);
        Ok(Errand {
            near: Running::start(&contender.to_string(), &mut command)?,
            within: Duration::from_secs(job.seconds() + fetches_s) + PATIENCE,
        })
    }

    /// Has `contender` do `job` on a network at rest.
    pub(super) fn errand(&self, contender: &Contender, job: &Job, fetches_s: u64) -> Result<Done> {
        self.prepare(contender)?;
        let _far = self.far_end(contender)?;
        self.start(contender, job, fetches_s)?.finish()
    }
}

fn own_file() -> Result<String> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    Ok(own.to_string_lossy().into_owned())
}

/// `tabane-bench end`: one end, by hand or for `bench`.
pub(crate) fn run(arguments: &[&str]) -> Result<bool> {
    match arguments {
        ["serve", server] => far::serve(address(server)?, || println!("{LISTENING}"))?,
        ["ask", server, job] => {
            let server = address(server)?;
            let job: Job = serde_json::from_str(job).context("expected a job")?;
            println!("{}", serde_json::to_string(&near::run(server, &job)?)?);
        }
        _ => bail!("usage: tabane-bench end serve ADDRESS | ask ADDRESS JOB"),
    }
    Ok(true)
}

fn address(text: &str) -> Result<Ipv4Addr> {
    text.parse().context("expected an IPv4 address")
}

/// The machine's clock, the same for both ends, in nanoseconds.
pub(super) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ends on loopback: every kind of job comes to its report.
    #[test]
    fn each_task_is_done() {
        let (sender, listening) = std::sync::mpsc::channel();
        std::thread::spawn(move || far::serve(Ipv4Addr::LOCALHOST, || sender.send(()).unwrap()));
        listening.recv_timeout(FAR_END_WITHIN).unwrap();
        let done = |job: &Job| near::run(Ipv4Addr::LOCALHOST, job).unwrap();
        for direction in [Direction::Download, Direction::Upload] {
            let fetch = Task::Fetch {
                bytes: 100_000,
                times: 3,
                direction,
            };
            let mut fetch = Job::alone(fetch);
            fetch.from = Some(Ipv4Addr::LOCALHOST);
            let fetched = done(&fetch).fetched_s;
            assert_eq!(fetched.len(), 3);
            assert!(fetched.iter().all(|&s| s > 0.0 && s < 5.0), "{fetched:?}");
            let flow = Task::Flow {
                bps: 4_000_000,
                seconds: 1,
                direction,
                in_time_ms: 1000,
            };
            let tally = done(&Job::alone(flow)).flow.unwrap();
            assert_eq!(tally.offered, flow::datagrams(4_000_000, 1));
            assert_eq!((tally.arrived, tally.good), (tally.offered, tally.offered));
            let probe = Task::Probe {
                seconds: 1,
                every_ms: 50,
            };
            let probed = done(&Job::alone(probe).beside_bulk(direction, 0));
            assert!(probed.bulk_bps.unwrap() > 0.0);
            let probed = probed.probed.unwrap();
            assert_eq!(probed.lost, 0);
            assert_eq!(probed.round_trips_ms.len() as u64, probed.sent);
        }
        let ahead = done(&Job::alone(Task::Ahead { seconds: 1 }));
        assert!(ahead.ahead_bytes.unwrap() > 0);
        let connected = done(&Job::alone(Task::Connect { times: 4 })).connected_s;
        assert!(connected.len() == 4 && connected.iter().all(|&s| s > 0.0));
        let course = done(&Job::alone(Task::Course { seconds: 1 }))
            .course
            .unwrap();
        assert!(course.bytes.len() == 50 && course.bytes.iter().sum::<u64>() > 0);
        let unread = done(&Job::alone(Task::Unread {
            connections: 2,
            seconds: 1,
        }));
        assert!(unread.unread.unwrap().beside_bps > 0.0);
    }
}
