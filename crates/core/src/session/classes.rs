//! Which class what is sent belongs to, and how classes are sent [P-11].

use rustls::Side;
use tabane_base::Instant;

use super::Session;
use crate::class::{ClassId, ClassRule};
use crate::datagrams::FlowId;
use crate::id::StreamId;
use crate::stream::StreamError;

impl Session {
    /// Client: says how what belongs to a class is sent from here on, by both ends [P-11]. What
    /// waits follows at once; what is on its way stays there.
    pub fn set_class(&mut self, _now: Instant, class: ClassId, rule: ClassRule) {
        if self.side == Side::Client && class != ClassId::ORDINARY {
            self.lanes.set_rule(class, rule, &mut self.streams);
            if !self.follows_classes() {
                self.lanes.get_mut(class).class.due = false;
            }
        }
    }

    /// Client: puts a stream, and the flow of the same number, into a class, at both ends.
    pub fn set_stream_class(&mut self, _now: Instant, id: StreamId, class: ClassId) {
        if self.side == Side::Client {
            // Known from here on, if only as one that no path may carry.
            self.lanes.get_mut(class);
            let before = self.streams.set_class(id, class);
            self.on_class_changed(id, before, class);
        }
    }

    /// Server: opens a stream that begins in the class of `asked_by`, as whose answer it comes; the
    /// client may say otherwise [P-11.6].
    ///
    /// # Errors
    /// As many streams are open as the client allows, or there is no connection.
    pub fn open_stream_for(
        &mut self,
        _now: Instant,
        asked_by: StreamId,
    ) -> Result<StreamId, StreamError> {
        if !self.is_connected() {
            return Err(StreamError::NotConnected);
        }
        let class = self.streams.class(asked_by);
        self.lanes.get_mut(class);
        self.streams.open_within(class)
    }

    /// Whether the other end follows classes in what it sends; older ones do not.
    #[must_use]
    pub fn follows_classes(&self) -> bool {
        self.contact.peer().is_some_and(|peer| peer.classes)
    }

    pub(super) fn on_class_changed(
        &mut self,
        id: StreamId,
        before: Option<ClassId>,
        class: ClassId,
    ) {
        // Of a stream that has not begun nothing was set aside.
        if let Some(before) = before.filter(|_| self.streams.has_begun(id)) {
            self.lanes.get_mut(before).give_back(&mut self.streams);
            self.datagrams.set_class(FlowId(id.get()), before, class);
        }
    }
}
