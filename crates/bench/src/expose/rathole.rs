//! `rathole`, beside which ours is measured: it forwards ports by connections of its own, which
//! take the link that the routing table names.
//!
//! Owns its settings and its two processes.

use std::fs;

use anyhow::{Context, Result};

use super::{PORT, START_WITHIN};
use crate::process::Running;
use crate::scratch::Scratch;
use crate::stage::Stage;

pub(super) const NAME: &str = "rathole";
/// Led to the server behind the client.
pub(super) const DOOR: u16 = 8_081;
const CONTROL: u16 = 2_333;

/// Both ends of it, until they are dropped.
pub(super) struct Rathole {
    _server: Running,
    _client: Running,
    _settings: Scratch,
}

impl Rathole {
    /// `None`, which is said, where it is not installed.
    pub(super) fn start(stage: &Stage) -> Result<Option<Self>> {
        if !is_there() {
            eprintln!(
                "bench: {NAME} is not there: not measured (cargo install {NAME} \
                 --no-default-features --features server,client)"
            );
            return Ok(None);
        }
        let settings = Scratch::new()?;
        let write = |name: &str, text: String| -> Result<String> {
            let path = settings.path().join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            Ok(path.display().to_string())
        };
        let server = write(
            "server.toml",
            format!(
                "[server]\nbind_addr = \"0.0.0.0:{CONTROL}\"\ndefault_token = \"bench\"\n\
                 [server.services.web]\nbind_addr = \"0.0.0.0:{DOOR}\"\n"
            ),
        )?;
        let client = write(
            "client.toml",
            format!(
                "[client]\nremote_addr = \"{}:{CONTROL}\"\ndefault_token = \"bench\"\n\
                 [client.services.web]\nlocal_addr = \"127.0.0.1:{PORT}\"\n",
                stage.service()
            ),
        )?;
        let mut server = Running::start(NAME, stage.at_server(NAME).arg("--server").arg(server))?;
        server.wait_for_line("Listening at", START_WITHIN)?;
        let mut client = Running::start(NAME, stage.at_client(NAME).arg("--client").arg(client))?;
        client.wait_for_line("Control channel established", START_WITHIN)?;
        Ok(Some(Self {
            _server: server,
            _client: client,
            _settings: settings,
        }))
    }
}

/// That it is left out is better said than not.
fn is_there() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(NAME).is_file())
}
