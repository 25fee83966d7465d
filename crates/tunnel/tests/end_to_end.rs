//! Client and relay in one process, on two threads: the tunnel from end to end, over loopback and
//! over links between namespaces.

#![allow(clippy::unwrap_used)]

mod end_to_end {
    mod attacks;
    mod bad_networks;
    mod behind;
    mod cables;
    mod carriers;
    mod endings;
    mod far;
    mod log;
    mod measuring;
    mod monitor;
    mod packets;
    mod relays;
    mod session;
    mod sites;
    mod tcp;
    mod udp;
    mod workers;
    mod world;
}
