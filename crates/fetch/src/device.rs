//! An own link as a way: TCP connections whose packets leave by one interface.
//!
//! The socket is bound to the device, not to its address: an address alone leaves the choice of the
//! interface to the routing table, and everything goes out by the default route.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};
use tabane_base::Translator;
use tabane_linux::threads::lookup_host;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::way::{BoxStream, Connecting, Way, WayError};

/// How long names are remembered: connections to one origin come in bursts.
const NAME_TIME: Duration = Duration::from_secs(30);
/// An address that does not answer for so long is given up while there is another.
const ADDRESS_TIME: Duration = Duration::from_secs(2);
/// The last one.
const LAST_ADDRESS_TIME: Duration = Duration::from_secs(15);
/// What was sent and is not acknowledged for so long ends its connection (RFC 5482). A far end that
/// reads nothing for so long does, too, so it must not be short.
const UNHEARD_TIME: Duration = Duration::from_secs(30);
/// What is near is asked for a sign of life when nothing has come for so long, and then so often.
/// Across a local network that costs nothing; over a cellular link it would keep the radio awake.
const IDLE_TIME: Duration = Duration::from_secs(10);
const BEAT: Duration = Duration::from_secs(2);
/// So many names are remembered, and so many addresses of each: whoever asks may have as many of
/// both as they like.
const MAX_NAMES: usize = 512;
const MAX_ADDRESSES: usize = 8;

/// TCP over one interface.
#[derive(Clone, Debug)]
pub struct DeviceWay {
    device: Option<String>,
    /// What leads to one of several gateways behind the device.
    mark: Option<u32>,
    reach: Rc<RefCell<Reach>>,
    /// Names of this machine's own services are asked for by that name alone.
    spares_own: bool,
    /// Whether an address may be connected to.
    is_allowed: Allowed,
    find: Finder,
    /// What was sent may stay unacknowledged for so long.
    unheard_time: Duration,
    /// Whether connections on which nothing passes are asked for a sign of life.
    is_near: bool,
    names: Rc<RefCell<BTreeMap<String, Known>>>,
}

/// What leads out.
#[derive(Debug)]
struct Reach {
    has_v4: bool,
    has_v6: bool,
    /// What leads to IPv4 where there is no address of that family.
    translators: Vec<Translator>,
}

/// Which addresses; `None`: all.
#[derive(Clone)]
struct Allowed(Option<Rc<dyn Fn(IpAddr) -> bool>>);

impl Allowed {
    fn allows(&self, address: IpAddr) -> bool {
        self.0.as_ref().is_none_or(|allows| allows(address))
    }
}

impl fmt::Debug for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.0.is_some() { "some" } else { "all" };
        write!(f, "Allowed({word})")
    }
}

/// What looks names up; `None`: the system, on a thread of this one's.
#[derive(Clone)]
struct Finder(Option<Rc<dyn Fn(String) -> Found>>);

/// The addresses of a name, once they are known.
type Found = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>>>>;

impl fmt::Debug for Finder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.0.is_some() { "other" } else { "system" };
        write!(f, "Finder({word})")
    }
}

/// What a name was last found to mean.
#[derive(Clone, Debug)]
struct Known {
    at: Instant,
    /// Port 0; those of one link alone with their scope.
    addresses: Vec<SocketAddr>,
}

impl DeviceWay {
    /// By this interface, which has addresses of these families.
    #[must_use]
    pub fn new(device: &str, has_v4: bool, has_v6: bool) -> Self {
        Self {
            device: Some(device.to_owned()),
            reach: Rc::new(RefCell::new(Reach {
                has_v4,
                has_v6,
                translators: Vec::new(),
            })),
            ..Self::unbound()
        }
    }

    /// The same, by the one of several gateways behind the interface that packets with this mark
    /// are led to.
    #[must_use]
    pub fn marked(self, mark: Option<u32>) -> Self {
        Self { mark, ..self }
    }

    /// The same; where it has no IPv4, these lead there (NAT64).
    #[must_use]
    pub fn translated(self, translators: Vec<Translator>) -> Self {
        self.reach.borrow_mut().translators = translators;
        self
    }

    /// The interface has addresses of these families from here on, and these lead to IPv4 where it
    /// has none; copies have the same.
    pub fn renew(&self, has_v4: bool, has_v6: bool, translators: &[Translator]) {
        self.reach.replace(Reach {
            has_v4,
            has_v6,
            translators: translators.to_vec(),
        });
    }

    /// Names other than `localhost` that are found to mean this machine itself, or what is on one
    /// link with it alone, lead nowhere: a web page may have its own name mean that.
    #[must_use]
    pub fn sparing_own(self) -> Self {
        Self {
            spares_own: true,
            ..self
        }
    }

