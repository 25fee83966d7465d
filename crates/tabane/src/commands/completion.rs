//! `tabane completion SHELL`: a script that makes the shell complete tabane's command line.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::output;

/// What clap's script for bash knows nothing of: the names that there are here, and, after `--`,
/// another program's command line. With bash-completion that is completed as the program's, else
/// its first word alone.
const BASH_NAMES: &str = include_str!("completion.bash");

/// Print a script that lets your shell complete commands and flags
///
/// For example: `tabane completion bash > ~/.local/share/bash-completion/completions/tabane`
#[derive(Debug, Args)]
pub(crate) struct CompletionArgs {
    /// Which shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn run(args: &CompletionArgs, mut tabane: Command) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut tabane, "tabane", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if args.shell == Shell::Bash {
        script = script.replace("complete -F _tabane ", "complete -F _tabane_or_command ");
        script += &BASH_NAMES.replace("@SCENARIOS@", &scenarios());
    }
    output::line(script.trim_end())?;
    Ok(ExitCode::SUCCESS)
}

/// The names that `tabane demo`, `lab` and `sim` take.
fn scenarios() -> String {
    #[cfg(feature = "lab")]
    return crate::scenarios::names().join(" ");
    #[cfg(not(feature = "lab"))]
    String::new()
}
