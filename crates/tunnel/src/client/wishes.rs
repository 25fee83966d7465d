//! What the user wishes of links while they are used, and when a wish gives way.
//!
//! Kept by name, so that a wish outlives a link that goes and comes back. A weight gives way to
//! another one of the policy's than it was put over; a pause, to nothing but another wish.

use std::collections::BTreeMap;

use super::LinkWish;

/// The wishes; with each the weight that the wished one was put over.
#[derive(Default)]
pub(super) struct Wishes(BTreeMap<String, (LinkWish, f64)>);

impl Wishes {
    /// Takes what `wish` says of a link that has the weight `before`.
    pub(super) fn add(&mut self, link: &str, wish: LinkWish, before: f64) {
        let (kept, over) = self.0.entry(link.to_owned()).or_default();
        if kept.weight.is_none() {
            *over = before;
        }
        kept.weight = wish.weight.or(kept.weight);
        kept.paused = wish.paused.or(kept.paused);
    }

    pub(super) fn is_paused(&self, link: &str) -> bool {
        let wish = self.0.get(link);
        wish.and_then(|(wish, _)| wish.paused) == Some(true)
    }

    /// The weight of a link to which the policy gives `weight`.
    pub(super) fn weigh(&mut self, link: &str, weight: f64) -> f64 {
        match self.0.get_mut(link) {
            Some((wish, over)) if (*over - weight).abs() < f64::EPSILON => {
                wish.weight.unwrap_or(weight)
            }
            Some((wish, _)) => {
                wish.weight = None;
                weight
            }
            None => weight,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_gives_way_to_another_of_the_policy_and_a_pause_does_not() {
        let mut wishes = Wishes::default();
        let wish = |weight, paused| LinkWish { weight, paused };
        wishes.add("usb0", wish(Some(0.5), None), 1.0);
        wishes.add("usb0", wish(Some(0.25), Some(true)), 0.5);
        assert_eq!(wishes.weigh("usb0", 1.0), 0.25);
        assert_eq!(wishes.weigh("usb0", 0.75), 0.75);
        assert_eq!(wishes.weigh("usb0", 1.0), 1.0, "it was given up");
        assert!(wishes.is_paused("usb0") && !wishes.is_paused("eth0"));
        wishes.add("usb0", wish(None, Some(false)), 1.0);
        assert!(!wishes.is_paused("usb0"));
    }
}
