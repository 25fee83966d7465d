"""What all cells share: the list of them, the ways of connecting, words for what happened."""
import base64, errno, os, select, socket, struct

V4, OTHER_V4, V6 = "203.0.113.2", "203.0.113.3", "2001:db8:ffff::2"
ECHO, OBSERVE, GREET_AND_CLOSE, DATA_THEN_RESET, RESET, GREET_AND_SHUT, COUNT_AT_END, METER = range(7001, 7009)
RESET_IN_THE_MIDDLE, REPORTS, DESTINATIONS, PEER, UNREAD, PATTERN, VANISH, URGENT = range(7009, 7017)
CLOSED = 1

# Name, function, the ways by a proxy of which it says anything, and whether it wants the links for
# itself, because it counts time or much is sent.
CELLS = []
PROXIED = "socks", "connect"

def cell(name, proxied=(), alone=False):
    def add(function):
        CELLS.append((name, function, proxied, alone))
        return function
    return add

def error_name(error):
    if isinstance(error, TimeoutError) and error.errno is None:
        return "gave up"
    return errno.errorcode.get(error.errno, str(error))

def outcome(act, *arguments):
    """What `act` gives, or its error's name."""
    try:
        return act(*arguments)
    except OSError as error:
        return error_name(error)

def family_of(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET

def pending(s):
    """The error that waits in SO_ERROR, taken out of it."""
    number = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return errno.errorcode[number] if number else "no error"

def events(mask):
    names = "IN PRI OUT ERR HUP RDHUP".split()
    return "+".join(name for name in names if mask & getattr(select, "POLL" + name)) or "nothing"

def await_events(s, mask, seconds=10):
    poll = select.poll()
    poll.register(s, mask)
    found = poll.poll(seconds * 1000)
    return found[0][1] if found else 0

class Sockets:
    """A program that knows nothing of proxies."""
    proxied = False

    def dial(self, address, port, family=None):
        s = socket.socket(family or family_of(address))
        s.settimeout(15)
        # Two attempts of a second or two each, not six for two minutes.
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT, 1)
        s.connect((address, port))
        return s

class Proxied:
    proxied = True

    def __init__(self, url):
        host, port = url.rsplit("/", 1)[-1].rsplit(":", 1)
        self.proxy = host, int(port)

    def enter(self):
        return socket.create_connection(self.proxy, 15)

def exactly(s, size):
    data = b""
    while len(data) < size:
        piece = s.recv(size - len(data))
        if not piece:
            raise OSError("the proxy hung up")
        data += piece
    return data

class Socks(Proxied):
    """SOCKS5 (RFC 1928): a reply's code stands for the error that connect() would give."""
    CODES = {2: errno.EACCES, 3: errno.ENETUNREACH, 4: errno.EHOSTUNREACH, 5: errno.ECONNREFUSED, 6: errno.ETIMEDOUT}

    def greet(self):
        s = self.enter()
        s.sendall(b"\5\1\0")
        assert exactly(s, 2) == b"\5\0"
        return s

    def ask(self, s, command, address, port):
        kind = b"\4" if ":" in address else b"\1"
        packed = socket.inet_pton(family_of(address), address)
        s.sendall(b"\5" + command + b"\0" + kind + packed + struct.pack("!H", port))
        reply = exactly(s, 4)
        bound = exactly(s, {1: 6, 4: 18}[reply[3]])
        if reply[1]:
            raise OSError(self.CODES.get(reply[1], errno.EIO), f"SOCKS5 code {reply[1]}")
        return bound

    def dial(self, address, port):
        s = self.greet()
        self.ask(s, b"\1", address, port)
        return s

class Connect(Proxied):
    """HTTP CONNECT: a status has fewer shades, so the sentence that comes with it is read."""
    SENTENCES = {
        b"refused": errno.ECONNREFUSED, b"in time": errno.ETIMEDOUT,
        b"no way": errno.ENETUNREACH, b"cannot be reached": errno.EHOSTUNREACH,
    }

    def dial(self, address, port):
        s = self.enter()
        host = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        s.sendall(f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += exactly(s, 1)
        if head.split()[1] == b"200":
            return s
        body = s.recv(1000)
        for words, number in self.SENTENCES.items():
            if words in body:
                raise OSError(number, body.decode())
        raise OSError(errno.EIO, (head + body).decode())

def way(name):
    if name == "socks":
        return Socks(os.environ["ALL_PROXY"])
    if name == "connect":
        return Connect(os.environ["HTTPS_PROXY"])
    return Sockets()

def line(s):
    text = b""
    while not text.endswith(b"\n"):
        text += exactly(s, 1)
    return text

def observed(way, port=OBSERVE, address=V4):
    """A connection whose end the server reports, and its token."""
    token = base64.b16encode(os.urandom(8))
    s = way.dial(address, port)
    s.sendall(token + b"\n")
    return s, token

def report(way, token):
    """What the server saw of that connection."""
    s = way.dial(V4, REPORTS)
    s.sendall(token + b"\n")
    return everything(s).decode()

def everything(s):
    """All bytes to the end."""
    data = b""
    while piece := s.recv(1 << 16):
        data += piece
    return data

def to_the_end(s):
    """How many bytes come, and how they end."""
    total = 0
    try:
        while piece := s.recv(1 << 16):
            total += len(piece)
        return f"{total} bytes, end"
    except OSError as error:
        return f"{total} bytes, {error_name(error)}"
