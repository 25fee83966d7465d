"""A resolver that says what it was asked, and who asks one.

    serve ADDRESS LOG NAME=IP...   answers for these names and the names of these addresses, by UDP
                                   and TCP; writes each name that it was asked for to LOG
    ask tcp|udp ADDRESS NAME       what a resolver says: an address, a name, or its failure
"""

import socket
import struct
import sys
import threading
import time

A, PTR, IN, SERVFAIL, NXDOMAIN = 1, 12, 1, 2, 3


def emit(name):
    labels = [label for label in name.split(".") if label]
    return b"".join(bytes([len(it)]) + it.encode() for it in labels) + b"\0"


def parse(message, at):
    labels = []
    while message[at]:
        if message[at] >= 0xC0:
            rest, _ = parse(message, struct.unpack("!H", message[at : at + 2])[0] & 0x3FFF)
            return ".".join(labels + [rest]), at + 2
        labels.append(message[at + 1 : at + 1 + message[at]].decode())
        at += 1 + message[at]
    return ".".join(labels), at + 1


def reverse(ip):
    return ".".join(reversed(ip.split("."))) + ".in-addr.arpa"


def answer(message, names, log):
    name, end = parse(message, 12)
    kind = struct.unpack("!H", message[end : end + 2])[0]
    with open(log, "a") as file:
        file.write(name.lower() + "\n")
    data = None
    if kind == A and name.lower() in names:
        data = socket.inet_aton(names[name.lower()])
    if kind == PTR:
        data = next((emit(it) for it, ip in names.items() if reverse(ip) == name), None)
    known = name.lower() in names
    code = 0 if data or known else NXDOMAIN
    head = message[:2] + struct.pack("!HHHHH", 0x8180 | code, 1, 1 if data else 0, 0, 0)
    tail = b"\xc0\x0c" + struct.pack("!HHIH", kind, IN, 60, len(data)) + data if data else b""
    return head + message[12 : end + 4] + tail


def read(connection):
    whole = connection.makefile("rb")
    length = whole.read(2)
    return whole.read(struct.unpack("!H", length)[0]) if len(length) == 2 else b""


def serve(address, log, pairs):
    names = dict(pair.split("=") for pair in pairs)
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind((address, 53))
    tcp = socket.create_server((address, 53))

    def by_tcp():
        while True:
            connection, _ = tcp.accept()
            with connection:
                message = read(connection)
                if message:
                    said = answer(message, names, log)
                    connection.sendall(struct.pack("!H", len(said)) + said)

    threading.Thread(target=by_tcp, daemon=True).start()
    print("ready", flush=True)
    while True:
        message, peer = udp.recvfrom(4096)
        udp.sendto(answer(message, names, log), peer)


def ask(kind, address, name):
    is_address = name.replace(".", "").isdigit()
    asked = reverse(name) if is_address else name
    message = struct.pack("!HHHHHH", 77, 0x100, 1, 0, 0, 0)
    message += emit(asked) + struct.pack("!HH", PTR if is_address else A, IN)
    begin = time.monotonic()
    stream = kind == "tcp"
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM if stream else socket.SOCK_DGRAM)
    s.settimeout(10)
    s.connect((address, 53))
    s.sendall(struct.pack("!H", len(message)) + message if stream else message)
    said = read(s) if stream else s.recv(4096)
    assert said[:2] == message[:2] and said[12:].startswith(message[12:]), said
    code, count = said[3] & 15, struct.unpack("!H", said[6:8])[0]
    took = f"{time.monotonic() - begin:.0f}"
    if code or not count:
        print({0: "nothing", SERVFAIL: "servfail", NXDOMAIN: "nxdomain"}[code], took)
        return
    data = len(message) + 12
    print(parse(said, data)[0] if is_address else socket.inet_ntoa(said[data : data + 4]), took)


if sys.argv[1] == "serve":
    serve(sys.argv[2], sys.argv[3], sys.argv[4:])
else:
    ask(*sys.argv[2:])
