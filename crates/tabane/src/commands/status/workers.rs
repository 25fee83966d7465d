//! A relay's workers, as `tabane status` shows them.

/// Which worker has how many of them, where there are several.
pub(super) fn by_worker(sessions: &[u64]) -> String {
    let each: Vec<_> = sessions.iter().map(u64::to_string).collect();
    let told = || format!("; by worker {}", each.join(", "));
    (!each.is_empty()).then(told).unwrap_or_default()
}
