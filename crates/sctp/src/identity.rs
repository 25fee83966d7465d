//! What endpoints and associations are called.

/// An endpoint of ours: a port, and associations on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub(crate) u32);

/// An association; the stack's own number, which no other of its endpoint has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AssociationId(pub(crate) u32);
