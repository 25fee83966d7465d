//! What goes by a link without a session counts against its budget as well.
//!
//! Owns the counts until they are booked. Whose budget it is, and by
//! which link a connection goes, is `plain_way`'s.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use tabane_base::Bytes;
use tabane_uplinks::COUNT_INTERVAL;
use tokio::sync::Notify;
use tokio::time::sleep;

/// Of each datagram: the headers of IPv4 and UDP.
const UDP_HEADERS: u64 = 28;
/// The headers of IPv4 and TCP with timestamps, 52 bytes, are this part of a full segment's 1448.
const TCP_HEADERS_PART: u64 = 28;
/// The same with those of multipath TCP, 20 bytes as a rule.
const SUBFLOW_HEADERS_PART: u64 = 20;

/// By link, what is not booked yet.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    links: RefCell<BTreeMap<String, Bytes>>,
    /// There is something.
    news: Notify,
}

/// Counts for one connection or flow.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meter(Option<(String, Rc<Carried>)>);

impl Carried {
    /// Waits until there is something, and then a moment for more: subflows' bytes have waited
    /// before they come here.
    pub(crate) async fn due(&self) {
        self.news.notified().await;
        sleep(COUNT_INTERVAL / 2).await;
    }

    /// What there is; it must be booked.
    pub(crate) fn take(&self) -> BTreeMap<String, Bytes> {
        self.links.take()
    }

    fn add(&self, link: &str, bytes: Bytes) {
        let mut links = self.links.borrow_mut();
        match links.get_mut(link) {
            Some(sum) => *sum += bytes,
            None => drop(links.insert(link.to_owned(), bytes)),
        }
        self.news.notify_one();
    }
}

impl Meter {
    /// For what goes by `link`.
    pub(crate) fn new(link: String, carried: Rc<Carried>) -> Self {
        Self(Some((link, carried)))
    }

    /// A datagram passed, in either direction.
    pub(crate) fn on_datagram(&self, payload: &[u8]) {
        self.add(Bytes::from(payload.len()) + Bytes::new(UDP_HEADERS));
    }

    /// A part of a connection passed, in either direction.
    pub(crate) fn on_stream(&self, payload: usize) {
        let payload = Bytes::from(payload);
        self.add(payload + Bytes::new(payload.get() / TCP_HEADERS_PART));
    }

    /// The same by a subflow of the connection, which may go by another link.
    pub(crate) fn on_subflow(&self, link: &str, payload: u64) {
        if let Some((_, carried)) = &self.0 {
            carried.add(link, Bytes::new(payload + payload / SUBFLOW_HEADERS_PART));
        }
    }

    fn add(&self, bytes: Bytes) {
        if let Some((link, carried)) = &self.0 {
            carried.add(link, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Instant, timeout};

    #[tokio::test(start_paused = true)]
    async fn what_passes_is_counted_once_with_its_headers() {
        let begun_at = Instant::now();
        let carried = Rc::new(Carried::default());
        let meter = Meter::new("usb0".to_owned(), carried.clone());
        meter.on_stream(2_800);
        meter.on_datagram(&[0; 100]);
        carried.due().await;
        assert_eq!(begun_at.elapsed(), COUNT_INTERVAL / 2);
        let usb0 = Bytes::new(2_800 + 100 + 128);
        assert_eq!(carried.take(), [("usb0".to_owned(), usb0)].into());
        assert!(carried.take().is_empty());
        // Who carries nothing wakes nobody.
        let hour = std::time::Duration::from_secs(3_600);
        assert!(timeout(hour, carried.due()).await.is_err());
        meter.on_subflow("wlan0", 2_000);
        let wlan0 = Bytes::new(2_100);
        assert_eq!(carried.take(), [("wlan0".to_owned(), wlan0)].into());
        Meter::default().on_datagram(&[0; 100]);
    }
}
