//! What is said of machines and networks that lack something.

use std::time::Duration;

use tabane_linux::mptcp::Unusable;
use tabane_tunnel::Lodging;

use super::network::{CLIENTS, LINKED};
use super::*;
use crate::doctor::network::{AnswerFacts, InterfaceFacts, RelayFacts};
use crate::doctor::{Grade, Mode, works};

fn machine() -> Machine {
    Machine {
        is_root: true,
        has_net_admin: true,
        kernel: "6.18.0".to_owned(),
        cgroup: Some("/sys/fs/cgroup".into()),
        hooks: Ok(()),
        holds_requests: Ok(()),
        private_network: Ok(()),
        tun: Ok(()),
        tproxy: Ok("nft"),
        queues: Ok(()),
        forwards: true,
        namespace: Ok(()),
        multipath: Ok(()),
        receive_buffer_max: Some(212_992),
        send_buffer_max: Some(212_992),
        descriptors: Some((65_536, 65_536)),
        resolvers: 1,
        clock_behind: Duration::ZERO,
        relay_port: Ok(()),
        sctp_port: Ok(()),
        missing_programs: Vec::new(),
    }
}

fn answer(rtt_ms: f64) -> AnswerFacts {
    AnswerFacts {
        rtt_ms,
        carrier: "udp".to_owned(),
        carrier_why: None,
    }
}

fn network() -> Network {
    let link = |name: &str| InterfaceFacts {
        name: name.to_owned(),
        mtu_bytes: 1_500,
        has_v4: true,
    };
    Network {
        links: vec![link("wlan0"), link("usb0")],
        relays: vec![RelayFacts {
            name: "home".to_owned(),
            reached: Ok(vec![
                ("wlan0".to_owned(), Ok(answer(12.0))),
                ("usb0".to_owned(), Ok(answer(40.0))),
            ]),
            lodging: Some(Lodging::Given),
        }],
        ..Network::default()
    }
}

fn broken(machine: &Machine, network: &Network) -> Vec<Mode> {
    let findings = judge(machine, network);
    for finding in &findings {
        let is_good = finding.grade == Grade::Good;
        assert_eq!(finding.remedy.is_none(), is_good, "{finding:?}");
    }
    let broken = Mode::ALL
        .into_iter()
        .filter(|mode| !works(*mode, &findings));
    broken.collect()
}

#[test]
fn relays_are_reached_by_a_carrier_for_a_reason() {
    let mut network = network();
    let tls = AnswerFacts {
        carrier: "tls".to_owned(),
        carrier_why: Some("UDP gets no answer here".to_owned()),
        ..answer(40.0)
    };
    network.relays[0].reached.as_mut().unwrap()[1].1 = Ok(tls);
    let findings = judge(&machine(), &network);
    let relays = findings.iter().find(|it| it.check == "relays").unwrap();
    assert_eq!(
        relays.what,
        "home: 12.0 ms over wlan0 by udp, 40.0 ms over usb0 by tls (UDP gets no answer here)"
    );
}

#[test]
fn a_good_machine_is_good_for_everything() {
    assert_eq!(broken(&machine(), &network()), []);
    let findings = judge(&machine(), &network());
    assert!(findings.iter().all(|finding| finding.grade == Grade::Good));
}

#[test]
fn what_is_missing_stops_the_modes_that_need_it_and_no_others() {
    let refused = || Err("not allowed".to_owned());
    let mut user = machine();
    user.is_root = false;
    user.has_net_admin = false;
    user.hooks = refused();
    user.holds_requests = refused();
    user.private_network = refused();
    user.tun = refused();
    user.tproxy = Err("no nft".to_owned());
    user.namespace = refused();
    user.queues = refused();
    let needs_root = [Mode::Run, Mode::Up, Mode::Gateway, Mode::Lab];
    assert_eq!(broken(&user, &network()), needs_root);
    user.private_network = Ok(());
    assert_eq!(broken(&user, &network()), needs_root[1..]);

    let mut container = machine();
    container.tun = refused();
    assert_eq!(broken(&container, &network()), [Mode::Up]);

    assert_eq!(broken(&machine(), &Network::default()), LINKED);
    let mut v6_only = network();
    for link in &mut v6_only.links {
        link.has_v4 = false;
    }
    assert_eq!(broken(&machine(), &v6_only), [Mode::Sctp]);
    let mut cut = network();
    cut.relays[0].reached = Err("no answer".to_owned());
    assert_eq!(broken(&machine(), &cut), CLIENTS);
    let mut spare = cut.relays[0].clone();
    spare.reached = Ok(Vec::new());
    cut.relays.push(spare);
    assert_eq!(broken(&machine(), &cut), []);
}

#[test]
fn what_is_poor_is_told_with_the_command_that_mends_it() {
    let remedies = |machine: &Machine, network: &Network| -> String {
        let findings = judge(machine, network);
        let texts = findings.iter().filter_map(|finding| finding.remedy.clone());
        texts.collect::<Vec<_>>().join("\n")
    };
    let mut poor = machine();
    poor.has_net_admin = false;
    poor.descriptors = Some((1_024, 524_288));
    poor.clock_behind = Duration::from_secs(86_400);
    let text = remedies(&poor, &network());
    assert!(
        text.contains("sysctl -w net.core.rmem_max=8388608"),
        "{text}"
    );
    assert!(text.contains("ulimit -n 65536"), "{text}");
    assert!(text.contains("set-ntp"), "{text}");
    let mut host = machine();
    host.forwards = false;
    let text = remedies(&host, &network());
    assert!(text.contains("net.ipv4.ip_forward=1"), "{text}");
    let mut off = machine();
    off.multipath = Err(Unusable::Off);
    let text = remedies(&off, &network());
    assert!(text.contains("net.mptcp.enabled=1"), "{text}");
    off.multipath = Err(Unusable::Absent);
    let text = remedies(&off, &network());
    assert!(text.contains("CONFIG_MPTCP"), "{text}");
    let mut one = network();
    one.links.pop();
    one.links[0].mtu_bytes = 1_200;
    one.relays[0].reached = Ok(vec![("wlan0".to_owned(), Err("never answered".to_owned()))]);
    let text = remedies(&machine(), &one);
    assert!(text.contains("ip link set wlan0 mtu 1280"), "{text}");
    assert!(text.contains("ping -I wlan0"), "{text}");
}
