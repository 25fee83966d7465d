//! The shipped engine on both ends of modelled links, in virtual time.
//!
//! A [`World`] owns a client and a server `Endpoint`, one `netem` link per direction between them,
//! and an application that moves [`Job`]s of seeded content which the far end checks byte by byte.
//! It drives the endpoints as the shells do and asserts the driving contract: outputs are drained
//! after every input, and no timer stays in the past. Nothing here reads a clock or a file; one
//! seed decides everything, so a failure repeats. What is drawn, here and by others, is a plain
//! value first ([`Figure`], [`DownloadFigure`]).

#![forbid(unsafe_code)]

mod beside;
mod download;
mod exchanged;
mod figure;
mod flow;
mod host;
mod job;
mod network;
mod outcome;
pub mod papers;
mod passage;
mod picture;
mod radio;
mod reno;
mod series;
mod side;
mod summary;
mod tamper;
mod tcp;
pub mod web;
mod world;

pub use download::{Download, DownloadSample, LinkTraffic};
pub use exchanged::Exchanged;
pub use figure::{Curve, Figure, Panel, Style, Table};
pub use flow::{Flow, FlowOutcome, UdpLoad};
pub use host::{Admission, Host};
pub use job::{Job, JobId, JobState, Pace, Transfer};
pub use network::{Captured, LinkId, Network, PACKET_OVERHEAD, SERVER};
pub use outcome::{Outcome, PathOutcome};
pub use passage::{Impairments, Passage, PassageLinks, TcpHost};
pub use picture::{DownloadFigure, DrawError, svg};
pub use radio::{RadioComparison, RadioRun, RadioSurvey, bond_of_best, radio_likeness};
pub use reno::{RenoReceiver, RenoSender};
pub use series::{LinkSample, Sample, Series};
pub use side::Side;
pub use summary::{RunSettings, Summary};
pub use tamper::Tamper;
pub use tcp::{Endpoint, TcpClient, TcpServer};
pub use world::{Setup, World};