    /// By whatever interface the routing table says.
    #[must_use]
    pub fn unbound() -> Self {
        Self {
            device: None,
            mark: None,
            reach: Rc::new(RefCell::new(Reach {
                has_v4: true,
                has_v6: true,
                translators: Vec::new(),
            })),
            spares_own: false,
            is_allowed: Allowed(None),
            find: Finder(None),
            unheard_time: UNHEARD_TIME,
            is_near: false,
            names: Rc::default(),
        }
    }

    /// Connects to these addresses only, whatever names are found to mean.
    #[must_use]
    pub fn only(self, is_allowed: impl Fn(IpAddr) -> bool + 'static) -> Self {
        Self {
            is_allowed: Allowed(Some(Rc::new(is_allowed))),
            ..self
        }
    }

    /// Has `find` look names up, with port 0. What is remembered is the same for all copies.
    #[must_use]
    pub fn found_by<F>(self, find: impl Fn(String) -> F + 'static) -> Self
    where
        F: Future<Output = io::Result<Vec<SocketAddr>>> + 'static,
    {
        let find = move |name| Box::pin(find(name)) as Found;
        Self {
            find: Finder(Some(Rc::new(find))),
            ..self
        }
    }

    /// For what is near and answers at once: what was sent and is not acknowledged for so long
    /// ends its connection. One on which nothing passes is asked for a sign of life, and ends some
    /// seconds after the other end has gone without a word.
    #[must_use]
    pub fn unheard_for(self, unheard_time: Duration) -> Self {
        Self {
            unheard_time,
            is_near: true,
            ..self
        }
    }

    async fn addresses(&self, host: &str) -> Result<Vec<SocketAddr>, WayError> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![(address, 0).into()]);
        }
        if let Some(known) = self.names.borrow().get(host)
            && known.at.elapsed() < NAME_TIME
        {
            return Ok(known.addresses.clone());
        }
        // Port 0: only the addresses are asked for.
        let found = match &self.find.0 {
            Some(find) => find(host.to_owned()).await,
            None => lookup_host((host, 0)).await.map(Iterator::collect),
        };
        let found = found.map_err(|source| WayError::Name {
            host: host.to_owned(),
            source,
        })?;
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for address in found {
            if addresses.len() < MAX_ADDRESSES && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        self.remember(host, &addresses);
        Ok(addresses)
    }

    fn remember(&self, host: &str, addresses: &[SocketAddr]) {
        let mut names = self.names.borrow_mut();
        if names.len() >= MAX_NAMES {
            names.retain(|_, known| known.at.elapsed() < NAME_TIME);
        }
        if names.len() >= MAX_NAMES {
            names.clear();
        }
        let known = Known {
            at: Instant::now(),
            addresses: addresses.to_vec(),
        };
        names.insert(host.to_owned(), known);
    }

    async fn connect_to(&self, host: &str, port: u16) -> Result<TcpStream, WayError> {
        let mut addresses = self.addresses(host).await?;
        if self.spares_own && host.parse::<IpAddr>().is_err() {
            addresses.retain(|address| !is_own(host, address.ip()));
            if addresses.is_empty() {
                return Err(WayError::Own {
                    host: host.to_owned(),
                });
            }
        }
        let allowed = addresses
            .into_iter()
            .filter(|address| self.is_allowed.allows(address.ip()));
        let reachable: Vec<SocketAddr> = {
            let reach = self.reach.borrow();
            allowed.filter_map(|address| reach.to(address)).collect()
        };
        let mut failure = WayError::Family {
            host: host.to_owned(),
        };
        for (index, address) in reachable.iter().enumerate() {
            let limit = match index + 1 == reachable.len() {
                true => LAST_ADDRESS_TIME,
                false => ADDRESS_TIME,
            };
            let mut to = *address;
            to.set_port(port);
            match self.connect_address(to, limit).await {
                Ok(stream) => return Ok(stream),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    async fn connect_address(
        &self,
        to: SocketAddr,
        limit: Duration,
    ) -> Result<TcpStream, WayError> {
        let failed = |source| WayError::Connect {
            to: to.to_string(),
            source,
        };
        let socket = match to {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        };
        let socket = socket.map_err(failed)?;
        // This host itself is reached by no device but its own.
        if let Some(device) = self.device.as_ref().filter(|_| !to.ip().is_loopback()) {
            let bound = socket.bind_device(Some(device.as_bytes()));
            let bound = bound.and_then(|()| match self.mark {
                Some(mark) => SockRef::from(&socket).set_mark(mark),
                None => Ok(()),
            });
            bound.map_err(|source| WayError::Bind {
                device: device.clone(),
                source,
            })?;
        }
        let connected = timeout(limit, socket.connect(to)).await;
        let late = |_| failed(io::Error::from(io::ErrorKind::TimedOut));
        let stream = connected.map_err(late)?.map_err(failed)?;
        // Requests are small and must not wait for company.
        stream.set_nodelay(true).map_err(failed)?;
        // A request over a link that has died is known to be lost sooner than by the kernel's own
        // patience, a quarter of an hour.
        let limit = SockRef::from(&stream).set_tcp_user_timeout(Some(self.unheard_time));
        limit.map_err(failed)?;
        if self.is_near {
            let keepalive = TcpKeepalive::new().with_time(IDLE_TIME);
            let keepalive = keepalive.with_interval(BEAT);
            let set = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
            set.map_err(failed)?;
        }
        Ok(stream)
    }
}

impl Reach {
    /// Where to connect to for `address`, if it can be reached.
    fn to(&self, address: SocketAddr) -> Option<SocketAddr> {
        match address {
            SocketAddr::V4(v4) if !self.has_v4 => {
                let led = self.translators.iter().find_map(|it| it.lead_to(*v4.ip()));
                let led = led.filter(|_| self.has_v6)?;
                Some((led, 0).into())
            }
            SocketAddr::V6(_) if !self.has_v6 => None,
            address => Some(address),
        }
    }
}

/// Whether a name means this machine itself or what is on one link with it alone (RFC 3927, RFC
/// 4291 §2.5.6), and is not one of those that always do (RFC 6761 §6.3, RFC 6762 §3).
fn is_own(host: &str, address: IpAddr) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let is_under = |domain| {
        let rest = host.strip_suffix(domain);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let address = address.to_canonical();
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    (address.is_loopback() || address.is_unspecified()) && !is_under("localhost")
        || is_link_local && !is_under("local")
}

impl Way for DeviceWay {
    fn connect<'a>(&'a self, host: &'a str, port: u16) -> Connecting<'a> {
        Box::pin(async move {
            let stream = self.connect_to(host, port).await?;
            Ok(Box::new(stream) as BoxStream)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tokio::net::TcpListener;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn means(way: &DeviceWay, host: &str, address: IpAddr) {
        way.remember(host, &[(address, 0).into()]);
    }

    #[tokio::test]
    async fn a_page_s_name_does_not_lead_to_this_machine() {
        let listener = TcpListener::bind((HERE, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let plain = DeviceWay::unbound();
        let for_pages = DeviceWay::unbound().sparing_own();
        for way in [&plain, &for_pages] {
            means(way, "page.example", HERE);
            means(way, "app.localhost", HERE);
        }
        plain.connect_to("page.example", port).await.unwrap();
        let refused = for_pages.connect_to("page.example", port).await;
        assert!(matches!(refused, Err(WayError::Own { .. })), "{refused:?}");
        // Whoever says it in so many words means it.
        for host in ["127.0.0.1", "app.localhost"] {
            for_pages.connect_to(host, port).await.unwrap();
        }
    }

    #[test]
    fn own_are_this_machine_and_what_is_on_one_link_with_it() {
        let is = |host, address: &str| is_own(host, address.parse().unwrap());
        for own in ["127.9.9.9", "0.0.0.0", "::1", "::ffff:127.0.0.1", "::"] {
            assert!(is("page.example", own), "{own}");
            assert!(is("printer.local", own), "{own}");
            assert!(is("notlocalhost", own), "{own}");
            assert!(!is("LOCALHOST.", own), "{own}");
        }
        for near in ["169.254.169.254", "fe80::1"] {
            assert!(is("page.example", near), "{near}");
            assert!(!is("printer.local", near), "{near}");
        }
        assert!(!is("page.example", "192.168.1.1"), "as without a proxy");
    }

    #[test]
    fn whoever_asks_for_many_names_does_not_fill_the_memory() {
        let way = DeviceWay::unbound();
        for n in 0..10_000 {
            means(&way, &format!("n{n}.example"), HERE);
            assert!(way.names.borrow().len() <= MAX_NAMES);
        }
        assert!(way.names.borrow().contains_key("n9999.example"));
    }

    #[tokio::test]
    async fn a_family_that_comes_later_is_used() {
        let listener = TcpListener::bind((HERE, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let way = DeviceWay::new("lo", false, true);
        let copy = way.clone();
        assert!(copy.connect_to("127.0.0.1", port).await.is_err());
        way.renew(true, true, &[]);
        copy.connect_to("127.0.0.1", port).await.unwrap();
    }
}
