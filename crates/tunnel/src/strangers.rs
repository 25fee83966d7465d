//! What relays and proxies answer, and packets between sites, handed to their readers, for fuzzing.
//!
//! Owns which reader an answer is for, and what must hold of what is read.

use std::net::IpAddr;

use bytes::Bytes;

use crate::assignment::Assignment;
use crate::carrier::parse_answer;
use crate::echo::{Echo, Kind};
use crate::fleet_loads;
use crate::icmp_error::{self, Complaint};
use crate::ip_packet::IpPacket;
use crate::mapping::{self, Notice};

/// Hands the rest of `data` to the reader that the first byte names.
///
/// # Panics
/// When what is read does not hold.
pub fn fuzz_answers(data: &[u8]) {
    let Some((door, said)) = data.split_first() else {
        return;
    };
    match door % 5 {
        0 => assigned(said),
        1 => notice(said),
        2 => mapped(said),
        3 => {
            if let Some(loads) = fleet_loads::parse(said) {
                assert_eq!(fleet_loads::emit(&loads), said);
            }
        }
        _ => answer(said),
    }
}

/// Which addresses a relay gives.
fn assigned(said: &[u8]) {
    let Some((assignment, used)) = Assignment::parse(said) else {
        return;
    };
    for cut in 0..used {
        assert_eq!(Assignment::parse(&said[..cut]), None, "cut at {cut}");
    }
    // One that makes no sense gives nothing, which is what its own words come to as well.
    let words = assignment.emit();
    assert_eq!(Assignment::parse(&words), Some((assignment, words.len())));
}

/// What became of a datagram of a mapping.
fn notice(said: &[u8]) {
    let Ok(Some((notice, used))) = Notice::parse(said) else {
        return;
    };
    for cut in 0..used {
        assert_eq!(Notice::parse(&said[..cut]), Ok(None), "cut at {cut}");
    }
    let mut words = Vec::new();
    notice.emit(&mut words);
    assert_eq!(Notice::parse(&words), Ok(Some((notice, words.len()))));
}

/// A datagram of a mapping.
fn mapped(said: &[u8]) {
    let usual = ([192, 0, 2, 1], 7).into();
    if let Some((remote, payload)) = mapping::split(Bytes::copy_from_slice(said), usual) {
        assert!(said.ends_with(&payload) && remote.port() != 0);
        let mut room = [0; mapping::MAX_HEADER];
        let len = mapping::emit_remote(remote, Some(usual), &mut room);
        let again = [&room[mapping::MAX_HEADER - len..], &payload[..]].concat();
        let read = mapping::split(again.into(), usual);
        assert_eq!(read, Some((remote, payload)));
    }
}

/// What a proxy or a door answers.
fn answer(said: &[u8]) {
    if let Ok(Some((answer, end))) = parse_answer(said) {
        assert!(end <= said.len());
        let server = answer.server.unwrap_or_default();
        assert!(!server.contains(char::is_control), "{server:?}");
        for cut in end.saturating_sub(64)..end {
            assert!(!matches!(parse_answer(&said[..cut]), Ok(Some(_))), "{cut}");
        }
    }
}

/// Reads a packet between sites, as the relay and the site do.
///
/// # Panics
/// When what the relay answers in a host's place would not come back to who has asked.
pub fn fuzz_site_packet(said: &[u8]) {
    let Ok(header) = IpPacket::parse(said) else {
        return;
    };
    let is_v4 = header.destination.is_ipv4();
    assert_eq!(header.source.is_ipv4(), is_v4);
    let echo = Echo::parse(said);
    if let Some(echo) = &echo {
        assert_eq!(echo.source, header.source);
        assert_eq!(echo.destination, header.destination);
    }
    let is_request = echo.is_some_and(|echo| echo.kind == Kind::Request);
    // What a relay says of a request that finds nobody comes back to who has asked, as one of it.
    let complaint = Complaint::host_unreachable(is_v4);
    let told = complaint.emit(header.destination, header.source, said);
    let told = told.expect("addresses of one family");
    let most = if is_v4 { 576 } else { 1_280 };
    assert!(told.len() <= most, "{} bytes", told.len());
    let asked: Option<IpAddr> = icmp_error::asked(&told);
    assert_eq!(asked, is_request.then_some(header.destination));
    if let Some(asked) = icmp_error::asked(said) {
        assert_eq!(asked.is_ipv4(), is_v4);
    }
}
