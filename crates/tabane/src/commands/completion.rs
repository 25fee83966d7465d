//! `tabane completion SHELL`: a script that makes the shell complete tabane's command line.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::output;

/// After `--` there is another program's command line, which clap's script for bash knows nothing
/// of. With bash-completion it is completed as that program's, else its first word alone.
const BASH_COMMANDS: &str = "
_tabane_or_command() {
    local i
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ ${COMP_WORDS[i]} == -- ]] || continue
        COMPREPLY=()
        if declare -F _command_offset >/dev/null; then
            _command_offset $((i + 1))
        elif ((COMP_CWORD == i + 1)); then
            COMPREPLY=($(compgen -c -- \"$2\"))
        fi
        return
    done
    _tabane \"$@\"
}
";

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
        script += BASH_COMMANDS;
    }
    output::line(script.trim_end())?;
    Ok(ExitCode::SUCCESS)
}
