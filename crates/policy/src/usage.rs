//! What links have carried in the present period of their budgets.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tabane_base::Bytes;

use crate::budget::Budget;
use crate::calendar::UnixDay;

/// One link's account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Account {
    /// When the period began, in days since 1970-01-01.
    since: i64,
    /// Carried since then, in bytes.
    bytes: u64,
}

/// The accounts of all links that have a budget, by name; what is kept across restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Usage {
    accounts: BTreeMap<String, Account>,
}

impl Usage {
    /// Reads what [`to_toml`](Self::to_toml) wrote.
    ///
    /// # Errors
    /// What is wrong, with line and key.
    pub fn parse(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// As text, for keeping.
    ///
    /// # Panics
    /// Never: the names are keys and the values numbers.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("accounts are plain values")
    }

    /// `link` has carried so much more.
    pub fn add(&mut self, link: &str, budget: &Budget, today: UnixDay, bytes: Bytes) {
        let since = budget.period.begin(today).0;
        let account = self
            .accounts
            .entry(link.to_owned())
            .or_insert(Account { since, bytes: 0 });
        // A clock that went back does not open a new period, nor empty this one.
        if account.since < since {
            *account = Account { since, bytes: 0 };
        }
        account.bytes = account.bytes.saturating_add(bytes.get());
    }

    /// What `link` has carried in the period that `today` is in.
    #[must_use]
    pub fn used(&self, link: &str, budget: &Budget, today: UnixDay) -> Bytes {
        let since = budget.period.begin(today).0;
        let account = self
            .accounts
            .get(link)
            .filter(|account| account.since >= since);
        Bytes::new(account.map_or(0, |account| account.bytes))
    }

    /// Whether `link` may carry no more until the next period.
    #[must_use]
    pub fn is_used_up(&self, link: &str, budget: &Budget, today: UnixDay) -> bool {
        self.used(link, budget, today) >= budget.amount
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Period;

    const TODAY: UnixDay = UnixDay(20_778);

    fn budget(period: Period) -> Budget {
        Budget {
            amount: Bytes::mega(10),
            period,
        }
    }

    #[test]
    fn a_budget_is_used_up_and_begins_anew() {
        let daily = budget(Period::Day);
        let mut usage = Usage::default();
        usage.add("phone", &daily, TODAY, Bytes::mega(9));
        assert!(!usage.is_used_up("phone", &daily, TODAY));
        usage.add("phone", &daily, TODAY, Bytes::mega(1));
        assert!(usage.is_used_up("phone", &daily, TODAY));
        assert_eq!(usage.used("wifi", &daily, TODAY), Bytes::ZERO);
        let again = Usage::parse(&usage.to_toml()).expect("its own text");
        assert_eq!(again, usage, "kept across restarts");
        let tomorrow = UnixDay(TODAY.0 + 1);
        assert!(!usage.is_used_up("phone", &daily, tomorrow));
        usage.add("phone", &daily, tomorrow, Bytes::mega(2));
        assert_eq!(usage.used("phone", &daily, tomorrow), Bytes::mega(2));
    }

    #[test]
    fn a_clock_that_goes_back_gives_nothing_away() {
        let monthly = budget(Period::Month { from: 1 });
        let mut usage = Usage::default();
        usage.add("phone", &monthly, TODAY, Bytes::mega(10));
        let before = UnixDay(TODAY.0 - 200);
        assert!(usage.is_used_up("phone", &monthly, before));
        usage.add("phone", &monthly, before, Bytes::mega(1));
        assert_eq!(usage.used("phone", &monthly, TODAY), Bytes::mega(11));
    }

    #[test]
    fn damaged_accounts_are_an_error_with_its_line() {
        let error = Usage::parse("[phone]\nsince = 1\nbytes = -4\n").expect_err("negative");
        assert!(error.to_string().contains("line 3"), "{error}");
        assert!(Usage::parse("[phone]\nsince = 1\n").is_err());
    }
}
