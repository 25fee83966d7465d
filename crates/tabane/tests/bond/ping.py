"""Pings each address once a second until it answers, at most so many times; prints who answered."""
import os, socket, struct, sys

def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff

tries = int(sys.argv[1])
for address in sys.argv[2:]:
    v6 = ":" in address
    family = socket.AF_INET6 if v6 else socket.AF_INET
    s = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_ICMPV6 if v6 else socket.IPPROTO_ICMP)
    s.settimeout(1)
    ident, payload = os.getpid() & 0xffff, bytes(range(256)) * int(os.environ.get("BLOCKS", "8"))
    answered = False
    for sequence in range(tries):
        message = struct.pack("!BBHHH", 128 if v6 else 8, 0, 0, ident, sequence) + payload
        if not v6:
            message = message[:2] + struct.pack("!H", checksum(message)) + message[4:]
        try:
            s.sendto(message, (address, 0))
            while not answered:
                data, peer = s.recvfrom(65535)
                data = data if v6 else data[(data[0] & 15) * 4:]
                kind, _, _, got, number = struct.unpack("!BBHHH", data[:8])
                if kind == (129 if v6 else 0) and got == ident and peer[0] == address:
                    assert data[8:] == payload and number == sequence
                    answered = True
        except OSError:
            continue
        break
    print(address if answered else "-")
