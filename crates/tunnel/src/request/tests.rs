//! Requests there and back, cut off, and nonsense.

use super::*;
use tabane_base::{PortRange, Seed};

fn claim(protocol: Protocol, first: u16, last: u16) -> PortClaim {
    let ports = PortRange::new(first, last).unwrap();
    PortClaim { protocol, ports }
}

fn samples() -> Vec<Request> {
    let targets = [
        Target::Address("192.0.2.1:80".parse().unwrap()),
        Target::Address("[2001:db8::7]:65535".parse().unwrap()),
        Target::host("a", 1).unwrap(),
        Target::host(&"x".repeat(MAX_NAME), 443).unwrap(),
        Target::Resolver,
    ];
    let both = [Transport::Tcp, Transport::Udp];
    let packets = [
        Transport::Packets,
        Transport::LodgedPackets,
        Transport::Families,
        Transport::Measure(Measure::Down),
        Transport::Measure(Measure::Up),
        Transport::Measure(Measure::Echo),
        Transport::Relays(7),
        Transport::Loads,
        Transport::Exposure(claim(Protocol::Udp, 27_015, 27_015)),
        Transport::Route(Prefix::parse("192.168.20.0/24").unwrap()),
        Transport::Route(Prefix::parse("2001:db8:20::/48").unwrap()),
        Transport::Routes,
        Transport::NamedRoutes,
    ]
    .map(|transport| Request {
        transport,
        target: Target::Anywhere,
    });
    both.into_iter()
        .flat_map(|transport| {
            targets.iter().map(move |target| Request {
                transport,
                target: target.clone(),
            })
        })
        .chain(packets)
        .chain([Request {
            transport: Transport::Exposure(claim(Protocol::Tcp, 443, 500)),
            target: Target::host("a.example", 443).unwrap(),
        }])
        .chain([Request {
            transport: Transport::Domain("[2001:db8::53]:53".parse().unwrap()),
            target: Target::host(&"x".repeat(MAX_NAME), 53).unwrap(),
        }])
        .chain(targets[..2].iter().map(|target| Request {
            transport: Transport::Mapping,
            target: target.clone(),
        }))
        .chain(targets[..2].iter().flat_map(|target| {
            let from = "[2001:db8::9]:50000".parse().unwrap();
            [Transport::TcpFrom(from), Transport::UdpFrom(from)].map(|transport| Request {
                transport,
                target: target.clone(),
            })
        }))
        .collect()
}

#[test]
fn what_is_emitted_parses_back_and_leaves_the_data_behind_it() {
    for request in samples() {
        let mut bytes = Vec::new();
        request.emit(&mut bytes);
        let len = bytes.len();
        assert!(len <= MAX_REQUEST);
        bytes.extend(b"GET / HTTP/1.1");
        assert_eq!(Request::parse(&bytes), Ok(Some((request, len))));
    }
}

#[test]
fn every_truncation_asks_for_more() {
    for request in samples() {
        let mut bytes = Vec::new();
        request.emit(&mut bytes);
        for len in 0..bytes.len() {
            assert_eq!(
                Request::parse(&bytes[..len]),
                Ok(None),
                "{request:?} at {len}"
            );
        }
    }
}

#[test]
fn nonsense_is_named() {
    for (bytes, error) in [
        (&[0][..], RequestError::Kind),
        (&[8], RequestError::Kind),
        (&[10, 3], RequestError::Kind),
        (&[7, 3], RequestError::AddressType),
        (&[1, 5], RequestError::AddressType),
        (&[1, 3, 0], RequestError::Name),
        (&[1, 3, 254], RequestError::Name),
        (&[1, 3, 1, b' ', 0, 80], RequestError::Name),
        (&[1, 3, 1, 0xff, 0, 80], RequestError::Name),
        (&[1, 4, 1, 2, 3, 4, 0, 0], RequestError::Port),
        (&[11, 2], RequestError::Kind),
        (&[11, 0, 0, 0, 0, 9, 0], RequestError::Port),
        (&[11, 0, 0, 9, 0, 8, 0], RequestError::Port),
        (&[11, 0, 0, 9, 0, 9, 254], RequestError::Name),
        (&[11, 1, 0, 9, 0, 9, 1, b' '], RequestError::Name),
        (&[16, 3], RequestError::AddressType),
        (&[17, 4, 10, 0, 0, 1, 0, 9, 3], RequestError::AddressType),
        (&[16, 4, 10, 0, 0, 1, 0, 0], RequestError::Port),
        (&[18, 3], RequestError::AddressType),
        (&[18, 4, 10, 0, 0, 1, 0, 53, 1, b' '], RequestError::Name),
        (&[13, 3], RequestError::Range),
        (&[13, 4, 10, 0, 0, 0, 33], RequestError::Range),
        (&[13, 4, 10, 0, 0, 1, 8], RequestError::Range),
    ] {
        assert_eq!(Request::parse(bytes), Err(error), "{bytes:?}");
    }
}

#[test]
fn garbage_never_panics_and_never_claims_bytes_that_are_not_there() {
    let seed = Seed(11);
    let mut rng = seed.rng("garbage");
    for _ in 0..100_000 {
        let mut bytes = vec![0; rng.below(300) as usize];
        rng.fill(&mut bytes);
        // Most random first bytes are no kind; let the rest of the parser be reached.
        if let [kind, address, ..] = &mut bytes[..] {
            *kind %= 19;
            *address %= 8;
        }
        if let Ok(Some((request, used))) = Request::parse(&bytes) {
            assert!(used <= bytes.len(), "{seed}");
            let mut again = Vec::new();
            request.emit(&mut again);
            assert_eq!(again, bytes[..used], "{seed}");
        }
    }
}

#[test]
fn status_bytes_round_trip() {
    for byte in 0..=u8::MAX {
        if let Some(status) = Status::parse(byte) {
            assert_eq!(status.emit(), byte);
        }
    }
    assert_eq!(Status::parse(12), None);
}
