"""Streams as they come: who says Hello is let in, or told why not; nobody is waited for, and nobody is believed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError

from common.messages.flower import SOFTWARE
from common.messages.messages_pb2 import Finished, FromClient, FromServer, Hello, Refused, Wait, Welcome
from common.messages.stream import METHOD, PREFIX_BYTES
from common.say import LONGEST_NAME, Event, Say, one_line
from server.link.admission import CERTIFICATE, Admission, BusyError, NotLetInError, TurnedAwayError, ViolationError
from server.link.desk import Desk
from server.link.limits import Limit, peer_of
from server.link.stream import LinkStream

HELLO_SECONDS = 10.0
LARGEST_HELLO_BYTES = 4_096
PENALTY_SECONDS = 10.0  # for which a client that broke the rules stays out
SECONDS_BETWEEN_WORDS = 60.0  # that are said of one peer
MOST_STREAMS_A_MINUTE = 60  # of a client, whose link may break time and again
MOST_STREAMS_OF_A_PEER = 4_096  # in the clear, where a machine may hold thousands of clients for a trial
MOST_CLIENTS = 4_096  # as many names as in the clear anybody can think of, who is waited for after each stream
MOST_STREAMS_OF_A_CERTIFICATE = 32  # its name has one, but those on connections that broke are not gone at once
NO_RUN = FromServer(wait=Wait(reason="the server has no run at this moment"))


class Service(grpc.GenericRpcHandler):  # type: ignore[misc] # gRPC has no types
    """Link.Work of messages.proto."""

    def __init__(self, desk: Desk, admission: Admission, say: Say) -> None:
        self._desk = desk
        self._admission = admission
        self._say = say
        self._news = NO_RUN  # what a client is told when it joins
        self._open: Counter[Hashable] = Counter()  # streams, by certificate or by peer
        self._words = Limit(1, SECONDS_BETWEEN_WORDS)  # by peer
        self._penalties = Limit(1, PENALTY_SECONDS)  # by name
        self._streams_begun = Limit(MOST_STREAMS_A_MINUTE, 60.0)  # by name
        self._streams: dict[LinkStream, str] = {}  # and whose each is

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Return what answers a call."""
        return grpc.stream_stream_rpc_method_handler(self._work) if handler_call_details.method == METHOD else None

    def announce(self, welcome: Welcome) -> None:
        """Tell all clients of a run that begins."""
        self._news = FromServer(welcome=welcome)
        for stream in self._streams:
            stream.say(self._news)

    def announce_end(self, summary: str, counted: Mapping[str, int]) -> None:
        """Tell all clients how a run went, and each in how many rounds it was counted."""
        self._news = NO_RUN
        for stream, name in self._streams.items():
            stream.say(FromServer(finished=Finished(summary=summary, counted=counted.get(name, 0))))

    def put_out(self, name: str, why: str) -> None:
        """End the stream of a client that may no longer be here."""
        seat = self._desk.seat_of(name)
        if seat is not None:
            if isinstance(seat.stream, LinkStream):
                seat.stream.end(Refused(reason=why, final=True))
            self._desk.give_up(seat, seat.stream, why)

    def say_of_crowd(self, peers: Iterable[str]) -> None:
        """Tell of peers that had too many connections."""
        for peer in peers:
            self._say_of(peer, f"too many connections of {peer}: the newest were ended")

    async def close(self, seconds: float) -> None:
        """End all streams when what is on its way to them has gone."""
        for stream in self._streams:
            stream.end()
        end = time.monotonic() + seconds
        while self._streams and time.monotonic() < end:
            await asyncio.sleep(0.01)

    async def _work(self, _: object, context: grpc.aio.ServicerContext) -> None:
        peer = _peer(context)
        if not self._has_place(peer, context):
            self._say_of(peer, f"too many streams of a client at {peer}")
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams of one client")
        name = ""  # as far as it is known
        try:
            hello = await self._greeting(context)
            name = hello.name
            await self._serve(hello, context)
        except TurnedAwayError as error:
            self._say_of(peer, f"{error.what_was_done} a client at {peer}: {error}", name)
            await self._refuse(context, Refused(reason=str(error), final=error.is_final))
        except grpc.aio.BaseError:
            pass  # it has gone
        except Exception as error:  # a fault of ours, which gRPC would print whole, each time
            self._say_of(peer, f"something went wrong with a client at {peer}: {error!r}")

    async def _greeting(self, context: grpc.aio.ServicerContext) -> Hello:
        try:
            data = await asyncio.wait_for(context.read(), HELLO_SECONDS)
        except TimeoutError:
            raise ViolationError("it said nothing") from None
        if data is grpc.aio.EOF:
            raise ViolationError("it left without a word")
        self._desk.count(None, up=len(data) + PREFIX_BYTES)
        if len(data) > LARGEST_HELLO_BYTES:
            raise ViolationError(f"a Hello of {len(data)} bytes")
        try:
            frame = FromClient.FromString(data)
        except DecodeError:
            frame = FromClient()
        if not frame.HasField("hello"):
            raise ViolationError("its first frame is no Hello")
        hello: Hello = frame.hello
        return hello

    async def _serve(self, hello: Hello, context: grpc.aio.ServicerContext) -> None:
        """Let a client in, and talk to it as long as its stream lasts."""
        self._check(hello, context.auth_context())
        stream = LinkStream(context, self._desk, hello.held)
        seat, before = self._desk.sit_down(hello.name, hello.identity, stream, one_line(hello.device, LONGEST_NAME))
        if isinstance(before, LinkStream):
            before.end(Refused(reason=f"another process that is {hello.name} has taken its place", final=True))
        if before is not None or seat.lost:
            self._say_of(f"back {seat.name}", f"{seat.name} is back, by a new stream", seat.name, kind="back")
        stream.say(self._news)
        for task in list(seat.tasks.values()):
            stream.say(task)
        self._streams[stream] = hello.name
        try:
            if await stream.talk(seat):
                self._desk.give_up(seat, stream)
        except ViolationError as error:
            self._penalties.allows(hello.name)
            self._desk.give_up(seat, stream, f"it was cut off: {error}")
            raise
        finally:
            del self._streams[stream]
            self._desk.lose(seat, stream)
            await stream.settled()

    def _check(self, hello: Hello, proofs: Mapping[str, object]) -> None:
        name = hello.name
        if not (0 < len(name) <= LONGEST_NAME and name.isprintable()):
            raise ViolationError(f"a client needs a name of at most {LONGEST_NAME} printable characters")
        if not 0 < len(hello.identity) <= LONGEST_NAME:
            raise ViolationError("a client needs an identity")
        self._admission.check(name, proofs)
        if hello.software != SOFTWARE:
            theirs = hello.software if len(hello.software) <= LONGEST_NAME and hello.software.isprintable() else "other"
            raise NotLetInError(f"it runs {theirs}, but the server {SOFTWARE}; install the same version on both")
        if left := self._penalties.seconds_left(name):
            raise BusyError(f"{name} broke the rules of the link, and stays out for {left:.0f} s more")
        if not self._streams_begun.allows(name):
            raise BusyError(f"{name} came more than {MOST_STREAMS_A_MINUTE} times in a minute")
        seat = self._desk.seat_of(name)
        if seat is None and self._desk.seats() >= MOST_CLIENTS:
            raise BusyError(f"there are {MOST_CLIENTS} clients already")
        is_known = self._desk.identities.get(name) == hello.identity  # by the run: another came before it
        if seat is not None and seat.stream is not None and seat.identity != hello.identity and not is_known:
            raise BusyError(f"another client is called {name} already; end that one, or choose another name")

    def _has_place(self, peer: str, context: grpc.aio.ServicerContext) -> bool:
        """Count a stream until gRPC has done with it, which who does not read puts off; say if it is one too many."""
        certificate = context.auth_context().get(CERTIFICATE)
        who = peer if certificate is None else hash(str(certificate))
        if self._open[who] >= (MOST_STREAMS_OF_A_PEER if certificate is None else MOST_STREAMS_OF_A_CERTIFICATE):
            return False
        self._open[who] += 1

        def note_its_end(_: object) -> None:
            self._open[who] -= 1
            if not self._open[who]:
                del self._open[who]

        context.add_done_callback(note_its_end)
        return True

    def _say_of(self, peer: str, text: str, client: str = "", kind: str = "refused") -> None:
        """Say something of a peer, unless something was said of it a moment ago."""
        if self._words.allows(peer):
            self._say(Event(text, kind=kind, client=client))

    async def _refuse(self, context: grpc.aio.ServicerContext, refused: Refused) -> None:
        data = FromServer(refused=refused).SerializeToString()
        self._desk.count(None, down=len(data) + PREFIX_BYTES)
        with suppress(grpc.aio.BaseError):  # it has gone
            await context.write(data)  # for as long as it takes: it counts among the streams of its peer


def _peer(context: grpc.aio.ServicerContext) -> str:
    """Return who is at the other end, of what gRPC writes as ipv4:192.0.2.1:50000 or ipv6:%5B2001:db8::1%5D:50000."""
    address = unquote(context.peer()).partition(":")[2].rpartition(":")[0]
    return peer_of(address.strip("[]"))
