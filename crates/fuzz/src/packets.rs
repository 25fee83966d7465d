//! Packets as the network brings them: of SCTP, and of IP from the relay.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tabane_tunnel::{Assignment, Lodging};

/// What is read of SCTP before the stack sees it.
pub fn sctp(data: &[u8]) {
    tabane_sctp::packet::fuzz_parsers(data);
}

/// A packet that a relay sends by `tabane up`'s device; the first byte says what was assigned.
pub fn ip(data: &[u8]) {
    let Some((kind, packet)) = data.split_first() else {
        return;
    };
    let v4 = Ipv4Addr::new(10, 99, 0, 2);
    let v6 = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 2);
    let assignment = Assignment {
        v4: (kind & 1 != 0).then_some(v4),
        v6: (kind & 2 != 0).then_some(v6),
        mtu: 1_400,
        lodging: Lodging::default(),
    };
    if !assignment.expects(packet) {
        return;
    }
    // TCP and UDP are never for this machine, and nothing is for anybody else.
    let (protocol, to): (u8, IpAddr) = match packet[0] >> 4 {
        4 => {
            let to: [u8; 4] = packet[16..20].try_into().expect("a whole header");
            (packet[9], to.into())
        }
        _ => {
            let to: [u8; 16] = packet[24..40].try_into().expect("a whole header");
            (packet[6], to.into())
        }
    };
    assert!(![6, 17].contains(&protocol), "protocol {protocol}");
    if let Some(own) = assignment
        .addresses()
        .find(|own| own.is_ipv4() == to.is_ipv4())
    {
        assert_eq!(own, to);
    }
}
