//! Packet protection: seal, open, and change of keys [P-8].
//!
//! Owns the keys of one session's 1-RTT packets and their use limits. Nonces are per path
//! (draft-ietf-quic-multipath), so packet numbers of different paths never collide.

use rustls::quic::{HeaderProtectionKey, Keys, PacketKey, PacketKeySet, Secrets};
use tabane_base::{Duration, Instant};

use crate::drops::DropReason;
use crate::id::{PacketNumber, PathId};
use crate::wire::{Cursor, ShortHeader, TAG_LEN, expand_packet_number};

/// A packet taken out of its protection.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) pn: PacketNumber,
    /// Where the frames stand in the datagram.
    pub(crate) payload: std::ops::Range<usize>,
}

/// Seals `buf[start..]`, whose packet number of `pn_len` bytes stands at `pn_offset`, in place.
pub(crate) fn seal(
    header_key: &dyn HeaderProtectionKey,
    packet_key: &dyn PacketKey,
    buf: &mut Vec<u8>,
    start: usize,
    (pn_offset, pn_len): (usize, usize),
    (path, pn): (Option<PathId>, PacketNumber),
) {
    let (head, payload) = buf[start..].split_at_mut(pn_offset + pn_len - start);
    let tag = match path {
        Some(path) => packet_key.encrypt_in_place_for_path(path.0, pn.0, head, payload),
        None => packet_key.encrypt_in_place(pn.0, head, payload),
    };
    let tag = tag.expect("packets are far below the AEAD's size limit");
    buf.extend_from_slice(tag.as_ref());
    let (head, tail) = buf[start..].split_at_mut(pn_offset - start + 4);
    let (first, rest) = head.split_first_mut().expect("a header is not empty");
    let pn_bytes = &mut rest[pn_offset - start - 1..][..pn_len];
    header_key
        .encrypt_in_place(&tail[..header_key.sample_len()], first, pn_bytes)
        .expect("the sample has the key's own length");
}

/// Removes header protection; gives the first byte's packet-number length and the number's bytes.
fn unmask(
    header_key: &dyn HeaderProtectionKey,
    packet: &mut [u8],
    pn_offset: usize,
) -> Result<(usize, u64), DropReason> {
    let (head, tail) = packet
        .split_at_mut_checked(pn_offset + 4)
        .ok_or(DropReason::Malformed)?;
    let sample = tail
        .get(..header_key.sample_len())
        .ok_or(DropReason::Malformed)?;
    let (first, rest) = head.split_first_mut().ok_or(DropReason::Malformed)?;
    header_key
        .decrypt_in_place(sample, first, &mut rest[pn_offset - 1..])
        .map_err(|_| DropReason::Malformed)?;
    let pn_len = (*first & 3) as usize + 1;
    let truncated = Cursor::new(&packet[pn_offset..])
        .uint(pn_len)
        .map_err(|_| DropReason::Malformed)?;
    Ok((pn_len, truncated))
}

/// Opens a handshake packet in place.
pub(crate) fn open_long(
    keys: &Keys,
    packet: &mut [u8],
    pn_offset: usize,
) -> Result<Opened, DropReason> {
    let (pn_len, pn) = unmask(&*keys.remote.header, packet, pn_offset)?;
    let (head, payload) = packet.split_at_mut(pn_offset + pn_len);
    let len = keys
        .remote
        .packet
        .decrypt_in_place(pn, head, payload)
        .map_err(|_| DropReason::NotAuthentic)?
        .len();
    let start = pn_offset + pn_len;
    Ok(Opened {
        pn: PacketNumber(pn),
        payload: start..start + len,
    })
}

/// What a path remembers for finding the right key of a packet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathPhase {
    /// Which generation `first` belongs to.
    generation: u64,
    /// The smallest packet number opened with the current generation.
    first: Option<PacketNumber>,
}

/// The keys of established sessions.
pub(crate) struct SessionKeys {
    header_local: Box<dyn HeaderProtectionKey>,
    header_remote: Box<dyn HeaderProtectionKey>,
    local: Box<dyn PacketKey>,
    remote: Box<dyn PacketKey>,
    /// The receive key before the last change, until stragglers must have arrived. No end is set
    /// before the peer uses the new one: it may be out of reach, and not know of it, for long.
    previous: Option<(Box<dyn PacketKey>, Option<Instant>)>,
    next: PacketKeySet,
    secrets: Secrets,
    /// How often keys changed; its lowest bit is the key phase.
    generation: u64,
    sealed: u64,
    failures: u64,
    /// The peer has acknowledged a packet under the current keys, so it has them.
    confirmed: bool,
    /// When the first packet under the current keys came after that.
    settled_at: Option<Instant>,
}

impl SessionKeys {
    pub(crate) fn new(keys: Keys, mut secrets: Secrets) -> Self {
        let next = secrets.next_packet_keys();
        Self {
            header_local: keys.local.header,
            header_remote: keys.remote.header,
            local: keys.local.packet,
            remote: keys.remote.packet,
            previous: None,
            next,
            secrets,
            generation: 0,
            sealed: 0,
            failures: 0,
            confirmed: false,
            settled_at: None,
        }
    }

