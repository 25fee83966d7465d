"""Cells: addresses of sockets, and names."""
import json, socket, subprocess

from cells import *

def own_addresses():
    rows = json.loads(subprocess.run(["ip", "-j", "addr"], capture_output=True, check=True).stdout)
    return {info["local"] for row in rows if row["ifname"] != "lo" for info in row["addr_info"]}

def whose(name):
    return "an address of this host" if name[0] in own_addresses() else f"{name[0]}"

for version, address in (4, V4), (6, V6):
    @cell(f"getsockname and getpeername, TCP, IPv{version}")
    def names(way, address=address):
        s = way.dial(address, ECHO)
        return f"{whose(s.getsockname())}, {s.getpeername()[:2]}"

    @cell(f"getsockname and getpeername, connected UDP, IPv{version}")
    def udp_names(way, address=address):
        s = socket.socket(family_of(address), socket.SOCK_DGRAM)
        s.connect((address, 9000))
        return f"{whose(s.getsockname())}, {s.getpeername()[:2]}"

@cell("getsockname before the answer")
def name_before(way):
    s = socket.socket()
    s.setblocking(False)
    s.connect_ex(("198.51.100.4", 80))
    return whose(s.getsockname())

@cell("getsockname of a socket bound to an address and port")
def bound_name(way):
    own = sorted(address for address in own_addresses() if "." in address)[0]
    s = socket.socket()
    s.settimeout(10)
    s.bind((own, 0))
    bound = s.getsockname()
    s.connect((V4, ECHO))
    s.sendall(b"x")
    return f"{'as bound' if s.getsockname() == bound else s.getsockname()}, {exactly(s, 1).decode()}"

@cell("address that the server sees")
def seen(way):
    address = everything(way.dial(V4, PEER)).decode()
    return "of this host" if address in own_addresses() else "of another host"

def found(name, family=0):
    try:
        rows = socket.getaddrinfo(name, 80, family, socket.SOCK_STREAM)
    except socket.gaierror as error:
        return {value: key for key, value in vars(socket).items() if key.startswith("EAI_")}[error.errno]
    return " ".join(row[4][0] for row in rows)

for name in "dual", "four", "six", "none", "unrouted6", "unknown":
    @cell(f"getaddrinfo of {name}.example")
    def resolves(way, name=name):
        return found(f"{name}.example")

for name in "dual", "unrouted6":
    @cell(f"connect to {name}.example, one address after the other")
    def tries_all(way, name=name):
        return outcome(lambda: whose_peer(socket.create_connection((f"{name}.example", ECHO), 10)))

@cell("connect to dual.example, refused by IPv6 alone")
def falls_back(way):
    return outcome(lambda: whose_peer(socket.create_connection(("dual.example", 8004), 10)))

def whose_peer(s):
    return s.getpeername()[0]
