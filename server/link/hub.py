"""Where all streams end: a gRPC server in a thread of its own, for clients with a certificate or, in the clear, any."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import grpc

from common.errors import UserError
from common.messages.messages import Run
from common.messages.messages_pb2 import Finished, FromServer, Welcome
from common.messages.stream import STREAM_OPTIONS
from common.program.descriptors import most_connections
from common.say import Say
from server.keys.folder import Keys
from server.link.admission import Admission, credentials_of
from server.link.crowd import Crowd
from server.link.desk import Desk
from server.link.grid import LinkGrid
from server.link.service import Service

SECONDS_BETWEEN_LOOKS = 2.0  # at the folder of keys
SECONDS_AFTER_TROUBLE = 60.0
SECONDS_BETWEEN_COUNTS = 1.0  # of connections
GOODBYE_SECONDS = 1.0
MOST_STREAMS_OF_A_CONNECTION = 1_100  # in the clear, where a process may hold a thousand clients for a trial
MOST_STREAMS_OF_A_CERTIFICATE = 4  # it has one name, and a name has one stream


class Hub:
    """The server's end of the link."""

    def __init__(self, listen: str, keys: Keys | None = None, say: Say = print) -> None:
        self.address = listen
        self._keys = keys
        self._say = say
        self._desk = Desk(self._in_loop)
        self._admission = Admission(keys, say)
        self._service = Service(self._desk, self._admission, say)
        self._credentials = credentials_of(keys) if keys else None
        self._is_up = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run_loop, name="link", daemon=True)

    def __enter__(self) -> Hub:
        self._loop, self._over = asyncio.new_event_loop(), asyncio.Event()
        self._thread.start()
        self._is_up.wait()
        if self._failure is not None:
            raise UserError(
                f"--listen {self.address}: cannot listen there; the port is taken, or the address is not this machine's"
            ) from self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._in_loop(self._over.set)
        self._thread.join()

    @contextmanager
    def run(self, run: Run) -> Iterator[LinkGrid]:
        """Open a run, which all clients are told of, for as long as the context lasts."""
        grid = LinkGrid(self._desk)
        welcome = FromServer(welcome=Welcome(run=run.name, experiment=run.experiment.to_yaml()))
        self._in_loop(lambda: self._service.announce(welcome))
        try:
            yield grid
        finally:
            self._desk.forget_all()
            finished = FromServer(finished=Finished(summary=grid.summary))
            self._in_loop(lambda: self._service.announce(finished))

    def _in_loop(self, action: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(action)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._is_up.set()
            self._loop.close()

    async def _serve(self) -> None:
        server = grpc.aio.server(options=self._options())
        server.add_generic_rpc_handlers((self._service,))
        try:
            if self._credentials is None:
                port = server.add_insecure_port(self.address)
            else:
                port = server.add_secure_port(self.address, self._credentials)
        except RuntimeError as error:
            self._failure = error
            return
        self.address = f"{self.address.rpartition(':')[0]}:{port}"
        await server.start()
        self._is_up.set()
        watches = [asyncio.create_task(one) for one in (self._watch_keys(), self._watch_crowd(port))]
        await self._over.wait()
        for one in watches:
            one.cancel()
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

    async def _watch_crowd(self, port: int) -> None:
        """Keep one peer from taking all connections that there are."""
        crowd = Crowd(port, most_connections() // 2)
        while True:
            await asyncio.sleep(SECONDS_BETWEEN_COUNTS)
            with suppress(OSError):
                self._service.say_of_crowd(await asyncio.to_thread(crowd.thin_out))

    def _options(self) -> list[tuple[str, int]]:
        streams = MOST_STREAMS_OF_A_CONNECTION if self._keys is None else MOST_STREAMS_OF_A_CERTIFICATE
        return [
            *STREAM_OPTIONS,
            ("grpc.so_reuseport", 0),
            ("grpc.max_concurrent_streams", streams),
            # What strangers can hold: a handshake, and a connection without a stream, for a while; not all descriptors.
            ("grpc.server_handshake_timeout_ms", 10_000),
            ("grpc.max_connection_idle_ms", 30_000),
            ("grpc.max_allowed_incoming_connections", most_connections()),
        ]
