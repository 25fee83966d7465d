//! Why OpenSSH ends where no user has a name but the command's own, and what helps.

use std::ffi::OsString;
use std::path::Path;

/// What OpenSSH's own settings include, on most distributions, and whose files it wants to be
/// root's or the user's.
const SSH_SETTINGS: &str = "/etc/ssh/ssh_config.d";
/// Programs that it is, or that start it.
const BY_SSH: [&str; 5] = ["ssh", "scp", "sftp", "git", "rsync"];

/// What helps a command that would end at a file of root's among OpenSSH's settings.
pub(super) fn advice(command: &[OsString]) -> Option<String> {
    let name = command.first().and_then(|name| Path::new(name).file_name());
    let is_ssh = name.is_some_and(|name| BY_SSH.iter().any(|it| name == *it));
    let chooses = std::env::var_os("GIT_SSH_COMMAND").is_some()
        || command
            .iter()
            .any(|word| word.to_string_lossy().starts_with("-F"));
    let files = std::fs::read_dir(SSH_SETTINGS).into_iter().flatten();
    let mut names = files.flatten().map(|file| file.path());
    let meets =
        is_ssh && !chooses && names.any(|path| path.extension().is_some_and(|it| it == "conf"));
    meets.then(|| {
        format!(
            "ssh refuses {SSH_SETTINGS} here, where root's files look like nobody's: `ssh -F \
             none` (GIT_SSH_COMMAND='ssh -F none' for git) does without, or sudo tabane run \
             --user \"$USER\" -- CMD"
        )
    })
}
