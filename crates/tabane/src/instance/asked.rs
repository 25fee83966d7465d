//! A gateway as its control socket shows it: it tells when it is asked, because its thread has
//! packets waiting and thousands of flows to look at.

use std::future::pending;

use anyhow::Result;
use tabane_control::{Command, Gateway, Instance, Pace, Publisher, Server};
use tabane_relay::gateway::Audience;
use tokio::sync::{mpsc, oneshot};

use super::{ControlArgs, Description, instance, serve, state};

/// Visible until dropped.
#[derive(Debug)]
pub(crate) struct Asked {
    /// None where there is no socket: nobody ever asks.
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    instance: Instance,
    publisher: Publisher,
    commands: mpsc::Receiver<Command>,
    /// Who waits to be told.
    waiting: Vec<oneshot::Sender<Result<(), String>>>,
    _server: Server,
}

impl Asked {
    /// Makes a gateway visible.
    ///
    /// # Errors
    /// The interface has one already, or HTTP was asked for and cannot be served.
    pub(crate) fn start(args: &ControlArgs, description: &Description) -> Result<Self> {
        let started = serve(args, description, Pace::WhenAsked)?;
        let open = started.map(|(server, publisher, commands)| Open {
            instance: instance(description, Some(&server)),
            publisher,
            commands,
            waiting: Vec::new(),
            _server: server,
        });
        Ok(Self { open })
    }
}

impl Audience for Asked {
    async fn asked(&mut self) {
        let Some(open) = &mut self.open else {
            return pending().await;
        };
        while let Some(command) = open.commands.recv().await {
            // Who asked may have gone meanwhile; then nobody hears the answer.
            match command {
                Command::Look { reply } => return open.waiting.push(reply),
                Command::ChangeLink { reply, .. } => {
                    let _ = reply.send(Err("a gateway has no links to change".to_owned()));
                }
                Command::Explain { reply, .. } => {
                    let _ = reply.send(Err("a gateway has no rules".to_owned()));
                }
                Command::Trace { reply, .. } => {
                    let _ = reply.send(Err("a gateway has no session to trace".to_owned()));
                }
            }
        }
        // The server is gone, and nobody left to ask.
        pending().await
    }

    fn tell(&mut self, gateway: Gateway) {
        let Some(open) = &mut self.open else {
            return;
        };
        let mut state = state(&open.instance);
        let totals = gateway.totals;
        state.totals.traffic.received_bytes = totals.bytes.saturating_add(totals.carried_bytes);
        state.totals.streams = gateway.flow_count();
        state.gateway = Some(gateway);
        open.publisher.publish(state);
        for reply in open.waiting.drain(..) {
            let _ = reply.send(Ok(()));
        }
    }
}
