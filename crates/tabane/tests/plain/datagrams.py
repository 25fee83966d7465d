"""Cells: datagrams, their errors, and answers from elsewhere."""
import base64, os, select, socket

from cells import *

def udp(address=V4):
    s = socket.socket(family_of(address), socket.SOCK_DGRAM)
    s.settimeout(5)
    return s

def connected(address, port):
    s = udp(address)
    s.connect((address, port))
    return s

def asked(s, data, to, answers=1):
    """So many answers in one go, and whom they are from; asks again while not all come: datagrams
    may be lost."""
    s.settimeout(1)
    for _ in range(8):
        s.sendto(data, to) if to else s.send(data)
        got = []
        try:
            while len(got) < answers:
                answer, peer = s.recvfrom(65535)
                # Not what comes late of another question.
                if not to or peer[0] == to[0]:
                    got.append((answer, peer))
            return got
        except TimeoutError:
            pass
    raise TimeoutError

def told(got):
    return ", ".join(f"{len(data)} bytes from {peer[0]} port {peer[1]}" for data, peer in got)

def answer(s):
    """The next datagram: how long, and from whom."""
    data, peer = s.recvfrom(65535)
    return f"{len(data)} bytes from {peer[0]} port {peer[1]}"

for version, address in (4, V4), (6, V6):
    @cell(f"datagram and its answer, IPv{version}")
    def asks(way, address=address):
        by_address = told(asked(udp(address), b"hello", (address, 9000)))
        return f"{by_address}, {told(asked(connected(address, 9000), b'hello', None))}"

    @cell(f"datagram to a closed port, connected, IPv{version}")
    def closed(way, address=address):
        c = connected(address, CLOSED)
        c.send(b"x")
        mask = await_events(c, select.POLLIN, 5)
        return f"{events(mask)}, {outcome(c.recv, 10)}, then {pending(c)}"

    @cell(f"datagram to a closed port, error taken by the next send, IPv{version}")
    def closed_send(way, address=address):
        c = connected(address, CLOSED)
        c.send(b"x")
        await_events(c, 0, 5)
        return f"{outcome(c.send, b'y')}, then {outcome(c.send, b'z')}"

@cell("datagram to a closed port, unconnected")
def closed_unconnected(way):
    s = udp()
    s.sendto(b"x", (V4, CLOSED))
    return events(await_events(s, select.POLLIN, 0.5))

@cell("datagram to an unreachable host, connected")
def unreachable(way):
    # Which is no hard error to a socket that has not asked for such news.
    c = connected("198.51.100.1", 9000)
    c.send(b"x")
    return events(await_events(c, select.POLLIN, 0.5))

@cell("datagrams of 0, 1,472, 8,000 and 65,507 bytes")
def sizes(way):
    said = []
    for size in 0, 1472, 8000, 65507:
        c = connected(V4, 9000)
        said.append(outcome(lambda: str(len(asked(c, bytes(size), None)[0][0]))))
    return " ".join(said)

@cell("datagram to all hosts of the network, without SO_BROADCAST")
def to_all(way):
    own = connected(V4, 9000).getsockname()[0]
    return outcome(udp().sendto, b"x", (own.rsplit(".", 1)[0] + ".255", 9000))

@cell("datagram of 65,508 bytes")
def too_long(way):
    return outcome(udp().sendto, bytes(65508), (V4, 9000))

@cell("one socket, two destinations: the same port outside")
def mapping(way):
    s = udp()
    first = asked(s, b"?", (V4, 9001))[0][0]
    asked(s, b"?", (OTHER_V4, 9100))
    return "same" if asked(s, b"?", (V4, 9001))[0][0] == first else "another"

@cell("answer from another port, unconnected")
def other_port(way):
    s = udp()
    s.sendto(b"hello", (V4, 9002))
    return outcome(answer, s)

@cell("answer from another port, connected")
def other_port_connected(way):
    c = connected(V4, 9002)
    c.send(b"hello")
    return events(await_events(c, select.POLLIN, 0.5))

@cell("answer from another address, unconnected")
def other_address(way):
    s = udp()
    s.sendto(b"hello", (V4, 9004))
    return outcome(answer, s)

@cell("one send in segments (UDP_SEGMENT)")
def segments(way):
    s = udp()
    # Of linux/udp.h; Python does not know it.
    UDP_SEGMENT = 103
    s.setsockopt(socket.SOL_UDP, UDP_SEGMENT, 1000)
    return told(asked(s, bytes(5 * 1000), (V4, 9000), answers=5))

def burst(way, count):
    """One datagram to each of so many hosts, at once: how many they reached, how many answers came."""
    token = base64.b16encode(os.urandom(8))
    s = udp()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    hosts = [f"203.0.{114 + i // 250}.{1 + i % 250}" for i in range(count)]
    for host in hosts:
        s.sendto(token, (host, 9100))
    c = way.dial(V4, DESTINATIONS)
    c.sendall(token + b" %d\n" % count)
    reached = int(everything(c))
    answered = set()
    s.settimeout(2)
    try:
        while len(answered) < count:
            answered.add(s.recvfrom(100)[1][0])
    except TimeoutError:
        pass
    def words(number):
        return "all" if number >= count * 0.998 else "not all"
    answers = len(answered & set(hosts))
    return (f"{words(reached)} reached, {words(answers)} answered", f"{reached} of {count}, {answers} answers")

for count in 200, 500:
    @cell(f"one datagram to each of {count} hosts at once", alone=True)
    def bursts(way, count=count):
        return burst(way, count)
