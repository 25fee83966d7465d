//! What became of packets: acknowledgements, reports of what was shed, and losses, passed on to
//! whoever owns what the packets carried.
//!
//! Owns the order of these calls. What an acknowledgement means for a path is the path's affair,
//! what a lost frame means its owner's.

use tabane_base::{Bytes, Instant};

use super::Session;
use crate::close::Violation;
use crate::event::Event;
use crate::id::PathIndex;
use crate::path::{News, Path, State};
use crate::recovery::SentFrame;
use crate::wire::AckFrame;

impl Session {
    pub(super) fn handle_ack(&mut self, now: Instant, ack: &AckFrame) -> Result<(), Violation> {
        // For a path that was closed meanwhile there is nothing left to settle.
        let Some(index) = self.paths.index_of(ack.path) else {
            return Ok(());
        };
        let reverse = self.reverse_mean();
        let mut news = std::mem::take(&mut self.news);
        let result = self.paths[index].on_ack(now, ack, reverse, &mut news);
        self.apply(now, index, &mut news);
        self.news = news;
        result
    }

    /// To congestion control they arrived; what they carried has to go again.
    pub(super) fn handle_shed(&mut self, now: Instant, shed: &AckFrame) -> Result<(), Violation> {
        let Some(index) = self.paths.index_of(shed.path) else {
            return Ok(());
        };
        let reverse = self.reverse_mean();
        let mut news = std::mem::take(&mut self.news);
        let result = self.paths[index].on_shed_told(now, shed, reverse, &mut news);
        let shed = news.acked.drain(..).filter(|settled| !settled.was_lost);
        let lost = news.lost.len();
        news.lost.extend(shed);
        for settled in &news.lost[lost..] {
            let frames = settled.packet.frames.iter();
            frames.for_each(|frame| self.streams.on_shed(frame));
        }
        let newest = news.lost[lost..]
            .iter()
            .map(|settled| settled.packet.sent_at)
            .max();
        let bytes = news.lost[lost..]
            .iter()
            .map(|settled| Bytes::new(settled.packet.size.into()))
            .sum();
        self.apply(now, index, &mut news);
        self.news = news;
        if let Some(sent_at) = newest {
            self.paths.rest_farthest(now, sent_at, bytes);
        }
        result
    }

    /// The mean one-way time from the peer over all active paths, less the clocks' offset.
    fn reverse_mean(&self) -> Option<i64> {
        let active = self.paths.iter().filter(|path| path.is_active());
        let (sum, count) = active
            .filter_map(Path::reverse)
            .fold((0_i64, 0_i64), |(sum, count), reverse| {
                (sum.saturating_add(reverse), count + 1)
            });
        sum.checked_div(count)
    }

    /// Settles what a path reports of its packets and of itself.
    pub(super) fn apply(&mut self, now: Instant, index: PathIndex, news: &mut News) {
        self.paths.on_moved();
        let id = self.paths[index].id();
        if let Some(trace) = &mut self.trace {
            trace.record_news(now, &self.paths[index], news);
        }
        if std::mem::take(&mut news.clock_leapt) {
            let others = self.paths.iter_mut().filter(|path| path.id() != id);
            others.for_each(|path| path.on_clock_leap(now));
        }
        if let Some(reason) = news.down.take() {
            self.events.push_back(Event::PathDown(id, reason));
        }
        if std::mem::take(&mut news.up) {
            self.events.push_back(Event::PathUp(id));
            // What waits on silent paths has a way again.
            for path in self.paths.iter_mut() {
                if matches!(path.state(), State::Silent { .. }) {
                    path.give_up_in_flight(now, news);
                }
            }
        }
        self.settle(news);
    }

    /// Tells the owners of frames what became of them.
    pub(super) fn settle(&mut self, news: &mut News) {
        // Packets that left together carry what stands together: their streams hear of it as one.
        let mut run: Option<SentFrame> = None;
        for settled in &news.acked {
            if let Some(keys) = self.contact.keys_mut() {
                keys.on_acked(settled.packet.key_generation.into());
            }
            for frame in settled.packet.frames.iter() {
                match run.and_then(|run| run.joined(frame)) {
                    Some(longer) => run = Some(longer),
                    None => {
                        let before = run.replace(frame);
                        before
                            .into_iter()
                            .for_each(|run| self.streams.on_acked(run));
                    }
                }
            }
        }
        run.into_iter().for_each(|run| self.streams.on_acked(run));
        news.acked.clear();
        // Backwards, because what is lost goes to the front of the queues.
        for settled in news.lost.drain(..).rev() {
            for frame in settled.packet.frames.iter() {
                self.on_frame_lost(frame);
            }
        }
    }

    pub(super) fn on_frame_lost(&mut self, frame: SentFrame) {
        match frame {
            SentFrame::Hello => self.due.hello(),
            SentFrame::Admitted => self.due.admitted(),
            SentFrame::GoAway => self.due.go_away(),
            SentFrame::PathAbandon(id) => self.due.abandon(id),
            SentFrame::Class(id) => self.lanes.get_mut(id).class.due = true,
            SentFrame::PathPolicy(id) => {
                if let Some(index) = self.paths.index_of(id) {
                    self.paths[index].repeat_policy();
                }
            }
            // The next review asks again; probes and pings are repeated by their own timers.
            SentFrame::AckFrequency
            | SentFrame::MtuProbe(_)
            | SentFrame::Probe(_)
            | SentFrame::Ping => {}
            SentFrame::Stream { .. }
            | SentFrame::ResetStream(_)
            | SentFrame::StopSending(_)
            | SentFrame::MaxData
            | SentFrame::MaxStreamData(_)
            | SentFrame::StreamClass(_)
            | SentFrame::StreamHold(_)
            | SentFrame::MaxStreams => self.streams.on_lost(frame),
        }
    }
}
