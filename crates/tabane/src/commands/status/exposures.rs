//! Ports of a relay that lead to clients, as a table.

use tabane_control::Exposure;

use crate::output;

/// What of the relay leads where, at either end.
pub(super) fn table(exposures: &[Exposure]) -> Option<String> {
    let headings = [
        "exposed", "host", "address", "leads to", "state", "now", "so far",
    ];
    let row = |it: &Exposure| {
        let client = it.client.as_deref().map(output::key_label);
        vec![
            it.place.clone(),
            it.host.clone().unwrap_or_default(),
            it.address.clone().unwrap_or_default(),
            it.target.clone().or(client).unwrap_or_default(),
            it.state.name().to_owned(),
            it.visitors_now.to_string(),
            it.visitors_so_far.to_string(),
        ]
    };
    let rows: Vec<_> = exposures.iter().map(row).collect();
    let table = output::table(&headings, &rows);
    let problems = exposures.iter().filter_map(|it| it.problem.clone());
    let lines: Vec<_> = std::iter::once(table).chain(problems).collect();
    (!rows.is_empty()).then(|| lines.join("\n"))
}
