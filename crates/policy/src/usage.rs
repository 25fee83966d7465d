//! What links have carried, day by day, so that it can be added up for any period a budget has or
//! will have.

use std::collections::BTreeMap;

use serde::de::Error;
use tabane_base::Bytes;

use crate::budget::Budget;
use crate::calendar::UnixDay;

/// Days kept: more than any period has.
const MAX_DAYS: usize = 400;
/// Keys of the older form of an account, which had one sum for a whole period.
const SINCE: &str = "since";
const BYTES: &str = "bytes";

/// What one link carried on each day, in bytes.
type Account = BTreeMap<UnixDay, u64>;

/// The accounts of all links that have or had a budget, by name; what is kept across restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    accounts: BTreeMap<String, Account>,
}

impl Usage {
    /// Reads what [`to_toml`](Self::to_toml) wrote. `written` is the day on which that was: an
    /// older form has one sum for a period instead of days, and counts as carried on the last day
    /// of the period by then, so that no period is short of it.
    ///
    /// # Errors
    /// What is wrong, with line and key.
    pub fn parse(text: &str, written: UnixDay) -> Result<Self, toml::de::Error> {
        let texts: BTreeMap<String, BTreeMap<String, u64>> = toml::from_str(text)?;
        let accounts = texts.into_iter().map(|(link, of)| {
            let account = read(&of, written);
            let account = account.map_err(|why| Error::custom(format!("{link}: {why}")))?;
            Ok((link, account))
        });
        Ok(Self {
            accounts: accounts.collect::<Result<_, toml::de::Error>>()?,
        })
    }

    /// As text, for keeping.
    ///
    /// # Panics
    /// Never: the names are keys and the values numbers.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let texts = self.accounts.iter().map(|(link, account)| {
            let days = account.iter().map(|(day, bytes)| (day.to_string(), *bytes));
            (link, days.collect::<BTreeMap<_, _>>())
        });
        toml::to_string(&texts.collect::<BTreeMap<_, _>>()).expect("accounts are plain values")
    }

    /// `link` has carried so much more.
    pub fn add(&mut self, link: &str, today: UnixDay, bytes: Bytes) {
        let account = self.accounts.entry(link.to_owned()).or_default();
        // A clock that went back takes nothing out of the present period.
        let newest = account.keys().next_back().copied();
        let day = newest.map_or(today, |newest| newest.max(today));
        let of_day = account.entry(day).or_default();
        *of_day = of_day.saturating_add(bytes.get());
        while account.len() > MAX_DAYS {
            account.pop_first();
        }
    }

    /// What `link` has carried in the period that `today` is in.
    #[must_use]
    pub fn used(&self, link: &str, budget: &Budget, today: UnixDay) -> Bytes {
        let account = self.accounts.get(link).into_iter();
        let days = account.flat_map(|account| account.range(budget.period.begin(today)..));
        Bytes::new(days.fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes)))
    }

    /// Whether `link` may carry no more until the next period.
    #[must_use]
    pub fn is_used_up(&self, link: &str, budget: &Budget, today: UnixDay) -> bool {
        self.used(link, budget, today) >= budget.amount
    }
}

