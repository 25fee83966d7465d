//! The JSON schema of the API: what `GET /v1/state` answers, and what the other requests take and
//! answer.
//!
//! Owns its text, which is committed. What would derive it from the types is in tests alone: the
//! program need not carry it to say the same each time.

/// The schema, as JSON.
pub(crate) const TEXT: &str = include_str!("../../../docs/control.schema.json");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        LinkChange, LinkEntryChange, PolicyChange, PolicyText, RuleAnswer, RuleQuestion, State,
        TraceBatch,
    };
    use schemars::schema_for;

    #[test]
    fn the_schema_is_the_committed_one() {
        let schema = serde_json::json!({
            "state": schema_for!(State),
            "link_change": schema_for!(LinkChange),
            "rule_question": schema_for!(RuleQuestion),
            "rule_answer": schema_for!(RuleAnswer),
            "trace_batch": schema_for!(TraceBatch),
            "policy_text": schema_for!(PolicyText),
            "policy_change": schema_for!(PolicyChange),
            "link_entry_change": schema_for!(LinkEntryChange),
        });
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if std::env::var_os("TABANE_BLESS").is_some() {
            let path = concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../docs/control.schema.json"
            );
            std::fs::write(path, text).unwrap();
        } else {
            assert_eq!(text, TEXT, "after a change that is meant: TABANE_BLESS=1");
        }
    }
}
