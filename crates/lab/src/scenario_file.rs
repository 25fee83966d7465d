//! Scenario files and traces on disk.
//!
//! Traces are looked for by name, plain or gzipped, in the directories given.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use tabane_netem::{Scenario, Trace};

use crate::error::LabError;

/// The longest trace taken, in bytes: a day of 50 Mbit/s is longer than anyone has recorded.
const TRACE_MAX: u64 = 256 * 1024 * 1024;

/// Reads the scenario in `path`, or its variant of that name, with traces from `traces`.
///
/// # Errors
/// The file or a trace cannot be read, or does not fit.
pub fn load_scenario(
    path: &Path,
    variant: Option<&str>,
    traces: &[PathBuf],
) -> Result<Scenario, LabError> {
    Scenario::parse(&read(path)?, variant, &mut |name| trace(name, traces))
        .map_err(|source| misfit(path, source))
}

/// Reads the scenario in `path` with all its variants, with traces from `traces`.
///
/// # Errors
/// The file or a trace cannot be read, or does not fit.
pub fn load_scenarios(path: &Path, traces: &[PathBuf]) -> Result<Vec<Scenario>, LabError> {
    Scenario::parse_all(&read(path)?, &mut |name| trace(name, traces))
        .map_err(|source| misfit(path, source))
}

/// Where traces usually are: `traces` and `shared/traces` beside the scenario file and in every
/// directory above it.
#[must_use]
pub fn trace_directories(scenario: &Path) -> Vec<PathBuf> {
    let scenario = fs::canonicalize(scenario).unwrap_or_else(|_| scenario.to_owned());
    scenario
        .ancestors()
        .skip(1)
        .flat_map(|directory| [directory.join("traces"), directory.join("shared/traces")])
        .filter(|directory| directory.is_dir())
        .collect()
}

fn misfit(path: &Path, source: tabane_netem::ScenarioError) -> LabError {
    LabError::Scenario {
        path: path.to_owned(),
        source: Box::new(source),
    }
}

fn read(path: &Path) -> Result<String, LabError> {
    fs::read_to_string(path).map_err(|source| LabError::File {
        path: path.to_owned(),
        source,
    })
}

/// Reads every recorded link of a directory, each under its file's name, in the order of names.
///
/// # Errors
/// Names the file that cannot be read or is no trace.
pub fn load_traces(directory: &Path) -> Result<Vec<(String, Trace)>, LabError> {
    let error = |path: &Path, source| LabError::File {
        path: path.to_owned(),
        source,
    };
    let entries = fs::read_dir(directory).map_err(|source| error(directory, source))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_trace = |name: &String| [".down", ".up"].iter().any(|way| name.ends_with(way));
    let names = names.map(|name| name.trim_end_matches(".gz").to_owned());
    let names: BTreeSet<String> = names.filter(is_trace).collect();
    let load = |name: String| {
        let text = trace(&name, &[directory.to_owned()]);
        let parsed = text.and_then(|text| Trace::parse(&text).map_err(|error| error.to_string()));
        let failed = |what| error(&directory.join(&name), std::io::Error::other(what));
        parsed.map_err(failed).map(|trace| (name.clone(), trace))
    };
    names.into_iter().map(load).collect()
}

fn trace(name: &str, directories: &[PathBuf]) -> Result<String, String> {
    if name.split('/').any(|part| part == "..") || name.starts_with('/') {
        return Err("expected the name of a trace, not a path out of the directory".to_owned());
    }
    for directory in directories {
        let plain = directory.join(name);
        let zipped = directory.join(format!("{name}.gz"));
        let mut text = String::new();
        let done = if let Ok(file) = File::open(&plain) {
            file.take(TRACE_MAX).read_to_string(&mut text)
        } else if let Ok(file) = File::open(&zipped) {
            GzDecoder::new(file)
                .take(TRACE_MAX)
                .read_to_string(&mut text)
        } else {
            continue;
        };
        return done
            .map(|_| text)
            .map_err(|error| format!("{}: {error}", plain.display()));
    }
    let searched: Vec<_> = directories
        .iter()
        .map(|d| d.display().to_string())
        .collect();
    Err(format!("not found in [{}]", searched.join(", ")))
}
