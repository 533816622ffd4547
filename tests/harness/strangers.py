"""Strangers at the server's door, a thousand at a time: `python -m tests.harness.strangers KIND ADDRESS COUNT`."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from common.messages.flower import SOFTWARE
from common.messages.messages_pb2 import FromClient, Hello
from common.messages.stream import METHOD

COUNT = 1_000
RETURN_SECONDS = 10.0  # in which so many come again as were ended: as long as a handshake may take
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS = {
    b":method": b"POST",
    b":scheme": b"http",
    b":path": METHOD.encode(),
    b":authority": b"server",
    b"te": b"trailers",
    b"content-type": b"application/grpc",
}
CLIENT_HELLO_BEGINS = bytes.fromhex("160301020001 0001fc0303") + bytes(20)


def http2_frame(kind: int, flags: int, stream: int, data: bytes = b"") -> bytes:
    return len(data).to_bytes(3, "big") + bytes([kind, flags]) + struct.pack(">I", stream) + data


def settings(window: int | None = None) -> bytes:
    """Return the first frame of a connection; with how much of a stream its peer may send unread."""
    return PREFACE + http2_frame(4, 0, 0, b"" if window is None else struct.pack(">HI", 4, window))


def begin_stream(number: int, frame: bytes | None = None) -> bytes:
    """Return a call of Link.Work, the number-th of a connection, with its first frame if it has one."""
    stream = 2 * number + 1
    fields = (b"\x00" + bytes([len(key)]) + key + bytes([len(value)]) + value for key, value in HEADERS.items())
    call = http2_frame(1, 4, stream, b"".join(fields))
    return call if frame is None else call + http2_frame(0, 0, stream, b"\0" + struct.pack(">I", len(frame)) + frame)


def hello(number: int) -> bytes:
    name = f"stranger-{number}"
    return bytes(FromClient(hello=Hello(software=SOFTWARE, name=name, identity=name)).SerializeToString())


def connect(address: str, first: bytes = b"") -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), 10)
    connection.sendall(first)
    return connection


def without_certificate(address: str) -> socket.socket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(connect(address))


# What one connection of a stranger is, and how many are as much as a thousand of them.
KINDS: dict[str, tuple[Callable[[str], socket.socket], int]] = {
    "silent connections": (connect, COUNT),
    "half handshakes": (lambda address: connect(address, CLIENT_HELLO_BEGINS), COUNT),
    "clients without a certificate": (without_certificate, COUNT),
    "streams that never say Hello": (
        lambda address: connect(address, settings() + b"".join(begin_stream(one) for one in range(COUNT))),
        1,
    ),
    "streams that say Hello and then nothing": (
        lambda address: connect(address, settings() + b"".join(begin_stream(one, hello(one)) for one in range(COUNT))),
        1,
    ),
}


def is_open(connection: socket.socket) -> bool:
    """Say whether the other side has not ended it; what it says is passed over."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    try:
        while poll.poll(0):
            if not connection.recv(1 << 16):
                return False
    except OSError:
        return False
    return True


def besiege(kind: str, address: str, count: int) -> None:
    """Hold so many connections; for each that is ended another comes, all of them in ten seconds; say when all came."""
    one_more, _ = KINDS[kind]
    held: dict[int, socket.socket] = {}
    poll = select.poll()
    started, came = time.monotonic(), 0
    while True:
        while len(held) < count and came < count * (1 + (time.monotonic() - started) / RETURN_SECONDS):
            came += 1
            with suppress(OSError):
                connection = one_more(address)
                held[connection.fileno()] = connection
                poll.register(connection, select.POLLIN)
            if came == count:
                started = time.monotonic()
                print("here", flush=True)  # noqa: T201 - to who has started us
        for descriptor, _event in poll.poll(100):
            if not is_open(held[descriptor]):
                poll.unregister(descriptor)
                held.pop(descriptor).close()


@contextmanager
def strangers(kind: str, address: str, count: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """Besiege a server from a process of its own, as long as the context lasts."""
    command = [sys.executable, "-m", __name__, kind, address, str(count or KINDS[kind][1])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
            yield process
        finally:
            process.kill()


if __name__ == "__main__":
    besiege(sys.argv[1], sys.argv[2], int(sys.argv[3]))
