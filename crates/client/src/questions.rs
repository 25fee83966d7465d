//! Questions of the DNS by TCP, where other sites have names: nobody knows where one goes before it
//! was read.
//!
//! Owns that a connection goes where its first question does, and that a question for another
//! site's names is answered though nobody can be asked.

use std::io;

use tabane_base::Duration;
use tabane_linux::{abortive::AbortiveStream, caller::Caller};
use tokio::time::timeout;

use crate::far_ends::FarEnds;
use crate::open_connections::OpenConnections;
use crate::opening::{connect_plainly, open};
use crate::route::Route;
use crate::sites::failure;

/// How long a program may take to ask; resolvers wait no longer.
const QUESTION_WAIT: Duration = Duration::from_secs(10);
/// The longest question that is looked at: header, a name, its type and class, options.
const MAX_QUESTION: usize = 4_096;

/// Carries one connection to a resolver.
pub(crate) async fn serve(
    far_ends: &FarEnds,
    connections: &OpenConnections,
    caller: Caller,
    route: Route,
) {
    let Some(program) = caller.accept().await else {
        return;
    };
    let connection = connections.begin();
    // Who asks nothing, or not at once, is passed on as it is.
    let mut early = Vec::new();
    let read = timeout(QUESTION_WAIT, read_question(&program, &mut early)).await;
    let question = match read {
        Ok(Ok(question)) => question,
        Ok(Err(_)) => return,
        Err(_) => None,
    };
    let asked = question
        .as_deref()
        .and_then(|it| far_ends.sites().question(it));
    let route = match asked {
        Some(asked) => route.led_to(asked.resolver),
        None => route,
    };
    match open(far_ends, &route, connect_plainly(far_ends, &route)).await {
        Ok(far) => far.carry(program, early, &route.target).await,
        Err(_) => {
            let answer = asked.and(question.as_deref()).and_then(failure);
            if let Some(answer) = answer {
                tell(program, &answer).await;
            }
        }
    }
    drop(connection);
}

/// The first message, behind its length (RFC 1035 §4.2.2); `None` where there is none, or one that
/// is too long. What was read is added to `early`.
async fn read_question(
    program: &AbortiveStream,
    early: &mut Vec<u8>,
) -> io::Result<Option<Vec<u8>>> {
    loop {
        if let Some((length, rest)) = early.split_first_chunk::<2>() {
            let length = usize::from(u16::from_be_bytes(*length));
            if length > MAX_QUESTION {
                return Ok(None);
            }
            if let Some(message) = rest.get(..length) {
                return Ok(Some(message.to_vec()));
            }
        }
        program.readable().await?;
        match program.try_read_buf(early) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

async fn tell(program: AbortiveStream, answer: &[u8]) {
    let length = u16::try_from(answer.len()).unwrap_or_default();
    let whole = [&length.to_be_bytes(), answer].concat();
    // A new connection has room for it.
    if program.writable().await.is_ok() && program.try_write(&whole).is_ok() {
        program.finish();
    }
}
