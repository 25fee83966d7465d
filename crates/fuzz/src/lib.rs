//! Fuzz targets: a function per door that takes bytes of strangers, programs or people.
//!
//! Owns the targets and what each checks beyond "does not panic". `tests/replay.rs` runs them on
//! stable Rust: the committed corpus, then changes of it. `cargo xtask fuzz` runs one of them
//! under libFuzzer.

#![forbid(unsafe_code)]

pub mod gateway;
pub mod handshake;
pub mod hostile_peer;
pub mod packets;
pub mod requests;
pub mod sctp_stack;
pub mod stranger;
pub mod texts;

/// A door: its name, which is its corpus's directory, the executions that a plain test affords,
/// and what takes an input.
pub type Target = (&'static str, u32, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("wire", 20_000, tabane_core::fuzz_decoders),
    ("stranger", 300, stranger::run),
    ("handshake", 300, handshake::run),
    ("hostile_peer", 300, hostile_peer::run),
    ("fleet_list", 3_000, tabane_fleet::fuzz_list),
    ("etcd", 3_000, tabane_relay::fuzz_etcd),
    ("gateway", 3_000, gateway::run),
    ("sctp", 20_000, packets::sctp),
    ("sctp_stack", 300, sctp_stack::run),
    ("ip", 20_000, packets::ip),
    ("control", 3_000, texts::control),
    ("files", 3_000, texts::files),
    ("headers", 20_000, texts::headers),
    ("dns", 20_000, tabane_client::fuzz_dns),
    ("portals", 20_000, tabane_client::fuzz_portals),
    ("destination", 20_000, texts::destination),
    ("join_string", 20_000, texts::join_string),
    ("sctp_notes", 20_000, tabane_sctp::fuzz_notes),
    ("tunnel", 20_000, requests::tunnel),
    ("answers", 20_000, tabane_tunnel::fuzz_answers),
    ("site_packet", 20_000, tabane_tunnel::fuzz_site_packet),
    ("asked_name", 3_000, tabane_tunnel::fuzz_asked_name),
    ("routes", 20_000, tabane_tunnel::fuzz_routes),
    ("visitor", 20_000, tabane_tunnel::fuzz_visitor),
    ("capsules", 20_000, tabane_tunnel::carrier::fuzz_capsules),
    ("web_door", 20_000, tabane_tunnel::carrier::fuzz_visit),
    ("socks", 20_000, requests::socks),
    ("http", 20_000, requests::http),
    ("neighbour", 3_000, tabane_neighbour::fuzz_readers),
    ("syns", 20_000, tabane_linux::syn_hold::fuzz_syns),
    (
        "advertised",
        20_000,
        tabane_linux::advertised::fuzz_advertisements,
    ),
];

/// Runs one target by its name.
///
/// # Panics
/// There is no such target, or the input has shown a fault.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|(known, ..)| *known == name);
    let (_, _, body) = target.expect("the name stands in TARGETS");
    body(data);
}
