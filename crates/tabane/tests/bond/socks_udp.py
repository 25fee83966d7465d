"""A program that speaks SOCKS5 with UDP ASSOCIATE, at the port that ALL_PROXY names."""
import os, socket, struct

port = int(os.environ["ALL_PROXY"].rsplit(":", 1)[1])
control = socket.create_connection(("127.0.0.1", port), timeout=5)
control.sendall(b"\x05\x01\x00")
assert control.recv(2) == b"\x05\x00"
control.sendall(b"\x05\x03\x00\x01\0\0\0\0\0\0")
reply = control.recv(10)
assert reply[:2] == b"\x05\x00", reply
relay = (socket.inet_ntoa(reply[4:8]), struct.unpack("!H", reply[8:])[0])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(5)
header = b"\0\0\0\x01" + socket.inet_aton("203.0.113.2") + struct.pack("!H", 9000)
for text in b"one", b"y" * 3000:
    s.sendto(header + text, relay)
    assert s.recv(65535) == header + b"echo " + text
print("socks udp ok")
