//! The paths of one session, in the order in which they were opened.
//!
//! Owns their places. What a path is called for good is its [`PathId`](crate::id::PathId).

use std::ops::{Index, IndexMut};

use super::Path;
use crate::id::PathIndex;

/// All paths of a session.
#[derive(Default)]
pub(crate) struct Paths(Vec<Path>);

impl Paths {
    pub(crate) fn push(&mut self, path: Path) -> PathIndex {
        self.0.push(path);
        PathIndex(self.0.len() - 1)
    }

    /// Those that were opened later move up.
    pub(crate) fn remove(&mut self, index: PathIndex) -> Path {
        self.0.remove(index.0)
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// The places of all that there are now.
    pub(crate) fn indices(&self) -> impl Iterator<Item = PathIndex> + use<> {
        (0..self.0.len()).map(PathIndex)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Path> + Clone {
        self.0.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Path> {
        self.0.iter_mut()
    }

    pub(crate) fn first(&self) -> Option<&Path> {
        self.0.first()
    }

    pub(crate) fn first_mut(&mut self) -> Option<&mut Path> {
        self.0.first_mut()
    }

    /// All that carry data, with their places.
    pub(crate) fn active(&self) -> impl Iterator<Item = (PathIndex, &Path)> + Clone {
        let all = self.0.iter().enumerate();
        let all = all.map(|(place, path)| (PathIndex(place), path));
        all.filter(|(_, path)| path.is_active())
    }

    pub(crate) fn position(&self, is_wanted: impl FnMut(&Path) -> bool) -> Option<PathIndex> {
        self.0.iter().position(is_wanted).map(PathIndex)
    }

    /// Whether a path carries data that is not this one.
    pub(crate) fn is_other_active(&self, index: PathIndex) -> bool {
        self.active().any(|(other, _)| other != index)
    }
}

impl Index<PathIndex> for Paths {
    type Output = Path;

    fn index(&self, index: PathIndex) -> &Path {
        &self.0[index.0]
    }
}

impl IndexMut<PathIndex> for Paths {
    fn index_mut(&mut self, index: PathIndex) -> &mut Path {
        &mut self.0[index.0]
    }
}
