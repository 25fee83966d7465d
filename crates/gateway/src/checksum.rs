//! The Internet checksum (RFC 1071).

use std::net::IpAddr;

/// TCP's number in the headers of IP.
pub(crate) const TCP: u8 = 6;

/// A sum of 16-bit words, to be folded at the end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum(u64);

impl Sum {
    /// Adds `bytes`; an odd number of them only at the end.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        // Words of 32 bits sum to the same after folding, at half the work.
        let mut words = bytes.chunks_exact(4);
        for word in &mut words {
            self.0 += u64::from(u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
        }
        match *words.remainder() {
            [] => {}
            [a] => self.0 += u64::from(a) << 8,
            [a, b] => self.0 += u64::from(u16::from_be_bytes([a, b])),
            [a, b, c, ..] => {
                self.0 += (u64::from(u16::from_be_bytes([a, b]))) + (u64::from(c) << 8)
            }
        }
    }

    /// What TCP's checksum covers beside the segment (RFC 9293 §3.1, RFC 8200 §8.1).
    pub(crate) fn pseudo_header(&mut self, source: IpAddr, destination: IpAddr, length: usize) {
        for address in [source, destination] {
            match address {
                IpAddr::V4(v4) => self.add(&v4.octets()),
                IpAddr::V6(v6) => self.add(&v6.octets()),
            }
        }
        self.0 += length as u64 + u64::from(TCP);
    }

    fn folded(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    /// Whether what was added, its own checksum included, is as it was sent.
    pub(crate) fn is_good(self) -> bool {
        self.folded() == 0xffff
    }

    /// What goes into the checksum field, which was zero while it was added.
    pub(crate) fn field(self) -> u16 {
        !self.folded()
    }
}
