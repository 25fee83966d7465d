//! Which network to play: a scenario file, or one that the program brings along.

use std::path::Path;

use anyhow::{Context, Result};
use tabane_lab::{load_scenario, trace_directories};
use tabane_netem::Scenario;

use crate::failure::Failure;

/// The scenario of `tabane demo`.
pub(crate) const DEFAULT: &str = "home";

macro_rules! file {
    ($name:literal) => {
        (
            $name,
            include_str!(concat!("../../../scenarios/", $name, ".toml")),
        )
    };
}

/// Those that need no trace, by name.
const BUILT_IN: [(&str, &str); 12] = [
    (DEFAULT, include_str!("demo/home.toml")),
    file!("twin"),
    file!("unequal"),
    file!("four"),
    file!("eight"),
    file!("lossy"),
    file!("bloat"),
    file!("rtt-skew"),
    file!("wide"),
    file!("far"),
    file!("drag"),
    file!("cut"),
];

/// What the program brings along.
pub(crate) fn names() -> [&'static str; BUILT_IN.len()] {
    BUILT_IN.map(|(known, _)| known)
}

/// The scenario called `name`, or in the file of that path.
pub(crate) fn load(name: &str, variant: Option<&str>) -> Result<Scenario> {
    let path = Path::new(name);
    if name.ends_with(".toml") || name.contains('/') {
        return Ok(load_scenario(path, variant, &trace_directories(path))?);
    }
    let Some((_, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) else {
        let known = names().join(", ");
        let advice = "give one of these or a scenario file";
        return Err(Failure::usage(format!("no scenario `{name}`: {advice} ({known})")).into());
    };
    let no_trace = &mut |trace: &str| Err(format!("{trace} is not part of the program"));
    Scenario::parse(text, variant, no_trace).with_context(|| format!("scenario {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_names_lead_to_scenarios_of_that_name() {
        for (name, _) in BUILT_IN {
            assert_eq!(load(name, None).unwrap().name, name);
        }
        let error = load("hoem", None).unwrap_err();
        assert!(format!("{error:#}").contains("home, twin"), "{error:#}");
        let error = load("./missing.toml", None).unwrap_err();
        assert!(format!("{error:#}").contains("missing.toml"), "{error:#}");
        assert!(load("home", Some("x")).is_err());
    }
}
