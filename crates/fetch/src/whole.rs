//! A whole file, in its place or handed on as it comes, and only if its digest is right.

use std::io::Write;
use std::path::Path;
use std::rc::Rc;
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail};
use aws_lc_rs::digest::{self, Digest, SHA256};
use tabane_base::Bytes;
use tabane_ranges::Order;

use crate::connection::Client;
use crate::engine::fetch;
use crate::job::{FetchError, Job, Outcome, Progress};
use crate::links::Links;
use crate::partial::Partial;
use crate::sink::stream;

/// What of a stream may be in memory.
const WINDOW: Bytes = Bytes::mega(16);

/// What a file's SHA-256 must be, as people write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDigest([u8; 32]);

impl FromStr for FileDigest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let advice = || format!("'{text}' is no SHA-256: 64 hexadecimal digits");
        let digits: Option<Vec<u8>> = text
            .chars()
            .map(|c| c.to_digit(16).map(|digit| digit as u8))
            .collect();
        let digits = digits.filter(|d| d.len() == 64).ok_or_else(advice)?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Ok(Self(bytes))
    }
}

impl FileDigest {
    fn check(&self, actual: &Digest) -> Result<()> {
        if actual.as_ref() == self.0 {
            return Ok(());
        }
        let hex: String = actual.as_ref().iter().map(|b| format!("{b:02x}")).collect();
        bail!("the file's SHA-256 is {hex}, not what --sha256 says; it was not kept")
    }
}

/// Fetches `job` into the file at `path`, from where an earlier try was ended unless it is to
/// `restart`; `watch` is shown how far it is.
///
/// # Errors
/// The file cannot be had or kept, or its digest is another. What is kept for another try is told.
pub async fn fetch_into_file(
    client: &Rc<Client>,
    links: &Links,
    mut job: Job,
    path: &Path,
    restart: bool,
    digest: Option<&FileDigest>,
    watch: impl FnMut(&Progress),
) -> Result<Outcome> {
    let (mut partial, begun) = Partial::open(path, &job.urls, restart)?;
    job.begun = begun;
    let outcome = match fetch(client, links, job, &mut partial, watch).await {
        Ok(outcome) => outcome,
        Err(error) => return Err(explain(error, partial, path)),
    };
    if let Some(digest) = digest
        && let Err(error) = digest.check(&partial.digest()?)
    {
        partial.discard();
        return Err(error);
    }
    partial.publish(path)?;
    Ok(outcome)
}

/// Fetches `job` into `out`, in order, which errors call `name`; `watch` is shown how far it is.
/// Whether the digest is right is known when all is written.
///
/// # Errors
/// The file cannot be had or written, or its digest is another.
pub async fn fetch_into_stream(
    client: &Rc<Client>,
    links: &Links,
    mut job: Job,
    mut out: impl Write,
    name: &str,
    digest: Option<&FileDigest>,
    watch: impl FnMut(&Progress),
) -> Result<Outcome> {
    job.order = Order::Stream { window: WINDOW };
    let (mut sink, mut reader) = stream();
    let failed = || format!("cannot write to {name}");
    let copy = async {
        let mut context = digest::Context::new(&SHA256);
        while let Some(bytes) = reader.next().await {
            context.update(&bytes);
            // A reader that is slow holds the fetch up, and nothing else is to be done meanwhile.
            out.write_all(&bytes).with_context(failed)?;
        }
        out.flush().with_context(failed)?;
        Ok::<_, Error>(context.finish())
    };
    let fetching = async {
        let fetched = fetch(client, links, job, &mut sink, watch).await;
        drop(sink);
        fetched
    };
    // A reader of ours that goes away ends the fetch by its sink.
    let (fetched, copied) = tokio::join!(fetching, copy);
    let actual = copied?;
    let outcome = fetched?;
    if let Some(digest) = digest {
        digest.check(&actual)?;
    }
    Ok(outcome)
}

/// An error with what can be done about it.
fn explain(error: FetchError, partial: Partial, path: &Path) -> Error {
    let text = match error {
        FetchError::Sink(error) => format!("cannot write {}: {error}", path.display()),
        error @ FetchError::Transfer { .. } => error.to_string(),
    };
    match partial.keep() {
        Some(kept) => anyhow::anyhow!(
            "{text}; {} of it are kept, the same command goes on from there",
            Bytes::new(kept)
        ),
        None => Error::msg(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_read_or_refused() {
        let text = "00ff".repeat(16);
        let FileDigest(bytes) = text.parse().unwrap();
        assert_eq!(bytes[..3], [0, 255, 0]);
        assert_eq!(text.to_uppercase().parse(), Ok(FileDigest(bytes)));
        for wrong in ["", "00ff", &"0g".repeat(32), &"00".repeat(33)] {
            assert!(wrong.parse::<FileDigest>().is_err(), "{wrong}");
        }
    }
}
