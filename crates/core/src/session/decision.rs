//! The decision alone, for `benches/decision.rs`: by which path the next packets leave, and when.
//!
//! What `data.rs` does between two packets, without the packets: nothing is built or sealed, the
//! pacers alone remember. So what was dealt out in advance is not used up.

use tabane_base::Instant;

use super::Session;
use crate::class::ClassId;

impl Session {
    /// Decides on packets until none may leave or `most` are decided on; how many that were.
    #[doc(hidden)]
    pub fn decide(&mut self, now: Instant, most: usize) -> usize {
        let mut views = self.lanes.take_views();
        self.lanes.review_overflow(now, &self.paths);
        let class = ClassId::ORDINARY;
        let Self { lanes, paths, .. } = self;
        let nearest = lanes.look(now, class, paths, &self.datagrams, &mut views);
        let mut last = None;
        let mut decided = 0;
        while decided < most {
            self.datagrams.drop_stale(now, class);
            let sources = (&mut self.streams, &mut self.datagrams);
            let lane = self.lanes.get_mut(class);
            lane.deal(now, class, &mut views, last, sources);
            if !self.wants_to_send() {
                break;
            }
            let backlog = self.backlog(class);
            let scheduler = &mut self.lanes.get_mut(class).scheduler;
            let Some(grant) = scheduler.choose(&views, backlog) else {
                break;
            };
            let path = &mut self.paths[grant.index];
            (0..grant.packets).for_each(|_| path.pace_out(now));
            decided += grant.packets;
            if let Some(view) = views.iter_mut().find(|view| view.index == grant.index) {
                let path = (grant.index, &self.paths[grant.index]);
                *view = self.lanes.get(class).view(now, path, nearest);
                last = Some(view.id);
            }
        }
        self.lanes.keep_views(views);
        decided
    }
}
