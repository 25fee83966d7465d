//! How a command's traffic gets into the session: by hooks below it, or by a proxy it is told of.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use anyhow::Result;
use tabane_base::Prefix;

use crate::carriage::Carriage;
use crate::environment::proxy_variables;
use crate::far_ends::FarEnds;
use crate::interception::Interception;
use crate::proxying::ProxyListener;
use crate::rule_book::RuleBook;

/// An entrance for one command.
pub(crate) struct Entrance {
    kind: Kind,
    carriage: Carriage,
}

enum Kind {
    Hooks(Box<Interception>),
    /// Taken when it begins to serve.
    Proxy(Option<ProxyListener>),
}

impl Entrance {
    /// Hooks that leave `direct` alone; needs privilege.
    pub(crate) async fn hooks(direct: &[Prefix]) -> Result<Self> {
        let kind = Kind::Hooks(Box::new(Interception::set_up(direct).await?));
        Ok(Self {
            kind,
            carriage: Carriage::default(),
        })
    }

    /// A proxy on a port of its own.
    pub(crate) async fn proxy() -> Result<Self> {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let kind = Kind::Proxy(Some(ProxyListener::bind(loopback).await?));
        Ok(Self {
            kind,
            carriage: Carriage::default(),
        })
    }

    /// Carries from here on what the child of `command` sends. Must be called within the `LocalSet`
    /// of the client.
    pub(crate) fn admit(
        &mut self,
        command: &mut Command,
        far_ends: &FarEnds,
        rules: &RuleBook,
    ) -> Result<()> {
        match &mut self.kind {
            Kind::Hooks(interception) => {
                interception.place_child(command)?;
                interception.serve(far_ends, &self.carriage, rules);
            }
            Kind::Proxy(listener) => {
                if let Some(listener) = listener.take() {
                    command.envs(proxy_variables(listener.address().port()));
                    let serving =
                        listener.serve(far_ends.clone(), self.carriage.clone(), rules.clone());
                    tokio::task::spawn_local(serving);
                }
            }
        }
        Ok(())
    }

    /// Waits for what the command's first look at the network depends on.
    pub(crate) async fn ready(&self, far_ends: &FarEnds) {
        if let Kind::Hooks(interception) = &self.kind {
            interception.ready(far_ends).await;
        }
    }

    /// Waits for what the command has sent, unless others of its group may go on for ever.
    pub(crate) async fn settle(&self, far_ends: &FarEnds) {
        if let Kind::Hooks(interception) = &self.kind {
            let leftovers = interception.leftovers();
            if leftovers > 0 {
                tracing::warn!("{leftovers} processes of the command run on, without tabane");
                return;
            }
        }
        self.carriage.settle(far_ends).await;
    }

    /// Removes everything.
    pub(crate) fn tear_down(self) {
        if let Kind::Hooks(interception) = self.kind {
            interception.tear_down();
        }
    }
}
