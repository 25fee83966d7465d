"""Cells: what connect() says, and when."""
import errno, select, socket, struct, time

import uring
from cells import *

# Where packets to addresses of 198.51.100.0/24 and 2001:db8:bad::/64 end, as the world has it.
OUTCOMES = {
    "open port": (ECHO, {4: V4, 6: V6}),
    "closed port": (CLOSED, {4: V4, 6: V6}),
    "host unreachable": (80, {4: "198.51.100.1", 6: "2001:db8:bad::1"}),
    "prohibited by a router": (80, {4: "198.51.100.2", 6: "2001:db8:bad::2"}),
    "network unreachable": (80, {4: "198.51.100.3", 6: "2001:db8:bad::3"}),
    "nobody answers": (80, {4: "198.51.100.4", 6: "2001:db8:bad::4"}),
}

# What ICMP errors say.
UNREACHABLE = {"host unreachable", "prohibited by a router", "network unreachable"}

def tcp(address):
    s = socket.socket(family_of(address))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT, 1)
    return s

def named(number):
    return errno.errorcode[number] if number else "connected"

def blocking(address, port):
    return named(tcp(address).connect_ex((address, port)))

def started(address, port):
    s = tcp(address)
    s.setblocking(False)
    return s, named(s.connect_ex((address, port)))

def finished(s, first, mask):
    """What came of a connection once it was known: events, the error, and that it is told once."""
    # A kernel tells of the error a moment before the socket is closed, and may be held up between.
    deadline = time.monotonic() + 10
    mask = mask and await_events(s, select.POLLOUT, 0)
    while mask & select.POLLERR and not mask & select.POLLHUP and time.monotonic() < deadline:
        mask = await_events(s, select.POLLOUT, 0)
    after = outcome(lambda: s.getpeername() and "has a peer")
    return f"{first}, {events(mask)}, {pending(s)}, then {pending(s)}, {after}"

def polled(address, port):
    s, first = started(address, port)
    return finished(s, first, await_events(s, select.POLLOUT))

def epolled(address, port):
    s, first = started(address, port)
    epoll = select.epoll()
    epoll.register(s, select.EPOLLOUT | select.EPOLLET)
    found = epoll.poll(10)
    return finished(s, first, found[0][1] if found else 0)

def by_ring(address, port):
    return named(uring.connect(tcp(address), address, port))

METHODS = {"blocking": blocking, "non-blocking, poll": polled, "edge-triggered epoll": epolled, "io_uring": by_ring}

# Proxies have no word for EACCES.
def shades(what, version):
    return () if what == "prohibited by a router" and version == 6 else PROXIED

def add_outcomes():
    for what, (port, addresses) in OUTCOMES.items():
        for version, address in addresses.items():
            for how, method in METHODS.items():
                if what == "prohibited by a router" and version == 6 and how != "blocking":
                    continue
                # Its result may be lost between an ICMP error and its next try, plainly as well.
                if how == "io_uring" and what in UNREACHABLE:
                    continue
                def run(way, method=method, address=address, port=port):
                    if way.proxied:
                        return outcome(lambda: way.dial(address, port) and "connected")
                    return method(address, port)
                cell(f"connect, {what}, IPv{version}, {how}", proxied=shades(what, version) if how == "blocking" else ())(run)

add_outcomes()

@cell("connect, nobody answers, given up after 0.3 s")
def gives_up(way):
    s = tcp(V4)
    s.settimeout(0.3)
    return outcome(s.connect, ("198.51.100.4", 80))

@cell("connect, nobody answers, SO_SNDTIMEO of 0.3 s")
def send_timeout(way):
    s = tcp(V4)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 300_000))
    return named(s.connect_ex(("198.51.100.4", 80)))

@cell("connect, nobody answers, TCP_USER_TIMEOUT of 1 s")
def user_timeout(way):
    s = socket.socket()
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000)
    began = time.monotonic()
    result = named(s.connect_ex(("198.51.100.4", 80)))
    return f"{result} {'within' if time.monotonic() - began < 10 else 'after more than'} 10 s"

@cell("connect, nobody answers, meanwhile")
def meanwhile(way):
    s, first = started("198.51.100.4", 80)
    seen = events(await_events(s, select.POLLOUT | select.POLLIN, 0.3))
    again = named(s.connect_ex(("198.51.100.4", 80)))
    state = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    state = {1: "ESTABLISHED", 2: "SYN_SENT"}.get(state, state)
    return f"{first}, {seen}, again {again}, {state}, {outcome(s.send, b'x')}, {outcome(s.getpeername)}"

@cell("connect, twice to an open port")
def twice(way):
    s = way.dial(V4, ECHO)
    return named(s.connect_ex((V4, ECHO)))

@cell("connect, refused, then to an open port by the same socket")
def refused_then_open(way):
    s = tcp(V4)
    return f"{named(s.connect_ex((V4, CLOSED)))}, {named(s.connect_ex((V4, ECHO)))}"

for what, port in ("an open", ECHO), ("a closed", CLOSED):
    @cell(f"connect, TCP_FASTOPEN_CONNECT to {what} port")
    def fast_open(way, port=port):
        s = tcp(V4)
        s.settimeout(10)
        # Of linux/tcp.h; Python does not know it.
        TCP_FASTOPEN_CONNECT = 30
        s.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)
        def talk():
            s.connect((V4, port))
            s.sendall(b"early")
            return exactly(s, 5).decode()
        return outcome(talk)

@cell("connect, bound to a device")
def bound_to_device(way):
    s = tcp(V4)
    s.settimeout(10)
    device = [name for _, name in socket.if_nameindex() if name != "lo" and not name.startswith("tabane")][0]
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
    def talk():
        s.connect((V4, ECHO))
        s.sendall(b"bound")
        return exactly(s, 5).decode()
    return outcome(talk)

@cell("connect, an IPv4 address in mapped form")
def mapped(way):
    s = way.dial("::ffff:" + V4, ECHO)
    return f"{s.getpeername()[:2]}"
