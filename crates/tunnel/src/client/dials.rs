//! TLS connections that were dialed, on their way to whoever attends the client.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;

use tokio::sync::Notify;

use crate::carrier::{BoxStream, DialError, Proxy};

/// What dials came to, for whoever attends the client.
#[derive(Default)]
pub(super) struct Dials {
    ended: RefCell<VecDeque<Dialed>>,
    notify: Notify,
}

/// By which proxy a link is dialed after so many failures in a row, and which of the relay's
/// addresses is meant: `own` is the link's. What the environment says need not hold for every
/// network that this host is in, so every other dial is without.
pub(super) fn way(
    own: Option<&Proxy>,
    general: Option<&Proxy>,
    failures: usize,
) -> (Option<Proxy>, usize) {
    match (own, general) {
        (Some(own), _) => (Some(own.clone()), failures),
        (None, Some(general)) => {
            let is_direct = failures % 2 == 1;
            (Some(general.clone()).filter(|_| !is_direct), failures / 2)
        }
        (None, None) => (None, failures),
    }
}

/// A dial that ended.
pub(super) struct Dialed {
    pub(super) link: String,
    pub(super) relay: usize,
    pub(super) to: SocketAddr,
    pub(super) result: Result<BoxStream, DialError>,
}

impl Dials {
    pub(super) fn push(&self, dialed: Dialed) {
        self.ended.borrow_mut().push_back(dialed);
        self.notify.notify_one();
    }

    pub(super) async fn next(&self) -> Dialed {
        loop {
            if let Some(dialed) = self.ended.borrow_mut().pop_front() {
                return dialed;
            }
            self.notify.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_links_own_proxy_comes_before_the_environments_which_takes_turns_with_none() {
        let [own, general] = ["http://own", "socks5://general"].map(|it| it.parse().unwrap());
        let ways = |own: Option<&Proxy>, general: Option<&Proxy>| {
            let way = |failures| {
                let (proxy, address) = way(own, general, failures);
                let proxy = proxy.map_or_else(|| "direct".to_owned(), |it| it.to_string());
                format!("{proxy} {address}")
            };
            [0, 1, 2, 3].map(way).join(", ")
        };
        let by_own = "http://own:8080 0, http://own:8080 1, http://own:8080 2, http://own:8080 3";
        let by_turns = "socks5://general:1080 0, direct 0, socks5://general:1080 1, direct 1";
        assert_eq!(ways(Some(&own), Some(&general)), by_own);
        assert_eq!(ways(None, Some(&general)), by_turns);
        assert_eq!(ways(None, None), "direct 0, direct 1, direct 2, direct 3");
    }
}
