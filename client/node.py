"""The resident node: one long-lived client on Flower's gRPC Fleet API.

To the server it is a SuperNode, with three differences. It keeps data, model and control variate in memory between
messages. It runs only the code that is installed on its own machine, never what a server ships. And where the server
is ours, a message comes and goes with its content, in one request each or in pieces of 1 MB, instead of in one
request for each of its objects.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
from flwr.app import Context, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.clientapp import ClientApp
from flwr.common.config import get_fused_config_from_fab
from flwr.common.constant import (
    HEARTBEAT_CALL_TIMEOUT,
    HEARTBEAT_DEFAULT_INTERVAL,
    PUBLIC_KEY_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
)
from flwr.common.serde import fab_from_proto, message_from_proto, message_to_proto, run_from_proto
from flwr.proto import fleet_pb2, message_pb2
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.date import now
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectUnavailableError,
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

from client.handshake import what_is_wrong
from client.link import Link
from common.errors import UserError
from common.messages.flower import APP_ID, APP_VERSION, CHANNEL_OPTIONS, WHOLE_MESSAGES_HEADER, require_known_flower
from common.messages.pieces import Assembly, cut, piece, pieces_to_come
from common.say import Say
from common.storage.disk import NoRoomError
from common.storage.spool import Spool

FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 15.0
IDLE_SECONDS = 0.05  # between pulls from a server that does not hold them
LONGEST_IDLE_SECONDS = 1.0
GOODBYE_SECONDS = 3.0
PULL_SECONDS = 60.0  # longer than a server holds a pull: without an answer by then the link is dead
CALL_SECONDS = 600.0  # for a piece of a model on a slow link


class Connection:
    """A node's calls to the Fleet API, each signed with its key."""

    def __init__(self, link: Link, upload_kbps: float | None = None) -> None:
        self._pace = Pace(upload_kbps)
        private_key = link.private_key or generate_key_pairs()[0]
        self._private_key = private_key
        self._public_key = public_key_to_bytes(private_key.public_key())
        self._registers_itself = link.private_key is None
        self._channel = _channel(link)
        self._stub = FleetStub(self._channel)
        self._version = RuntimeVersionMetadata.from_local_component("SuperNode").append_to_grpc_metadata(())
        self._heartbeat = HeartbeatSender(self._send_heartbeat)
        self._call: grpc.Future | None = None
        self._stopped = False
        self.node = Node()

    def open(self) -> None:
        """Make ourselves known and show that we live."""
        if self._registers_itself:
            self._ask("RegisterNode", fleet_pb2.RegisterNodeFleetRequest(public_key=self._public_key))
        request = fleet_pb2.ActivateNodeRequest(
            public_key=self._public_key, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
        )
        self.node = Node(node_id=self._ask("ActivateNode", request).node_id)
        self._heartbeat.start()

    def close(self) -> None:
        """Take leave, as far as the server still listens, so that this key can come back at once."""
        with suppress(RuntimeError):
            self._heartbeat.stop()
        with suppress(grpc.RpcError, NodeStoppedError):
            self._stopped = False  # the goodbye itself may take its time
            if self.node.node_id:
                self._ask("DeactivateNode", fleet_pb2.DeactivateNodeRequest(node_id=self.node.node_id), GOODBYE_SECONDS)
                if self._registers_itself:
                    request = fleet_pb2.UnregisterNodeFleetRequest(node_id=self.node.node_id)
                    self._ask("UnregisterNode", request, GOODBYE_SECONDS)
        self._channel.close()

    def cancel(self) -> None:
        """End a call that waits for work, or the next one."""
        self._stopped = True
        if (call := self._call) is not None:
            call.cancel()

    def pull(self) -> tuple[Message, message_pb2.ObjectTree] | None:
        """Return the next message, with its content if it came along; None if there was no work."""
        response = self._ask("PullMessages", fleet_pb2.PullMessagesRequest(node=self.node), PULL_SECONDS)
        if not response.messages_list:
            return None
        return message_from_proto(response.messages_list[0]), response.message_object_trees[0]

    def pieces(self, message: Message) -> Message:
        """Fetch the rest of a message that came with the first piece of its payload."""
        metadata = message.metadata
        assembly = Assembly(message.content)
        for number in sorted(assembly.missing):
            assembly.add(number, self._pull_object(metadata.run_id, f"{metadata.message_id}:{number}"))
        message.content = assembly.content()
        return message

    def content(self, message: Message, tree: message_pb2.ObjectTree) -> Message:
        """Fetch the objects of a message that came without them."""
        run_id, message_id = message.metadata.run_id, message.metadata.message_id
        objects = pull_objects(
            [node.object_id for node in iterate_object_tree(tree)],
            partial(self._pull_object, run_id),
            initial_backoff=0.01,
            backoff_cap=0.25,
        )
        confirmation = message_pb2.ConfirmMessageReceivedRequest(
            node=self.node, run_id=run_id, message_object_id=message_id
        )
        self._ask("ConfirmMessageReceived", confirmation)
        whole = inflate_object_from_contents(message_id, objects)
        assert isinstance(whole, Message)
        whole.metadata.__dict__["_message_id"] = message_id
        return whole

    def push_whole(self, reply: Message, seconds: float) -> None:
        """Send a reply with its content: in one request, or what does not fit in pieces after it."""
        answered = reply.metadata.reply_to_message_id
        reply.metadata.__dict__["_message_id"] = answered
        data: bytes | Spool = b""
        if reply.has_content():
            reply.content, data = cut(reply.content)
        self._push(reply, message_pb2.ObjectTree(), seconds)
        for number in pieces_to_come(reply.content) if data else ():
            self._push_object(reply.metadata.run_id, "", f"{answered}:{number}", piece(data, number))

    def push_objects(self, reply: Message, seconds: float) -> None:
        """Send a reply as Flower does: its description first, then object by object."""
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            tree, objects = get_object_tree(reply), get_all_nested_objects(reply)
            described = remove_content_from_message(reply) if reply.has_content() else reply
            response = self._push(described, tree, seconds)
            push = partial(self._push_object, reply.metadata.run_id, response.session_id)
            push_objects(objects, push, object_ids_to_push=set(response.objects_to_push))

    def context(self, run_id: int, node_config: dict[str, bool | float | int | str]) -> Context:
        """Ask what a run is about, and refuse one that is not for the code installed here."""
        run = run_from_proto(self._ask("GetRun", GetRunRequest(node=self.node, run_id=run_id)).run)
        if (run.fab_id, run.fab_version) != (APP_ID, APP_VERSION):
            raise UserError(
                f"the server runs {run.fab_id} {run.fab_version}, but this machine has {APP_ID} {APP_VERSION}; "
                "install the same version on both"
            )
        request = GetFabRequest(node=self.node, hash_str=run.fab_hash, run_id=run_id)
        configuration = get_fused_config_from_fab(fab_from_proto(self._ask("GetFab", request).fab).content, run)
        return Context(
            run_id=run_id,
            node_id=self.node.node_id,
            node_config=node_config,
            state=RecordDict(),
            run_config=configuration,
            series_id=run.series_id,
        )

    def _push(self, message: Message, tree: message_pb2.ObjectTree, seconds: float) -> fleet_pb2.PushMessagesResponse:
        request = fleet_pb2.PushMessagesRequest(
            node=self.node,
            messages_list=[message_to_proto(message)],
            message_object_trees=[tree],
            clientapp_runtime_list=[seconds],
        )
        response: fleet_pb2.PushMessagesResponse = self._ask("PushMessages", request)
        self._pace.keep(request.ByteSize())
        return response

    def _pull_object(self, run_id: int, object_id: str) -> bytes:
        request = message_pb2.PullObjectRequest(node=self.node, run_id=run_id, object_id=object_id)
        response = self._ask("PullObject", request)
        if not response.object_found:
            raise MissingObjectError(f"the server no longer has object {object_id[:8]} of its message")
        if not response.object_available:
            raise ObjectUnavailableError(object_id)  # for `pull_objects`, which then tries again
        return bytes(response.object_content)

    def _push_object(self, run_id: int, session_id: str, object_id: str, content: bytes) -> None:
        request = message_pb2.PushObjectRequest(
            node=self.node, run_id=run_id, session_id=session_id, object_id=object_id, object_content=content
        )
        self._ask("PushObject", request)
        self._pace.keep(request.ByteSize())

    def _send_heartbeat(self) -> bool:
        request = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        try:
            return bool(self._stub.SendNodeHeartbeat(request, HEARTBEAT_CALL_TIMEOUT, self._credentials()).success)
        except grpc.RpcError:
            return True  # the pull sees the same trouble, and deals with it

    def _ask(self, method: str, request: object, timeout_seconds: float = CALL_SECONDS) -> Any:  # noqa: ANN401 - a proto
        call = self._call = getattr(self._stub, method).future(request, timeout_seconds, self._credentials())
        if self._stopped:
            call.cancel()
        try:
            return call.result()
        except grpc.FutureCancelledError:
            raise NodeStoppedError from None
        finally:
            self._call = None

    def _credentials(self) -> list[tuple[str, str | bytes]]:
        timestamp = now().isoformat()
        return [
            *self._version,
            (PUBLIC_KEY_HEADER, self._public_key),
            (TIMESTAMP_HEADER, timestamp),
            (SIGNATURE_HEADER, sign_message(self._private_key, timestamp.encode("ascii"))),
            (WHOLE_MESSAGES_HEADER, "1"),
        ]


