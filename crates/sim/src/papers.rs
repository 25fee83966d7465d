//! The papers' experiments, with the shipped engine beside the papers' own algorithms.

mod arena;
pub mod arms;
mod cross;
mod open_loop;
pub mod rmtcp;
pub mod sbam;
mod sequence;

pub use sequence::Sequence;
