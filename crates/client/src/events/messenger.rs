//! The thread that runs commands and posts to web hooks.
//!
//! Owns their patience: what hangs is ended with all that it has started, and said, as is what
//! fails. Messages of one channel are run one after the other, so that nobody hears that a
//! link is up before that it was down; others do not wait for them. What is too much is dropped
//! and said.

use std::collections::BTreeMap;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tabane_linux::threads;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio::task::LocalSet;
use tokio::time::timeout;

use super::turns::{Channel, Message, PostTo};

/// How long one command or post may take: enough to send a mail, too short to pile up.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the end of the process waits for what is under way.
const LAST_PATIENCE: Duration = Duration::from_secs(2);
/// Messages that are under way or wait.
const MAX_MESSAGES: usize = 64;
/// What is kept of a command's last words, and of a hook's answer.
const MAX_WORDS_BYTES: u64 = 1_024;
/// Words that are on their way when a command ends are there within this time.
const WORDS_PATIENCE: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Messenger {
    messages: Option<mpsc::Sender<Message>>,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
}

/// By channel: whose turn it is.
type Queues = BTreeMap<Channel, Rc<Mutex<()>>>;

impl Messenger {
    pub(super) fn start() -> io::Result<Self> {
        Self::with(PATIENCE)
    }

    fn with(patience: Duration) -> io::Result<Self> {
        let (messages, taken) = mpsc::channel(MAX_MESSAGES);
        let (end, ended) = channel();
        let work = move || {
            // Not made before: it may be dropped only where no other runs.
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            match runtime {
                Ok(runtime) => LocalSet::new().block_on(&runtime, work(taken, patience, end)),
                Err(error) => tracing::error!(%error, "on-event: nothing is told"),
            }
        };
        threads::begin("tabane-events", work)?;
        Ok(Self {
            messages: Some(messages),
            ended,
        })
    }

    /// Has it run; never waits.
    pub(super) fn send(&self, message: Message) {
        let line = message.line;
        let sent = self
            .messages
            .as_ref()
            .map(|messages| messages.try_send(message));
        if !matches!(sent, Some(Ok(()))) {
            tracing::warn!("policy.toml:{line}: on-event: too much at once; one is not told");
        }
    }
}

impl Drop for Messenger {
    fn drop(&mut self) {
        drop(self.messages.take());
        if self.ended.recv_timeout(LAST_PATIENCE) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("on-event: what is under way is ended with this process");
        }
    }
}

async fn work(mut messages: mpsc::Receiver<Message>, patience: Duration, _end: Sender<()>) {
    let places = Arc::new(Semaphore::new(MAX_MESSAGES));
    let mut queues = Queues::new();
    while let Some(message) = messages.recv().await {
        queues.retain(|_, queue| Rc::strong_count(queue) > 1);
        let place = places.clone().acquire_owned().await;
        let queue = queues.entry(message.channel.clone()).or_default().clone();
        tokio::task::spawn_local(async move {
            let turn = queue.lock().await;
            if let Err(what) = run(&message, patience).await {
                let Message { line, channel, .. } = &message;
                tracing::warn!("policy.toml:{line}: on-event: {channel} {what}");
            }
            drop((turn, place));
        });
    }
    let all = u32::try_from(MAX_MESSAGES).expect("a small number");
    // The semaphore is never closed.
    let _ = places.acquire_many(all).await;
}

/// Runs it; what went wrong, in words.
async fn run(message: &Message, patience: Duration) -> Result<(), String> {
    match &message.channel {
        Channel::Run(command) => run_command(command, message, patience).await,
        Channel::Post(to) => match timeout(patience, post(to, &message.json)).await {
            Ok(done) => done,
            Err(_) => Err(format!("has not answered for {} s", patience.as_secs())),
        },
    }
}

