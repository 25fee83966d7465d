//! Networks behind clients, as a table.

use tabane_control::{SiteRoute, key_label};

use crate::output;

/// Which networks lead where, at either end.
pub(super) fn table(routes: &[SiteRoute]) -> Option<String> {
    let headings = ["route", "behind", "state", "now", "so far"];
    let row = |it: &SiteRoute| {
        let client = it.client.as_deref().map(key_label);
        let whose = match (&it.user, client) {
            (Some(user), Some(client)) => format!("{user} {client}"),
            (Some(user), None) => user.clone(),
            (None, _) => "this machine".to_owned(),
        };
        // What others are sent is known where it is sent from.
        let count = |n: u64| match it.is_own || it.client.is_some() {
            true => n.to_string(),
            false => String::new(),
        };
        vec![
            it.prefix.clone(),
            whose,
            it.state.name().to_owned(),
            count(it.now),
            count(it.so_far),
        ]
    };
    let rows: Vec<_> = routes.iter().map(row).collect();
    let table = output::table(&headings, &rows);
    let problems = routes.iter().filter_map(|it| it.problem.clone());
    let lines: Vec<_> = std::iter::once(table).chain(problems).collect();
    (!rows.is_empty()).then(|| lines.join("\n"))
}
