//! What a link does to packets, in either direction.

use crate::link::LinkConfig;

/// Which way packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// From client to server.
    Up,
    /// From server to client.
    Down,
}

/// One link, both directions.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkSpec {
    /// What the file calls it.
    pub name: String,
    /// From client to server.
    pub up: LinkConfig,
    /// From server to client.
    pub down: LinkConfig,
}

impl LinkSpec {
    /// The parameters of one direction.
    #[must_use]
    pub fn config(&self, direction: Direction) -> &LinkConfig {
        match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        }
    }

    /// Whether the link does nothing to packets in either direction.
    #[must_use]
    pub fn is_wire(&self) -> bool {
        self.up.is_wire() && self.down.is_wire()
    }
}
