//! Which running instance is the gateway of an interface.

use anyhow::Result;
use tabane_control::{Client, Directory};

use crate::failure::Failure;

const PREFIX: &str = "gateway-";

/// What the gateway on `radio` is called. Interfaces may have names that files should not.
pub(crate) fn name(radio: &str) -> String {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let good = radio.chars().map(|c| if is_good(c) { c } else { '_' });
    PREFIX.chars().chain(good).collect()
}

/// The gateway on `radio`, or the only one.
///
/// # Errors
/// There is none, or several.
pub(crate) fn find(radio: Option<&str>) -> Result<Client> {
    let wanted = radio.map(name);
    let mut running = Directory::of_user().running();
    running.retain(|it| match &wanted {
        Some(name) => it.name == *name,
        None => it.name.starts_with(PREFIX),
    });
    let advice = match &running[..] {
        [one] => return Ok(Client::new(&one.socket)),
        [] => {
            let place = radio.map_or_else(|| "here".to_owned(), |radio| format!("on {radio}"));
            let whose = match nix::unistd::geteuid().is_root() {
                true => "",
                false => ", or see root's with sudo",
            };
            format!("no gateway runs {place}; start one with `tabane gateway`{whose}")
        }
        several => {
            let radios = several.iter().filter_map(|it| it.name.strip_prefix(PREFIX));
            let radios = radios.collect::<Vec<_>>().join(", ");
            format!("several gateways run: choose one with --radio ({radios})")
        }
    };
    Err(Failure::usage(advice).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_fit_for_a_file_whatever_the_interface_is_called() {
        assert_eq!(name("wwan0"), "gateway-wwan0");
        assert_eq!(name("eth0.100"), "gateway-eth0.100");
        assert_eq!(name("a+b@c"), "gateway-a_b_c");
    }
}
