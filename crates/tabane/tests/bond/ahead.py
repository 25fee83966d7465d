"""Writes as fast as it may for some seconds and says how far it was ahead of the reader at most."""
import select, socket, sys, time

def sink(port):
    """Tells the writer how many bytes it has had, after each part."""
    s = socket.create_server(("0.0.0.0", port))
    print("ready", flush=True)
    while True:
        c, _ = s.accept()
        total = 0
        try:
            while data := c.recv(1 << 16):
                total += len(data)
                c.sendall(total.to_bytes(8, "big"))
        except ConnectionError:
            # The writer does not stay for what was told last.
            pass
        c.close()

def source(host, port, seconds):
    s = socket.create_connection((host, port))
    s.setblocking(False)
    written = told = ahead = 0
    rest = b""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        readable, writable, _ = select.select([s], [s], [], 0.1)
        if readable:
            rest += s.recv(1 << 16)
            whole = len(rest) // 8 * 8
            if whole:
                told = int.from_bytes(rest[whole - 8:whole], "big")
            rest = rest[whole:]
        if writable:
            written += s.send(bytes(1 << 16))
        ahead = max(ahead, written - told)
    print(ahead, told)

if sys.argv[1] == "sink":
    sink(int(sys.argv[2]))
else:
    source(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
