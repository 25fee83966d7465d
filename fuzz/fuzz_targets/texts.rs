//! What people write: policies, budgets' counters, scenarios, recorded links.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = tabane_policy::Policy::parse(text);
    let _ = tabane_policy::Usage::parse(text, tabane_policy::UnixDay(20_778));
    let _ = tabane_netem::Trace::parse(text).map(|trace| trace.reversed());
    let _ = tabane_netem::Scenario::parse_all(text, &mut |_| Ok("1\n5\n".to_owned()));
});
