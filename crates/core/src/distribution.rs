//! What was dealt out to paths and waits there for its turn: R-M/TCP's DistLists, and the copies
//! of `redundant`.
//!
//! A scheduler says for which path (see `scheduler::arrival`); here the pieces themselves are
//! held. What is given back waits in its stream's order again. Limits: pieces are as many as the
//! scheduler deals, all from streams' send memory; copies of datagrams are bounded here.

use std::collections::VecDeque;

use crate::datagrams::DatagramCopy;
use crate::id::PathId;
use crate::memory_pool::take_off;
use crate::recovery::SentFrames;
use crate::stream::{Reserved, Streams};

/// Bytes of datagram copies that wait for one path: on a path so far behind that more would wait,
/// the oldest have surely come another way, or too late.
const MAX_COPIES: usize = 64 * 1024;

/// What waits for one path, in order.
#[derive(Debug)]
struct List {
    path: PathId,
    pieces: VecDeque<Reserved>,
    copies: VecDeque<DatagramCopy>,
    copied: usize,
}

/// The lists of all paths that have any.
#[derive(Debug, Default)]
pub(crate) struct Distribution {
    lists: Vec<List>,
}

impl Distribution {
    /// Whether anything waits for any path.
    pub(crate) fn has_any(&self) -> bool {
        self.lists
            .iter()
            .any(|list| !list.pieces.is_empty() || !list.copies.is_empty())
    }

    /// How much waits for a path, in pieces and copies.
    pub(crate) fn listed(&self, path: PathId) -> usize {
        self.list(path)
            .map_or(0, |list| list.pieces.len() + list.copies.len())
    }

    pub(crate) fn has_copies(&self, path: PathId) -> bool {
        self.list(path).is_some_and(|list| !list.copies.is_empty())
    }

    pub(crate) fn has_pieces(&self, path: PathId) -> bool {
        self.list(path).is_some_and(|list| !list.pieces.is_empty())
    }

    fn list(&self, path: PathId) -> Option<&List> {
        self.lists.iter().find(|list| list.path == path)
    }

    fn list_mut(&mut self, path: PathId) -> &mut List {
        let place = self
            .lists
            .iter()
            .position(|list| list.path == path)
            .unwrap_or_else(|| {
                let (pieces, copies) = (VecDeque::new(), VecDeque::new());
                self.lists.push(List {
                    path,
                    pieces,
                    copies,
                    copied: 0,
                });
                self.lists.len() - 1
            });
        &mut self.lists[place]
    }

    /// Whether anything was ever set aside, or looked for, for a path.
    pub(crate) fn knows(&self, path: PathId) -> bool {
        self.lists.iter().any(|list| list.path == path)
    }

    pub(crate) fn push(&mut self, path: PathId, piece: Reserved) {
        self.list_mut(path).pieces.push_back(piece);
    }

    pub(crate) fn push_copy(&mut self, path: PathId, copy: DatagramCopy) {
        let list = self.list_mut(path);
        list.copied += copy.len();
        list.copies.push_back(copy);
        while list.copied > MAX_COPIES
            && let Some(oldest) = list.copies.pop_front()
        {
            take_off(&mut list.copied, oldest.len());
        }
    }

    /// Gives the pieces of all paths back, merged in their streams' order: the ClearList.
    pub(crate) fn take_back_all(&mut self, streams: &mut Streams) {
        self.take_back(streams, |_| true);
    }

    /// Gives back what waits for paths that may not be used any more.
    pub(crate) fn retain(&mut self, streams: &mut Streams, keeps: impl Fn(PathId) -> bool) {
        self.take_back(streams, |path| !keeps(path));
        self.lists.retain(|list| keeps(list.path));
    }

    fn take_back(&mut self, streams: &mut Streams, wanted: impl Fn(PathId) -> bool) {
        for list in self.lists.iter_mut().filter(|list| wanted(list.path)) {
            // Backwards, because each goes to the front of the queue.
            list.pieces
                .drain(..)
                .rev()
                .for_each(|piece| streams.take_back(piece));
        }
    }

    /// Drops from the front of a path's list what has arrived by another path; how much is left.
    pub(crate) fn drop_arrived(&mut self, path: PathId, streams: &Streams) -> usize {
        let list = self.list_mut(path);
        while list
            .pieces
            .front()
            .is_some_and(|piece| !streams.wants(piece))
        {
            list.pieces.pop_front();
        }
        list.pieces.len() + list.copies.len()
    }

    /// Appends what waits for the path while `space` lasts.
    pub(crate) fn fill(
        &mut self,
        path: PathId,
        streams: &mut Streams,
        out: &mut Vec<u8>,
        mut space: usize,
        sent: &mut SentFrames,
    ) {
        let pieces = &mut self.list_mut(path).pieces;
        while let Some(piece) = pieces.pop_front() {
            if let Some(rest) = streams.fill_piece(piece, out, &mut space, sent) {
                pieces.push_front(rest);
                return;
            }
        }
    }

    /// Appends copies of datagrams while `space` lasts; `whole` is what an empty packet would hold.
    pub(crate) fn fill_copies(
        &mut self,
        path: PathId,
        out: &mut Vec<u8>,
        space: usize,
        whole: usize,
    ) {
        let end = out.len() + space;
        let list = self.list_mut(path);
        while let Some(copy) = list.copies.front() {
            if out.len() + copy.size() <= end {
                copy.emit(out);
            } else if copy.size() <= whole {
                return;
            }
            // Sent, or cut for packets larger than the path's have become.
            take_off(&mut list.copied, copy.len());
            list.copies.pop_front();
        }
    }
}
