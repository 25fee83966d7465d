//! Client and relay in one process, on two threads, over loopback: the tunnel from end to end.

mod loopback {
    mod session;
    mod tcp;
    mod udp;
    mod world;
}
