//! Tunnels that are ended at the proxy: what programs and origins see of it.
//!
//! Whatever a link is asked to connect to, it reaches an origin with TLS on loopback.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tabane_fetch::{BoxStream, Client, Connecting, Links, Patience, Proxies, Way};
use tabane_ranges::LinkLimits;
use tabane_web::{Authority, Carried, Interception, KeptAuthority};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::origin::{Origin, Reply, file, file_answer};
use super::program::Program;
use super::{Desk, on_this_thread};

/// What the origin has a certificate for.
const KNOWN: [&str; 2] = ["files.example.org", "other.example.net"];
/// It has none for this one.
const WRONG: &str = "wrong.example.org";
const SIZE: usize = 300_000;

/// Leads to a port of loopback.
struct HereWay(u16);

impl Way for HereWay {
    fn connect<'a>(&'a self, _: &'a str, _: u16) -> Connecting<'a> {
        Box::pin(async move {
            let connection = TcpStream::connect(("127.0.0.1", self.0)).await.unwrap();
            Ok(Box::new(connection) as BoxStream)
        })
    }
}

/// An origin, a proxy that intercepts `files.` and `wrong.example.org`, and whom programs trust.
struct Scene {
    origin: Origin,
    desk: Desk,
    /// The proxy's authority alone.
    trusting: Arc<ClientConfig>,
    /// The origin's certificate alone.
    ordinary: Arc<ClientConfig>,
}

