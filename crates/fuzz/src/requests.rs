//! What opens a connection: requests within the tunnel, SOCKS5, heads for an HTTP proxy.
//!
//! All of them arrive in pieces, so whatever is taken from a whole must not be taken otherwise from
//! its front: there each says that more is needed, or the same.

use tabane_base::Destination;
use tabane_client::proxy::{
    HttpRequest, emit_datagram, parse_datagram, parse_greeting, parse_request, parse_socks5_request,
};
use tabane_tunnel::Request;

use crate::texts::check;

/// What a client asks of its relay on a stream.
pub fn tunnel(data: &[u8]) {
    let Ok(Some((request, taken))) = Request::parse(data) else {
        return;
    };
    for cut in 0..taken {
        assert_eq!(Request::parse(&data[..cut]), Ok(None), "cut at {cut}");
    }
    let mut out = Vec::new();
    request.emit(&mut out);
    assert_eq!(Request::parse(&out), Ok(Some((request, out.len()))));
}

/// Greetings, requests and datagrams of SOCKS5.
pub fn socks(data: &[u8]) {
    if let Ok(Some(taken)) = parse_greeting(data) {
        assert!(taken <= data.len());
    }
    if let Ok(Some((request, taken))) = parse_socks5_request(data) {
        check(&request.destination);
        for cut in 0..taken {
            assert_eq!(parse_socks5_request(&data[..cut]), Ok(None), "cut at {cut}");
        }
    }
    if let Ok(datagram) = parse_datagram(data) {
        check(&datagram.destination);
        let mut out = Vec::new();
        emit_datagram(&datagram.destination, datagram.payload, &mut out);
        assert_eq!(parse_datagram(&out).as_ref(), Ok(&datagram));
    }
}

/// The head of a request to an HTTP proxy. What is sent on to the origin has one end, the last.
pub fn http(data: &[u8]) {
    let taken = |destination: &Destination, consumed: usize| {
        check(destination);
        assert!(consumed <= data.len());
    };
    match parse_request(data) {
        Ok(Some(HttpRequest::Connect {
            destination,
            consumed,
        })) => taken(&destination, consumed),
        Ok(Some(HttpRequest::Forward {
            destination,
            head,
            consumed,
        })) => {
            taken(&destination, consumed);
            let end = head.windows(4).position(|four| four == b"\r\n\r\n");
            assert_eq!(end.map(|at| at + 4), Some(head.len()), "a second request");
        }
        Ok(None) | Err(_) => {}
    }
}
