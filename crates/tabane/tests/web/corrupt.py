"""Passes TLS on between ADDRESS and SERVER, port 443, and changes a byte of every long answer."""

import socket
import sys
import threading

# Behind the handshake, within what is asked for at once.
AT = 40_000


def serve(near, server):
    far = socket.create_connection((server, 443))
    threading.Thread(target=carry, args=(near, far, None), daemon=True).start()
    carry(far, near, AT)


def carry(source, sink, at):
    position = 0
    try:
        while data := bytearray(source.recv(65536)):
            if at is not None and position <= at < position + len(data):
                data[at - position] ^= 1
                print("changed")
            position += len(data)
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, sink):
            end.close()


listener = socket.create_server((sys.argv[1], 443))
print("ready")
while True:
    connection, _ = listener.accept()
    threading.Thread(target=serve, args=(connection, sys.argv[2]), daemon=True).start()
