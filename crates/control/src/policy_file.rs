//! The policy file as control clients see it.
//!
//! What is in it, and whether it is sound, is the instance's affair: it gives a [`PolicyFile`].

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The file that rules an instance's links. Called on the control thread, so it may block.
pub trait PolicyFile: Send {
    /// Where it is.
    fn path(&self) -> &Path;

    /// Its text; empty where there is none.
    ///
    /// # Errors
    /// The system's.
    fn read(&self) -> io::Result<String>;

    /// Replaces it, if `text` is sound.
    ///
    /// # Errors
    /// See [`PolicyRefusal`]; the file is as it was.
    fn replace(&self, text: &str) -> Result<(), PolicyRefusal>;

    /// Whether `new` has no command run that `old` does not have run already.
    fn runs_nothing_new(&self, old: &str, new: &str) -> bool;

    /// Replaces `old`, if `new` is sound. Who is known by a token only, which may be a dashboard's
    /// (not `is_trusted`), may have nothing run here.
    ///
    /// # Errors
    /// See [`PolicyRefusal`]; the file is as it was.
    fn replace_by(&self, is_trusted: bool, old: &str, new: &str) -> Result<(), PolicyRefusal> {
        if !is_trusted && !self.runs_nothing_new(old, new) {
            let text = "a command to run is not taken over HTTP: write it into the file itself";
            return Err(PolicyRefusal::NotAllowed(text.to_owned()));
        }
        self.replace(new)
    }

    /// The entries for links in such a text, in its order; none where it is not sound.
    fn links(&self, text: &str) -> Vec<LinkEntry>;

    /// The text with this entry in place of the one for the same links, or in front of all, or
    /// without it; everything else, comments too, as it is. Writes nothing.
    ///
    /// # Errors
    /// See [`PolicyRefusal`].
    fn with_link(&self, text: &str, change: &LinkEntryChange) -> Result<String, PolicyRefusal>;
}

/// Why a policy was not taken.
#[derive(Debug)]
pub enum PolicyRefusal {
    /// What is wrong with it, all of it, with lines.
    Unsound(String),
    /// Whoever asks may not have that.
    NotAllowed(String),
    /// It could not be written.
    NotWritten(String),
}

/// What `GET /v1/policy` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PolicyText {
    /// Where the file is.
    pub path: String,
    /// What is in it; empty where there is none.
    pub text: String,
    /// Its entries for links; of those that fit a link the first decides.
    #[serde(default)]
    pub links: Vec<LinkEntry>,
}

/// A `[[link]]` of the policy file, with the file's own keys. What is absent it does not say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct LinkEntry {
    /// The interface or neighbour, or a pattern.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Links of this kind only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `normal`, `backup` or `never`.
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    pub usage: Option<String>,
    /// Which share of it may be used, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// 0 to 15: higher numbers wait until lower ones are not enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// Whether its traffic costs by volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metered: Option<bool>,
    /// What it may carry in both directions: `5GB/month`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<String>,
    /// The day on which the budget's month begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_from: Option<i64>,
    /// The most towards this host: `20mbit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down: Option<String>,
    /// The most from this host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<String>,
    /// Where it begins in the file. Of no account in a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
}

/// What `PUT /v1/policy/link` takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LinkEntryChange {
    /// The entry as it is to be; `name` and `kind` say which one.
    pub entry: LinkEntry,
    /// Take it out instead.
    #[serde(default)]
    pub forget: bool,
    /// The text that was seen. Where the file has another one by now, nothing is changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<String>,
}

/// What `PUT /v1/policy` takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PolicyChange {
    /// The new text.
    pub text: String,
    /// The text that it was made from. Where the file has another one by now, nothing is changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<String>,
}
