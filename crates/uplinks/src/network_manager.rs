//! Which links NetworkManager calls metered, where it runs.
//!
//! Asks `nmcli`, which comes with it: one short process when links or the policy are looked at,
//! instead of a D-Bus client in ours. Without an answer no link is metered by its word.

use std::collections::BTreeMap;
use std::process::Stdio;

use tabane_base::Duration;
use tokio::process::Command;
use tokio::time::timeout;

/// An answer takes some 30 ms; a machine that is busy, or a manager that hangs, must not hold up
/// links.
const PATIENCE: Duration = Duration::from_secs(1);

/// By interface: whether its traffic is metered. Empty where NetworkManager is not to be asked.
pub(crate) async fn metered_links() -> BTreeMap<String, bool> {
    let mut nmcli = Command::new("nmcli");
    nmcli.args(["--terse", "--escape", "no"]);
    nmcli.args([
        "--fields",
        "GENERAL.DEVICE,GENERAL.METERED",
        "device",
        "show",
    ]);
    // The words are those of no language but English.
    nmcli.env("LC_ALL", "C").stdin(Stdio::null());
    nmcli.stderr(Stdio::null()).kill_on_drop(true);
    match timeout(PATIENCE, nmcli.output()).await {
        Ok(Ok(output)) if output.status.success() => {
            parse(&String::from_utf8_lossy(&output.stdout))
        }
        Ok(Ok(_)) => BTreeMap::new(),
        Ok(Err(error)) => {
            tracing::trace!(%error, "no nmcli");
            BTreeMap::new()
        }
        Err(_) => {
            tracing::debug!("NetworkManager does not say which links are metered");
            BTreeMap::new()
        }
    }
}

/// `GENERAL.DEVICE:wlan0` and `GENERAL.METERED:yes (guessed)`, device by device. Guesses count, as
/// NetworkManager advises; what is unknown does not.
fn parse(text: &str) -> BTreeMap<String, bool> {
    let mut links = BTreeMap::new();
    let mut device = None;
    for line in text.lines() {
        match line.split_once(':') {
            Some(("GENERAL.DEVICE", name)) => device = Some(name.to_owned()),
            Some(("GENERAL.METERED", word)) => {
                let metered = match word.split(' ').next() {
                    Some("yes") => true,
                    Some("no") => false,
                    _ => continue,
                };
                if let Some(device) = device.take() {
                    links.insert(device, metered);
                }
            }
            _ => {}
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_count_and_what_is_unknown_does_not() {
        let text = "GENERAL.DEVICE:usb0\nGENERAL.METERED:yes (guessed)\n\n\
                    GENERAL.DEVICE:wlan0\nGENERAL.METERED:no\n\n\
                    GENERAL.DEVICE:eth0\nGENERAL.METERED:unknown\n\n\
                    GENERAL.DEVICE:wwan0\nGENERAL.METERED:yes\n";
        let links = parse(text);
        let known: Vec<_> = links
            .iter()
            .map(|(name, is)| (name.as_str(), *is))
            .collect();
        assert_eq!(known, [("usb0", true), ("wlan0", false), ("wwan0", true)]);
        assert!(parse("Error: NetworkManager is not running.\n").is_empty());
    }
}
