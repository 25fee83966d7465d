"""Cells: connections from the first byte to their end, and what both ends see of it."""
import select, socket, struct, time

from cells import *

LINGER_ZERO = struct.pack("ii", 1, 0)

@cell("2 MB down", PROXIED, alone=True)
def download(way):
    s = way.dial(V4, PATTERN)
    s.sendall(b"2000000\n")
    data = everything(s)
    whole = data == (bytes(range(256)) * 7813)[:2_000_000]
    return f"{len(data)} bytes, {'whole' if whole else 'damaged'}"

@cell("2 MB up, half closed, counted by the server", PROXIED, alone=True)
def upload(way):
    s = way.dial(V4, COUNT_AT_END)
    s.sendall(bytes(2_000_000))
    s.shutdown(socket.SHUT_WR)
    return everything(s).decode()

@cell("half close by the server, then 3 MB up", PROXIED, alone=True)
def server_closes_half(way):
    s, token = observed(way, GREET_AND_SHUT)
    greeting = everything(s).decode()
    seen = events(await_events(s, select.POLLRDHUP | select.POLLIN))
    s.sendall(bytes(3_000_000))
    s.close()
    return f"{greeting}, {seen}, {report(way, token)}"

@cell("close", PROXIED)
def closes(way):
    s, token = observed(way)
    line(s)
    s.sendall(b"abc")
    s.close()
    return report(way, token)

@cell("shutdown of both directions", PROXIED)
def shuts_down(way):
    s, token = observed(way)
    line(s)
    s.shutdown(socket.SHUT_RDWR)
    return f"{report(way, token)}, here {to_the_end(s)}, {outcome(s.send, b'x')}"

@cell("SO_LINGER 0 and close", PROXIED)
def lingers_not(way):
    s, token = observed(way)
    line(s)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
    s.close()
    return report(way, token)

@cell("close with unread bytes", PROXIED)
def closes_unread(way):
    s, token = observed(way, UNREAD)
    await_events(s, select.POLLIN)
    s.close()
    return report(way, token)

@cell("data, then reset", PROXIED)
def data_before_reset(way):
    s = way.dial(V4, DATA_THEN_RESET)
    s.send(b"x")
    return to_the_end(s)

@cell("reset in the middle of writing", PROXIED)
def reset_while_writing(way):
    s = way.dial(V4, RESET_IN_THE_MIDDLE)
    def write():
        while True:
            s.sendall(bytes(65536))
    return outcome(write)

@cell("reset while reading", PROXIED)
def reset_while_reading(way):
    s = way.dial(V4, RESET)
    s.sendall(b"x")
    return to_the_end(s)

@cell("reset, pending in SO_ERROR", PROXIED)
def reset_pending(way):
    s = way.dial(V4, RESET)
    s.sendall(b"x")
    mask = await_events(s, 0)
    return f"{events(mask)}, {pending(s)}, then {pending(s)}"

@cell("writes after the server's close", PROXIED)
def writes_after_close(way):
    s = way.dial(V4, GREET_AND_CLOSE)
    greeting = everything(s).decode()
    for writes in range(10):
        try:
            s.send(b"x")
        except OSError as error:
            return f"{greeting}, {writes} taken, then {error_name(error)}"
        # A reset comes in answer to what was written.
        await_events(s, 0, 5)
    return f"{greeting}, {writes} taken"

@cell("read of zero bytes left after shutdown for reading")
def shuts_reading(way):
    s = way.dial(V4, ECHO)
    s.shutdown(socket.SHUT_RD)
    return to_the_end(s)

@cell("writable, readable and quiet in between", PROXIED)
def quiet(way):
    s = way.dial(V4, ECHO)
    first = events(await_events(s, select.POLLIN | select.POLLOUT))
    s.sendall(b"ping")
    answered = events(await_events(s, select.POLLIN))
    data = s.recv(100).decode()
    return f"{first}, {answered}, {data}, {events(await_events(s, select.POLLIN, 0.1))}"

@cell("MSG_PEEK and MSG_WAITALL")
def peeks(way):
    s = way.dial(V4, ECHO)
    s.sendall(b"0123456789")
    await_events(s, select.POLLIN)
    peeked = s.recv(4, socket.MSG_PEEK)
    return f"{peeked.decode()}, {s.recv(10, socket.MSG_WAITALL).decode()}"

@cell("round trips of a connect", PROXIED, alone=True)
def time_of_connect(way):
    """The best of several: what a busy machine adds is not ours."""
    round_trip = 0.030
    spans = []
    for _ in range(8):
        began = time.monotonic()
        s = way.dial(V4, ECHO)
        spans.append(time.monotonic() - began)
        s.close()
    return f"{int(min(spans) / round_trip)} in full", f"{min(spans) * 1000:.1f} ms"

@cell("urgent byte")
def urgent(way):
    s = way.dial(V4, URGENT)
    s.send(b"a!", socket.MSG_OOB)
    return everything(s).decode()

@cell("destination that vanishes, TCP_USER_TIMEOUT of 1 s")
def vanishes(way):
    s = way.dial(V4, VANISH)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000)
    exactly(s, 4)
    s.send(b"x")
    mask = await_events(s, 0, 5)
    return f"{events(mask)}, {pending(s)}"

@cell("round trip in TCP_INFO")
def round_trip(way):
    # The first sample is of connect(), which takes the path's time in any case; answers to single
    # bytes bring the acknowledgement with them.
    s = way.dial(V4, COUNT_AT_END)
    s.sendall(bytes(300_000))
    s.shutdown(socket.SHUT_WR)
    everything(s)
    # struct tcp_info: tcpi_rtt in microseconds.
    (microseconds,) = struct.unpack_from("=I", s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 68)
    return "the path's" if microseconds > 25_000 else "less than the path's"
