//! Lists as they are signed, and everything that is not one.

use super::*;
use tabane_base::Seed;

fn fleet() -> Identity {
    Identity::from_seed([1; 32])
}

fn entry(n: u8) -> ListEntry {
    let key = Identity::from_seed([100 + n; 32]).public_key();
    let addresses = ["192.0.2.1:4510", "[2001:db8::1]:4510", "r.example.org:443"];
    ListEntry {
        certificate: Certificate::sign(&fleet(), &format!("relay-{n}"), key, 5).unwrap(),
        addresses: addresses[..1 + usize::from(n) % 3]
            .iter()
            .map(|text| Destination::parse(text, None).unwrap())
            .collect(),
        region: ["", "eu-north"][usize::from(n) % 2].to_owned(),
        capacity: u32::from(n) * 1_000,
        draining: n == 2,
    }
}

fn list(epoch: u64, relays: u8) -> RelayList {
    RelayList::sign(&fleet(), epoch, (0..relays).map(entry).collect()).unwrap()
}

#[test]
fn what_is_signed_is_read_again() {
    for relays in [0, 1, 3, 20] {
        let list = list(9, relays);
        let read = RelayList::parse(&list.emit(), fleet().public_key()).unwrap();
        assert_eq!(read, list);
        assert_eq!(read.epoch(), 9);
    }
    let many = list(1, 3);
    assert_eq!(many.of_key(entry(1).certificate.key).unwrap(), &entry(1));
}

/// Relays say themselves where they are, in as many words as there may be.
#[test]
fn what_nobody_would_read_is_not_signed() {
    let wordy = |n: u16| {
        let key = PublicKey(std::array::from_fn(|i| n.to_be_bytes()[i % 2]));
        let host = format!("{}.example.org:443", "x".repeat(240));
        ListEntry {
            certificate: Certificate::sign(&fleet(), &format!("relay-{n}"), key, 5).unwrap(),
            addresses: vec![Destination::parse(&host, None).unwrap(); MAX_ADDRESSES],
            ..entry(0)
        }
    };
    let entries: Vec<ListEntry> = (0..300).map(wordy).collect();
    let signed = RelayList::sign(&fleet(), 1, entries[..200].to_vec()).unwrap();
    assert!(RelayList::parse(&signed.emit(), fleet().public_key()).is_ok());
    let error = RelayList::sign(&fleet(), 1, entries).unwrap_err();
    assert_eq!(error, ListError::TooLarge);
}

#[test]
fn every_truncation_and_every_changed_bit_is_refused() {
    let bytes = list(9, 3).emit();
    let key = fleet().public_key();
    for length in 0..bytes.len() {
        let cut = RelayList::parse(&bytes[..length], key);
        assert!(cut.is_err(), "{length} bytes");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    let error = RelayList::parse(&longer, key).unwrap_err();
    assert_eq!(error, ListError::Form(FormError::TooLong));
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            assert!(RelayList::parse(&changed, key).is_err(), "byte {at}");
        }
    }
}

#[test]
fn another_fleets_an_older_and_a_newer_form_are_named() {
    let stranger = Identity::from_seed([2; 32]);
    let theirs = RelayList::sign(&stranger, 9, Vec::new()).unwrap().emit();
    let own = fleet().public_key();
    assert_eq!(
        RelayList::parse(&theirs, own),
        Err(ListError::OtherFleet(stranger.public_key()))
    );
    // A stranger who says it is ours.
    let mut claimed = theirs.clone();
    claimed[1..33].copy_from_slice(&own.0);
    assert_eq!(RelayList::parse(&claimed, own), Err(ListError::Unsigned));

    let bytes = list(9, 1).emit();
    assert_eq!(
        RelayList::parse_newer(&bytes, own, Some(10)),
        Err(ListError::Old {
            known: 10,
            offered: 9
        })
    );
    assert_eq!(RelayList::parse_newer(&bytes, own, Some(9)), Ok(None));
    for known in [None, Some(8)] {
        let newer = RelayList::parse_newer(&bytes, own, known);
        assert_eq!(newer, Ok(Some(list(9, 1))));
    }
    let mut later = bytes;
    later[0] = 2;
    assert_eq!(
        RelayList::parse(&later, own),
        Err(ListError::Form(FormError::Version(2)))
    );
}

#[test]
fn a_relay_that_the_fleet_did_not_sign_spoils_the_list_though_the_list_is_signed() {
    let stranger = Identity::from_seed([2; 32]);
    let foreign = ListEntry {
        certificate: Certificate::sign(&stranger, "relay-7", entry(7).certificate.key, 5).unwrap(),
        ..entry(7)
    };
    let signing = RelayList::sign(&fleet(), 1, vec![entry(0), foreign.clone()]);
    assert_eq!(signing, Err(ListError::UnsignedEntry));
    let mut list = list(1, 1);
    list.entries.push(foreign);
    list.signature = fleet().sign(&list.signed());
    assert_eq!(
        RelayList::parse(&list.emit(), fleet().public_key()),
        Err(ListError::UnsignedEntry)
    );
}

#[test]
fn what_is_beyond_its_limits_is_not_signed() {
    let sign = |entries| RelayList::sign(&fleet(), 1, entries);
    let without = ListEntry {
        addresses: Vec::new(),
        ..entry(0)
    };
    let crowded = ListEntry {
        addresses: vec![entry(0).addresses[0].clone(); MAX_ADDRESSES + 1],
        ..entry(0)
    };
    let nowhere = ListEntry {
        region: "a\nb".to_owned(),
        ..entry(0)
    };
    for entries in [
        vec![without],
        vec![crowded],
        vec![nowhere],
        vec![entry(0), entry(0)],
        vec![entry(0); MAX_RELAYS + 1],
    ] {
        assert!(matches!(sign(entries), Err(ListError::Form(_))));
    }
}

#[test]
fn garbage_is_never_a_list() {
    let seed = Seed(9);
    let mut rng = seed.rng("garbage");
    let model = list(3, 3).emit();
    for _ in 0..2_000 {
        let mut bytes = model.clone();
        for _ in 0..=rng.below(4) {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] = rng.next_u64() as u8;
        }
        bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
        if bytes != model {
            let read = RelayList::parse(&bytes, fleet().public_key());
            assert!(read.is_err(), "{seed}");
        }
        fuzz_list(&bytes);
    }
}
