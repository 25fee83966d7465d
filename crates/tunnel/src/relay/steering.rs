//! The program by which the kernel gives each datagram to its worker's socket.
//!
//! The same rule as [`Steering`](tabane_core::Steering), as classic BPF, which needs no privilege:
//! the first byte of an attempt or of a connection id, by the number of workers. What is too short
//! to say it goes to the first socket.

use tabane_linux::udp::Instruction;

/// Where the sockets of each begin in their group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Places {
    /// Of those who take handshakes.
    pub(super) newcomers: u32,
    /// Of those with the even ids.
    pub(super) even: u32,
    /// Of those with the odd ids.
    pub(super) odd: u32,
}

impl Places {
    /// One process has all.
    pub(super) const fn all_at(first: u32) -> Self {
        Self {
            newcomers: first,
            even: first,
            odd: first,
        }
    }
}

/// Leads packets to so many workers.
pub(super) fn program(workers: u8, places: Places) -> Vec<Instruction> {
    /// `BPF_LD | BPF_B | BPF_ABS`, `BPF_JMP | BPF_JSET | BPF_K`, `BPF_ALU | … | BPF_K` and
    /// `BPF_RET | BPF_A` of `linux/bpf_common.h`.
    const LOAD_BYTE: u16 = 0x30;
    const IF_SET: u16 = 0x45;
    const AND: u16 = 0x54;
    const MODULO: u16 = 0x94;
    const ADD: u16 = 0x04;
    const RETURN: u16 = 0x16;
    let step = |code, k| Instruction {
        code,
        if_true: 0,
        if_false: 0,
        k,
    };
    let branch = |k, if_true, if_false| Instruction {
        code: IF_SET,
        if_true,
        if_false,
        k,
    };
    let workers = u32::from(workers);
    let worker_at = |first| [step(MODULO, workers), step(ADD, first), step(RETURN, 0)];
    let mut program = vec![step(LOAD_BYTE, 0), branch(0x80, 0, 4), step(LOAD_BYTE, 5)];
    program.extend(worker_at(places.newcomers));
    program.extend([step(LOAD_BYTE, 1), branch(0x80, 3, 0)]);
    program.extend(worker_at(places.even));
    program.push(step(AND, 0x7f));
    program.extend(worker_at(places.odd));
    program
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use tabane_base::Seed;
    use tabane_core::{Addressee, Steering};
    use tabane_linux::UdpBind;
    use tabane_linux::udp::BoundUdp;

    use super::*;

    /// So many sockets at one address of loopback, in order.
    fn group(sockets: usize) -> Vec<BoundUdp> {
        let local = "127.0.0.1:0".parse().unwrap();
        let interface = None;
        let first = BoundUdp::bind(UdpBind { interface, local }).unwrap();
        let others: Vec<_> = (1..sockets).map(|_| first.sibling().unwrap()).collect();
        std::iter::once(first).chain(others).collect()
    }

    /// Which socket of a group got the datagram.
    fn winner(group: &[UdpSocket]) -> usize {
        let mut buffer = [0; 100];
        loop {
            let got = |socket: &UdpSocket| socket.recv(&mut buffer).is_ok();
            if let Some(found) = group.iter().position(got) {
                return found;
            }
        }
    }

    fn std(bound: &BoundUdp) -> UdpSocket {
        use std::os::fd::AsFd;
        let socket = UdpSocket::from(bound.as_fd().try_clone_to_owned().unwrap());
        // Loopback delivers before `send` returns.
        socket
            .set_read_timeout(Some(Duration::from_millis(1)))
            .unwrap();
        socket
    }

    #[test]
    fn the_kernel_leads_packets_where_their_header_says() {
        let mut rng = Seed(7).rng("packets");
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for workers in 1..=4_u8 {
            let n = u32::from(workers);
            let group = group(2 * usize::from(workers));
            let to = group[0].local_addr();
            let sockets: Vec<_> = group.iter().map(std).collect();
            let upgrade = Places {
                newcomers: n,
                even: 0,
                odd: n,
            };
            let later = Places {
                newcomers: 0,
                even: 0,
                odd: n,
            };
            for places in [Places::all_at(0), Places::all_at(n), upgrade, later] {
                group[0].steer(&program(workers, places)).unwrap();
                let steering = Steering::new(workers, 0, false);
                for _ in 0..40 {
                    let mut packet: Vec<u8> = (0..20).map(|_| rng.below(256) as u8).collect();
                    packet[0] = if rng.below(2) == 0 { 0xc0 } else { 0x43 };
                    let expected = match steering.addressee(&packet).unwrap() {
                        Addressee::Newcomers(worker) => places.newcomers + u32::from(worker),
                        Addressee::Session { worker, is_odd } => {
                            let first = if is_odd { places.odd } else { places.even };
                            first + u32::from(worker)
                        }
                    };
                    sender.send_to(&packet, to).unwrap();
                    assert_eq!(
                        winner(&sockets),
                        expected as usize,
                        "{places:?} {packet:x?}"
                    );
                }
                sender.send_to(&[0xc0, 1], to).unwrap();
                assert_eq!(winner(&sockets), 0, "too short");
            }
        }
    }

    #[test]
    fn an_address_that_a_relay_has_is_refused_to_the_next() {
        let group = group(3);
        let local = group[0].local_addr();
        let interface = None;
        assert!(BoundUdp::bind(UdpBind { interface, local }).is_err());
    }
}
