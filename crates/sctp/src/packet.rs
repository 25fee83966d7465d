//! SCTP packets as bytes (RFC 9260 §3): what is looked at, and the one thing that is changed,
//! before the stack sees them.
//!
//! The peer lists its addresses in INIT ACK. The stack takes these for the destinations of the
//! association and forgets all others, so in their place it is shown the ones that we made up for
//! paths; what the peer listed is told to whoever plans paths.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

/// Bytes of the common header.
pub const COMMON_HEADER: usize = 12;
const CHUNK_HEADER: usize = 4;
const PARAMETER_HEADER: usize = 4;
/// Fixed fields of INIT and INIT ACK, chunk header included.
const INIT_FIXED: usize = 20;

const DATA: u8 = 0;
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const SACK: u8 = 3;
const HEARTBEAT: u8 = 4;
const HEARTBEAT_ACK: u8 = 5;
const ABORT: u8 = 6;
const ERROR: u8 = 9;
const COOKIE_ECHO: u8 = 10;
const ECN_ECHO: u8 = 12;
const SHUTDOWN_COMPLETE: u8 = 14;
const CWR: u8 = 13;
const ASCONF: u8 = 0xc1;
const ASCONF_ACK: u8 = 0x80;
const RECONFIG: u8 = 0x82;

const IPV4_ADDRESS: u16 = 5;
const IPV6_ADDRESS: u16 = 6;
const HOST_NAME: u16 = 11;
const ECN_CAPABLE: u16 = 0x8000;
const ADD_ADDRESS: u16 = 0xc001;
const ERROR_CAUSE: u16 = 0xc003;

/// Of an ABORT: the sender has no association, and the tag is ours given back.
const T_BIT: u8 = 1;

/// The checksum's place in the common header.
pub(crate) const CHECKSUM: Range<usize> = 8..12;

