"""Both ends of exposed ports: servers behind a client, and visitors of the relay.

    serve PORT          answers each connection with who it is from and a line back for each line;
                        "GET N" sends N bytes of a pattern and closes, "RST" resets
    proxied PORT        the same behind a PROXY header, which is told in front
    udp PORT            sends each datagram back, behind the port it came to
    hold PORT           listens, and accepts nobody
    fetch HOST PORT N   reads N bytes of the pattern and says how long it was silent at the most
    many HOST PORT N    N connections at once, a line each way by each
    patient HOST PORT N N connections: how many are there within 10 s, and how many of them are
                        spoken to within 25 s
    end HOST PORT       how a connection ends: "refused", "reset", "eof" or what came
    often HOST PORT     how connections end, one after another, until its input does: each way once
    dribble HOST PORT   a ClientHello for the name in argv[4], a byte at a time
"""

import select
import socket
import struct
import sys
import threading
import time

PATTERN = bytes(range(256)) * 256


def reset(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def answer(connection, peer, is_proxied):
    with connection, connection.makefile("rb") as lines:
        told = peer[0]
        if is_proxied:
            head = lines.read(16)
            assert head[:12] == b"\r\n\r\n\0\r\nQUIT\n", head
            family, length = head[13], struct.unpack("!H", head[14:16])[0]
            body = lines.read(length)
            assert family == 0x11, family
            source, port = socket.inet_ntoa(body[:4]), struct.unpack("!H", body[10:12])[0]
            told = f"{source} at {socket.inet_ntoa(body[4:8])}:{port}"
        connection.sendall(f"from {told}\n".encode())
        for line in lines:
            if line.startswith(b"GET "):
                left = int(line[4:])
                while left > 0:
                    connection.sendall(PATTERN[:left])
                    left -= len(PATTERN)
                return
            if line == b"RST\n":
                return reset(connection)
            connection.sendall(b"back " + line)


def serve(port, is_proxied=False):
    listener = socket.create_server(("0.0.0.0", port), backlog=4096)
    print("ready", flush=True)
    while True:
        connection, peer = listener.accept()
        threading.Thread(target=answer, args=(connection, peer, is_proxied), daemon=True).start()


def udp(port):
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.bind(("0.0.0.0", port))
    print("ready", flush=True)
    while True:
        datagram, peer = listener.recvfrom(65536)
        listener.sendto(b"%d " % port + datagram, peer)


def hold(port):
    listener = socket.create_server(("0.0.0.0", port), backlog=0)
    fill = [socket.socket() for _ in range(3)]
    for one in fill:
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", port))
    print("ready", flush=True)
    time.sleep(3600)


def connect(host, port):
    connection = socket.create_connection((host, port), timeout=40)
    return connection, connection.makefile("rb")


def fetch(host, port, size):
    connection, stream = connect(host, port)
    print(stream.readline().decode().strip(), flush=True)
    connection.sendall(b"GET %d\n" % size)
    got, silence, heard_at = 0, 0, time.monotonic()
    while True:
        data = connection.recv(65536)
        silence = max(silence, time.monotonic() - heard_at)
        heard_at = time.monotonic()
        if not data:
            break
        start = got % 65536
        assert data == (PATTERN + PATTERN)[start : start + len(data)], got
        got += len(data)
    print(f"{got} {silence:.3f}", flush=True)


def many(host, port, count):
    served = []

    def one(number):
        connection, stream = connect(host, port)
        assert stream.readline().startswith(b"from ")
        barrier.wait(60)
        connection.sendall(b"%d\n" % number)
        assert stream.readline() == b"back %d\n" % number
        served.append(number)

    barrier = threading.Barrier(count)
    threading.stack_size(256 * 1024)
    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(len(served), flush=True)


def patient(host, port, count):
    connections = []
    for _ in range(count):
        connections.append(socket.socket())
        connections[-1].setblocking(False)
        connections[-1].connect_ex((host, port))
    here, deadline = 0, time.monotonic() + 10
    for connection in connections:
        poll = select.poll()
        poll.register(connection, select.POLLOUT)
        here += len(poll.poll(max(0, deadline - time.monotonic()) * 1000))
    print(here, flush=True)
    served, deadline = 0, time.monotonic() + 25
    for connection in connections:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            served += connection.recv(100).startswith(b"from ")
        except OSError:
            pass
    print(served, flush=True)


def ending(host, port):
    try:
        connection, stream = connect(host, port)
        with connection:
            return stream.readline().decode().strip() or "eof"
    except ConnectionRefusedError:
        return "refused"
    except ConnectionResetError:
        return "reset"


def end(host, port):
    begin = time.monotonic()
    print(ending(host, port), f"{time.monotonic() - begin:.1f}", flush=True)


def often(host, port):
    print("ready", flush=True)
    words = set()
    while not select.select([sys.stdin], [], [], 0)[0]:
        try:
            words.add(ending(host, port))
        except OSError as error:
            words.add(str(error))
    print(", ".join(sorted(words)), flush=True)


def dribble(host, port, name):
    import ssl

    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=name)
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        pass
    hello = outgoing.read()
    connection = socket.create_connection((host, port), timeout=40)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for start in range(0, len(hello), 16):
        connection.sendall(hello[start : start + 16])
        time.sleep(0.001)
    # Not every server speaks TLS: whoever sees the hello says whose it is.
    print(connection.recv(100).split(b"\n")[0].decode(), flush=True)


what, arguments = sys.argv[1], sys.argv[2:]
if what in ("serve", "proxied"):
    serve(int(arguments[0]), what == "proxied")
elif what == "udp":
    udp(int(arguments[0]))
elif what == "hold":
    hold(int(arguments[0]))
elif what == "fetch":
    fetch(arguments[0], int(arguments[1]), int(arguments[2]))
elif what == "many":
    many(arguments[0], int(arguments[1]), int(arguments[2]))
elif what == "patient":
    patient(arguments[0], int(arguments[1]), int(arguments[2]))
elif what == "end":
    end(arguments[0], int(arguments[1]))
elif what == "often":
    often(arguments[0], int(arguments[1]))
elif what == "dribble":
    dribble(arguments[0], int(arguments[1]), arguments[2])