class Pace:
    """Keeps uploads slow, on average over a piece of a message, so that a link is left for others."""

    def __init__(self, kilobits_a_second: float | None) -> None:
        self._seconds_a_byte = 8 / (1000 * kilobits_a_second) if kilobits_a_second else 0.0

    def keep(self, sent_bytes: int) -> None:
        """Wait as long as what was just sent may take."""
        if self._seconds_a_byte:
            time.sleep(sent_bytes * self._seconds_a_byte)


class NodeStoppedError(Exception):
    """The node was told to leave while it waited."""


class MissingObjectError(Exception):
    """A part of a message that the server promised is gone."""


class ResidentNode:
    """One client: joins, serves, comes back when the link breaks, until it is told to stop."""

    def __init__(
        self,
        link: Link,
        app: ClientApp,
        node_config: dict[str, bool | float | int | str],
        say: Say,
        upload_kbps: float | None = None,
    ) -> None:
        require_known_flower()
        self._link = link
        self._app = app
        self._node_config = node_config
        self._say = say
        self._upload_kbps = upload_kbps
        self._stopping = threading.Event()
        self._connection: Connection | None = None
        self._contexts: dict[int, Context] = {}
        self._has_joined = False  # once; then whatever is wrong may mend

    def run(self) -> None:
        """Serve until stopped; a UserError is a reason to give up."""
        wait = FIRST_WAIT_SECONDS
        while not self._stopping.is_set():
            self._connection = Connection(self._link, self._upload_kbps)
            joined = False
            try:
                self._connection.open()
                joined = self._has_joined = True
                self._say(f"joined the server at {self._link.address}")
                wait = FIRST_WAIT_SECONDS
                self._serve(self._connection)
            except NodeStoppedError:
                pass
            except Exception as error:
                if isinstance(error, UserError) and not isinstance(error, NoRoomError):
                    raise
                # Whatever else it was, a client that stays is worth more than one that ends.
                self._say(f"{self._reason(error, joined=joined)}; trying again in {wait:g} s")
                self._stopping.wait(wait)
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)
            finally:
                self._connection.close()

    def stop(self) -> None:
        """Leave as soon as the message at hand is answered."""
        self._stopping.set()
        if self._connection is not None:
            self._connection.cancel()

    def _serve(self, connection: Connection) -> None:
        idle = IDLE_SECONDS
        while not self._stopping.is_set():
            started = time.monotonic()
            pulled = connection.pull()
            if pulled is not None:
                self._answer(connection, *pulled)
                idle = IDLE_SECONDS
            elif time.monotonic() - started < idle:  # a server that does not hold a pull until there is work
                self._stopping.wait(idle)
                idle = min(1.3 * idle, LONGEST_IDLE_SECONDS)

    def _answer(self, connection: Connection, message: Message, tree: message_pb2.ObjectTree) -> None:
        came_whole = not tree.object_id  # else it is a description of objects to fetch
        whole = connection.pieces(message) if came_whole else connection.content(message, tree)
        run_id = message.metadata.run_id
        if run_id not in self._contexts:
            self._contexts = {run_id: connection.context(run_id, self._node_config)}
        started = time.monotonic()
        reply = self._app(whole, self._contexts[run_id])
        seconds = time.monotonic() - started
        if reply.has_error():
            self._say(f"cannot do what the server asks: {reply.error.reason}")
        if came_whole:
            self._push_whole(connection, reply, seconds)
        else:
            connection.push_objects(reply, seconds)

    def _push_whole(self, connection: Connection, reply: Message, seconds: float) -> None:
        try:
            connection.push_whole(reply, seconds)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                raise
            self._say("the server no longer waits for this answer; it came too late")

    def _reason(self, error: Exception, *, joined: bool) -> str:
        if not isinstance(error, grpc.RpcError):
            return str(error) if isinstance(error, NoRoomError) else f"something went wrong here ({error!r})"
        code, details = error.code(), error.details() or ""
        from flwr.supercore.error import FlowerError  # slow to import, and rarely wanted

        if told := FlowerError.from_json(details):
            details = told.public_details or told.message
        if code is grpc.StatusCode.UNAVAILABLE:
            return self._unreachable(details.rpartition("last error: ")[2])
        refused = code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
        if refused and "timestamp" in details:
            return (
                f"the server at {self._link.address} refuses this machine's clock, which differs from its own: set it"
            )
        # After we had joined it only means that the server was restarted, and does not know us yet.
        if refused and not joined and self._link.private_key is not None:
            raise UserError(f"the server at {self._link.address} refused this client's key: {details}")
        if self._link.private_key is None and "authentication is enabled" in details:
            raise UserError(f"the server at {self._link.address} lets in known keys only: join with a bundle")
        if code is grpc.StatusCode.FAILED_PRECONDITION:
            return f"the server at {self._link.address} does not take this client now: {details}"
        return f"lost the server at {self._link.address} ({code.name}: {details})"

    def _unreachable(self, details: str) -> str:
        """Say that the server is not there; where that will not change, and we were never in, give up."""
        link = self._link
        wrong = None if self._has_joined else what_is_wrong(link.address, link.host, link.root_certificates)
        if wrong:
            raise UserError(f"cannot join the server at {link.address}: {wrong}")
        return f"waiting for the server at {link.address} ({details})"


def _channel(link: Link) -> grpc.Channel:
    options: list[tuple[str, int | str]] = list(CHANNEL_OPTIONS)
    if link.root_certificates is None:
        return grpc.insecure_channel(link.address, options)
    options.append(("grpc.ssl_target_name_override", link.host))
    return grpc.secure_channel(link.address, grpc.ssl_channel_credentials(link.root_certificates), options)