/// Feeds `packet` to every reader, for fuzzing: those that the stack asks of what has ports.
pub fn fuzz_parsers(packet: &[u8]) {
    if ports(packet).is_none() {
        return;
    }
    let _ = (tag(packet), asked_tag(packet), answered_tag(packet));
    let _ = (has_tag_given_back(packet), is_disowning(packet));
    let _ = (is_setup(packet), is_cookie(packet), is_probe(packet));
    let _ = (is_probe_answer(packet), wants_answer(packet));
    assert!(data_bytes(packet) <= packet.len(), "more data than packet");
    let _ = (added_addresses(packet), address_answer(packet));
    let _ = has_whole_lists(packet);
    let _ = sequence_numbers(packet);
    let ours = [IpAddr::V4(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
    let _ = replace_addresses(&mut packet.to_vec(), ours.into_iter());
    let _ = acknowledged(packet).map(|(number, _)| congestion_echo(packet, number));
    let stripped = &mut packet.to_vec();
    let _ = strip_echo_answer(stripped);
    assert!(
        stripped.len() <= packet.len(),
        "what is taken out makes it longer"
    );
}

/// Source and destination port; `None` for what is no SCTP packet.
#[must_use]
pub fn ports(packet: &[u8]) -> Option<(u16, u16)> {
    let has_chunk = packet.len() >= COMMON_HEADER + CHUNK_HEADER;
    has_chunk.then(|| (word(packet, 0), word(packet, 2)))
}

/// Whether every list of parameters is whole: none is shorter than its own header, or longer than
/// its chunk. usrsctp 0.9.5 does not come back from an INIT with an empty one that reaches an
/// association, and anybody may send that.
pub(crate) fn has_whole_lists(packet: &[u8]) -> bool {
    chunks(packet).all(|(kind, range)| {
        let from = match kind {
            INIT | INIT_ACK => INIT_FIXED,
            ASCONF | ASCONF_ACK => CHUNK_HEADER + 4,
            ABORT | ERROR | HEARTBEAT | HEARTBEAT_ACK | RECONFIG => CHUNK_HEADER,
            _ => return true,
        };
        let last = parameters(packet, range.start + from..range.end).last();
        let end = last.map_or(range.start + from, |(_, last)| last.end.next_multiple_of(4));
        // Nothing is left but what fills the last one up.
        end + PARAMETER_HEADER > range.end
    })
}

/// The verification tag: the one that the receiver gave the association, and nobody else knows.
pub(crate) fn tag(packet: &[u8]) -> u32 {
    long(packet, 4)
}

/// The tag that whoever sends this INIT wants on the packets to it.
pub(crate) fn asked_tag(packet: &[u8]) -> Option<u32> {
    initiate_tag(packet, INIT)
}

/// The same of an INIT ACK.
pub(crate) fn answered_tag(packet: &[u8]) -> Option<u32> {
    initiate_tag(packet, INIT_ACK)
}

fn initiate_tag(packet: &[u8], wanted: u8) -> Option<u32> {
    let is_it = |(kind, range): &(u8, Range<usize>)| *kind == wanted && range.len() >= INIT_FIXED;
    let (_, range) = chunks(packet).find(is_it)?;
    Some(long(packet, range.start + CHUNK_HEADER))
}

/// Whether this says that the sender has no association, with its own tag given back (RFC 9260
/// §8.5.1).
pub(crate) fn has_tag_given_back(packet: &[u8]) -> bool {
    let says_so = |(kind, range): (u8, Range<usize>)| {
        matches!(kind, ABORT | SHUTDOWN_COMPLETE) && packet[range.start + 1] & T_BIT != 0
    };
    chunks(packet).any(says_so)
}

/// Whether this begins an association: such packets go every way there is.
pub(crate) fn is_setup(packet: &[u8]) -> bool {
    matches!(packet.get(COMMON_HEADER), Some(&(INIT | COOKIE_ECHO)))
}

/// Whether this is what makes the peer keep an association: the second step of the set-up.
pub(crate) fn is_cookie(packet: &[u8]) -> bool {
    packet.get(COMMON_HEADER) == Some(&COOKIE_ECHO)
}

/// Bytes of user data in the packet.
#[must_use]
pub fn data_bytes(packet: &[u8]) -> usize {
    /// Chunk header, TSN, stream, sequence number and payload protocol.
    const DATA_HEADER: usize = 16;
    let data = chunks(packet).filter(|(kind, _)| *kind == DATA);
    data.map(|(_, range)| range.len().saturating_sub(DATA_HEADER))
        .sum()
}

/// Whether the peer answers this: data is acknowledged, probes are returned.
pub(crate) fn wants_answer(packet: &[u8]) -> bool {
    chunks(packet).any(|(kind, _)| kind == DATA || kind == HEARTBEAT)
}

/// Whether this asks whether a path works.
pub(crate) fn is_probe(packet: &[u8]) -> bool {
    chunks(packet).any(|(kind, _)| kind == HEARTBEAT)
}

/// Whether this returns a probe.
pub(crate) fn is_probe_answer(packet: &[u8]) -> bool {
    chunks(packet).any(|(kind, _)| kind == HEARTBEAT_ACK)
}

/// Whether this says that the peer knows of no association between the two addresses (RFC 9260
/// §8.4).
pub(crate) fn is_disowning(packet: &[u8]) -> bool {
    let says_so =
        |(kind, range): (u8, Range<usize>)| kind == ABORT && packet[range.start + 1] & T_BIT != 0;
    chunks(packet).any(says_so)
}

/// The addresses that the peer is asked to add (RFC 5061 §4.2.1), each with the number by which the
/// answer names it, and before them the question's own number. `None` where there is no question.
pub(crate) fn added_addresses(packet: &[u8]) -> Option<(u32, Vec<(u32, IpAddr)>)> {
    /// Header and number of the parameter; then comes the address as a parameter.
    const FIXED: usize = PARAMETER_HEADER + 4;
    let (number, range) = numbered(packet, ASCONF)?;
    let address = |(kind, range): (u16, Range<usize>)| {
        if kind != ADD_ADDRESS || range.len() < FIXED {
            return None;
        }
        let (kind, within) = parameters(packet, range.start + FIXED..range.end).next()?;
        let address = address(kind, &packet[within.start + PARAMETER_HEADER..within.end])?;
        Some((long(packet, range.start + PARAMETER_HEADER), address))
    };
    Some((
        number,
        parameters(packet, range).filter_map(address).collect(),
    ))
}

/// The answer: to which question, and what was refused.
pub(crate) fn address_answer(packet: &[u8]) -> Option<(u32, Vec<u32>)> {
    let (number, range) = numbered(packet, ASCONF_ACK)?;
    let errors = parameters(packet, range)
        .filter(|(kind, range)| *kind == ERROR_CAUSE && range.len() >= PARAMETER_HEADER + 4);
    let refused = errors.map(|(_, range)| long(packet, range.start + 4));
    Some((number, refused.collect()))
}

/// The address in a parameter of this type (RFC 9260 §3.3.2.1). One of IPv4 in the guise of IPv6 is
/// none: as such it stands in no list.
fn address(kind: u16, value: &[u8]) -> Option<IpAddr> {
    match kind {
        IPV4_ADDRESS => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        IPV6_ADDRESS => {
            let address = Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?);
            address.to_ipv4_mapped().is_none().then_some(address.into())
        }
        _ => None,
    }
}

/// Writes an address as a parameter.
fn put_address(bytes: &mut Vec<u8>, address: IpAddr) {
    let mut put = |kind: u16, octets: &[u8]| {
        bytes.extend(kind.to_be_bytes());
        bytes.extend([0, (PARAMETER_HEADER + octets.len()) as u8]);
        bytes.extend(octets);
    };
    match address {
        IpAddr::V4(v4) => put(IPV4_ADDRESS, &v4.octets()),
        IpAddr::V6(v6) => put(IPV6_ADDRESS, &v6.octets()),
    }
}

/// Lists `ours` in an INIT that lists no addresses; `false` where this is none. The checksum is
/// left as it was.
pub(crate) fn list_addresses(packet: &mut Vec<u8>, ours: &[IpAddr]) -> bool {
    let Some((INIT, range)) = chunks(packet).next() else {
        return false;
    };
    let is_alone = range.end.next_multiple_of(4) == packet.len();
    if range.len() < INIT_FIXED || !is_alone {
        return false;
    }
    let listed = |(kind, _): (u16, Range<usize>)| matches!(kind, IPV4_ADDRESS | IPV6_ADDRESS);
    if parameters(packet, range.start + INIT_FIXED..range.end).any(listed) {
        return false;
    }
    for address in ours {
        put_address(packet, *address);
    }
    // Whatever has filled the last one up stands between them now.
    let Ok(len) = u16::try_from(packet.len() - range.start) else {
        return false;
    };
    packet[range.start + 2..range.start + 4].copy_from_slice(&len.to_be_bytes());
    true
}

/// A chunk that begins with a number, and where its parameters lie.
fn numbered(packet: &[u8], wanted: u8) -> Option<(u32, Range<usize>)> {
    const FIXED: usize = CHUNK_HEADER + 4;
    let is_it = |(kind, range): &(u8, Range<usize>)| *kind == wanted && range.len() >= FIXED;
    let (_, range) = chunks(packet).find(is_it)?;
    let number = long(packet, range.start + CHUNK_HEADER);
    Some((number, range.start + FIXED..range.end))
}

/// The parameters, each as its type and where it lies, header included and padding not.
fn parameters(packet: &[u8], within: Range<usize>) -> impl Iterator<Item = (u16, Range<usize>)> {
    let mut at = within.start;
    std::iter::from_fn(move || {
        if within.end < at + PARAMETER_HEADER {
            return None;
        }
        let (kind, len) = (word(packet, at), usize::from(word(packet, at + 2)));
        if len < PARAMETER_HEADER || within.end < at + len {
            return None;
        }
        let range = at..at + len;
        at += len.next_multiple_of(4);
        Some((kind, range))
    })
}

/// The first and the last transmission sequence number in the packet.
pub(crate) fn sequence_numbers(packet: &[u8]) -> Option<(u32, u32)> {
    let data = chunks(packet).filter(|(kind, range)| *kind == DATA && range.len() > 8);
    let mut numbers = data.map(|(_, range)| long(packet, range.start + 4));
    let first = numbers.next()?;
    Some((first, numbers.last().unwrap_or(first)))
}

/// What a packet acknowledges: everything up to a number, and ranges counted from it.
pub(crate) fn acknowledged(packet: &[u8]) -> Option<(u32, Vec<Range<u32>>)> {
    /// Up to the gap blocks, chunk header included.
    const FIXED: usize = 16;
    let sack = |(kind, range): &(u8, Range<usize>)| *kind == SACK && range.len() >= FIXED;
    let (_, range) = chunks(packet).find(sack)?;
    let count = usize::from(word(packet, range.start + 12));
    let blocks = (range.start + FIXED..range.end.saturating_sub(3)).step_by(4);
    let gaps = blocks.take(count).map(|at| {
        let (start, end) = (word(packet, at), word(packet, at + 2));
        u32::from(start)..u32::from(end) + 1
    });
    Some((long(packet, range.start + 4), gaps.collect()))
}

/// A packet like this one, from the same peer to the same association, that says one thing: the
/// network was congested where this number went (RFC 9260 appendix A).
pub(crate) fn congestion_echo(like: &[u8], number: u32) -> Option<Vec<u8>> {
    let mut packet = like.get(..COMMON_HEADER)?.to_vec();
    packet.extend([ECN_ECHO, 0, 0, 12]);
    packet.extend(number.to_be_bytes());
    // How many packets; the library's own addition.
    packet.extend(1_u32.to_be_bytes());
    Some(packet)
}

/// Takes out what answers an echo of congestion. `None`: there was nothing of the kind; otherwise
/// whether anything else is left. The checksum is left as it was.
pub(crate) fn strip_echo_answer(packet: &mut Vec<u8>) -> Option<bool> {
    let (_, range) = chunks(packet).find(|(kind, _)| *kind == CWR)?;
    let end = range.start + range.len().next_multiple_of(4);
    packet.drain(range.start..end.min(packet.len()));
    strip_echo_answer(packet).or(Some(packet.len() > COMMON_HEADER))
}

/// The chunks, each as its type and where it lies, header included and padding not.
fn chunks(packet: &[u8]) -> impl Iterator<Item = (u8, Range<usize>)> {
    let mut at = COMMON_HEADER;
    std::iter::from_fn(move || {
        if packet.len() < at + CHUNK_HEADER {
            return None;
        }
        let len = usize::from(word(packet, at + 2));
        if len < CHUNK_HEADER || packet.len() < at + len {
            return None;
        }
        let range = at..at + len;
        let kind = packet[at];
        at += len.next_multiple_of(4);
        Some((kind, range))
    })
}

/// Puts `ours` in the place of the addresses in an INIT ACK, and has it say that the peer knows
/// echoes of congestion, since we speak for it there (`brake.rs`). Gives the addresses that were
/// there. `None` for every other packet, and for a damaged one. The checksum is left as it
/// was.
pub(crate) fn replace_addresses(
    packet: &mut Vec<u8>,
    ours: impl Iterator<Item = IpAddr>,
) -> Option<Vec<IpAddr>> {
    let (kind, range) = chunks(packet).next()?;
    if kind != INIT_ACK || range.len() < INIT_FIXED {
        return None;
    }
    let mut addresses = Vec::new();
    let mut kept = Vec::with_capacity(range.len());
    for address in ours {
        put_address(&mut kept, address);
    }
    let mut is_capable = false;
    let mut at = range.start + INIT_FIXED;
    while range.end.saturating_sub(at) >= PARAMETER_HEADER {
        let (kind, len) = (word(packet, at), usize::from(word(packet, at + 2)));
        if len < PARAMETER_HEADER || at + len > range.end {
            return None;
        }
        let value = &packet[at + PARAMETER_HEADER..at + len];
        match kind {
            IPV4_ADDRESS | IPV6_ADDRESS => addresses.extend(address(kind, value)),
            HOST_NAME => {}
            _ => {
                is_capable |= kind == ECN_CAPABLE;
                let padded = (at + len.next_multiple_of(4)).min(packet.len());
                kept.extend_from_slice(&packet[at..padded]);
            }
        }
        at += len.next_multiple_of(4);
    }
    if !is_capable {
        kept.extend(ECN_CAPABLE.to_be_bytes());
        kept.extend([0, 4]);
    }
    let len = u16::try_from(INIT_FIXED + kept.len()).ok()?;
    packet.truncate(range.start + INIT_FIXED);
    packet[range.start + 2..range.start + 4].copy_from_slice(&len.to_be_bytes());
    packet.extend_from_slice(&kept);
    Some(addresses)
}

fn word(packet: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([packet[at], packet[at + 1]])
}

fn long(packet: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn init_ack(parameters: &[&[u8]]) -> Vec<u8> {
        let mut packet = vec![0; COMMON_HEADER];
        let body: usize = parameters.iter().map(|p| p.len().next_multiple_of(4)).sum();
        let len = u16::try_from(INIT_FIXED + body).unwrap();
        packet.extend([INIT_ACK, 0]);
        packet.extend(len.to_be_bytes());
        packet.extend([7; 16]);
        for parameter in parameters {
            packet.extend_from_slice(parameter);
            packet.resize(packet.len().next_multiple_of(4), 0);
        }
        packet
    }

    const COOKIE: &[u8] = &[0, 7, 0, 7, 1, 2, 3];
    /// Echoes of congestion are known.
    const CAPABLE: &[u8] = &[0x80, 0, 0, 4];
    const ADDRESS: &[u8] = &[0, 5, 0, 8, 192, 0, 2, 9];
    const ADDRESS6: &[u8] = &[
        0, 6, 0, 20, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9,
    ];
    /// An address of IPv4 as one of IPv6.
    const MAPPED: &[u8] = &[
        0, 6, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 7,
    ];

    const OURS: [IpAddr; 2] = [
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
        IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 2)),
    ];

    #[test]
    fn an_init_that_lists_nothing_lists_ours() {
        const SUPPORTED: &[u8] = &[0, 12, 0, 8, 0, 5, 0, 6];
        let init = |parameters: &[&[u8]]| {
            let mut packet = init_ack(parameters);
            packet[COMMON_HEADER] = INIT;
            packet
        };
        let mut packet = init(&[SUPPORTED]);
        let ours = ["192.0.2.9", "2001:db8::9"].map(|text| text.parse().unwrap());
        assert!(list_addresses(&mut packet, &ours));
        assert_eq!(packet, init(&[SUPPORTED, ADDRESS, ADDRESS6]));
        assert!(!list_addresses(&mut packet, &ours), "it lists some");
        for mut other in [init_ack(&[SUPPORTED]), init(&[ADDRESS]), Vec::new()] {
            let before = other.clone();
            assert!(!list_addresses(&mut other, &ours) && other == before);
        }
    }

    #[test]
    fn addresses_of_an_init_ack_are_exchanged_and_all_else_stays() {
        let mut packet = init_ack(&[ADDRESS, COOKIE, MAPPED, ADDRESS6]);
        let found = replace_addresses(&mut packet, OURS.into_iter()).unwrap();
        let expected = ["192.0.2.9", "2001:db8::9"].map(|text| text.parse::<IpAddr>().unwrap());
        assert_eq!(found, expected);
        let ours: [&[u8]; 2] = [
            &[0, 5, 0, 8, 10, 0, 0, 1],
            &[
                0, 6, 0, 20, 0x20, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
            ],
        ];
        assert_eq!(packet, init_ack(&[ours[0], ours[1], COOKIE, CAPABLE]));
        assert_eq!(
            replace_addresses(&mut packet, [].into_iter()),
            Some(OURS.to_vec())
        );
        assert_eq!(packet, init_ack(&[COOKIE, CAPABLE]));
    }

    /// Every cut and every changed length: no panic, and nothing but our addresses is added.
    #[test]
    fn damaged_packets_are_left_alone() {
        /// An address of each family, and a word on echoes.
        const ADDED: usize = 8 + 20 + 4;
        let whole = init_ack(&[ADDRESS, COOKIE]);
        for cut in 0..whole.len() {
            let mut packet = whole[..cut].to_vec();
            let _ = (ports(&packet), data_bytes(&packet), is_setup(&packet));
            let _ = (sequence_numbers(&packet), acknowledged(&packet));
            let _ = (added_addresses(&packet), address_answer(&packet));
            let _ = is_disowning(&packet);
            let _ = replace_addresses(&mut packet, OURS.into_iter());
            assert!(packet.len() <= whole.len() + ADDED);
        }
        for at in COMMON_HEADER..whole.len() {
            for value in [0, 1, 3, 0x7f, 0xff] {
                let mut packet = whole.clone();
                packet[at] = value;
                let _ = (data_bytes(&packet), acknowledged(&packet));
                let _ = replace_addresses(&mut packet, OURS.into_iter());
                assert!(packet.len() <= whole.len() + ADDED);
            }
        }
        let mut question = vec![0; COMMON_HEADER];
        question.extend([ASCONF, 0, 0, 24, 0, 0, 0, 7, 0xc0, 1, 0, 16]);
        question.extend([0, 0, 0, 1, 0, 5, 0, 8, 192, 0, 2, 9]);
        let (number, added) = added_addresses(&question).unwrap();
        assert_eq!((number, added.len()), (7, 1));
        for at in COMMON_HEADER..question.len() {
            for value in [0, 1, 3, 0x7f, ASCONF_ACK, 0xff] {
                let mut packet = question.clone();
                packet[at] = value;
                let _ = (added_addresses(&packet), address_answer(&packet));
                let _ = added_addresses(&packet[..at]);
            }
        }
    }

    #[test]
    fn an_echo_is_like_its_packet_and_its_answer_stays_here() {
        let like: Vec<u8> = (0..40).collect();
        let echo = congestion_echo(&like, 0x0102_0304).unwrap();
        assert_eq!(echo[..COMMON_HEADER], like[..COMMON_HEADER]);
        assert_eq!(echo[COMMON_HEADER..][..8], [12, 0, 0, 12, 1, 2, 3, 4]);
        assert!(congestion_echo(&like[..11], 1).is_none());
        let header = [0; COMMON_HEADER];
        let answer = [CWR, 0, 0, 8, 1, 2, 3, 4];
        let probe = [HEARTBEAT, 0, 0, 6, 9, 9, 0, 0];
        let mut packet = [&header[..], &answer, &probe, &answer].concat();
        assert_eq!(strip_echo_answer(&mut packet), Some(true));
        assert_eq!(packet, [&header[..], &probe].concat());
        assert_eq!(strip_echo_answer(&mut packet), None);
        let mut alone = [&header[..], &answer].concat();
        assert_eq!(strip_echo_answer(&mut alone), Some(false));
    }

    #[test]
    fn lists_end_where_their_chunks_do() {
        let packet = |kind, value: &[u8]| {
            let mut packet = vec![0; COMMON_HEADER];
            packet.extend([kind, 0, 0, (CHUNK_HEADER + value.len()) as u8]);
            packet.extend(value);
            packet
        };
        let fixed = [7; INIT_FIXED - CHUNK_HEADER];
        let init = |list: &[u8]| packet(INIT, &[&fixed[..], list].concat());
        assert!(has_whole_lists(&init(&[])));
        assert!(has_whole_lists(&init(&[0x80, 0, 0, 4])));
        assert!(has_whole_lists(&init(&[0x80, 8, 0, 6, 1, 2, 0, 0])));
        assert!(
            has_whole_lists(&init(&[0x80, 8, 0, 6, 1, 2])),
            "not filled up"
        );
        for cut in [
            &[0x80, 8, 0, 0][..],
            &[0x80, 8, 0, 3],
            &[0x80, 8, 0, 9, 1, 2, 3, 4],
            &[0x80, 0, 0, 4, 0x80, 8, 0, 0],
        ] {
            assert!(!has_whole_lists(&init(cut)), "{cut:?}");
            assert!(!has_whole_lists(&packet(ABORT, cut)), "{cut:?}");
            assert!(has_whole_lists(&packet(DATA, cut)), "no list");
        }
    }

    #[test]
    fn user_data_is_counted() {
        let mut packet = vec![0; COMMON_HEADER];
        for len in [5_u8, 8] {
            packet.extend([DATA, 3, 0, 16 + len]);
            packet.resize(packet.len() + 12 + usize::from(len), 0);
            packet.resize(packet.len().next_multiple_of(4), 0);
        }
        assert_eq!(data_bytes(&packet), 13);
    }
}
