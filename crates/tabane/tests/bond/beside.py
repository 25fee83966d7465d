"""Protocols that are neither TCP nor UDP: raw sockets of both families.

serve                          answers what comes by the protocols below with the sender's address
ask PROTOCOL SIZE ADDRESS...   asks, and prints whom the server saw, or - where nobody answered
pour PROTOCOL ADDRESS          sends one every millisecond until its input ends, and prints what errors
                               it got
hop LIMIT ADDRESS              pings with this time to live, and prints what router says that it is up
said PROTOCOL LIMIT SIZE ADDRESS
                               sends by this protocol (1 and 58 are pings) with this time to live and
                               prints who complains of it, by which type and code; larger is whole
pings IDENT COUNT ADDRESS      pings with this identifier and a secret of its own; prints how many
                               answers came with the secret, and how many with another's
listen ADDRESS                 listens for what nobody asked for, until somebody has said on its input
                               that it was sent and the address has answered; prints what came
inject ADDRESS                 sends such things there
"""
import os, select, socket, struct, sys, time

PROTOCOLS = [253, 47, 50]

def checksum(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff

def raw(address, protocol):
    return socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_RAW, protocol)

def receive(s):
    data, peer = s.recvfrom(65535)
    return (data if s.family == socket.AF_INET6 else data[(data[0] & 15) * 4:]), peer[0]

def serve():
    sockets = [raw(any, protocol) for any in ("0.0.0.0", "::") for protocol in PROTOCOLS]
    print("ready", flush=True)
    while True:
        for s in select.select(sockets, [], [])[0]:
            data, peer = receive(s)
            if data[4:8] == b"ask!":
                s.sendto(data[:4] + b"got:" + peer.encode() + b" " + data[8:], (peer, 0))

def ask(protocol, size, address):
    s = raw(address, protocol)
    # A GRE header without a key, which ESP takes for an index and 253 for nothing.
    header, secret = b"\0\0\x88\xb5", os.urandom(8).hex().encode()
    for _ in range(20):
        try:
            s.sendto(header + b"ask!" + secret + bytes(size), (address, 0))
        except OSError as error:
            return f"-{error}"
        ends = time.monotonic() + 0.5
        while (left := ends - time.monotonic()) > 0 and select.select([s], [], [], left)[0]:
            data, peer = receive(s)
            if data[4:8] == b"got:" and secret in data and peer == address:
                assert data.endswith(secret + bytes(size))
                return data[8:].split()[0].decode()
    return "-"

def pour(protocol, address):
    s, errors = raw(address, protocol), set()
    while not select.select([sys.stdin], [], [], 0.001)[0]:
        try:
            s.sendto(b"\0\0\x88\xb5pour", (address, 0))
        except OSError as error:
            errors.add(str(error))
    print(*sorted(errors))

def echo(ident, number, data):
    message = struct.pack("!BBHHH", 8, 0, 0, ident, number) + data
    return message[:2] + struct.pack("!H", checksum(message)) + message[4:]

def hop(limit, address):
    s = raw(address, socket.IPPROTO_ICMP)
    s.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, limit)
    for number in range(20):
        s.sendto(echo(os.getpid() & 0xffff, number, b""), (address, 0))
        while select.select([s], [], [], 0.5)[0]:
            data, peer = receive(s)
            # Our packet as we sent it, though it had another source on its way.
            if data[0] == 11 and data[8 + 24:8 + 26] == struct.pack("!H", os.getpid() & 0xffff):
                return peer
    return "-"

def said(protocol, limit, size, address):
    v6 = ":" in address
    s = raw(address, protocol)
    errors = raw(address, 58 if v6 else 1)
    ident = os.getpid() & 0xffff
    secret = struct.pack("!H", ident)
    if v6:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, limit)
    else:
        s.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, limit)
        # IP_MTU_DISCOVER to IP_PMTUDISC_PROBE: never in pieces, whatever was learnt before.
        s.setsockopt(socket.IPPROTO_IP, 10, 3)
    for number in range(20):
        if protocol == 1:
            message = echo(ident, number, bytes(size))
        elif protocol == 58:
            message = struct.pack("!BBHHH", 128, 0, 0, ident, number) + bytes(size)
        else:
            # A GRE header, whose protocol is ours.
            message = b"\0\0\x88\xb5" + secret + bytes(2 + size)
        s.sendto(message, (address, 0))
        ends = time.monotonic() + 4
        while (left := ends - time.monotonic()) > 0 and select.select([errors], [], [], left)[0]:
            data, peer = receive(errors)
            kind, code = data[0], data[1]
            quoted = data[8:]
            inner = quoted[40:] if v6 else quoted[(quoted[0] & 15) * 4:] if quoted else b""
            if kind in ((1, 2, 3, 4) if v6 else (3, 11, 12)) and inner[4:6] == secret:
                return f"{peer} {kind} {code}"
    return "-"

def pings(ident, count, address):
    s = raw(address, socket.IPPROTO_ICMP)
    secret, own, foreign = os.urandom(16), 0, 0
    for number in range(count):
        message = echo(ident, number, secret)
        s.sendto(message, (address, 0))
        ends = time.monotonic() + 0.1
        while (left := ends - time.monotonic()) > 0 and select.select([s], [], [], left)[0]:
            data, peer = receive(s)
            if data[0] == 0 and peer == address and data[4:6] == message[4:6]:
                own, foreign = own + (data[8:] == secret), foreign + (data[8:] != secret)
    print(own, foreign)

def listen(address):
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("0.0.0.0", 7777))
    sockets = {"udp": udp, "gre": raw("0.0.0.0", 47), "icmp": raw("0.0.0.0", 1)}
    print("ready", flush=True)
    sys.stdin.readline()
    # What answers now comes behind it.
    assert ask(253, 0, address) != "-"
    heard = []
    for name, s in sockets.items():
        while select.select([s], [], [], 0)[0]:
            data, peer = receive(s)
            if b"unasked" in data:
                heard.append(name)
    print(*sorted(set(heard)))

def inject(address):
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for number in range(10):
        udp.sendto(b"unasked", (address, 7777))
        raw(address, 47).sendto(b"\0\0\x88\xb5unasked", (address, 0))
        raw(address, 1).sendto(echo(7, number, b"unasked!"), (address, 0))

what, rest = sys.argv[1], sys.argv[2:]
if what == "serve":
    serve()
elif what == "ask":
    print(*(ask(int(rest[0]), int(rest[1]), address) for address in rest[2:]))
elif what == "pour":
    pour(int(rest[0]), rest[1])
elif what == "listen":
    listen(rest[0])
elif what == "inject":
    inject(rest[0])
elif what == "said":
    print(said(*map(int, rest[:3]), rest[3]))
elif what == "hop":
    print(hop(int(rest[0]), rest[1]))
else:
    pings(int(rest[0]), int(rest[1]), rest[2])
