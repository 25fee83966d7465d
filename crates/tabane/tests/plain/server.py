"""The internet of these tests: what programs talk to, and what it saw of them.

server.py DIRECTORY    serves until standard input ends; DIRECTORY is what HTTP shows

A connection to an observing port begins with a token and a line feed; what became of it is told
under that token at the port REPORTS.
"""
import ctypes, errno, http.server, os, socket, socketserver, struct, sys, threading, time

V4, OTHER_V4, V6 = "203.0.113.2", "203.0.113.3", "2001:db8:ffff::2"
REPORTS = 7010
# Of Linux's headers; Python does not know them, or from 3.12 on.
IP_PKTINFO, SO_ATTACH_FILTER = 8, 26
LINGER_ZERO = struct.pack("ii", 1, 0)

reports, news = {}, threading.Condition()

def report(token, text):
    with news:
        reports[token] = text
        news.notify_all()

def line(c):
    text = b""
    while not text.endswith(b"\n"):
        piece = c.recv(1)
        if not piece:
            raise EOFError
        text += piece
    return text[:-1]

def drain(c):
    """Reads to the end, and says how much came and how it ended."""
    total = 0
    try:
        while data := c.recv(1 << 16):
            total += len(data)
        return f"{total} bytes, end"
    except OSError as error:
        return f"{total} bytes, {errno.errorcode[error.errno]}"

def reset(c):
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
    c.close()

def echo(c):
    while data := c.recv(1 << 16):
        c.sendall(data)

def observe(c):
    token = line(c)
    c.sendall(b"seen\n")
    report(token, drain(c))

def greet_and_close(c):
    c.sendall(b"hello")

def data_then_reset(c):
    c.recv(1)
    c.sendall(b"data")
    reset(c)

def greet_and_shut(c):
    token = line(c)
    c.sendall(b"hello")
    c.shutdown(socket.SHUT_WR)
    report(token, drain(c))

def count_at_end(c):
    c.sendall(drain(c).encode())

def reset_when_asked(c):
    c.recv(1)
    reset(c)

def reset_in_the_middle(c):
    c.recv(1000)
    reset(c)

def meter(c):
    """Says after every piece how many bytes have come."""
    total = 0
    while data := c.recv(1 << 14):
        total += len(data)
        c.sendall(b"%d\n" % total)

def unread(c):
    token = line(c)
    c.sendall(b"unread")
    report(token, drain(c))

def vanish(c):
    """From now on no packet of this connection is heard: a filter drops them all."""
    drop = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0))
    program = struct.pack("HL", 1, ctypes.addressof(drop))
    c.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
    c.sendall(b"gone")
    threading.Event().wait()

def urgent(c):
    c.recv(1)
    try:
        c.sendall(b"urgent " + c.recv(1, socket.MSG_OOB))
    except OSError:
        c.sendall(b"nothing urgent")
    c.shutdown(socket.SHUT_WR)
    drain(c)

