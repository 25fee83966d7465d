//! What people and programs write: policies, counters, scenarios, recorded links, hosts, headers,
//! JSON, join strings.

use tabane_base::{Destination, Host};
use tabane_control::{LinkChange, State, render_metrics};
use tabane_policy::{Policy, UnixDay, Usage};
use tabane_ranges::{ContentRange, EntityTag};
use tabane_store::JoinString;

const DAY: UnixDay = UnixDay(20_778);

/// Policies, budgets' counters, scenarios, traces. Counters come back as they were written.
pub fn files(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let _ = Policy::parse(text);
    if let Ok(usage) = Usage::parse(text, DAY) {
        let written = usage.to_toml();
        let again = Usage::parse(&written, DAY).expect("our own file");
        assert_eq!(again.to_toml(), written);
    }
    let _ = tabane_netem::Trace::parse(text).map(|trace| trace.reversed());
    let _ = tabane_netem::Scenario::parse_all(text, &mut |_| Ok("1\n5\n".to_owned()));
}

/// What an instance says to `tabane status`, and what programs ask it to change.
pub fn control(data: &[u8]) {
    if let Ok(state) = serde_json::from_slice::<State>(data) {
        let text = render_metrics(&state);
        assert!(text.ends_with('\n'), "Prometheus wants whole lines");
        let written = serde_json::to_vec(&state).expect("it was JSON");
        let again: State = serde_json::from_slice(&written).expect("our own words");
        assert_eq!(serde_json::to_vec(&again).expect("again"), written);
    }
    if let Ok(change) = serde_json::from_slice::<LinkChange>(data)
        && let Ok(LinkChange {
            weight: Some(weight),
            ..
        }) = change.check()
    {
        assert!((0.0..=1.0).contains(&weight), "{weight}");
    }
}

/// What a web server says of ranges: `Content-Range` and `ETag`.
pub fn headers(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Some(ContentRange::Part { first, last, total }) = ContentRange::parse(text) {
        assert!(first <= last, "a range that ends before it begins");
        assert!(total.is_none_or(|total| last < total), "beyond the file");
    }
    if let Some(tag) = EntityTag::strong(text) {
        assert!(!tag.as_str().chars().any(|c| c.is_ascii_control()));
        assert_eq!(EntityTag::strong(tag.as_str()), Some(tag));
    }
}

/// A host and port as programs write them: what is taken, is taken the same when shown.
pub fn destination(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(host) = Host::parse(text) {
        let destination = Destination { host, port: 443 };
        check(&destination);
    }
}

/// Join strings: what is taken is taken the same when it is printed.
pub fn join_string(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match text.parse::<JoinString>() {
        Ok(joined) => assert_eq!(joined.to_string().parse(), Ok(joined)),
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}

/// A destination that a program gave is one that can be passed on within a line of text.
pub(crate) fn check(destination: &Destination) {
    if let Host::Name(name) = &destination.host {
        assert!(!name.is_empty() && name.len() <= 253);
        assert!(name.bytes().all(|b| b.is_ascii_graphic()), "{name:?}");
        assert_eq!(Host::parse(name).as_ref(), Ok(&destination.host));
    }
}
