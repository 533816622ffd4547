"""Bare streams of gRPC that carry bytes to clients and back, and nothing else: what our link is measured against."""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import grpc

from client.link import Link
from client.stream import channel_to
from common.messages.stream import METHOD, STREAM_OPTIONS
from common.program.bundle import Bundle
from common.storage.spool import PIECE_BYTES
from server.keys.folder import Keys
from server.link.admission import credentials_of

PROCESSES = 2


@dataclass
class Echo(grpc.GenericRpcHandler):  # type: ignore[misc] # gRPC has no types
    """A server that sends to all streams and reads from all of them, round after round."""

    clients: int
    payload_bytes: int
    streams: list[Any] = field(default_factory=list)
    are_here: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Answer every call."""
        return grpc.stream_stream_rpc_method_handler(self._work)

    async def _work(self, _: object, context: grpc.aio.ServicerContext) -> None:
        self.streams.append(context)
        if len(self.streams) == self.clients:
            self.are_here.set()
        await self.is_over.wait()

    async def round(self) -> float:
        """Return the seconds of one round."""
        started = time.perf_counter()
        await asyncio.gather(*(self._exchange(stream) for stream in self.streams))
        return time.perf_counter() - started

    async def _exchange(self, stream: Any) -> None:  # noqa: ANN401 - gRPC has no types
        for piece in pieces_of(self.payload_bytes):
            await stream.write(piece)
        for _ in pieces_of(self.payload_bytes):
            await stream.read()


def pieces_of(payload_bytes: int) -> list[bytes]:
    """Return as many bytes in pieces as they go over our link."""
    return [bytes(min(PIECE_BYTES, payload_bytes - start)) for start in range(0, payload_bytes, PIECE_BYTES)]


def seconds_a_round(clients: int, payload_bytes: int, rounds: int, keys: Keys | None = None) -> float:
    """Return the median time in which all clients are sent a payload, and send one back."""
    return asyncio.run(_serve(clients, payload_bytes, rounds, keys))


async def _serve(clients: int, payload_bytes: int, rounds: int, keys: Keys | None) -> float:
    echo = Echo(clients, payload_bytes)
    server = grpc.aio.server(options=[*STREAM_OPTIONS, ("grpc.max_concurrent_streams", clients)])
    server.add_generic_rpc_handlers((echo,))
    here = "127.0.0.1:0"
    port = server.add_secure_port(here, credentials_of(keys)) if keys else server.add_insecure_port(here)
    await server.start()
    link = Link.in_the_clear(f"127.0.0.1:{port}")
    if keys is not None:
        bundle = keys.folder / "bundles" / "client-0.join"
        link = Link.of_bundle(Bundle.read(bundle), link.address)
    with ExitStack() as stack:
        for _ in range(PROCESSES):
            arguments = (link, clients // PROCESSES, payload_bytes)
            process = multiprocessing.get_context("spawn").Process(target=_answer, args=arguments)
            process.start()
            stack.callback(process.join)
            stack.callback(process.kill)
        await echo.are_here.wait()
        seconds = [await echo.round() for _ in range(rounds + 1)]
    echo.is_over.set()
    await server.stop(None)
    return statistics.median(seconds[1:])


def _answer(link: Link, clients: int, payload_bytes: int) -> None:
    asyncio.run(_answer_all(link, clients, payload_bytes))


async def _answer_all(link: Link, clients: int, payload_bytes: int) -> None:
    # With TLS each client has a connection of its own, as it has a certificate of its own.
    shared = channel_to(link)
    channels = [shared if link.root_certificates is None else channel_to(link) for _ in range(clients)]
    await asyncio.gather(*(_answer_one(channel, payload_bytes) for channel in channels))


async def _answer_one(channel: grpc.aio.Channel, payload_bytes: int) -> None:
    call, pieces = channel.stream_stream(METHOD)(), pieces_of(payload_bytes)
    while True:
        for _ in pieces:
            await call.read()
        for piece in pieces:
            await call.write(piece)
