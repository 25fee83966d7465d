"""A program that knows what plain UDP sockets do, and notices what does not."""
import socket

for family, address in (socket.AF_INET, "203.0.113.2"), (socket.AF_INET6, "2001:db8:ffff::2"):
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.settimeout(10)
    # Answered from another port than it asked, and by an address known already.
    s.sendto(b"ask", (address, 9002))
    data, peer = s.recvfrom(100)
    assert (data, peer[:2]) == (b"from elsewhere", (address, 9003)), (data, peer)
    s.sendto(b"one", (address, 9000))
    data, peer = s.recvfrom(100)
    assert (data, peer[:2]) == (b"echo one", (address, 9000)), (data, peer)
    # Nobody is there, and it goes on.
    closed = socket.socket(family, socket.SOCK_DGRAM)
    closed.settimeout(10)
    closed.connect((address, 9099))
    for _ in range(2):
        closed.send(b"anybody?")
        try:
            raise AssertionError(closed.recv(100))
        except ConnectionRefusedError:
            pass
print("plain")
