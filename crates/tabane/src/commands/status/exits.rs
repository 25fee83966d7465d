//! Addresses that users' connections leave a relay by, as a table.

use tabane_control::Session;

use super::MAX_ROWS;
use crate::output;

/// Which client leaves by which; nothing where the usual addresses are everybody's.
pub(super) fn table(sessions: &[Session]) -> Option<String> {
    let row = |session: &Session| {
        let exit = session.exit.as_ref()?;
        let addresses = exit.addresses.iter().map(ToString::to_string);
        let refused = match exit.refused {
            0 => String::new(),
            n => n.to_string(),
        };
        Some(vec![
            session.number.to_string(),
            exit.user.clone(),
            addresses.collect::<Vec<_>>().join(" "),
            exit.missing.join(" "),
            refused,
        ])
    };
    let rows: Vec<_> = sessions.iter().filter_map(row).take(MAX_ROWS).collect();
    let headings = ["session", "user", "leaves by", "missing", "refused"];
    (!rows.is_empty()).then(|| output::table(&headings, &rows))
}
