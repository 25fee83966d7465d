//! Those who are told what a gateway does: by its control socket, when they ask and at no other
//! time, because its thread has packets waiting and thousands of flows to look at.

use std::future::pending;

use tabane_control::{Command, Gateway, Instance, Publisher, Server, State};
use tokio::sync::{mpsc, oneshot};

/// Whoever asks; nobody can any more when it is dropped.
#[derive(Debug)]
pub struct Audience {
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

impl Audience {
    /// Of the gateway that is this `instance`; nobody where nothing is `served`.
    pub fn new(
        instance: Instance,
        served: Option<(Server, Publisher, mpsc::Receiver<Command>)>,
    ) -> Self {
        let open = served.map(|(server, publisher, commands)| Open {
            instance,
            publisher,
            commands,
            waiting: Vec::new(),
            _server: server,
        });
        Self { open }
    }

    /// Waits until somebody wants to know how things stand, whom [`tell`](Self::tell) answers.
    /// Nothing is lost where the wait is given up.
    pub(super) async fn asked(&mut self) {
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

    /// Tells those who have asked.
    pub(super) fn tell(&mut self, gateway: Gateway) {
        let Some(open) = &mut self.open else {
            return;
        };
        let mut state = State::of(&open.instance);
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