    pub(crate) const fn phase(&self) -> bool {
        self.generation & 1 != 0
    }

    pub(crate) const fn generation(&self) -> u64 {
        self.generation
    }

    /// Seals a short-header packet in place; see [`seal`].
    pub(crate) fn seal(
        &mut self,
        buf: &mut Vec<u8>,
        start: usize,
        pn_at: (usize, usize),
        path: PathId,
        pn: PacketNumber,
    ) {
        self.sealed += 1;
        let id = (Some(path), pn);
        seal(&*self.header_local, &*self.local, buf, start, pn_at, id);
    }

    /// Opens a short-header packet in place. `largest` is the path's largest packet number so far.
    pub(crate) fn open(
        &mut self,
        now: Instant,
        packet: &mut [u8],
        header: ShortHeader,
        largest: Option<PacketNumber>,
        phase: &mut PathPhase,
    ) -> Result<Opened, DropReason> {
        let (pn_len, truncated) = unmask(&*self.header_remote, packet, header.pn_offset)?;
        let pn = expand_packet_number(largest, truncated, pn_len);
        let (bit, _) = ShortHeader::protected_bits(packet[0]);
        if phase.generation != self.generation {
            *phase = PathPhase {
                generation: self.generation,
                first: None,
            };
        }
        let current = bit == self.phase();
        let old = !current
            && match (phase.first, &self.previous) {
                (Some(first), _) => pn < first,
                (None, previous) => previous.is_some(),
            };
        let start = header.pn_offset + pn_len;
        let (head, payload) = packet.split_at_mut(start);
        let key: &dyn PacketKey = match (current, old) {
            (true, _) => &*self.remote,
            (false, true) => match &self.previous {
                Some((key, _)) => &**key,
                None => return Err(DropReason::NotAuthentic),
            },
            (false, false) => &*self.next.remote,
        };
        let Ok(plain) = key.decrypt_in_place_for_path(header.path.0, pn.0, head, payload) else {
            self.failures += 1;
            return Err(DropReason::NotAuthentic);
        };
        let payload = start..start + plain.len();
        if !current && !old {
            self.advance();
        }
        if !old {
            if self.confirmed {
                self.settled_at.get_or_insert(now);
            }
            if let Some((_, until)) = &mut self.previous {
                until.get_or_insert(now + STRAGGLER_TIME);
            }
            phase.generation = self.generation;
            phase.first = Some(
                phase
                    .first
                    .filter(|_| current)
                    .map_or(pn, |first| first.min(pn)),
            );
        }
        Ok(Opened { pn, payload })
    }

    /// The peer acknowledged a packet sealed in `generation`.
    pub(crate) fn on_acked(&mut self, generation: u64) {
        self.confirmed |= generation == self.generation;
    }

    /// Changes keys after so many packets, when the rules allow it. `false`: they must not be
    /// used any more.
    pub(crate) fn refresh(&mut self, now: Instant, packets_per_key: u64) -> bool {
        let limit = self.local.confidentiality_limit();
        let is_short = self.sealed >= limit / 4 * 3;
        let patience = match is_short {
            true => SHORTEST_STRAGGLER_TIME,
            false => STRAGGLER_TIME,
        };
        // Not while the peer may have the keys before these: theirs and the next look alike.
        let is_settled = match self.generation {
            0 => self.confirmed,
            _ => self.settled_at.is_some_and(|at| at + patience <= now),
        };
        let may_advance = is_settled && (is_short || self.previous.is_none());
        if self.sealed >= packets_per_key && may_advance {
            self.advance();
        }
        self.sealed < limit && self.failures < self.remote.integrity_limit()
    }

    pub(crate) fn discard_at(&self) -> Option<Instant> {
        self.previous.as_ref()?.1
    }

    pub(crate) fn discard_previous(&mut self, now: Instant) {
        self.previous
            .take_if(|(_, until)| until.is_some_and(|at| at <= now));
    }

    fn advance(&mut self) {
        let fresh = self.secrets.next_packet_keys();
        let next = std::mem::replace(&mut self.next, fresh);
        self.local = next.local;
        let old = std::mem::replace(&mut self.remote, next.remote);
        self.previous = Some((old, None));
        self.generation += 1;
        self.sealed = 0;
        (self.confirmed, self.settled_at) = (false, None);
    }
}

/// How long packets under the previous keys are still accepted after one under the new ones: RFC
/// 9001 §6.5 asks for three probe timeouts; paths differ, so a span no path's delay exceeds.
const STRAGGLER_TIME: Duration = Duration::from_secs(10);
/// The same where keys would be used up before: AES-GCM's are good for 2^23 packets (RFC 9001
/// §6.6), which links of today carry in less. A path that has been silent since may lose what comes
/// first.
const SHORTEST_STRAGGLER_TIME: Duration = Duration::from_secs(1);
const _: () = assert!(
    TAG_LEN >= 4,
    "the sample must lie within the smallest packet"
);
