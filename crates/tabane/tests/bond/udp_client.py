"""A program that knows nothing of tabane: datagrams by connected and unconnected sockets."""
import socket

for family, address in (socket.AF_INET, "203.0.113.2"), (socket.AF_INET6, "2001:db8:ffff::2"):
    plain = socket.socket(family, socket.SOCK_DGRAM)
    plain.settimeout(5)
    for text in b"one", b"x" * 4000:
        plain.sendto(text, (address, 9000))
        data, peer = plain.recvfrom(65535)
        assert data == b"echo " + text, data[:20]
        assert peer[:2] == (address, 9000), peer
    connected = socket.socket(family, socket.SOCK_DGRAM)
    connected.settimeout(5)
    connected.connect((address, 9000))
    assert connected.getpeername()[:2] == (address, 9000), connected.getpeername()
    connected.send(b"two")
    assert connected.recv(100) == b"echo two"
print("udp ok")
