"""Where all streams end: a gRPC server in a thread of its own, for clients with a certificate or, in the clear, any."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar

import grpc

from common.errors import UserError
from common.messages.messages import Run
from common.messages.messages_pb2 import Welcome
from common.messages.stream import STREAM_OPTIONS
from common.program.descriptors import most_connections
from common.program.garbage import leave_alone_what_is_loaded
from common.say import Say
from server.keys.folder import Keys
from server.link.admission import Admission, credentials_of
from server.link.crowd import Crowd
from server.link.grid import LinkGrid
from server.link.loop import loop_of_streams
from server.link.service import Service

SECONDS_BETWEEN_LOOKS = 2.0  # at the folder of keys
SECONDS_AFTER_TROUBLE = 60.0
SECONDS_BETWEEN_COUNTS = 1.0  # of connections
GOODBYE_SECONDS = 1.0
MOST_STREAMS_OF_A_CONNECTION = 1_100  # in the clear, where a process may hold a thousand clients for a trial
MOST_STREAMS_OF_A_TLS_CONNECTION = 4  # its certificate has one name, and a name has one stream

_Result = TypeVar("_Result")


class Hub:
    """The server's end of the link."""

    def __init__(self, listen: str, keys: Keys | None = None, say: Say = print) -> None:
        self.address = listen
        self._keys = keys
        self._say = say
        self.grid = LinkGrid(self._in_loop)
        self._admission = Admission(keys, say)
        self._service = Service(self.grid, self._admission, say)
        self._credentials = credentials_of(keys) if keys else None
        self._stack = ExitStack()

    def __enter__(self) -> Hub:
        server = self._do(self._start())
        self._stack.callback(lambda: self._do(self._stop(server)))
        for watching in (self._watch_keys(), self._watch_crowd()):
            self._stack.callback(asyncio.run_coroutine_threadsafe(watching, loop_of_streams()).cancel)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def run(self, run: Run) -> Iterator[LinkGrid]:
        """Open a run, which all clients are told of, for as long as the context lasts."""
        leave_alone_what_is_loaded()
        self.grid.summary = "the run was stopped"
        self.grid.counted = {}
        welcome = Welcome(run=run.name, experiment=run.experiment.to_yaml())
        self._in_loop(lambda: self._service.announce(welcome))
        try:
            yield self.grid
        finally:
            self.grid.forget_all()
            summary, counted = self.grid.summary, self.grid.counted
            self._in_loop(lambda: self._service.announce_end(summary, counted))

    def _in_loop(self, action: Callable[[], None]) -> None:
        loop_of_streams().call_soon_threadsafe(action)

    def _do(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, loop_of_streams()).result()

    async def _start(self) -> grpc.aio.Server:
        server = grpc.aio.server(options=self._options())
        server.add_generic_rpc_handlers((self._service,))
        try:
            if self._credentials is None:
                port = server.add_insecure_port(self.address)
            else:
                port = server.add_secure_port(self.address, self._credentials)
        except RuntimeError:
            raise UserError(
                f"--listen {self.address}: cannot listen there; the port is taken, or the address is not this machine's"
            ) from None
        self.address = f"{self.address.rpartition(':')[0]}:{port}"
        await server.start()
        return server

    async def _stop(self, server: grpc.aio.Server) -> None:
        await self._service.close(GOODBYE_SECONDS)
        await server.stop(GOODBYE_SECONDS)

    async def _watch_keys(self) -> None:
        """Put out who is revoked, within seconds."""
        while self._keys is not None:
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
            try:
                for name in await asyncio.to_thread(self._admission.update):
                    self._service.put_out(name, f"the key of {name} was revoked")
            except Exception as error:  # whatever it is: who is revoked later must be put out too
                self._say(f"cannot look after the keys: {error!r}")
                await asyncio.sleep(SECONDS_AFTER_TROUBLE)

    async def _watch_crowd(self) -> None:
        """Keep one peer from taking all connections that there are."""
        crowd = Crowd(int(self.address.rpartition(":")[2]), most_connections() // 2)
        while True:
            await asyncio.sleep(SECONDS_BETWEEN_COUNTS)
            with suppress(OSError):
                self._service.say_of_crowd(await asyncio.to_thread(crowd.thin_out))

    def _options(self) -> list[tuple[str, int]]:
        streams = MOST_STREAMS_OF_A_CONNECTION if self._keys is None else MOST_STREAMS_OF_A_TLS_CONNECTION
        return [
            *STREAM_OPTIONS,
            ("grpc.so_reuseport", 0),
            ("grpc.max_concurrent_streams", streams),
            # What strangers can hold: a handshake, and a connection without a stream, for a while; not all descriptors.
            ("grpc.server_handshake_timeout_ms", 10_000),
            ("grpc.max_connection_idle_ms", 30_000),
            ("grpc.max_allowed_incoming_connections", most_connections()),
        ]
