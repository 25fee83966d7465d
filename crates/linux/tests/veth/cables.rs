//! Two namespaces and two cables between them.

use std::future::Future;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use tabane_linux::{UdpBind, UdpSocket, netns::Netns};
use tokio::time::timeout;

/// The namespace beyond the cables.
pub(crate) struct Far {
    netns: Netns,
}

impl Far {
    /// A UDP socket there.
    pub(crate) fn bind(&self, local: &str) -> UdpSocket {
        let runtime = tokio::runtime::Handle::current();
        let bind = || {
            let _inside = runtime.enter();
            UdpSocket::bind(UdpBind {
                interface: None,
                local: local.parse().unwrap(),
            })
            .unwrap()
        };
        self.netns.run(bind).unwrap()
    }
}

/// Runs `test` in a namespace of its own, at the near end of both cables.
pub(crate) fn with_cables<F: Future<Output = ()>>(test: impl FnOnce(Far) -> F) {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: needs root");
        return;
    }
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    let name = format!("tabane-veth-{}-{number}", std::process::id());
    let netns = Netns::create(&name).unwrap();
    lay(&name);
    // `keep` keeps the namespace; without its name nothing is left behind.
    let keep = netns.clone();
    Netns::remove(&name).unwrap();

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        timeout(super::PATIENCE, test(Far { netns }))
            .await
            .expect("the test hangs");
    });
    drop(keep);
}

fn lay(far: &str) {
    ip("link set lo up");
    ip(&format!("-n {far} link set lo up"));
    ip(&format!("-n {far} addr add 10.71.9.9/32 dev lo"));
    for number in [1, 2] {
        ip(&format!(
            "link add near{number} type veth peer name far{number} netns {far}"
        ));
        ip(&format!("addr add 10.71.{number}.1/24 dev near{number}"));
        ip(&format!(
            "-n {far} addr add 10.71.{number}.2/24 dev far{number}"
        ));
        if number == 2 {
            ip("-6 addr add fd71::1/64 dev near2 nodad");
            ip(&format!("-n {far} -6 addr add fd71::2/64 dev far2 nodad"));
        }
        ip(&format!("link set near{number} up"));
        ip(&format!("-n {far} link set far{number} up"));
        let metric = 100 * number;
        ip(&format!(
            "route add default via 10.71.{number}.2 dev near{number} metric {metric}"
        ));
    }
}

/// Runs `ip` with arguments separated by spaces, in the namespace of this thread.
pub(crate) fn ip(arguments: &str) {
    let status = Command::new("ip")
        .args(arguments.split(' '))
        .status()
        .unwrap();
    assert!(status.success(), "ip {arguments}");
}
