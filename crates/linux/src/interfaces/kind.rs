//! What an interface is, as far as it matters to who wants links.

use std::fmt;
use std::path::Path;

use rtnetlink::packet_route::link::{InfoKind, LinkLayerType};

/// What an interface is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A network card or what looks like one, USB tethering too.
    Ethernet,
    /// Wireless LAN.
    Wifi,
    /// A cellular modem.
    Cellular,
    /// A dial-up line, as DSL modems offer.
    Ppp,
    /// Several cards as one.
    Bond,
    /// A virtual LAN or sub-interface on another.
    Vlan,
    /// One end of a virtual cable.
    Veth,
    /// A virtual switch.
    Bridge,
    /// A tunnel: TUN, TAP, WireGuard, GRE, IPIP, VXLAN, IPsec…
    Tunnel,
    /// Swallows everything.
    Dummy,
    /// This host itself.
    Loopback,
    /// None of these.
    Other,
}

impl Kind {
    /// From the type of its frames, the driver's word and sysfs.
    pub(super) fn of(name: &str, layer: LinkLayerType, info: Option<&InfoKind>) -> Self {
        if let Some(kind) = info.and_then(Self::of_info) {
            return kind;
        }
        match layer {
            LinkLayerType::Loopback => Self::Loopback,
            LinkLayerType::Ppp => Self::Ppp,
            LinkLayerType::Tunnel
            | LinkLayerType::Tunnel6
            | LinkLayerType::Sit
            | LinkLayerType::Ipgre
            | LinkLayerType::Ip6gre => Self::Tunnel,
            LinkLayerType::Ether if is_wireless(name) => Self::Wifi,
            // Modems come as `wwan0`, over Ethernet frames or bare IP, by older drivers.
            _ if name.starts_with("wwan") => Self::Cellular,
            LinkLayerType::Ether => Self::Ethernet,
            _ => Self::Other,
        }
    }

    /// Physical devices have no such word; other drivers whose word says nothing give `None`.
    fn of_info(info: &InfoKind) -> Option<Self> {
        Some(match info {
            InfoKind::Bridge => Self::Bridge,
            InfoKind::Veth | InfoKind::Netkit => Self::Veth,
            InfoKind::Bond | InfoKind::Team => Self::Bond,
            InfoKind::Vlan
            | InfoKind::MacVlan
            | InfoKind::MacVtap
            | InfoKind::IpVlan
            | InfoKind::IpVtap => Self::Vlan,
            InfoKind::Dummy | InfoKind::Ifb | InfoKind::Nlmon => Self::Dummy,
            InfoKind::VirtWifi => Self::Wifi,
            InfoKind::Wwan | InfoKind::RmNet => Self::Cellular,
            InfoKind::Tun
            | InfoKind::Wireguard
            | InfoKind::Vxlan
            | InfoKind::Geneve
            | InfoKind::GreTap
            | InfoKind::GreTap6
            | InfoKind::GreTun
            | InfoKind::GreTun6
            | InfoKind::IpIp
            | InfoKind::Ip6Tnl
            | InfoKind::SitTun
            | InfoKind::Vti
            | InfoKind::Vti6
            | InfoKind::Xfrm
            | InfoKind::Gtp
            | InfoKind::BareUdp
            | InfoKind::ErSpan
            | InfoKind::Ip6ErSpan
            | InfoKind::Amt => Self::Tunnel,
            InfoKind::Other(word) if word == "ppp" => Self::Ppp,
            _ => return None,
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ethernet => "ethernet",
            Self::Wifi => "wifi",
            Self::Cellular => "cellular",
            Self::Ppp => "ppp",
            Self::Bond => "bond",
            Self::Vlan => "vlan",
            Self::Veth => "veth",
            Self::Bridge => "bridge",
            Self::Tunnel => "tunnel",
            Self::Dummy => "dummy",
            Self::Loopback => "loopback",
            Self::Other => "other",
        })
    }
}

/// sysfs shows the interfaces of the namespace it was mounted in; elsewhere nothing is wireless.
fn is_wireless(name: &str) -> bool {
    let device = Path::new("/sys/class/net").join(name);
    device.join("wireless").exists() || device.join("phy80211").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_word_counts_before_the_frames() {
        let ether = LinkLayerType::Ether;
        assert_eq!(Kind::of("eth0", ether, None), Kind::Ethernet);
        assert_eq!(Kind::of("wwan0", ether, None), Kind::Cellular);
        assert_eq!(Kind::of("tap0", ether, Some(&InfoKind::Tun)), Kind::Tunnel);
        assert_eq!(
            Kind::of("lo", LinkLayerType::Loopback, None),
            Kind::Loopback
        );
        let unheard_of = InfoKind::Other("new-in-7.0".to_owned());
        assert_eq!(Kind::of("eth0", ether, Some(&unheard_of)), Kind::Ethernet);
    }
}
