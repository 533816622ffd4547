"""A server that follows scripts: whatever frames it likes, to real clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from common.experiment.files import load_experiment
from common.messages.content import head_of
from common.messages.messages import pack_introduction_question
from common.messages.messages_pb2 import Answer, FromClient, FromServer, Progress, Task, Welcome
from common.messages.stream import METHOD
from common.storage.spool import PIECE_BYTES

EXPERIMENT = load_experiment("digits", ["clients=2"]).to_yaml()
QUESTION = head_of(pack_introduction_question())
Script = Callable[[Iterator[bytes]], Iterator[FromServer | bytes]]


def welcome(experiment: str = EXPERIMENT) -> FromServer:
    return FromServer(welcome=Welcome(run="r", experiment=experiment))


def task(number: int = 1, **fields: object) -> FromServer:
    return FromServer(task=Task(**{"task": number, "question": QUESTION, **fields}))  # type: ignore[arg-type]


def piece(count: int = PIECE_BYTES) -> FromServer:
    return FromServer(piece=bytes(count))


class HostileServer(grpc.GenericRpcHandler):  # type: ignore[misc] # gRPC has no types
    """Follows one script a stream, and the last one from then on."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = list(scripts)
        self.answers: list[Answer] = []
        self.progress: list[Progress] = []
        self.streams = 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        is_ours = handler_call_details.method == METHOD
        return grpc.stream_stream_rpc_method_handler(self._work) if is_ours else None

    def _work(self, frames: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        self.streams += 1
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        for frame in script(self._noted(frames)):
            yield frame if isinstance(frame, bytes) else frame.SerializeToString()

    def _noted(self, frames: Iterator[bytes]) -> Iterator[bytes]:
        for data in frames:
            frame = FromClient.FromString(data)
            if frame.HasField("answer"):
                self.answers.append(frame.answer)
            if frame.HasField("progress"):
                self.progress.append(frame.progress)
            yield data


def saying(*said: FromServer | bytes) -> Script:
    """Return a script that says all this after Hello, and hears what comes then."""

    def script(frames: Iterator[bytes]) -> Iterator[FromServer | bytes]:
        next(frames)
        yield from said
        for _ in frames:
            pass

    return script


honest = saying(welcome(), task(99))


@contextmanager
def serving(server: HostileServer) -> Iterator[str]:
    with ThreadPoolExecutor(8) as threads:
        process = grpc.server(threads)
        process.add_generic_rpc_handlers((server,))
        port = process.add_insecure_port("127.0.0.1:0")
        process.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            process.stop(0).wait()


def has_answered(server: HostileServer) -> Callable[[], bool]:
    return lambda: any(one.task == 99 for one in server.answers)
