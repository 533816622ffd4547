"""A stream in the hands of a test: whatever frames it likes, in whatever order."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

import grpc

from client.link import Link
from client.stream import CHANNEL_OPTIONS
from common.messages.flower import SOFTWARE
from common.messages.messages_pb2 import Answer, FromClient, FromServer, Hello
from common.messages.stream import METHOD


def channel_to(link: Link) -> grpc.Channel:
    options: list[tuple[str, Any]] = list(CHANNEL_OPTIONS)
    if link.root_certificates is None:
        return grpc.insecure_channel(link.address, options)
    options.append(("grpc.ssl_target_name_override", link.host))
    credentials = grpc.ssl_channel_credentials(link.root_certificates, link.private_key, link.certificate)
    return grpc.secure_channel(link.address, credentials, options)


class RawStream:
    """One stream of a channel of its own; frames come one by one, and None when the server has ended it."""

    def __init__(self, link: Link, channel: grpc.Channel | None = None) -> None:
        self._own = channel is None
        self._channel = channel or channel_to(link)
        self._frames: SimpleQueue[bytes | None] = SimpleQueue()
        self.call = self._channel.stream_stream(METHOD)(iter(self._frames.get, None))

    @classmethod
    def in_the_clear(cls, address: str) -> RawStream:
        return cls(Link.in_the_clear(address))

    def __enter__(self) -> RawStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._frames.put(None)
        self.call.cancel()
        if self._own:
            self._channel.close()

    def say(self, **frame: Any) -> None:  # noqa: ANN401 - any of the frames
        self.say_bytes(FromClient(**frame).SerializeToString())

    def say_bytes(self, data: bytes) -> None:
        self._frames.put(data)

    def hello(self, name: str, **others: Any) -> RawStream:  # noqa: ANN401 - fields of Hello
        self.say(hello=Hello(**{"software": SOFTWARE, "name": name, "identity": f"of {name}", **others}))
        return self

    def answer(self, task: int, reply: bytes, payload: bytes = b"") -> None:
        self.say(answer=Answer(task=task, reply=reply, payload_bytes=len(payload), piece=payload))

    def hear(self) -> FromServer | None:
        try:
            frame: FromServer = FromServer.FromString(next(self.call))
            return frame
        except (StopIteration, grpc.RpcError):
            return None

    def hear_until(self, kind: str) -> FromServer:
        """Return the next frame of a kind."""
        while (frame := self.hear()) is not None:
            if frame.HasField(kind):
                return frame
        raise AssertionError(f"the stream ended without {kind}: {self.call.code()} {self.call.details()}")