async fn run_command(line: &[String], message: &Message, patience: Duration) -> Result<(), String> {
    let [program, arguments @ ..] = line else {
        return Ok(());
    };
    let mut command = std::process::Command::new(program);
    command.args(arguments);
    command.envs(message.facts.iter().map(|(name, value)| (name, value)));
    command.current_dir("/");
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    // This thread lives until all is run, so it ends with the process only.
    tabane_linux::child::prepare(&mut command, Signal::SIGTERM, None);
    // What it starts can be ended with it.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let child = Command::from(command).spawn();
    let mut child = child.map_err(|error| format!("cannot be run: {error}"))?;
    let group = child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .map(Pid::from_raw);
    match timeout(patience, attend(&mut child, &message.json)).await {
        Ok(Ok((status, _))) if status.success() => Ok(()),
        Ok(Ok((status, words))) => Err(match words.lines().next() {
            Some(word) => format!("failed: {status}: {}", word.escape_debug()),
            None => format!("failed: {status}"),
        }),
        Ok(Err(error)) => Err(format!("is lost: {error}")),
        Err(_) => {
            if let Some(group) = group {
                // It may just have ended.
                let _ = killpg(group, Signal::SIGKILL);
            }
            let _ = child.wait().await;
            Err(format!(
                "has not ended for {} s, and was ended",
                patience.as_secs()
            ))
        }
    }
}

/// Gives it what happened, and hears its last words. What it leaves behind is not waited for.
async fn attend(child: &mut Child, json: &str) -> io::Result<(ExitStatus, String)> {
    if let Some(mut stdin) = child.stdin.take() {
        // Who does not read has it in the environment.
        let _ = stdin.write_all(json.as_bytes()).await;
    }
    let mut words = Vec::new();
    let stderr = child.stderr.take();
    let mut stderr = stderr.map(|stderr| stderr.take(MAX_WORDS_BYTES));
    let status = {
        let hearing = async {
            if let Some(open) = &mut stderr {
                let _ = open.read_to_end(&mut words).await;
            }
            // Who goes on talking finds nobody there (SIGPIPE).
            stderr = None;
            std::future::pending::<ExitStatus>().await
        };
        tokio::select! {
            status = child.wait() => status?,
            status = hearing => status,
        }
    };
    if let Some(stderr) = &mut stderr {
        let _ = timeout(WORDS_PATIENCE, stderr.read_to_end(&mut words)).await;
    }
    Ok((status, String::from_utf8_lossy(&words).into_owned()))
}

async fn post(to: &PostTo, json: &str) -> Result<(), String> {
    let PostTo { address, path } = to;
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            json.len()
        );
        stream.write_all(format!("{head}{json}").as_bytes()).await?;
        let mut answer = Vec::new();
        while !answer.contains(&b'\n') && answer.len() < MAX_WORDS_BYTES as usize {
            if stream.read_buf(&mut answer).await? == 0 {
                break;
            }
        }
        io::Result::Ok(answer)
    };
    let answer = exchange
        .await
        .map_err(|error| format!("is not reached: {error}"))?;
    let answer = String::from_utf8_lossy(&answer);
    let line = answer.lines().next().unwrap_or_default();
    let status = line
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1));
    match status {
        Some(status) if status.starts_with('2') => Ok(()),
        Some(_) => Err(format!("answers: {}", line.trim_end().escape_debug())),
        None => Err("answers something that is no HTTP".to_owned()),
    }
}

