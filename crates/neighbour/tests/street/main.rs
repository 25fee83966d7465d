//! Two neighbours on loopback: what is lent, to whom, and how it ends.

#![allow(clippy::unwrap_used)]

mod datagrams;
mod fetches;
mod origin;

use std::cell::RefCell;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tabane_base::{Bytes, Rate};
use tabane_core::{Identity, PublicKey};
use tabane_fetch::{BoxStream, DeviceWay, Way};
use tabane_neighbour::{
    ATTEMPTS, Code, DatagramOut, Desk, Friends, NeighbourWay, Offer, PairError, Paired, Share,
    Terms, is_public, pair,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::{JoinHandle, spawn_local};

const NOW: Duration = Duration::from_secs(1_000);

/// The desk of a test: one offer, at a time that stands still.
#[derive(Default)]
struct TestDesk {
    offer: RefCell<Option<Offer>>,
    paired: RefCell<Vec<(String, PublicKey)>>,
}

impl Desk for TestDesk {
    fn attempt(&self) -> Option<Code> {
        self.offer.borrow_mut().as_mut()?.attempt(NOW)
    }

    fn paired(&self, name: &str, key: PublicKey) -> bool {
        let stood = self.offer.take().is_some();
        self.paired.borrow_mut().push((name.to_owned(), key));
        stood
    }
}

/// A neighbour that lends, and the keys of both.
struct Street {
    address: SocketAddr,
    friends: Friends,
    desk: Rc<TestDesk>,
    sharer: Identity,
    borrower: Identity,
    serving: JoinHandle<()>,
}

impl Street {
    /// Lends these ports, by whatever way out; for datagrams to anybody.
    async fn start(out: DeviceWay, ports: &[u16]) -> Self {
        let (sharer, borrower) = (Identity::from_seed([1; 32]), Identity::from_seed([2; 32]));
        let friends = Friends::default();
        let desk = Rc::new(TestDesk::default());
        let share = Share::new(
            &sharer,
            "desk",
            friends.clone(),
            out,
            ports,
            Rc::clone(&desk) as Rc<dyn Desk>,
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let share = share.unwrap().with_datagrams(DatagramOut {
            device: None,
            is_allowed: Rc::new(|_| true),
            ports: ports.to_vec(),
        });
        let serving = spawn_local(Rc::new(share).serve(listener));
        Self {
            address,
            friends,
            desk,
            sharer,
            borrower,
            serving,
        }
    }

    /// As above, with the borrower a friend on these terms.
    async fn with_friend(ports: &[u16], terms: Terms) -> Self {
        let street = Self::start(DeviceWay::unbound(), ports).await;
        street.friends.set(street.borrower.public_key(), terms);
        street
    }

    fn way(&self) -> NeighbourWay {
        self.way_to(self.sharer.public_key())
    }

    fn way_to(&self, key: PublicKey) -> NeighbourWay {
        let near = Rc::new(DeviceWay::unbound());
        let at = ("127.0.0.1", self.address.port());
        NeighbourWay::new(&self.borrower, "desk", at, key, near).unwrap()
    }

    fn carried(&self) -> u64 {
        self.friends.carried(self.borrower.public_key()).get()
    }

    async fn pair(&self, code: &str) -> Result<Paired, PairError> {
        let near = DeviceWay::unbound();
        let at = ("127.0.0.1", self.address.port());
        pair(&self.borrower, "laptop", at, &code.parse().unwrap(), &near).await
    }
}

fn terms() -> Terms {
    Terms {
        name: "laptop".to_owned(),
        allowance: None,
        cap: None,
        is_open: true,
    }
}

fn on_this_thread(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

/// Why there is no connection.
async fn refusal(way: &NeighbourWay, to: SocketAddr) -> String {
    match way.connect(&to.ip().to_string(), to.port()).await {
        Ok(_) => panic!("connected to {to}"),
        Err(error) => error.to_string(),
    }
}

async fn connected(way: &NeighbourWay, to: SocketAddr) -> BoxStream {
    way.connect("127.0.0.1", to.port()).await.unwrap()
}

/// There and back.
async fn echoed(stream: &mut BoxStream, count: usize) -> std::io::Result<Vec<u8>> {
    stream.write_all(&origin::file(count)).await?;
    stream.flush().await?;
    let mut back = vec![0; count];
    stream.read_exact(&mut back).await?;
    Ok(back)
}

#[test]
fn bytes_pass_as_they_are_and_are_counted() {
    on_this_thread(async {
        let echo = origin::echo().await;
        let street = Street::with_friend(&[echo.port()], terms()).await;
        let mut stream = connected(&street.way(), echo).await;
        assert_eq!(
            echoed(&mut stream, 50_000).await.unwrap(),
            origin::file(50_000)
        );
        assert_eq!(street.carried(), 100_000);
        // The end of what we say reaches the origin, whose end reaches us.
        stream.shutdown().await.unwrap();
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
    });
}

#[test]
fn only_friends_ports_and_the_internet_are_served() {
    on_this_thread(async {
        let echo = origin::echo().await;
        let street = Street::with_friend(&[443], terms()).await;
        let text = refusal(&street.way(), echo).await;
        assert!(text.contains("403 This port is not lent"), "{text}");
        street.friends.remove(street.borrower.public_key());
        let text = refusal(&street.way(), echo).await;
        assert!(text.contains("403 Not paired"), "{text}");
        // Somebody else at the neighbour's address: nothing is asked of them.
        let text = refusal(&street.way_to(PublicKey([9; 32])), echo).await;
        assert!(text.contains("certificate"), "{text}");

        let street = Street::start(DeviceWay::unbound().only(is_public), &[echo.port()]).await;
        street.friends.set(street.borrower.public_key(), terms());
        for host in [
            "127.0.0.1",
            "localhost",
            "::1",
            "::ffff:127.0.0.1",
            "0.0.0.0",
        ] {
            let way = street.way();
            let refused = way.connect(host, echo.port()).await;
            let text = refused.err().map(|error| error.to_string());
            assert!(text.is_some_and(|text| text.contains("502")), "{host}");
        }
        assert_eq!(street.carried(), 0);
    });
}

#[test]
fn a_budget_ends_what_is_open_and_a_new_one_begins() {
    on_this_thread(async {
        let echo = origin::echo().await;
        let key = |street: &Street| street.borrower.public_key();
        let budget = Terms {
            allowance: Some(Bytes::kilo(150)),
            ..terms()
        };
        let street = Street::with_friend(&[echo.port()], budget.clone()).await;
        let mut stream = connected(&street.way(), echo).await;
        assert!(echoed(&mut stream, 50_000).await.is_ok());
        let error = echoed(&mut stream, 50_000).await.unwrap_err();
        // No farewell: what is missing must not look like an end.
        assert_ne!(error.kind(), std::io::ErrorKind::Other, "{error}");
        assert!(street.carried() <= 150_000);
        let text = refusal(&street.way(), echo).await;
        assert!(text.contains("429 Your data budget is used up"), "{text}");
        street.friends.set(key(&street), budget);
        let mut stream = connected(&street.way(), echo).await;
        assert!(echoed(&mut stream, 10_000).await.is_ok());
    });
}

#[test]
fn revoked_and_out_of_hours_end_what_is_open() {
    on_this_thread(async {
        let echo = origin::echo().await;
        for is_revoked in [true, false] {
            let street = Street::with_friend(&[echo.port()], terms()).await;
            let mut stream = connected(&street.way(), echo).await;
            assert!(echoed(&mut stream, 1_000).await.is_ok());
            let key = street.borrower.public_key();
            let expected = if is_revoked {
                street.friends.remove(key);
                "403 Not paired"
            } else {
                let is_open = false;
                street.friends.set(key, Terms { is_open, ..terms() });
                "503 Not lent at this hour"
            };
            assert!(stream.read(&mut [0; 1]).await.is_err());
            let text = refusal(&street.way(), echo).await;
            assert!(text.contains(expected), "{text}");
        }
    });
}

#[test]
fn a_cap_is_kept_by_all_connections_together() {
    on_this_thread(async {
        let echo = origin::echo().await;
        let cap = Terms {
            cap: Some(Rate::from_bps(800_000)),
            ..terms()
        };
        let street = Street::with_friend(&[echo.port()], cap).await;
        let way = street.way();
        let (mut one, mut two) = (connected(&way, echo).await, connected(&way, echo).await);
        let began = Instant::now();
        let (first, second) = tokio::join!(echoed(&mut one, 12_500), echoed(&mut two, 12_500));
        assert!(first.is_ok() && second.is_ok());
        // 50 kB at 100 kB/s.
        assert!(began.elapsed() >= Duration::from_millis(490));
    });
}

#[test]
fn what_is_no_connect_is_not_served() {
    on_this_thread(async {
        // A friend's way whose "host" smuggles another request in.
        let street = Street::with_friend(&[80], terms()).await;
        let way = street.way();
        let error = way.connect("x HTTP/1.1\r\n\r\nGET http://a/", 80).await;
        let text = error.err().map(|error| error.to_string()).unwrap();
        assert!(text.contains("405 Only CONNECT is served"), "{text}");
    });
}

#[test]
fn a_code_pairs_once() {
    on_this_thread(async {
        let street = Street::start(DeviceWay::unbound(), &[80]).await;
        let unexpected = street.pair("123456").await;
        assert!(
            matches!(unexpected, Err(PairError::Unexpected)),
            "{unexpected:?}"
        );
        street.desk.offer.replace(Some(offer(NOW * 2)));
        let wrong = street.pair("123457").await;
        assert!(matches!(wrong, Err(PairError::WrongCode)), "{wrong:?}");
        let paired = street.pair("123 456").await.unwrap();
        let expected = Paired {
            name: "desk".to_owned(),
            key: street.sharer.public_key(),
        };
        assert_eq!(paired, expected);
        let remembered = street.desk.paired.take();
        assert_eq!(
            remembered,
            [("laptop".to_owned(), street.borrower.public_key())]
        );
        let again = street.pair("123456").await;
        assert!(matches!(again, Err(PairError::Unexpected)), "{again:?}");
    });
}

#[test]
fn a_code_ends_by_wrong_tries_and_by_time() {
    on_this_thread(async {
        let street = Street::start(DeviceWay::unbound(), &[80]).await;
        street.desk.offer.replace(Some(offer(NOW * 2)));
        for _ in 0..ATTEMPTS {
            let wrong = street.pair("000000").await;
            assert!(matches!(wrong, Err(PairError::WrongCode)), "{wrong:?}");
        }
        let late = street.pair("123456").await;
        assert!(matches!(late, Err(PairError::Unexpected)), "{late:?}");
        street.desk.offer.replace(Some(offer(NOW)));
        let late = street.pair("123456").await;
        assert!(matches!(late, Err(PairError::Unexpected)), "{late:?}");
        assert!(street.desk.paired.borrow().is_empty());
    });
}

fn offer(ends_at: Duration) -> Offer {
    Offer {
        code: "123456".parse().unwrap(),
        ends_at,
        attempts_left: ATTEMPTS,
    }
}

#[test]
fn whoever_says_nothing_keeps_no_other_address_out() {
    on_this_thread(async {
        let origin = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = origin.local_addr().unwrap();
        let street = Street::with_friend(&[to.port()], terms()).await;
        let mut silent = Vec::new();
        for _ in 0..32 {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
            silent.push(socket.connect(street.address).await.unwrap());
        }
        let connected = street.way().connect("127.0.0.1", to.port()).await;
        assert!(connected.is_ok(), "the friend is kept out");
    });
}
