//! Ports of a relay that lead to clients, as a table.

use tabane_control::{Exposure, key_label};

use crate::output;

/// What of the relay leads where, at either end.
pub(super) fn table(exposures: &[Exposure]) -> Option<String> {
    let client = |it: &Exposure| it.client.as_deref().map(key_label);
    let leads_to = |it: &Exposure| it.target.clone().or_else(|| client(it)).unwrap_or_default();
    let table = output::items(
        exposures,
        &[
            ("exposed", &|it| it.place.clone()),
            ("host", &|it| it.host.clone().unwrap_or_default()),
            ("address", &|it| it.address.clone().unwrap_or_default()),
            ("leads to", &|it| leads_to(it)),
            ("state", &|it| it.state.name().to_owned()),
            ("now", &|it| it.visitors_now.to_string()),
            ("so far", &|it| it.visitors_so_far.to_string()),
        ],
    );
    let problems = exposures.iter().filter_map(|it| it.problem.clone());
    let lines: Vec<_> = std::iter::once(table).chain(problems).collect();
    (!exposures.is_empty()).then(|| lines.join("\n"))
}