impl std::fmt::Display for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Run(command) => f.write_str(command.first().map_or("", String::as_str)),
            Self::Post(PostTo { address, path }) => write!(f, "http://{address}{path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Instant;

    use super::*;

    const FACTS: [(&str, &str); 2] = [("TABANE_EVENT", "link-down"), ("TABANE_LINK", "usb0")];

    fn message(channel: Channel) -> Message {
        Message {
            line: 7,
            channel,
            facts: FACTS.map(|(name, value)| (name, value.to_owned())).to_vec(),
            json: "{\"event\":\"link-down\"}".to_owned(),
        }
    }

    fn shell(line: &str) -> Channel {
        Channel::Run(["/bin/sh", "-c", line].map(str::to_owned).to_vec())
    }

    /// Runs one; what is said of it.
    fn outcome(channel: Channel, patience: Duration) -> Result<(), String> {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime_with_all(runtime);
        runtime.block_on(run(&message(channel), patience))
    }

    fn runtime_with_all(mut builder: tokio::runtime::Builder) -> tokio::runtime::Runtime {
        builder.enable_all().build().expect("a runtime")
    }

    #[test]
    fn a_command_hears_what_happened_by_environment_and_input() {
        let line = "[ \"$TABANE_EVENT $TABANE_LINK $(cat)\" = \
                    'link-down usb0 {\"event\":\"link-down\"}' ]";
        assert_eq!(outcome(shell(line), PATIENCE), Ok(()));
    }

    #[test]
    fn a_command_that_fails_is_told_with_its_words() {
        let said = outcome(shell("echo no mail here >&2; exit 3"), PATIENCE);
        assert_eq!(said, Err("failed: exit status: 3: no mail here".to_owned()));
        // One that talks without end is not listened to without end.
        let said = outcome(shell("yes >&2"), PATIENCE).unwrap_err();
        assert!(said.starts_with("failed: "), "{said}");
        let absent = Channel::Run(vec!["/nonexistent/command".to_owned()]);
        let said = outcome(absent, PATIENCE).unwrap_err();
        assert!(said.starts_with("cannot be run: No such file"), "{said}");
    }

    #[test]
    fn a_command_that_hangs_is_ended_with_all_that_it_started() {
        let said = outcome(
            shell("sleep 1000 & echo $! >&2; wait"),
            Duration::from_millis(300),
        );
        assert!(said.unwrap_err().contains("was ended"));
        let mark = format!("{}", std::process::id() + 1_000_000);
        let line = format!("sleep {mark} & wait");
        assert!(outcome(shell(&line), Duration::from_millis(300)).is_err());
        let lives = std::fs::read_dir("/proc")
            .expect("proc")
            .flatten()
            .any(|process| {
                let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
                line.split(|byte| *byte == 0)
                    .eq([b"sleep".as_slice(), mark.as_bytes(), b""])
            });
        assert!(!lives, "sleep {mark} is still there");
    }

    #[test]
    fn messages_of_one_channel_keep_their_order_and_the_end_waits_for_them() {
        let file = std::env::temp_dir().join(format!("tabane-messages-{}", std::process::id()));
        let _ = std::fs::remove_file(&file);
        let line = format!("cat >> {}; echo >> {0}", Path::new(&file).display());
        let messenger = Messenger::start().expect("a thread");
        for number in 0..5 {
            let json = number.to_string();
            let channel = shell(&line);
            messenger.send(Message {
                json,
                ..message(channel)
            });
        }
        let began = Instant::now();
        // It waits for nobody else: that command never ends.
        messenger.send(message(shell("sleep 1000")));
        assert!(began.elapsed() < Duration::from_secs(1));
        drop(messenger);
        let written = std::fs::read_to_string(&file).expect("it was run");
        std::fs::remove_file(&file).expect("ours");
        assert_eq!(written, "0\n1\n2\n3\n4\n");
    }

    #[test]
    fn a_hook_gets_the_facts_as_json_and_its_refusal_is_told() {
        use std::io::{BufRead, BufReader, Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let server = std::thread::spawn(move || {
            ["204 No Content", "500 Not today"].map(|status| {
                let (stream, _) = listener.accept().expect("a client");
                let mut reader = BufReader::new(stream);
                let mut head = Vec::new();
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).expect("a line");
                    if line == "\r\n" {
                        break;
                    }
                    head.push(line);
                }
                let mut body = [0; 21];
                reader.read_exact(&mut body).expect("a body");
                let mut stream = reader.into_inner();
                write!(stream, "HTTP/1.1 {status}\r\n\r\n").expect("sent");
                (
                    head.concat(),
                    String::from_utf8(body.to_vec()).expect("text"),
                )
            })
        });
        let to = || {
            Channel::Post(PostTo {
                address,
                path: "/hook".to_owned(),
            })
        };
        assert_eq!(outcome(to(), PATIENCE), Ok(()));
        let said = outcome(to(), PATIENCE).unwrap_err();
        assert_eq!(said, "answers: HTTP/1.1 500 Not today");
        for (head, body) in server.join().expect("both came") {
            assert!(head.starts_with("POST /hook HTTP/1.1\r\n"), "{head}");
            assert!(head.contains("Content-Length: 21\r\n"), "{head}");
            assert_eq!(body, "{\"event\":\"link-down\"}");
        }
        let said = outcome(to(), PATIENCE).unwrap_err();
        assert!(said.starts_with("is not reached: "), "{said}");
    }

    #[test]
    fn a_hook_that_hangs_is_left() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let to = Channel::Post(PostTo {
            address,
            path: "/".to_owned(),
        });
        let said = outcome(to, Duration::from_millis(200)).unwrap_err();
        assert!(said.starts_with("has not answered"), "{said}");
    }
}
