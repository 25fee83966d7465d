"""What is no connection: pings, and questions to a resolver that has a loopback address."""
import socket, struct

from cells import V4, V6, family_of

def summed(packet):
    total = sum(struct.unpack(f"!{len(packet) // 2}H", packet))
    while total > 0xffff:
        total = (total >> 16) + (total & 0xffff)
    return ~total & 0xffff

for address, protocol, asked, answered in (V4, socket.IPPROTO_ICMP, 8, 0), (V6, socket.IPPROTO_ICMPV6, 128, 129):
    s = socket.socket(family_of(address), socket.SOCK_DGRAM, protocol)
    s.settimeout(10)
    bare = struct.pack("!BBHHH", asked, 0, 0, 0, 1) + b"tabane"
    s.sendto(bare[:2] + struct.pack("!H", summed(bare)) + bare[4:], (address, 0))
    data, peer = s.recvfrom(100)
    assert data[0] == answered and data.endswith(b"tabane"), data
    print("ping", peer[0])

s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(10)
s.connect(("127.0.0.53", 53))
question = b"\7\7\1\0\0\1\0\0\0\0\0\0" + b"\4four\7example\0" + b"\0\1\0\1"
s.send(question)
answer = s.recv(500)
assert answer[:2] == b"\7\7" and answer.endswith(socket.inet_aton(V4)), answer
print("resolver", s.getpeername()[0])
