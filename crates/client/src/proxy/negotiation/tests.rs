//! Real programs' words over loopback sockets.

use super::super::socks5::emit_datagram;
use super::*;
use tabane_base::Host;
use tokio::io::duplex;
use tokio::net::{TcpListener, UdpSocket};

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (program, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    (program.unwrap(), accepted.unwrap().0)
}

/// Says `words` byte by byte, so that every truncation passes through the reader.
async fn request(words: &'static [u8]) -> (TcpStream, Result<Request, NegotiationError>) {
    let (mut program, ours) = pair().await;
    program.set_nodelay(true).unwrap();
    let asked = tokio::spawn(negotiate(ours));
    for byte in words {
        program.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    (program, asked.await.unwrap())
}

fn tcp(request: Result<Request, NegotiationError>) -> TcpRequest {
    match request.unwrap() {
        Request::Tcp(request) => request,
        Request::Udp(_) => panic!("expected TCP"),
    }
}

async fn read_all(mut program: TcpStream) -> String {
    let mut text = Vec::new();
    program.read_to_end(&mut text).await.unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn socks5_connect_to_a_name() {
    let words = b"\x05\x01\x00\x05\x01\x00\x03\x0bexample.org\x01\xbbhello";
    let (mut program, ours) = pair().await;
    program.write_all(words).await.unwrap();
    let request = tcp(negotiate(ours).await);
    assert_eq!(request.destination().host, Host::Name("example.org".into()));
    assert_eq!(request.destination().port, 443);
    let accepted = request.accept().await.unwrap();
    assert_eq!(accepted.early, b"hello");
    let mut reply = [0; 12];
    program.read_exact(&mut reply).await.unwrap();
    assert_eq!(reply, [5, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
}

#[tokio::test]
async fn socks5_byte_by_byte_and_refused() {
    let (program, asked) = request(b"\x05\x01\x00\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x50").await;
    tcp(asked).refuse(Refusal::Refused).await;
    assert_eq!(read_all(program).await.as_bytes()[..4], [5, 0, 5, 5]);
}

#[tokio::test]
async fn socks5_faults_are_answered() {
    let (program, asked) = request(b"\x05\x01\x02").await;
    assert!(matches!(
        asked,
        Err(NegotiationError::Socks5(Socks5Error::NoAcceptableMethod))
    ));
    let mut reply = Vec::new();
    let mut program = program;
    program.read_to_end(&mut reply).await.unwrap();
    assert_eq!(reply, [5, 0xff]);

    let (mut program, asked) = request(b"\x05\x01\x00\x05\x02").await;
    assert!(matches!(
        asked,
        Err(NegotiationError::Socks5(Socks5Error::Command(2)))
    ));
    reply.clear();
    program.read_to_end(&mut reply).await.unwrap();
    assert_eq!(reply[..4], [5, 0, 5, 7]);
}

#[tokio::test]
async fn http_connect_byte_by_byte() {
    let (mut program, asked) = request(b"CONNECT [::1]:8443 HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let request = tcp(asked);
    assert_eq!(request.destination().to_string(), "[::1]:8443");
    let accepted = request.accept().await.unwrap();
    assert!(accepted.early.is_empty());
    let mut reply = [0; 12];
    program.read_exact(&mut reply).await.unwrap();
    assert_eq!(&reply, b"HTTP/1.1 200");
}

#[tokio::test]
async fn http_forward_hands_on_head_and_body() {
    let (_program, ours) = pair().await;
    let mut program = _program;
    let words = b"POST http://h/p HTTP/1.1\r\nContent-Length: 2\r\n\r\nab";
    program.write_all(words).await.unwrap();
    let accepted = tcp(negotiate(ours).await).accept().await.unwrap();
    let sent = String::from_utf8(accepted.early).unwrap();
    assert!(
        sent.starts_with("POST /p HTTP/1.1\r\nHost: h\r\n"),
        "{sent}"
    );
    assert!(sent.ends_with("\r\n\r\nab"), "{sent}");
}

#[tokio::test]
async fn http_faults_and_refusals_are_answered_in_words() {
    let (program, asked) = request(b"GET / HTTP/1.1\r\n\r\n").await;
    assert!(matches!(
        asked,
        Err(NegotiationError::Http(HttpError::NotForProxy))
    ));
    assert!(read_all(program).await.starts_with("HTTP/1.1 400 "));

    let (program, asked) = request(b"CONNECT h:1 HTTP/1.1\r\n\r\n").await;
    tcp(asked).refuse(Refusal::NameNotFound).await;
    let text = read_all(program).await;
    assert!(
        text.starts_with("HTTP/1.1 502 ") && text.contains("h:1: the host name"),
        "{text}"
    );
}

#[tokio::test]
async fn unknown_words_and_early_close_are_errors() {
    let (program, asked) = request(b"\x16\x03\x01").await;
    assert!(matches!(
        asked,
        Err(NegotiationError::Http(HttpError::Syntax(_)))
    ));
    drop(program);
    let (program, ours) = pair().await;
    drop(program);
    assert!(matches!(
        negotiate(ours).await,
        Err(NegotiationError::Closed)
    ));
}

#[tokio::test]
async fn udp_association_hears_only_its_program_and_ends_with_it() {
    let (mut program, asked) =
        request(b"\x05\x01\x00\x05\x03\x00\x01\x00\x00\x00\x00\x00\x00").await;
    let Ok(Request::Udp(wish)) = asked else {
        panic!("{asked:?}")
    };
    let mut association = wish.accept().await.unwrap();
    let mut reply = [0; 12];
    program.read_exact(&mut reply).await.unwrap();
    let port = u16::from_be_bytes([reply[10], reply[11]]);

    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(("127.0.0.1", port)).await.unwrap();
    let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let destination = Destination::parse("dns.example:53", None).unwrap();
    let mut datagram = Vec::new();
    emit_datagram(&destination, b"query", &mut datagram);
    socket.send(b"\x00\x00").await.unwrap();
    socket.send(&datagram).await.unwrap();
    let incoming = association.receive().await.unwrap().unwrap();
    assert_eq!(
        (incoming.destination, &incoming.payload[..]),
        (destination.clone(), &b"query"[..])
    );

    stranger
        .send_to(&datagram, ("127.0.0.1", port))
        .await
        .unwrap();
    association.sender().send(&destination, b"answer");
    let mut buffer = [0; 100];
    let n = socket.recv(&mut buffer).await.unwrap();
    assert!(buffer[..n].ends_with(b"answer"));

    drop(program);
    assert_eq!(association.receive().await.unwrap(), None);
}

/// Each crumb has all of the head looked at again.
#[tokio::test]
async fn a_long_head_in_crumbs_is_not_heard_to_its_end() {
    let head = |length| {
        format!(
            "GET http://a/ HTTP/1.1\r\nX: {}\r\n\r\n",
            "y".repeat(length)
        )
    };
    for (length, piece, is_heard) in [(60_000, 1_400, true), (1_500, 1, true), (60_000, 1, false)] {
        let (mut program, mut ours) = duplex(piece);
        let (head, mut buffer) = (head(length), Vec::new());
        let says = program.write_all(head.as_bytes());
        let hears = async {
            let heard = read_head(&mut ours, &mut buffer).await;
            drop(ours);
            heard
        };
        let (_, heard) = tokio::join!(says, hears);
        match is_heard {
            true => assert!(heard.is_ok(), "{length} in pieces of {piece}: {heard:?}"),
            false => assert!(matches!(
                heard,
                Err(NegotiationError::Http(HttpError::Crumbs))
            )),
        }
    }
}
