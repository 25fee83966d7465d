#!/bin/sh
# Within a fresh Debian, as its root: installs /trial/tabane.deb, upgrades to a newer one while a
# relay runs, removes and purges. Ends at the first thing that is not as it should be.
set -eu

fail() {
    echo "failed: $*" >&2
    exit 1
}

apt() {
    apt-get -q -y "$@" >/trial/apt.log 2>&1 || {
        cat /trial/apt.log >&2
        fail "apt-get $*"
    }
}

. /etc/os-release
apt update
before=$(date +%s%N)
apt install /trial/tabane.deb
installed=$(date +%s%N)
mkfifo /trial/demo /trial/join
tabane demo >/trial/demo 2>/trial/demo.log &
demo=$!
IFS= read -r line </trial/demo || fail "tabane demo says nothing: $(cat /trial/demo.log)"
first=$(date +%s%N)
kill "$demo" 2>/dev/null || true
wait "$demo" 2>/dev/null || true
echo "$PRETTY_NAME: apt took $(((installed - before) / 1000000)) ms," \
    "to the first line of \`tabane demo\` $(((first - before) / 1000000)) ms: $line"
[ $((first - before)) -le 15000000000 ] || fail "promised are 15 s"

getent passwd _tabane >/dev/null || fail "there is no user _tabane"
apparmor_parser --quiet --skip-kernel-load --skip-cache /etc/apparmor.d/tabane-relay
tabane service install relay --print >/trial/relay.service
grep -q '^User=_tabane$' /trial/relay.service || fail "the relay's unit has no user"
systemd-analyze verify --man=no /trial/relay.service

# As the unit has it, by other means: there is no systemd running here.
might=+net_bind_service,+net_admin,+net_raw
install -d -m 700 -o _tabane -g _tabane /var/lib/tabane /run/tabane-relay
HOME=/var/lib/tabane TABANE_RUNTIME=/run/tabane-relay setpriv --reuid=_tabane --regid=_tabane \
    --clear-groups --bounding-set=-all,$might --inh-caps=-all,$might --ambient-caps=-all,$might \
    --no-new-privs tabane relay --state /var/lib/tabane --listen 127.0.0.1:4510 \
    >/trial/join 2>/trial/relay.log &
relay=$!
IFS= read -r line </trial/join || fail "the relay has gone: $(cat /trial/relay.log)"
tabane relay token new >/dev/null || fail "root makes no token for it"
strangers=$(find /var/lib/tabane ! -user _tabane)
[ -z "$strangers" ] || fail "not the relay's own: $strangers"
tabane status --list | grep -q relay-4510 || fail "root does not see the relay"

echo 'trust_first_use = false' >/etc/tabane/config.toml
apt -o Dpkg::Options::=--force-confold install /trial/tabane-newer.deb
grep -q '^trust_first_use' /etc/tabane/config.toml || fail "the upgrade took the settings away"
kill -0 "$relay" 2>/dev/null || fail "the upgrade ended the relay"
tabane status --list | grep -q relay-4510 || fail "the new program does not see the old one's relay"
tabane status --instance relay-4510 >/dev/null || fail "the old relay gives no answer"

apt remove tabane
[ -e /etc/tabane/config.toml ] && [ -e /var/lib/tabane/relay.key ] || fail "removing took keys"
[ ! -e /usr/bin/tabane ] || fail "removing left the program"
kill "$relay"
wait "$relay" 2>/dev/null || true
apt purge tabane
left=$(find / -xdev \( -path /proc -o -path /sys -o -path /trial -o -path /var/log \
    -o -path /var/cache \) -prune -o -name '*tabane*' -print)
[ -z "$left" ] || fail "purging left: $left"
echo "$PRETTY_NAME: installs, upgrades while a relay runs, purges"
