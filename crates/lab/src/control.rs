//! Orders to a running emulator, and what it tells.
//!
//! Orders cross to the emulator's thread through a channel and an event descriptor that wakes it,
//! so that nothing between two packets takes a lock.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};
use tabane_base::{Duration, Rate};
use tabane_netem::{Counters, Direction, LossModel};

use crate::error::LabError;

/// What an emulator can be told. Links count from 0; no direction means both.
#[derive(Debug)]
pub(crate) enum Order {
    SetOutage {
        link: usize,
        out: bool,
    },
    SetRate {
        link: usize,
        direction: Option<Direction>,
        rate: Rate,
    },
    SetDelay {
        link: usize,
        direction: Option<Direction>,
        delay: Duration,
    },
    SetLoss {
        link: usize,
        direction: Option<Direction>,
        loss: LossModel,
    },
    RestartSchedule,
    Snapshot {
        reply: Sender<Snapshot>,
    },
    Stop,
}

/// What an emulator has done so far.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Per link, in the order of the scenario.
    pub links: Vec<LinkSnapshot>,
    /// Whether the emulator keeps up.
    pub health: Health,
}

/// One link's counters.
#[derive(Clone, Debug, Default)]
pub struct LinkSnapshot {
    /// What the scenario calls it.
    pub name: String,
    /// From client to server.
    pub up: Counters,
    /// From server to client.
    pub down: Counters,
    /// Whether its packets vanish at present.
    pub out: bool,
}

/// A packet that leaves the emulator later than this after it was due is [late](Health::late):
/// no delay in a scenario but zero is as small.
pub(crate) const LATE: Duration = Duration::from_millis(1);

/// Signs that the machine was too slow for the scenario: a measurement counts only where the
/// drops are zero and `late` is rare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Packets the kernel dropped before the emulator read them.
    pub receive_drops: u64,
    /// Packets the kernel refused from the emulator.
    pub send_drops: u64,
    /// How often packets left more than 1 ms after they were due, since the schedule was
    /// (re)started.
    pub late: u64,
    /// The longest that a packet stayed after it was due, since the schedule was (re)started.
    pub late_max: Duration,
}

/// A handle on a running emulator. Clones mean the same one; links count from 0.
#[derive(Clone, Debug)]
pub struct Control {
    orders: Sender<Order>,
    wake: Arc<OwnedFd>,
}

impl Control {
    /// Makes all packets of a link vanish, or ends that; the carrier stays up.
    pub fn set_outage(&self, link: usize, out: bool) {
        self.send(Order::SetOutage { link, out });
    }

    /// Changes a link's rate, in one direction or both.
    pub fn set_rate(&self, link: usize, direction: Option<Direction>, rate: Rate) {
        self.send(Order::SetRate {
            link,
            direction,
            rate,
        });
    }

    /// Changes a link's one-way delay, in one direction or both.
    pub fn set_delay(&self, link: usize, direction: Option<Direction>, delay: Duration) {
        self.send(Order::SetDelay {
            link,
            direction,
            delay,
        });
    }

    /// Changes a link's loss, in one direction or both.
    pub fn set_loss(&self, link: usize, direction: Option<Direction>, loss: LossModel) {
        self.send(Order::SetLoss {
            link,
            direction,
            loss,
        });
    }

    /// Starts the scenario's changes, outages and traces anew at this moment, as a measurement
    /// does that is to see them at their times.
    pub fn restart_schedule(&self) {
        self.send(Order::RestartSchedule);
    }

    /// All counters.
    ///
    /// # Errors
    /// The emulator has ended.
    pub fn snapshot(&self) -> Result<Snapshot, LabError> {
        let (reply, answer) = channel();
        self.send(Order::Snapshot { reply });
        answer.recv().map_err(|_| LabError::EmulatorGone)
    }

    pub(crate) fn stop(&self) {
        self.send(Order::Stop);
    }

    fn send(&self, order: Order) {
        // An emulator that has ended obeys no order; `snapshot` is how one learns of it.
        if self.orders.send(order).is_ok() {
            // Fails only if 2⁶⁴ wake-ups wait already.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }
}

/// The emulator's end of its controls.
#[derive(Debug)]
pub(crate) struct Orders {
    orders: Receiver<Order>,
    wake: Arc<OwnedFd>,
}

impl Orders {
    /// The next order, if there is one. To be asked until there is none.
    pub(crate) fn poll(&self) -> Option<Order> {
        self.orders.try_recv().ok()
    }

    /// Makes the descriptor unreadable until the next order.
    pub(crate) fn acknowledge(&self) {
        // Nothing to read means that nobody has called: as it should be.
        let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
    }
}

impl AsFd for Orders {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Both ends.
pub(crate) fn control() -> Result<(Control, Orders), LabError> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let wake = eventfd(0, flags).map_err(|errno| LabError::System {
        operation: "make an event descriptor",
        source: io::Error::from(errno),
    })?;
    let wake = Arc::new(wake);
    let (sender, receiver) = channel();
    let control = Control {
        orders: sender,
        wake: Arc::clone(&wake),
    };
    let orders = Orders {
        orders: receiver,
        wake,
    };
    Ok((control, orders))
}
