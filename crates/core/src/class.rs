//! Classes of streams and flows: which paths may carry their data, and whether all of them do at
//! once [P-11].
//!
//! A class is a rule that many streams share, so that a path that comes or goes, or a user who
//! thinks again, is one frame and not one per stream. Owns the rule and its numbering; whose turn
//! it is and which path it takes are decided elsewhere, for each class by itself.

use crate::id::PathId;
use crate::wire::Frame;

/// Classes beside the ordinary one; each has queues of its own at both ends.
pub const MAX_CLASSES: u8 = 15;

/// A class of one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(u8);

impl ClassId {
    /// What belongs to no other class takes every path, as the scheduler chooses.
    pub const ORDINARY: Self = Self(0);

    /// The class of this number; `None` beyond [`MAX_CLASSES`].
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number <= MAX_CLASSES {
            Some(Self(number))
        } else {
            None
        }
    }

    /// The number on the wire.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What there is of something for each class; the default where nothing was there yet.
#[derive(Debug, Default)]
pub(crate) struct ByClass<T>(Vec<T>);

impl<T: Default> ByClass<T> {
    pub(crate) fn get(&self, class: ClassId) -> Option<&T> {
        self.0.get(class.index())
    }

    pub(crate) fn get_mut(&mut self, class: ClassId) -> &mut T {
        if self.0.len() <= class.index() {
            self.0.resize_with(class.index() + 1, T::default);
        }
        &mut self.0[class.index()]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }

    /// Whether there was ever something for a class beside the ordinary one.
    pub(crate) fn has_several(&self) -> bool {
        self.0.len() > 1
    }
}

/// How what belongs to a class is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassRule {
    /// The paths that may carry it: no other carries one byte of it, whatever happens. `None`: all,
    /// those to come included.
    pub paths: Option<Vec<PathId>>,
    /// Every piece goes by all these paths at once, whatever their priorities; only backups stay
    /// out while others work.
    pub redundant: bool,
}

impl ClassRule {
    pub(crate) fn allows(&self, path: PathId) -> bool {
        self.paths
            .as_ref()
            .is_none_or(|paths| paths.contains(&path))
    }
}

/// A class as this end knows it.
#[derive(Debug)]
pub(crate) struct Class {
    pub(crate) rule: ClassRule,
    /// The newest rule, made or heard; 0 while there was none.
    number: u64,
    /// The other end has still to be told.
    pub(crate) due: bool,
}

impl Class {
    pub(crate) const ORDINARY: Self = Self {
        rule: ClassRule {
            paths: None,
            redundant: false,
        },
        number: 0,
        due: false,
    };

    /// A class of which nothing is known yet: until its rule comes, no path may carry it.
    pub(crate) const fn unknown() -> Self {
        Self {
            rule: ClassRule {
                paths: Some(Vec::new()),
                redundant: false,
            },
            number: 0,
            due: false,
        }
    }

    /// Makes a rule; `true` when it is another one.
    pub(crate) fn set(&mut self, rule: ClassRule) -> bool {
        if self.number > 0 && self.rule == rule {
            return false;
        }
        self.rule = rule;
        self.number += 1;
        self.due = true;
        true
    }

    /// The other end made a rule; older ones that were overtaken on the way are ignored.
    pub(crate) fn on_heard(&mut self, number: u64, rule: ClassRule) -> bool {
        let is_newer = number > self.number;
        if is_newer {
            self.number = number;
            self.rule = rule;
        }
        is_newer
    }

    pub(crate) fn frame(&self, class: ClassId) -> Frame<'static> {
        Frame::Class {
            class,
            number: self.number,
            rule: self.rule.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(path: u32) -> ClassRule {
        ClassRule {
            paths: Some(vec![PathId(path)]),
            redundant: false,
        }
    }

    #[test]
    fn nothing_is_allowed_before_the_rule_came_and_late_rules_do_not_undo_newer_ones() {
        let mut class = Class::unknown();
        assert!(!class.rule.allows(PathId(0)));
        assert!(class.on_heard(2, only(1)));
        assert!(!class.on_heard(1, ClassRule::default()));
        assert!(class.rule.allows(PathId(1)) && !class.rule.allows(PathId(0)));
    }

    #[test]
    fn a_rule_is_told_once_and_again_when_it_changes() {
        let mut class = Class::unknown();
        assert!(class.set(only(0)) && class.due);
        assert!(!class.set(only(0)));
        assert!(class.set(only(1)));
        let Frame::Class { number, .. } = class.frame(ClassId(1)) else {
            panic!("a rule was made");
        };
        assert_eq!(number, 2);
    }
}