/// An account in either form.
fn read(of: &BTreeMap<String, u64>, written: UnixDay) -> Result<Account, String> {
    if let Some(since) = of.get(SINCE) {
        let bytes = of.get(BYTES).filter(|_| of.len() == 2);
        let bytes = bytes.ok_or_else(|| format!("{SINCE} and {BYTES} belong together, alone"))?;
        // As far as dates have four digits, and their arithmetic room.
        let since = u32::try_from(*since).ok().filter(|days| *days < 2_900_000);
        let since = UnixDay(since.ok_or_else(|| format!("{SINCE} is no day"))?.into());
        let day = written.clamp(since, since.month_end(since.date().day));
        return Ok(Account::from([(day, *bytes)]));
    }
    let days = of.iter().map(|(day, bytes)| {
        let day = UnixDay::parse(day).ok_or_else(|| format!("'{day}' is no day"))?;
        Ok((day, *bytes))
    });
    days.collect()
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
        usage.add("phone", TODAY, Bytes::mega(9));
        assert!(!usage.is_used_up("phone", &daily, TODAY));
        usage.add("phone", TODAY, Bytes::mega(1));
        assert!(usage.is_used_up("phone", &daily, TODAY));
        assert_eq!(usage.used("wifi", &daily, TODAY), Bytes::ZERO);
        let again = Usage::parse(&usage.to_toml(), TODAY).expect("its own text");
        assert_eq!(again, usage, "kept across restarts");
        let tomorrow = UnixDay(TODAY.0 + 1);
        assert!(!usage.is_used_up("phone", &daily, tomorrow));
        usage.add("phone", tomorrow, Bytes::mega(2));
        assert_eq!(usage.used("phone", &daily, tomorrow), Bytes::mega(2));
    }

    #[test]
    fn another_period_forgets_nothing() {
        let (daily, monthly) = (budget(Period::Day), budget(Period::Month { from: 1 }));
        let from_here = budget(Period::Month {
            from: TODAY.date().day,
        });
        let mut usage = Usage::default();
        for back in [60, 2, 1, 0] {
            usage.add("phone", UnixDay(TODAY.0 - back), Bytes::mega(3));
        }
        for (budget, megabytes) in [(monthly, 9), (daily, 3), (from_here, 3), (monthly, 9)] {
            let used = usage.used("phone", &budget, TODAY);
            assert_eq!(used, Bytes::mega(megabytes), "{budget}");
        }
        // However long it runs, the file stays small.
        for day in 0..2_000 {
            usage.add("phone", UnixDay(TODAY.0 + day), Bytes::mega(1));
        }
        assert!(usage.to_toml().lines().count() < 500);
    }

    #[test]
    fn sums_of_an_older_version_count_on_the_last_day_they_may_be_of() {
        let (daily, monthly) = (budget(Period::Day), budget(Period::Month { from: 1 }));
        let first = monthly.period.begin(TODAY).0;
        let read = |since: i64, written: i64| {
            let text = format!("[phone]\nsince = {since}\nbytes = 24800000\n");
            Usage::parse(&text, UnixDay(written)).expect("the older form")
        };
        let all = Bytes::new(24_800_000);
        let of_month = read(first, TODAY.0);
        for budget in [monthly, daily] {
            assert_eq!(of_month.used("phone", &budget, TODAY), all, "{budget}");
        }
        let last_month = read(first - 20, TODAY.0);
        assert_eq!(
            last_month.used("phone", &monthly, TODAY),
            all,
            "from day 11"
        );
        assert_eq!(
            read(first - 40, TODAY.0).used("phone", &monthly, TODAY),
            Bytes::ZERO
        );
        assert_eq!(read(TODAY.0, TODAY.0 - 9).used("phone", &daily, TODAY), all);
    }

    #[test]
    fn a_clock_that_goes_back_gives_nothing_away() {
        let monthly = budget(Period::Month { from: 1 });
        let mut usage = Usage::default();
        usage.add("phone", TODAY, Bytes::mega(10));
        let before = UnixDay(TODAY.0 - 200);
        assert!(usage.is_used_up("phone", &monthly, before));
        usage.add("phone", before, Bytes::mega(1));
        assert_eq!(usage.used("phone", &monthly, TODAY), Bytes::mega(11));
    }

    #[test]
    fn damaged_accounts_are_an_error_with_its_line() {
        let of = |text: &str| Usage::parse(text, TODAY).expect_err(text).to_string();
        let error = of("[phone]\nsince = 1\nbytes = -4\n");
        assert!(error.contains("line 3"), "{error}");
        for text in [
            "[phone]\nsince = 1\n",
            "[phone]\nsince = 99999999999\nbytes = 1\n",
            "[phone]\n2026-02-30 = 1\n",
            "[phone]\nbytes = 1\n",
        ] {
            assert!(of(text).contains("phone"), "{text}");
        }
    }
}
