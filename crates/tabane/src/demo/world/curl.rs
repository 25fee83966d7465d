//! curl as it is: how it is called, and what it says of its download.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context, Result, bail};
use tabane_base::Duration;

use crate::demo::process::Ended;
use crate::program::Program;

/// Marks curl's line among what `tabane run` may print.
const MARK: &str = "curl-says";
/// curl(1), "Exit codes": the time given by `--max-time` was over.
const TIME_IS_OVER: i32 = 28;
/// A link that carries nothing should be told before its time is over.
const CONNECT_WAIT: &str = "10";

/// Fails, with advice, where there is no curl.
pub(crate) fn require() -> Result<()> {
    let words = [OsString::from("curl")];
    if Program::find(&words).is_err() {
        bail!("the demonstration needs curl: install it (`apt-get install curl`) and try again");
    }
    Ok(())
}

/// A download to stdout that ends when its time is over. `-q` (no file of the user's) comes first.
pub(super) fn arguments(command: &mut Command, seconds: u32) {
    command.args(["-q", "--silent", "--show-error", "--output", "-"]);
    command.args(["--connect-timeout", CONNECT_WAIT]);
    command.args(["--max-time", &seconds.to_string()]);
    let report = format!("%{{stderr}}{MARK} %{{http_code}} %{{time_total}}\\n");
    command.args(["--write-out", &report]);
}

/// How long the download took, start-up included, by curl's own clock.
pub(crate) fn time_taken(ended: &Ended) -> Result<Duration> {
    let lines = ended.complaints.lines();
    let (marked, others): (Vec<&str>, Vec<&str>) = lines.partition(|line| line.starts_with(MARK));
    if !matches!(ended.status.code(), Some(0 | TIME_IS_OVER)) {
        let last = others.iter().rev().find(|line| !line.trim().is_empty());
        let status = ended.status.to_string();
        bail!("{}", last.map_or(status.as_str(), |line| line.trim()));
    }
    let mut words = marked
        .first()
        .context("curl ended early")?
        .split(' ')
        .skip(1);
    match words.next() {
        // curl waited in vain for an answer.
        Some("000") => bail!("no answer came"),
        Some("200") => {}
        code => bail!("the web server answered {}", code.unwrap_or_default()),
    }
    let seconds = words.next().and_then(|word| word.parse().ok());
    let taken = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    taken.context("curl does not say how long it took")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn taken(code: i32, complaints: &str) -> Result<Duration, String> {
        let ended = Ended {
            status: ExitStatus::from_raw(code << 8),
            complaints: complaints.to_owned(),
        };
        time_taken(&ended).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn the_time_is_curls_own_and_failures_are_told_in_its_words() {
        let over = "curl: (28) Operation timed out after 5000 milliseconds\n";
        let said = format!("tabane: a word\n{over}curl-says 200 5.000125\n");
        assert_eq!(taken(28, &said), Ok(Duration::from_micros(5_000_125)));
        let refused = "curl: (7) Failed to connect to 10.78.0.1\ncurl-says 000 0.1\n";
        let reason = taken(7, refused).unwrap_err();
        assert_eq!(reason, "curl: (7) Failed to connect to 10.78.0.1");
        assert!(taken(28, "curl-says 000 5.0\n").is_err());
        assert!(taken(0, "curl-says 404 0.1\n").unwrap_err().contains("404"));
        assert!(taken(0, "").is_err());
        assert!(taken(1, "").is_err());
    }
}
