//! Datagrams from one end to the other, whole, in pieces and copied.

use super::*;
use crate::wire::{Cursor, parse_frame};

const FLOW: FlowId = FlowId(4);
const NOW: Instant = Instant::EPOCH;
const PATH: PathId = PathId(0);

fn datagrams() -> Datagrams {
    Datagrams::new(Duration::from_millis(100), Part::default())
}

fn received(datagrams: &mut Datagrams) -> Vec<Bytes> {
    std::iter::from_fn(|| datagrams.poll())
        .map(|datagram| datagram.data)
        .collect()
}

fn take_in(datagrams: &mut Datagrams, packet: &[u8]) -> bool {
    match parse_frame(&mut Cursor::new(packet)) {
        Ok(Frame::Datagram(data)) => datagrams.on_received(NOW, PATH, Bytes::copy_from_slice(data)),
        Ok(Frame::DatagramCopy { number, data }) => datagrams.on_copy(NOW, PATH, number, data),
        Ok(frame) => datagrams.on_fragment(NOW, PATH, &frame),
        Err(_) => panic!("a packet that does not parse"),
    }
}

/// Sends through packets of `space` bytes, in the order `shuffle` makes of them.
fn carry(
    order: DatagramOrder,
    data: &[u8],
    space: usize,
    shuffle: impl FnOnce(&mut Vec<Vec<u8>>),
) -> Vec<Bytes> {
    let (mut a, mut b) = (datagrams(), datagrams());
    assert_eq!(a.send(NOW, (FLOW, ClassId::ORDINARY), order, data), Ok(()));
    let mut packets = Vec::new();
    while a.has_data(ClassId::ORDINARY) {
        let mut packet = Vec::new();
        assert!(a.fill(
            NOW,
            ClassId::ORDINARY,
            Duration::ZERO,
            &mut packet,
            (space, space)
        ));
        assert!(packet.len() <= space);
        packets.push(packet);
    }
    assert_eq!(a.queued(), 0);
    shuffle(&mut packets);
    for packet in packets {
        take_in(&mut b, &packet);
    }
    received(&mut b)
}

#[test]
fn small_and_large_datagrams_arrive_whole_in_any_order_of_fragments() {
    let deadline = DatagramOrder::Within(Duration::from_millis(25));
    for order in [DatagramOrder::AtOnce, deadline] {
        for len in [0, 1, 1_000, 1_380, 1_395, 1_400, 1_472, 9_000, 65_507] {
            let data: Vec<u8> = (0..len).map(|i| i as u8).collect();
            assert_eq!(carry(order, &data, 1_400, |_| {}), [&data[..]], "{len}");
            assert_eq!(
                carry(order, &data, 1_400, |packets| packets.reverse()),
                [&data[..]],
                "{len}"
            );
        }
    }
}

#[test]
fn copies_are_delivered_once_in_whatever_order_they_come() {
    let (mut a, mut b) = (datagrams(), datagrams());
    let sent: Vec<Vec<u8>> = [0, 10, 1_380, 1_500, 9_000]
        .map(|len| vec![len as u8; len])
        .to_vec();
    for data in &sent {
        assert_eq!(
            a.send(NOW, (FLOW, ClassId::ORDINARY), DatagramOrder::AtOnce, data),
            Ok(())
        );
    }
    let copies: Vec<_> =
        std::iter::from_fn(|| a.take_copy(NOW, ClassId::ORDINARY, Duration::ZERO, 1_400)).collect();
    assert_eq!(a.queued(), 0);
    let mut told = 0;
    for copy in copies.iter().chain(copies.iter().rev()).chain(&copies) {
        let mut packet = Vec::new();
        copy.emit(&mut packet);
        let size = copy.size();
        assert!(packet.len() <= size && size <= 1_400, "{size}");
        told += u32::from(take_in(&mut b, &packet));
    }
    let sent: Vec<_> = sent.into_iter().map(Bytes::from).collect();
    assert_eq!((received(&mut b), told), (sent, 1));
}

#[test]
fn a_lost_fragment_loses_its_datagram_and_a_doubled_one_changes_nothing() {
    let data = vec![7; 5_000];
    let order = DatagramOrder::AtOnce;
    assert!(carry(order, &data, 1_400, |packets| drop(packets.remove(1))).is_empty());
    let twice = carry(order, &data, 1_400, |packets| {
        packets.push(packets[0].clone())
    });
    assert_eq!(twice, [&data[..]]);
}

#[test]
fn garbage_for_a_label_is_nobodys() {
    let mut b = datagrams();
    for garbage in [&b""[..], b"\x09", b"\x09\x01", b"\xc0", b"\x09\xff\xff"] {
        assert!(!b.on_received(NOW, PATH, Bytes::copy_from_slice(garbage)));
    }
    assert!(b.poll().is_none());
}
