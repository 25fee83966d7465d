//! Split: connections from behind the radio link end here, and another goes on to where they were
//! going. Bytes pass from one to the other within the kernel. Each side has a TCP of its own, so a
//! radio link's trouble is no business of the server's; the server sees this machine's address.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use tabane_base::{Duration, Prefix};
use tabane_control::GatewayMode;
use tabane_linux::{
    abortive::AbortiveStream,
    join::{Pipe, join},
    signals::Signals,
    transparent::Transparent,
};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::joined::{Connection, Joined};
use super::{Audience, report, rules};
use tabane_tunnel::OWN_MARK;

/// How long a server may take to answer.
const CONNECTING: Duration = Duration::from_secs(30);
/// After an accept that failed for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Connections that end here and go on as others.
#[derive(Debug)]
pub struct Splitter {
    radio: String,
    sockets: Transparent,
    routing: tabane_linux::routing::Routing,
    audience: Audience,
    joined: Joined,
}

impl Splitter {
    /// Takes connections of `mobiles` to `ports`, or to all but the `untouched`.
    pub async fn start(
        radio: &str,
        ports: &[u16],
        untouched: &[u16],
        mobiles: &[Prefix],
        congestion: &str,
        audience: Audience,
    ) -> Result<Self> {
        let sockets = Transparent::open(OWN_MARK)
            .context("cannot open sockets in others' names, which needs root (CAP_NET_ADMIN)")?;
        sockets.set_congestion(congestion).with_context(|| {
            format!(
                "no TCP {congestion}; choose with --congestion what \
                 /proc/sys/net/ipv4/tcp_available_congestion_control names"
            )
        })?;
        let routing = rules::split(radio, sockets.port(), ports, untouched, mobiles).await?;
        Ok(Self {
            radio: radio.to_owned(),
            sockets,
            routing,
            audience,
            joined: Joined::default(),
        })
    }

    /// Joins until a signal, then lets what is open end for `patience`.
    pub async fn run(mut self, signals: &Signals, patience: Duration) -> Result<()> {
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.sockets.accept() => match accepted {
                    Ok((caller, server)) => {
                        let connection = self.joined.begin(caller.from, server);
                        tasks.spawn_local(async move {
                            if let Some(mobile) = caller.accept().await {
                                carry(mobile, server, connection).await;
                            }
                        });
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        sleep(PAUSE).await;
                    }
                },
                Some(_) = tasks.join_next() => {}
                arrived = signals.next() => {
                    arrived?;
                    break;
                }
                () = self.audience.asked() => self.tell(false),
            }
        }
        rules::unsplit()?;
        tracing::info!(
            open = tasks.len(),
            "no new connections; waiting for those that are open"
        );
        let end = sleep(patience);
        tokio::pin!(end);
        while !tasks.is_empty() {
            tokio::select! {
                _ = tasks.join_next() => {}
                () = &mut end => break,
                arrived = signals.next() => {
                    arrived?;
                    break;
                }
                () = self.audience.asked() => self.tell(true),
            }
        }
        rules::unroute(&self.routing).await
    }

    fn tell(&mut self, draining: bool) {
        let mut gateway = report::empty(&self.radio, GatewayMode::Split, draining);
        self.joined.look(&mut gateway);
        self.audience.tell(gateway);
    }
}

async fn carry(mobile: AbortiveStream, server: SocketAddr, connection: Connection) {
    let carried = async {
        let onward = timeout(CONNECTING, TcpStream::connect(server)).await??;
        let pipes = (Pipe::open()?, Pipe::open()?);
        join(mobile, onward.into(), pipes, |bytes| {
            connection.count(bytes)
        })
        .await
    };
    if let Err(error) = carried.await {
        tracing::debug!(%server, %error, "a connection is reset");
    }
}
