"""A program that sends 500 destinations a datagram each, at once, from one socket; by the SOCKS5 proxy
of ALL_PROXY where there is one. Says how many the servers got, and from how many addresses."""
import os, socket, struct, sys, time, urllib.request

HOST, name = "203.0.113.2", sys.argv[1]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if "ALL_PROXY" in os.environ:
    port = int(os.environ["ALL_PROXY"].rsplit(":", 1)[1])
    control = socket.create_connection(("127.0.0.1", port), timeout=5)
    control.sendall(b"\x05\x01\x00")
    assert control.recv(2) == b"\x05\x00"
    control.sendall(b"\x05\x03\x00\x01\0\0\0\0\0\0")
    relay = ("127.0.0.1", struct.unpack("!H", control.recv(10)[8:])[0])
    for port in range(20000, 20500):
        header = b"\0\0\0\x01" + socket.inet_aton(HOST) + struct.pack("!H", port)
        s.sendto(header + name.encode(), relay)
else:
    for port in range(20000, 20500):
        s.sendto(name.encode(), (HOST, port))
seen, deadline = "", time.monotonic() + 10
while not seen.startswith("500 ") and time.monotonic() < deadline:
    seen = urllib.request.urlopen(f"http://{HOST}:8000/burst/{name}", timeout=10).read().decode()
print(seen.strip())
