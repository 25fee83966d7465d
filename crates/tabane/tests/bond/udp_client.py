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
# A socket for both families says IPv4 addresses in mapped form, and hears of them so.
mapped = "::ffff:203.0.113.2"
for connects in False, True:
    both = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    both.settimeout(5)
    if connects:
        both.connect((mapped, 9001))
        both.send(b"who")
    else:
        both.sendto(b"who", (mapped, 9001))
    data, peer = both.recvfrom(100)
    assert not data.startswith(b"10.71."), data
    assert peer[:2] == (mapped, 9001), peer
tcp = socket.socket(socket.AF_INET6)
tcp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
tcp.settimeout(10)
tcp.connect((mapped, 8000))
assert tcp.getpeername()[:2] == (mapped, 8000), tcp.getpeername()
tcp.send(b"GET /peer HTTP/1.1\r\nHost: x\r\n\r\n")
answer = b""
while not answer.endswith(b"\n") or b"\r\n\r\n" not in answer[:-4]:
    piece = tcp.recv(1000)
    assert piece, answer
    answer += piece
assert b"10.71." not in answer, answer
print("udp ok")
