"""Both ends of transfers that never end by themselves: what each of them hears in the end."""
import socket, sys, threading

ADDRESS, BLOCK = ("203.0.113.2", 7001), bytes(65536)

def hear(s, amount=None):
    """Reads to the end, or so much: how it ended."""
    while amount is None or amount > 0:
        data = s.recv(65536)
        if not data:
            return "in order"
        if amount is not None:
            amount -= len(data)

def say(s, amount=None):
    while amount is None or amount > 0:
        s.sendall(BLOCK)
        if amount is not None:
            amount -= len(BLOCK)

def until_end(s, action):
    try:
        return action(s)
    except (ConnectionResetError, BrokenPipeError):
        return "by a reset"

def serve(s):
    action = {b"d": say, b"u": hear}[s.recv(1)]
    print("server ended", until_end(s, action), flush=True)

if sys.argv[1] == "serve":
    listener = socket.create_server(ADDRESS)
    print("ready", flush=True)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
def connect(proxy=None):
    """Straight, or by SOCKS5 (RFC 1928) at a port of this host."""
    if not proxy:
        return socket.create_connection(ADDRESS)
    s = socket.create_connection(("127.0.0.1", int(proxy)))
    host, port = ADDRESS
    s.sendall(b"\5\1\0" + b"\5\1\0\1" + socket.inet_aton(host) + port.to_bytes(2, "big"))
    for expected in b"\5\0", b"\5\0\0":
        assert s.recv(len(expected), socket.MSG_WAITALL) == expected
    # The address that it is bound to, after its kind.
    s.recv(7, socket.MSG_WAITALL)
    return s

s = connect(*sys.argv[2:])
s.sendall(sys.argv[1][:1].encode())
action = {"download": hear, "upload": say}[sys.argv[1]]
action(s, 4_000_000)
print("under way", flush=True)
print("program ended", until_end(s, action), flush=True)