def pattern(c):
    size = int(line(c))
    c.sendall((bytes(range(256)) * (size // 256 + 1))[:size])

def peer(c):
    c.sendall(c.getpeername()[0].removeprefix("::ffff:").encode())

def told(c):
    token = line(c)
    with news:
        news.wait_for(lambda: token in reports, 15)
        c.sendall(reports.get(token, "nothing yet").encode())

def destinations(c):
    """How many destinations of a burst have been reached, once it is `wanted` or nothing more comes."""
    token, wanted = line(c).split()
    with news:
        seen = bursts.setdefault(token, set())
        count = -1
        while len(seen) < int(wanted) and count != len(seen):
            count = len(seen)
            news.wait(2)
        c.sendall(b"%d" % len(seen))

TCP = {
    7001: echo, 7002: observe, 7003: greet_and_close, 7004: data_then_reset, 7005: reset_when_asked,
    7006: greet_and_shut, 7007: count_at_end, 7008: meter, 7009: reset_in_the_middle,
    REPORTS: told, 7011: destinations, 7012: peer, 7013: unread, 7014: pattern,
    7015: vanish, 7016: urgent,
}

def listen(family, port, backlog=1000):
    s = socket.socket(family)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))
    s.listen(backlog)
    return s

def serve_tcp(port, serve):
    s = listen(socket.AF_INET6, port)
    def one(c):
        try:
            serve(c)
        except (OSError, EOFError):
            pass
        finally:
            c.close()
    while True:
        threading.Thread(target=one, args=(s.accept()[0],), daemon=True).start()

def udp(address, port):
    s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    s.bind((address, port))
    return s

def serve_udp(s, answers, answer):
    """Answers what comes to `s` by the socket `answers`."""
    while True:
        data, peer = s.recvfrom(65535)
        try:
            answers.sendto(answer(data, peer), peer)
        except OSError:
            pass

bursts = {}

def serve_bursts():
    """Counts the destinations that a token reached, and answers from each."""
    s = udp("0.0.0.0", 9100)
    s.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    while True:
        data, control, _, peer = s.recvmsg(2000, 100)
        local = next(value[4:8] for _, kind, value in control if kind == IP_PKTINFO)
        with news:
            bursts.setdefault(data, set()).add(local)
            news.notify_all()
        info = (socket.IPPROTO_IP, IP_PKTINFO, struct.pack("=I4s4s", 0, local, bytes(4)))
        s.sendmsg([data], [info], 0, peer)

ZONE = {
    b"dual": [V4, V6], b"four": [V4], b"six": [V6], b"none": [],
    b"unrouted6": [V4, "2001:db8:bad::3"], b"silent6": [V4, "2001:db8:bad::4"],
}

def dns(query, _):
    """One question's answer, from ZONE under .example."""
    end = query.index(b"\0", 12) + 5
    name, kind = query[13:13 + query[12]], struct.unpack("!H", query[end - 4:end - 2])[0]
    known = name in ZONE and query[13 + query[12]:end - 4] == b"\7example\0"
    records = []
    for address in ZONE[name] if known else []:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        if kind == (28 if family == socket.AF_INET6 else 1):
            data = socket.inet_pton(family, address)
            records.append(b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 60, len(data)) + data)
    head = (b"\x81\x80" if known else b"\x81\x83") + struct.pack("!HHHH", 1, len(records), 0, 0)
    return query[:2] + head + query[12:end] + b"".join(records)

class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments):
        super().__init__(*arguments, directory=sys.argv[1])

    def body(self, left):
        """The lengths of so many bytes' pieces."""
        while left and (data := self.rfile.read1(min(left, 1 << 16))):
            left -= len(data)
            yield len(data)

    def chunks(self):
        """The same of a body that says its length chunk by chunk."""
        while size := int(self.rfile.readline() or b"0", 16):
            yield from self.body(size)
            self.rfile.readline()
        self.rfile.readline()

    def do_PUT(self):
        length = self.headers["Content-Length"]
        got = 0
        try:
            for size in self.body(int(length)) if length else self.chunks():
                got += size
        except OSError:
            pass
        report(self.path.strip("/").encode(), str(got))
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments):
        pass

def serve_http(family, port):
    server = socketserver.ThreadingTCPServer(("", port), Handler, bind_and_activate=False)
    server.daemon_threads = True
    server.socket = listen(family, port)
    server.serve_forever()

def start(work, *arguments):
    threading.Thread(target=work, args=arguments, daemon=True).start()

for port, serve in TCP.items():
    start(serve_tcp, port, serve)
for address in V4, V6:
    s = udp(address, 9000)
    start(serve_udp, s, s, lambda data, peer: data)
    s = udp(address, 9001)
    start(serve_udp, s, s, lambda data, peer: b"%d" % peer[1])
    start(serve_udp, udp(address, 9002), udp(address, 9003), lambda data, peer: data)
    s = udp(address, 53)
    start(serve_udp, s, s, dns)
start(serve_udp, udp(V4, 9004), udp(OTHER_V4, 9004), lambda data, peer: data)
start(serve_bursts)
start(serve_http, socket.AF_INET6, 8000)
# Of one family only: whoever tries the other first is refused.
start(serve_http, socket.AF_INET, 8004)
print("ready", flush=True)
sys.stdin.read()
