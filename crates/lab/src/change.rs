//! What can be done to one link of a running lab, as people write it: `down`, `rate=5mbit`.
//!
//! Quantities are read as scenario files have them, by the same reader.

use std::str::FromStr;

use tabane_netem::{Change, Direction, Scenario};

use crate::error::LabError;
use crate::lab::Lab;

/// A change of one link.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkChange {
    /// As it was written, to be told to the process that holds the lab.
    text: String,
    what: What,
}

#[derive(Clone, Debug, PartialEq)]
enum What {
    /// The cable, which the interface notices.
    Carrier(bool),
    /// Packets vanish, which the interface does not notice.
    Outage(bool),
    /// From here on; for each direction.
    Parameters { up: Box<Change>, down: Box<Change> },
}

impl LinkChange {
    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Does it to link `link` (from 0).
    pub(crate) fn apply(&self, lab: &Lab, link: usize) -> Result<(), LabError> {
        match &self.what {
            What::Carrier(up) => return lab.set_carrier(link, *up),
            What::Outage(out) => lab.set_outage(link, *out),
            What::Parameters { up, down } => {
                set(lab, link, Direction::Up, up);
                set(lab, link, Direction::Down, down);
            }
        }
        Ok(())
    }
}

fn set(lab: &Lab, link: usize, direction: Direction, change: &Change) {
    // Wires have no emulator, and nothing to set.
    let Some(control) = lab.control() else {
        return;
    };
    let direction = Some(direction);
    if let Some(rate) = change.rate {
        control.set_rate(link, direction, rate);
    }
    if let Some(delay) = change.delay {
        control.set_delay(link, direction, delay);
    }
    if let Some(loss) = change.loss {
        control.set_loss(link, direction, loss);
    }
}

impl FromStr for LinkChange {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        let what = match text {
            "up" => What::Carrier(true),
            "down" => What::Carrier(false),
            "outage=on" => What::Outage(true),
            "outage=off" => What::Outage(false),
            other => parameters(other).ok_or_else(|| LabError::Change {
                text: text.to_owned(),
            })?,
        };
        Ok(Self {
            text: text.to_owned(),
            what,
        })
    }
}

fn parameters(text: &str) -> Option<What> {
    let (key, value) = text.split_once('=')?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '%' | ' ');
    if !["rate", "delay", "loss"].contains(&key) || !value.chars().all(is_plain) {
        return None;
    }
    let file = format!(
        "name = \"\"\nwhy = \"\"\n[[link]]\nname = \"\"\nqueue = \"0B\"\n\
         [[link.change]]\nat = \"0s\"\n{key} = \"{value}\"\n"
    );
    let scenario = Scenario::parse(&file, None, &mut |_| Err(String::new())).ok()?;
    let link = scenario.links.first()?;
    Some(What::Parameters {
        up: Box::new(link.up.changes.first()?.clone()),
        down: Box::new(link.down.changes.first()?.clone()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::{Duration, Rate};

    #[test]
    fn changes_are_written_as_in_scenario_files() {
        let parameters = |text: &str| match text.parse::<LinkChange>().unwrap().what {
            What::Parameters { up, down } => (up, down),
            other => panic!("{other:?}"),
        };
        let (up, down) = parameters("rate=2.5mbit");
        let expected = Some(Rate::from_bps(2_500_000));
        assert_eq!((up.rate, down.rate), (expected, expected));
        assert_eq!((up.delay, up.loss), (None, None));
        assert_eq!(
            parameters("delay=30ms").1.delay,
            Some(Duration::from_millis(30))
        );
        assert!(parameters("loss=1%").0.loss.is_some());
        for (text, what) in [
            ("up", What::Carrier(true)),
            ("down", What::Carrier(false)),
            ("outage=on", What::Outage(true)),
        ] {
            assert_eq!(text.parse::<LinkChange>().unwrap().what, what);
        }
        for bad in [
            "",
            "off",
            "rate",
            "rate=",
            "rate=fast",
            "rate=1mbit\"\nloss=\"1%",
            "queue=1kB",
        ] {
            let error = bad.parse::<LinkChange>().unwrap_err().to_string();
            assert!(error.contains("rate=5mbit"), "{error}");
        }
    }
}
