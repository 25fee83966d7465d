"""hop.py HOPS ADDRESS…: who says that a datagram to the address has ended after so many hops."""
import select, socket, struct, sys

hops = int(sys.argv[1])
for address in sys.argv[2:]:
    v6 = ":" in address
    s = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM)
    # IPV6_RECVERR and IPV6_UNICAST_HOPS; IP_RECVERR.
    s.setsockopt(*((41, 25, 1) if v6 else (0, 11, 1)))
    s.setsockopt(*((41, 16, hops) if v6 else (0, socket.IP_TTL, hops)))
    s.sendto(b"?", (address, 33434))
    select.select([s], [], [], 10)
    _, said, _, _ = s.recvmsg(100, 500, socket.MSG_ERRQUEUE)
    # struct sock_extended_err, then the address of who says it.
    of = said[0][2]
    print(socket.inet_ntop(s.family, of[24:40] if v6 else of[20:24]))
