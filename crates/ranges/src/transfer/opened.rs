//! A transfer that begins with an answer somebody else has asked for: a proxy learns only from the
//! answer whether a request is for a file that can be split.

use tabane_base::{Duration, Instant};

use super::request::Live;
use super::{Method, RequestId, SourceId, Transfer};
use crate::answer::Version;
use crate::link::LinkId;
use crate::span::ByteRange;

impl Transfer {
    /// A request without a range, of the first source, was answered over a link that is there; its
    /// body is to be read from the beginning. `latency` is what the answer took. Only before any
    /// other request; [`Event::Begun`](super::Event::Begun) follows.
    pub fn handle_opened(
        &mut self,
        now: Instant,
        link: LinkId,
        latency: Duration,
        version: Version,
    ) -> RequestId {
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let end = version.length.unwrap_or(u64::MAX);
        let opened = Live {
            link,
            source: SourceId(0),
            method: Method::Get,
            asked: ByteRange { start: 0, end },
            position: 0,
            until: end,
            sent_at: now - latency,
            due_at: now,
            heard_at: now,
            answered_at: Some(now),
        };
        self.live.insert(id, opened);
        if let Some(link) = self.links.get_mut(&link) {
            link.on_answer(now, latency);
        }
        self.begin(version);
        self.is_dirty = true;
        id
    }
}
