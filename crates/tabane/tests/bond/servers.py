"""What clients of the tests talk to: HTTP, UDP echo and a DNS server that knows one answer."""
import http.server, os, select, socket, socketserver, sys, threading

V4, V6 = "203.0.113.2", "2001:db8:ffff::2"

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/peer":
            return self.answer(b"%s\n" % self.client_address[0].encode())
        if self.path.startswith("/burst/"):
            seen = bursts.get(self.path[7:].encode(), set())
            ports, peers = {port for port, _ in seen}, {peer for _, peer in seen}
            return self.answer(b"%d %d\n" % (len(ports), len(peers)))
        size = int(self.path.strip("/") or 0)
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        if self.headers.get("Connection") == "close":
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        block = bytes(range(256)) * 256
        while size > 0:
            self.wfile.write(block[:size])
            size -= len(block)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(b"%d\n" % sum(body))

    def answer(self, answer):
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments):
        pass

class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self):
        # Python's own looks up this host's name, for which nobody is there to be asked: 5 s.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]

class Server6(Server):
    address_family = socket.AF_INET6

def udp(family, address, port, answer):
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.bind((address, port))
    def serve():
        while True:
            data, peer = s.recvfrom(65535)
            s.sendto(answer(data) if port != 9001 else peer[0].encode(), peer)
    threading.Thread(target=serve, daemon=True).start()

bursts = {}

def burst_ports():
    # 500 destinations; which of them heard of a burst, by its name, and from whom.
    poll, sockets = select.epoll(), {}
    for port in range(20000, 20500):
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.bind((V4, port))
        sockets[s.fileno()] = (port, s)
        poll.register(s, select.EPOLLIN)
    def serve():
        while True:
            for descriptor, _ in poll.poll():
                port, s = sockets[descriptor]
                name, peer = s.recvfrom(100)
                bursts.setdefault(name, set()).add((port, peer))
    threading.Thread(target=serve, daemon=True).start()

def elsewhere(family, address):
    # Asked at 9002, answers from 9003.
    answering = socket.socket(family, socket.SOCK_DGRAM)
    answering.bind((address, 9003))
    def serve():
        asked = socket.socket(family, socket.SOCK_DGRAM)
        asked.bind((address, 9002))
        ready.set()
        while True:
            data, peer = asked.recvfrom(100)
            answering.sendto(b"from elsewhere", peer)
    ready = threading.Event()
    threading.Thread(target=serve, daemon=True).start()
    ready.wait()

def dns(query, last=99):
    # The question as it came, and one A record: 192.0.2.99, or .77 by the resolver near the client.
    end = query.index(b"\0", 12) + 5
    return (query[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + query[12:end]
            + b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + bytes([192, 0, 2, last]))

if sys.argv[1:] == ["private"]:
    servers = [Server(("10.71.1.2", 8000), Handler)]
    udp(socket.AF_INET, "10.71.1.2", 53, lambda query: dns(query, 77))
else:
    servers = [Server((V4, 8000), Handler), Server6((V6, 8000), Handler)]
    for family, address in (socket.AF_INET, V4), (socket.AF_INET6, V6):
        udp(family, address, 9000, lambda data: b"echo " + data)
        udp(family, address, 9001, None)
        udp(family, address, 53, dns)
        elsewhere(family, address)
    burst_ports()
for server in servers:
    threading.Thread(target=server.serve_forever, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
