//! What a link's network taught before, and what the link has learnt of it.

use super::{CarrierKind, CarrierMemory, Choice};

impl Choice {
    /// The network taught this before, and the link nothing yet. Tells whether that is news.
    pub(in crate::client) fn recall(&mut self, memory: CarrierMemory) -> bool {
        let is_news = self.kind == CarrierKind::Auto
            && self.learnt.is_none()
            && self.remembered.is_none()
            && memory != CarrierMemory::Usual;
        if is_news {
            self.remembered = Some(memory);
            if let CarrierMemory::Policed(rates) = memory {
                self.policed = Some(rates.into());
            }
        }
        is_news
    }

    /// The relay's port that is remembered, where it is not its own.
    pub(in crate::client) fn port(&self) -> Option<u16> {
        match self.remembered {
            Some(CarrierMemory::Port(port)) => Some(port),
            _ => None,
        }
    }

    /// What the network has taught, where that is worth being kept.
    pub(in crate::client) fn memory(&self) -> Option<CarrierMemory> {
        self.learnt.filter(|_| self.kind == CarrierKind::Auto)
    }

    /// Nothing but memory says so yet.
    pub(in crate::client) fn is_remembered(&self) -> bool {
        self.remembered.is_some() && self.remembered == self.learnt
    }
}
