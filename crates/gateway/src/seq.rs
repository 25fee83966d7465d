//! TCP sequence numbers, which wrap around at 4 GiB (RFC 9293 §3.4).

use std::ops::{Add, Sub};

/// A sequence number of one direction of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seq(pub u32);

impl Seq {
    /// Bytes from `earlier` to `self`; negative where `self` is the earlier one. Right for numbers
    /// less than 2 GiB apart, as all within windows are.
    #[must_use]
    pub const fn since(self, earlier: Self) -> i32 {
        self.0.wrapping_sub(earlier.0) as i32
    }

    /// Bytes from `earlier` to `self`, none where `self` is the earlier one.
    #[must_use]
    pub const fn beyond(self, earlier: Self) -> u32 {
        let span = self.since(earlier);
        if span > 0 { span as u32 } else { 0 }
    }

    /// Whether `self` comes before `other`.
    #[must_use]
    pub const fn is_before(self, other: Self) -> bool {
        self.since(other) < 0
    }

    /// Whether `self` comes after `other`.
    #[must_use]
    pub const fn is_after(self, other: Self) -> bool {
        self.since(other) > 0
    }

    /// The later of two.
    #[must_use]
    pub const fn later(self, other: Self) -> Self {
        if self.is_before(other) { other } else { self }
    }

    /// The earlier of two.
    #[must_use]
    pub const fn earlier(self, other: Self) -> Self {
        if self.is_after(other) { other } else { self }
    }
}

impl Add<u32> for Seq {
    type Output = Self;
    fn add(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl Sub<u32> for Seq {
    type Output = Self;
    fn sub(self, bytes: u32) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_the_wrap() {
        let before = Seq(u32::MAX - 9);
        let after = before + 20;
        assert_eq!(after, Seq(10));
        assert!(after.is_after(before) && before.is_before(after));
        assert_eq!(after.since(before), 20);
        assert_eq!(before.since(after), -20);
        assert_eq!((after.beyond(before), before.beyond(after)), (20, 0));
        assert_eq!(before.later(after), after);
        assert_eq!(before.earlier(after), before);
        assert_eq!(after - 20, before);
    }
}