impl Scene {
    async fn start() -> Self {
        let own = rcgen::generate_simple_self_signed(KNOWN.map(str::to_owned)).unwrap();
        let chain = vec![own.cert.der().clone()];
        let key = PrivateKeyDer::Pkcs8(own.signing_key.serialize_der().into());
        let tls = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain.clone(), key);
        let tls = TlsAcceptor::from(Arc::new(tls.unwrap()));
        let origin = Origin::secure(tls, |head, body| {
            if head.contains("upgrade: websocket\r\n") {
                let text = "HTTP/1.1 101 Now\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                            Sec-WebSocket-Accept: x\r\n\r\nhello ";
                return Reply::SayAndEcho(text.into());
            }
            match head.starts_with("post ") {
                true => {
                    let text = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                    Reply::Say([text.as_bytes(), body].concat())
                }
                false => Reply::Say(file_answer(head, &file(SIZE), "\"1\"")),
            }
        });
        let origin = origin.await;
        let links = Links::default();
        for name in ["fast", "slow"] {
            let way = Rc::new(HereWay(origin.port));
            links.add(name, way, LinkLimits::default());
        }
        let roots = roots(chain[0].clone());
        let client = Client::trusting(roots.clone(), Proxies::default(), Patience::default());
        let domains = ["example.org".to_owned()];
        let life = Duration::from_secs(86_400);
        let made = KeptAuthority::make("desk", domains, SystemTime::now(), life).unwrap();
        let authority = CertificateDer::from_pem_slice(made.certificate.as_bytes()).unwrap();
        let hosts = [KNOWN[0], WRONG].map(|host| host.parse().unwrap());
        let interception = Interception::new(Authority::open(&made).unwrap(), hosts.to_vec());
        Self {
            origin,
            desk: Desk::with(client, links, &[], Some(interception.unwrap())).await,
            trusting: settings(self::roots(authority)),
            ordinary: settings(roots),
        }
    }

    /// A tunnel to a host, without TLS yet.
    async fn tunnel(&self, host: &str) -> Program {
        let mut program = self.desk.program().await;
        let text = format!("CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n");
        program.say(text.as_bytes()).await;
        let head = program.head().await;
        assert!(head.starts_with("http/1.1 200"), "{head:?}");
        program
    }

    /// A program that trusts the proxy's authority, within a tunnel.
    async fn program(&self, host: &str) -> Program {
        let tunnel = self.tunnel(host).await;
        tunnel.secure(host, &self.trusting).await.unwrap()
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn roots(certificate: CertificateDer<'static>) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    roots
}

fn settings(roots: RootCertStore) -> Arc<ClientConfig> {
    let settings = ClientConfig::builder_with_provider(provider());
    let settings = settings.with_safe_default_protocol_versions().unwrap();
    let mut settings = settings.with_root_certificates(roots).with_no_client_auth();
    settings.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(settings)
}

#[test]
fn requests_within_a_tunnel_are_served_like_any_others() {
    on_this_thread(async {
        let scene = Scene::start().await;
        let mut program = scene.program(KNOWN[0]).await;
        let host = format!("Host: {}\r\n", KNOWN[0]);
        let lines = format!("{host}Cookie: a=b\r\n\r\n");
        program
            .say(format!("GET /file?secret HTTP/1.1\r\n{lines}").as_bytes())
            .await;
        let answer = program.answer(false).await;
        assert!(answer.status == 200 && answer.body == file(SIZE));
        // The tunnel itself is no request.
        let record = scene.desk.record(0).await;
        assert_eq!(record.target, format!("https://{}/file", KNOWN[0]));
        assert_eq!(
            (record.carried, record.intercepted, record.trouble),
            (Carried::Split, true, None)
        );
        let heard = scene.origin.heard();
        assert!(heard[0].starts_with("get /file?secret "), "{}", heard[0]);
        for head in &heard {
            assert!(head.contains("cookie: a=b\r\n"), "{head}");
            assert!(head.contains(&host.to_lowercase()), "{head}");
        }
        // On the same connection: something that is done once, and something for somebody else.
        let post = format!("POST /form HTTP/1.1\r\n{host}Content-Length: 3\r\n\r\nx=y");
        program.say(post.as_bytes()).await;
        let answer = program.answer(false).await;
        assert_eq!((answer.status, answer.body.as_slice()), (200, &b"x=y"[..]));
        assert_eq!(scene.desk.record(1).await.carried, Carried::Whole);
        let count = scene.origin.heard().len();
        let other = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", KNOWN[1]);
        program.say(other.as_bytes()).await;
        assert_eq!(program.answer(false).await.status, 421);
        assert_eq!(scene.origin.heard().len(), count);
    });
}

#[test]
fn another_protocol_is_changed_to() {
    on_this_thread(async {
        let scene = Scene::start().await;
        let mut program = scene.program(KNOWN[0]).await;
        let host = KNOWN[0];
        let text = format!(
            "GET /chat HTTP/1.1\r\nHost: {host}\r\nConnection: keep-alive, Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n"
        );
        program.say(text.as_bytes()).await;
        let head = program.head().await;
        assert!(head.starts_with("http/1.1 101"), "{head}");
        for line in [
            "connection: upgrade",
            "upgrade: websocket",
            "sec-websocket-accept: x",
        ] {
            assert!(head.contains(line), "{head}");
        }
        program.say(b"world").await;
        assert_eq!(program.raw(11).await, b"hello world");
        assert!(scene.origin.heard()[0].contains("sec-websocket-key: k\r\n"));
        program.say_no_more().await;
        assert!(program.is_closed().await);
        let record = scene.desk.record(0).await;
        assert_eq!(
            (record.status, record.carried, record.intercepted),
            (101, Carried::Tunnel, true)
        );
        assert_eq!(record.links.values().sum::<u64>(), 11 + 5);
    });
}

#[test]
fn an_origin_with_a_wrong_certificate_gets_nothing_and_its_page_is_an_error() {
    on_this_thread(async {
        let scene = Scene::start().await;
        let mut program = scene.program(WRONG).await;
        let text = format!("GET / HTTP/1.1\r\nHost: {WRONG}\r\nCookie: a=b\r\n\r\n");
        program.say(text.as_bytes()).await;
        let answer = program.answer(false).await;
        let body = String::from_utf8(answer.body).unwrap();
        assert_eq!(answer.status, 502, "{body}");
        assert!(body.contains("certificate not valid for name"), "{body}");
        assert!(scene.origin.heard().is_empty());
    });
}

#[test]
fn who_does_not_trust_the_authority_is_told_of_and_others_are_left_alone() {
    on_this_thread(async {
        let scene = Scene::start().await;
        let tunnel = scene.tunnel(KNOWN[0]).await;
        assert!(tunnel.secure(KNOWN[0], &scene.ordinary).await.is_err());
        let record = scene.desk.record(0).await;
        assert_eq!(record.carried, Carried::Not);
        let trouble = record.trouble.unwrap();
        assert!(trouble.contains("does not trust"), "{trouble}");
        // Others look at the certificate when the handshake is over.
        let tunnel = scene.tunnel(KNOWN[0]).await;
        drop(tunnel.secure(KNOWN[0], &scene.trusting).await.unwrap());
        let trouble = scene.desk.record(1).await.trouble.unwrap();
        assert!(trouble.contains("hung up"), "{trouble}");
        // One host in the tunnel's name, another in TLS's.
        let tunnel = scene.tunnel(KNOWN[0]).await;
        assert!(tunnel.secure(WRONG, &scene.trusting).await.is_err());
        let trouble = scene.desk.record(2).await.trouble.unwrap();
        assert!(trouble.contains(WRONG), "{trouble}");
        // A host that is not named: its own certificate, whatever the authority could do.
        let tunnel = scene.tunnel(KNOWN[1]).await;
        assert!(tunnel.secure(KNOWN[1], &scene.trusting).await.is_err());
        let tunnel = scene.tunnel(KNOWN[1]).await;
        let mut program = tunnel.secure(KNOWN[1], &scene.ordinary).await.unwrap();
        let answer = program.get("/file", "").await;
        assert!(answer.status == 200 && answer.body == file(SIZE));
        assert_eq!(scene.origin.heard().len(), 1);
        drop(program);
        let record = scene.desk.record(4).await;
        assert_eq!(
            (record.carried, record.intercepted),
            (Carried::Tunnel, false)
        );
    });
}
