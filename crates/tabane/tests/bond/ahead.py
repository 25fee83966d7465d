"""Writes as fast as it may for some seconds and says how far it was ahead of the reader at most,
and how much of that was in other hands than its own kernel's.

`serve PORT` is the far end: each caller says by its first byte whether it uploads or downloads."""
import fcntl, select, socket, struct, sys, termios, threading, time

CHUNK = 1 << 16

def sink(s):
    """Tells the writer how many bytes it has had, after each part."""
    total = 0
    try:
        while data := s.recv(CHUNK):
            total += len(data)
            s.sendall(total.to_bytes(8, "big"))
    except ConnectionError:
        # The writer does not stay for what was told last.
        pass

def source(s, seconds):
    """Bytes ahead at most, bytes acknowledged and not with the reader at most, bytes that arrived."""
    s.setblocking(False)
    written = told = ahead = held = 0
    rest = b""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        readable, writable, _ = select.select([s], [s], [], 0.1)
        if readable:
            rest += s.recv(CHUNK)
            whole = len(rest) // 8 * 8
            if whole:
                told = int.from_bytes(rest[whole - 8:whole], "big")
            rest = rest[whole:]
        if writable:
            written += s.send(bytes(CHUNK))
        ahead = max(ahead, written - told)
        (unacknowledged,) = struct.unpack("i", fcntl.ioctl(s, termios.TIOCOUTQ, bytes(4)))
        held = max(held, written - unacknowledged - told)
    return ahead, held, told

def answer(s):
    # How long a writer here is to go on, or nothing: then it is a reader.
    seconds = s.recv(1)[0]
    if seconds:
        print(*source(s, seconds), flush=True)
    else:
        sink(s)
    s.close()

if sys.argv[1] == "serve":
    listener = socket.create_server(("0.0.0.0", int(sys.argv[2])))
    print("ready", flush=True)
    while True:
        threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()
way, host, port, seconds = sys.argv[1:]
s = socket.create_connection((host, int(port)))
if way == "up":
    s.sendall(bytes([0]))
    print(*source(s, int(seconds)), flush=True)
else:
    s.sendall(bytes([int(seconds)]))
    sink(s)
