#!/bin/sh
# Tests files/ with a `uci` and a procd that only say what they are told. Needs python3 (TOML).
set -eu
cd "$(dirname "$0")"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
    echo "failed: $*" >&2
    exit 1
}

# Reads OPTION=VALUE lines of $UCI, several of one list; as uci(1) does: joined by -d's argument.
cat >"$scratch/uci" <<'END'
#!/bin/sh
between=' '
while getopts qd: flag; do
    [ "$flag" != d ] || between=$OPTARG
done
shift $((OPTIND - 1))
[ "$1" = get ] || exit 2
found=
while IFS= read -r line; do
    [ "${line%%=*}" = "$2" ] || continue
    [ -z "$found" ] || printf %s "$between"
    printf %s "${line#*=}"
    found=yes
done <"$UCI"
[ -n "$found" ] && echo
END
chmod +x "$scratch/uci"
PATH="$scratch:$PATH"
export PATH UCI="$scratch/settings"

# $1: what uci has; $2: what the TOML must come to, as JSON.
comes_to() {
    printf '%s\n' "$1" >"$UCI"
    sh files/uci-to-toml >"$scratch/toml" || fail "$1: refused"
    python3 - "$scratch/toml" "$2" <<'END' || fail "$1: $(cat "$scratch/toml")"
import json, sys, tomllib
with open(sys.argv[1], "rb") as file:
    got = tomllib.load(file)
sys.exit(got != json.loads(sys.argv[2]))
END
}

comes_to '' '{"up": {}}'
comes_to 'tabane.settings.relay=home' '{"relay": "home", "up": {}}'
comes_to 'tabane.settings.links=wan
tabane.settings.links=wwan0
tabane.up.lan=br-lan
tabane.up.route=192.168.20.0/24
tabane.up.strict=1
tabane.up.ping=off
tabane.up.wait=90s
tabane.relay.pool=100.64.16.0/20' \
    '{"links": ["wan", "wwan0"], "relay_pool": ["100.64.16.0/20"],
      "up": {"lan": ["br-lan"], "route": ["192.168.20.0/24"], "strict": true, "ping": false, "wait": "90s"}}'
# What a user types stays a string, and nothing but one.
comes_to 'tabane.settings.relay=a" b\c

tabane.settings.portal_probe=$(touch /x) `id` # ]' \
    '{"relay": "a\" b\\c", "portal_probe": "$(touch /x) `id` # ]", "up": {}}'

echo 'tabane.up.strict=maybe' >"$UCI"
if sh files/uci-to-toml >"$scratch/toml" 2>"$scratch/said"; then
    fail "a switch that is no switch is taken"
fi
grep -q "up.strict is 'maybe'" "$scratch/said" || fail "it says $(cat "$scratch/said")"

# The service: what procd is told.
procd_open_instance() { echo "instance $1"; }
procd_set_param() { echo "$*"; }
procd_close_instance() { :; }
export TABANE_DIRECTORY="$scratch/etc" TABANE_TO_TOML="$PWD/files/uci-to-toml"
export TABANE_RUN="$scratch/run"
. files/tabane.init

echo 'tabane.up.enabled=0' >"$UCI"
[ -z "$(start_service)" ] || fail "what is not enabled is started"
[ "$(readlink "$scratch/run")" = /var/run ] || fail "where there is no /run it would be on flash"
rm "$scratch/run"
mkdir "$scratch/run"
start_service
[ ! -L "$scratch/run" ] && [ -d "$scratch/run" ] || fail "the machine's own /run is not left alone"
for yes in on true yes enabled; do
    echo "tabane.up.enabled=$yes" >"$UCI"
    start_service | grep -q "^command .* up$" || fail "enabled '$yes' does not start it"
done
echo 'tabane.relay.enabled=perhaps' >"$UCI"
! start_service >"$scratch/told" 2>&1 || fail "it starts with a switch that is none"
printf '%s\n' tabane.up.enabled=1 tabane.up.lan=br-lan tabane.relay.enabled=1 \
    'tabane.relay.listen=[::]:4510' tabane.relay.public=a.example tabane.relay.public=b.example \
    >"$UCI"
start_service >"$scratch/told"
grep -qx "command /usr/bin/tabane --config $scratch/etc up" "$scratch/told" ||
    fail "up: $(cat "$scratch/told")"
grep -qx "command /usr/bin/tabane --config $scratch/etc relay --state $scratch/etc/relay --listen \
\[::\]:4510 --public a.example --public b.example" "$scratch/told" ||
    fail "relay: $(cat "$scratch/told")"
grep -q 'lan = \["br-lan"\]' "$scratch/etc/config.toml" || fail "no settings"
touch -d @1 "$scratch/etc/config.toml"
start_service >"$scratch/told"
[ "$(stat -c %Y "$scratch/etc/config.toml")" = 1 ] || fail "flash is written without need"
echo 'tabane.up.ping=x' >>"$UCI"
! start_service >"$scratch/told" 2>&1 || fail "it starts with settings that are none"

# The package: of this version, and with the kernel's modules that our rules are made of.
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' ../../Cargo.toml)
grep -qx "PKG_VERSION:=$version" Makefile || fail "PKG_VERSION is not $version"
for pair in 'socket transparent=nft-socket' 'tproxy to=nft-tproxy' 'fib daddr=nft-fib' \
    'masquerade=nft-nat' 'CTNETLINK=nf-conntrack-netlink' 'dev/net/tun=tun'; do
    grep -rq "${pair%=*}" ../../crates/linux/src ../../crates/client/src || fail "no ${pair%=*}"
    grep -oE '[+][a-z-]+' Makefile | grep -qxF "+kmod-${pair#*=}" || fail "no kmod-${pair#*=}"
done
# What `tabane gateway` runs, and which of its extensions: packages of their own there.
for pair in '"iptables"=iptables-nft' '"ip6tables"=ip6tables-nft' \
    'NFQUEUE=iptables-mod-nfqueue' 'NFLOG=iptables-mod-nflog'; do
    grep -rqF -e "${pair%=*}" ../../crates/linux/src/iptables.rs ../../crates/relay/src/gateway ||
        fail "no ${pair%=*}"
    grep -oE '[+][a-z0-9-]+' Makefile | grep -qxF "+${pair#*=}" || fail "no ${pair#*=}"
done

echo "OpenWrt: settings and service as they should be"
