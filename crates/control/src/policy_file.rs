//! The policy file as control clients see it.
//!
//! What is in it, and whether it is sound, is the instance's affair: it gives a [`PolicyFile`].

use std::io;
use std::path::Path;

use schemars::JsonSchema;
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
}

/// Why a policy was not taken.
#[derive(Debug)]
pub enum PolicyRefusal {
    /// What is wrong with it, all of it, with lines.
    Unsound(String),
    /// It could not be written.
    NotWritten(String),
}

/// What `GET /v1/policy` answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyText {
    /// Where the file is.
    pub path: String,
    /// What is in it; empty where there is none.
    pub text: String,
}

/// What `PUT /v1/policy` takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyChange {
    /// The new text.
    pub text: String,
    /// The text that it was made from. Where the file has another one by now, nothing is changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<String>,
}
