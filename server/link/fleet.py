"""Flower's own Fleet gRPC API inside the server process, and the Grid that a strategy drives it with.

To nodes this is a SuperLink: its servicer, link state, object store, node authentication and TLS are flwr's, and stock
SuperNodes join. Two things are added. A pull for which there is no work is held until there is some, so nobody polls.
And a node that can do so (client/node.py) gets a message with its content in the answer to its pull, and sends its
reply with the content too: two requests a round instead of fifteen, and a few more for the pieces of a large model.

All use of flwr's insides on the server's side is in this file, and in admission.py.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from uuid import uuid4

import grpc
from flwr.app import Error, Message, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import NOOP_FLWR_AID, PUBLIC_KEY_HEADER, SUPERLINK_NODE_ID, ErrorCode, SubStatus
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import fleet_pb2, message_pb2
from flwr.proto.fleet_pb2_grpc import add_FleetServicer_to_server
from flwr.proto.node_pb2 import NodeInfo
from flwr.server.superlink.fleet.grpc_rere.fleet_servicer import FleetServicer
from flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor import NodeAuthServerInterceptor
from flwr.server.superlink.linkstate import LinkState, LinkStateFactory
from flwr.serverapp import Grid
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, NodeStatus, TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors import (
    RpcErrorTranslationServerInterceptor,
    create_fleet_runtime_version_server_interceptor,
)
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories
from google.protobuf.message import Message as ProtoMessage

from common.errors import MessageError, UserError
from common.messages.flower import (
    APP_ID,
    APP_NAME,
    APP_VERSION,
    CHANNEL_OPTIONS,
    WHOLE_MESSAGES_HEADER,
    require_known_flower,
)
from common.messages.pieces import cut, piece
from common.say import Say
from common.storage.spool import PIECE_BYTES
from server.keys.certificates import Certificates
from server.keys.folder import Keys
from server.link.admission import Admission
from server.link.post_office import PostOffice

HOLD_SECONDS = 20.0  # how long a pull without work is held: below what proxies and NATs cut off
SCAN_SECONDS = 0.5  # how often the link state is asked for what nobody tells us: dead nodes, expired messages
TASK_HEARTBEAT_SECONDS = 20.0
GOODBYE_SECONDS = 1.0
MOST_CALLS = 1000  # at a time; a held pull is one
KEEP_ALIVE = (("grpc.keepalive_time_ms", 210_000), ("grpc.http2.max_pings_without_data", 0))  # as flwr has it
LARGEST_WHOLE_BYTES = PIECE_BYTES + (1 << 16)  # a first piece and what is around it
LARGEST_REQUEST_BYTES = 32 << 20  # a stock SuperNode sends objects of up to 20 MB
KEY_IN_USE = "its key is in use by another client, or by a session of its own that was cut off less than a minute ago"
NOT_EXPECTED = "nobody waits for this reply any more"


class HoldingServicer(FleetServicer):
    """Flower's servicer that lets a pull wait for work, and takes whole messages where a node offers them."""

    def __init__(self, factory: LinkStateFactory, office: PostOffice, admission: Admission | None) -> None:
        super().__init__(factory, factory.objectstore_factory, admission is not None)
        self._office = office
        self._admission = admission

    def RegisterNode(  # noqa: N802 - Flower's name
        self, request: fleet_pb2.RegisterNodeFleetRequest, context: grpc.ServicerContext
    ) -> fleet_pb2.RegisterNodeFleetResponse:
        """Take in a node that brings a key of its own making, where anybody may join."""
        _require_own_key(request.public_key, context)
        if self._admission is not None:
            self._admission.refuse(request.public_key, context.peer())
        return super().RegisterNode(request, context)

    def ActivateNode(  # noqa: N802 - Flower's name
        self, request: fleet_pb2.ActivateNodeRequest, context: grpc.ServicerContext
    ) -> fleet_pb2.ActivateNodeResponse:
        """Let a node in, or tell it why not: Flower's answer is the same for a foreign key and for one in use."""
        _require_own_key(request.public_key, context)
        state = self.state_factory.state()
        if self._admission is not None and state.get_node_id_by_public_key(request.public_key) is None:
            self._admission.update()  # it may have been added in this moment
        node_id = state.get_node_id_by_public_key(request.public_key)
        if node_id is None:
            admission = self._admission
            reason = admission.refuse(request.public_key, context.peer()) if admission else "it was never registered"
            context.abort(grpc.StatusCode.UNAUTHENTICATED, reason)
        elif any(info.status == NodeStatus.ONLINE for info in state.get_node_info(node_ids=[node_id])):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, KEY_IN_USE)
        return super().ActivateNode(request, context)

    def PullMessages(  # noqa: N802 - Flower's name
        self, request: fleet_pb2.PullMessagesRequest, context: grpc.ServicerContext
    ) -> fleet_pb2.PullMessagesResponse:
        """Answer with the next message, as soon as there is one."""
        box = self._office.box(request.node.node_id)
        box.takes_whole_messages = any(key == WHOLE_MESSAGES_HEADER for key, _ in context.invocation_metadata())
        end = time.monotonic() + HOLD_SECONDS
        while True:
            seen = box.signals
            if box.takes_whole_messages and context.is_active() and (message := box.oldest()):
                return self._whole(request, message, context)
            response = super().PullMessages(request, context)
            if response.messages_list or self._office.closed:
                return response
            if not box.wait_beyond(seen, end - time.monotonic()) or not context.is_active():
                return response

    def _whole(
        self, request: fleet_pb2.PullMessagesRequest, message: Message, context: grpc.ServicerContext
    ) -> fleet_pb2.PullMessagesResponse:
        response = fleet_pb2.PullMessagesResponse(
            messages_list=[message_to_proto(message)], message_object_trees=[message_pb2.ObjectTree()]
        )
        self._count(request.node.node_id, message.metadata.run_id, request, response, context)
        return response

    def PushMessages(  # noqa: N802 - Flower's name
        self, request: fleet_pb2.PushMessagesRequest, context: grpc.ServicerContext
    ) -> fleet_pb2.PushMessagesResponse:
        """Take a reply: with its content, or its description with the objects to follow."""
        if request.message_object_trees and request.message_object_trees[0].object_id:
            response = super().PushMessages(request, context)
            self._office.expect_objects(response.session_id, response.objects_to_push)
            return response
        if request.ByteSize() > LARGEST_WHOLE_BYTES:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"a reply of {request.ByteSize()} bytes in one request")
        message = message_from_proto(request.messages_list[0])
        response = fleet_pb2.PushMessagesResponse(results={message.metadata.message_id: 0})
        # Counted first: with the last byte the round may be over.
        self._count(request.node.node_id, message.metadata.run_id, request, response, context)
        try:
            if not self._office.receive(message, request.node.node_id):
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, NOT_EXPECTED)
        except MessageError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return response

    def PushObject(  # noqa: N802 - Flower's name
        self, request: message_pb2.PushObjectRequest, context: grpc.ServicerContext
    ) -> message_pb2.PushObjectResponse:
        """Take one object of a reply, or one of our pieces."""
        if (place := _piece_of(request.object_id)) is None:
            if not self._office.has_room_for(request.session_id, len(request.object_content)):
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "a reply that is larger than expected")
            response = super().PushObject(request, context)
            self._office.object_arrived(request.session_id, request.object_id)
            return response
        response = message_pb2.PushObjectResponse(stored=True)
        self._count(request.node.node_id, request.run_id, request, response, context)
        try:
            if not self._office.receive_piece(request.node.node_id, *place, request.object_content):
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, NOT_EXPECTED)
        except MessageError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return response

    def PullObject(  # noqa: N802 - Flower's name
        self, request: message_pb2.PullObjectRequest, context: grpc.ServicerContext
    ) -> message_pb2.PullObjectResponse:
        """Give one object of a message, or one of our pieces."""
        if (place := _piece_of(request.object_id)) is None:
            return super().PullObject(request, context)
        message_id, number = place
        payload = self._office.payload_for(request.node.node_id, message_id)
        if payload is None:
            return message_pb2.PullObjectResponse(object_found=False, object_available=False)
        response = message_pb2.PullObjectResponse(
            object_found=True, object_available=True, object_content=piece(payload, number)
        )
        self._count(request.node.node_id, request.run_id, request, response, context)
        return response

    def _count(
        self,
        node_id: int,
        run_id: int,
        request: ProtoMessage,
        response: ProtoMessage,
        context: grpc.ServicerContext,
    ) -> None:
        down, up = response.ByteSize(), request.ByteSize() + _header_bytes(context)
        self.state_factory.state().store_traffic(run_id, bytes_sent=down, bytes_recv=up)
        self._office.count(node_id, down, up)


def _require_own_key(public_key: bytes, context: grpc.ServicerContext) -> None:
    """Refuse a node that speaks of another key than the one it signs with, which is all that Flower has checked."""
    if dict(context.invocation_metadata()).get(PUBLIC_KEY_HEADER) != public_key:
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "the request is not signed with the key that it is about")


def _header_bytes(context: grpc.ServicerContext) -> int:
    """Return what the headers of a request took: a node signs each, and small messages are smaller than that."""
    return sum(
        len(key) + (len(value) if isinstance(value, str) else (4 * len(value) + 2) // 3)  # bytes go in base64
        for key, value in context.invocation_metadata()
    )


def _piece_of(object_id: str) -> tuple[str, int] | None:
    """Read `MESSAGE:NUMBER`, the name of a piece; None for a name of Flower's."""
    message_id, colon, number = object_id.partition(":")
    return (message_id, int(number)) if colon and number.isdecimal() else None


class FleetGrid(Grid):
    """Messages to and from the nodes of one run, without a hop in between."""

    def __init__(self, state: LinkState, run: Run, office: PostOffice, admission: Admission | None) -> None:
        self._state = state
        self._admission = admission
        self._run = run
        self._office = office
        self._whole: dict[str, Message] = {}  # sent whole and not answered yet
        self._stored: set[str] = set()  # sent by way of the object store and not answered yet
        self._arriving: dict[str, _Arrival] = {}
        self._next_roll_call = 0.0

    def set_run(self, run: Run) -> None:
        """Change the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """Return the run."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Make a message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the nodes that are online."""
        return list(self._state.get_nodes(self._run.run_id))

    def get_nodes(self) -> list[NodeInfo]:
        """Return what is known of the nodes that are online."""
        return list(self._state.get_node_info(node_ids=self.get_node_ids()))

    def close(self) -> None:
        """Do nothing: the fleet outlives its grid."""

    def traffic_bytes(self) -> tuple[int, int]:
        """Return what Flower's messages took so far in this run: down, up."""
        run = self._state.get_run_info(run_ids=[self._run.run_id])[0]
        return run.bytes_sent, run.bytes_recv

    def traffic_bytes_by_node(self) -> dict[int, tuple[int, int]]:
        """Return what was sent to and by each node that takes whole messages: down, up."""
        return self._office.traffic_bytes()

    def wait_for_reply(self, seconds: float) -> None:
        """Wait until some reply may be complete; not too long, as nobody announces the death of a node."""
        self._office.wait_for_reply(min(seconds, SCAN_SECONDS))

    def registered_name(self, node_id: int) -> str | None:
        """Return the name that goes with a node's key; None where anybody may join."""
        return None if self._admission is None else self._admission.name_of(node_id)

    def limit_replies(self, largest_bytes: int) -> None:
        """Refuse replies with a larger payload."""
        self._office.largest_reply_bytes = largest_bytes

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages: whole to nodes that take them so, else by way of Flower's object store."""
        return [self._push(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that are complete, and an error for every message whose node has gone."""
        wanted = set(message_ids)
        replies = self._office.take_replies(wanted)
        replies += self._answers_of_the_dead(wanted - {one.metadata.reply_to_message_id for one in replies})
        for reply in replies:
            self._whole.pop(reply.metadata.reply_to_message_id, None)
        return replies + self._pull_stored(wanted & self._stored)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and wait for all replies."""
        waiting = set(self.push_messages(messages)) - {""}
        end = time.monotonic() + (timeout if timeout is not None else math.inf)
        replies: list[Message] = []
        while waiting and (left := end - time.monotonic()) > 0:
            arrived = self.pull_messages(waiting)
            replies += arrived
            waiting -= {one.metadata.reply_to_message_id for one in arrived}
            if waiting and not arrived:
                self.wait_for_reply(left)
        self.forget(waiting)
        return replies

    def forget(self, message_ids: set[str]) -> None:
        """Give up waiting for replies."""
        self._office.forget(message_ids)
        self._state.delete_messages(message_ins_ids=message_ids & self._stored)
        self._stored -= message_ids
        for one in message_ids:
            self._whole.pop(one, None)
            self._arriving.pop(one, None)

    def redirect(self, message_id: str, node_id: int) -> None:
        """Let this node answer a message instead of the one that it was sent to, as far as both take whole ones."""
        sent = self._whole.get(message_id)
        if sent is None or sent.metadata.dst_node_id == node_id or not self._office.box(node_id).takes_whole_messages:
            return
        again = self._whole[message_id] = make_message(copy(sent.metadata), sent.content)
        again.metadata.dst_node_id = node_id
        self._office.redirect(again)

    def _push(self, message: Message) -> str:
        box = self._office.box(message.metadata.dst_node_id)
        if box.takes_whole_messages:
            message.metadata.__dict__["_message_id"] = uuid4().hex
            message.content, payload = cut(message.content)
            self._whole[message.metadata.message_id] = message
            self._office.send(message, payload)
            return message.metadata.message_id
        stored = self._store(message)
        if stored:
            self._stored.add(stored)
            box.put(None)
        return stored

    def _store(self, message: Message) -> str:
        """Put a message into Flower's link state: its objects first, so that no node sees it without them."""
        run_id = self._run.run_id
        with no_object_id_recompute():
            message.metadata.__dict__["_message_id"] = message.object_id
            tree, objects = get_object_tree(message), get_all_nested_objects(message)
            session = self._state.start_session(run_id)
            for object_id in self._state.preregister_object_tree(tree, session):
                self._state.store_object(run_id, session, object_id, objects[object_id].deflate())
        stored = self._state.store_message_ins(remove_content_from_message(message))
        if stored is None:
            self._state.object_store.delete(message.metadata.message_id)
        return stored or ""

    def _pull_stored(self, message_ids: set[str]) -> list[Message]:
        if unheard := message_ids - self._arriving.keys():
            for described in self._state.get_message_res(message_ids=unheard, run_id=self._run.run_id):
                tree = self._state.object_store.get_object_tree(described.metadata.message_id)
                to_come = [one.object_id for one in iterate_object_tree(tree)]
                arrival = _Arrival(described, to_come, {})
                self._arriving[described.metadata.reply_to_message_id] = arrival
        complete = [one for one in message_ids & self._arriving.keys() if self._fetch(self._arriving[one])]
        replies = [self._arriving.pop(one).inflate() for one in complete]
        self._state.delete_messages(message_ins_ids=set(complete))
        self._stored.difference_update(complete)
        return replies

    def _fetch(self, arrival: _Arrival) -> bool:
        """Take the objects of a reply that are there; say whether these were the last."""
        while arrival.to_come:
            content = self._state.get_object(self._run.run_id, arrival.to_come[-1])
            if not content:
                return False
            arrival.contents[arrival.to_come.pop()] = content
        self._state.object_store.delete(arrival.described.metadata.message_id)
        return True

    def _answers_of_the_dead(self, message_ids: set[str]) -> list[Message]:
        """Answer in place of nodes that are no longer online; asked only now and then, as it takes time."""
        if time.monotonic() < self._next_roll_call:
            return []
        self._next_roll_call = time.monotonic() + SCAN_SECONDS
        online = set(self.get_node_ids())
        self._office.sweep(online)
        gone = [one for one in message_ids & self._whole.keys() if self._whole[one].metadata.dst_node_id not in online]
        self._office.forget(gone)
        error = Error(ErrorCode.NODE_UNAVAILABLE, "the client has left or no longer shows signs of life")
        return [Message(error, reply_to=self._whole[one]) for one in gone]


@dataclass
class _Arrival:
    """A reply of which some objects may still be on their way."""

    described: Message  # what Flower has checked: who answers what
    to_come: list[str]
    contents: dict[str, bytes]

    def inflate(self) -> Message:
        """Put the objects together; whatever they are, the answer is to the message that was sent."""
        described = self.described.metadata
        try:
            message = inflate_object_from_contents(described.message_id, self.contents)
            assert isinstance(message, Message)
        except Exception as error:  # what a node sends may fail in any way
            message = make_message(described, error=Error(ErrorCode.UNKNOWN, f"its answer cannot be read: {error!r}"))
        message.metadata.__dict__.update(
            _message_id=described.message_id,
            _reply_to_message_id=described.reply_to_message_id,
            _src_node_id=described.src_node_id,
        )
        return message


class Fleet:
    """The gRPC server that nodes connect to: over TLS and for owners of keys, or in the clear for anybody."""

    def __init__(self, listen: str, keys: Keys | None = None, say: Say = print) -> None:
        require_known_flower()
        _, self._factory = get_objectstore_linkstate_factories(FLWR_IN_MEMORY_DB_NAME, get_federation_manager())
        self._state = self._factory.state()
        self._office = PostOffice()
        self._admission = Admission(self._state, keys, say) if keys else None
        servicer = HoldingServicer(self._factory, self._office, self._admission)
        self._server, self.address = _grpc_server(
            listen, servicer, self._factory, keys.certificates() if keys else None
        )

    def __enter__(self) -> Fleet:
        self._server.start()
        if self._admission is not None:
            self._admission.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._admission is not None:
            self._admission.stop()
        self._office.close()
        self._server.stop(GOODBYE_SECONDS).wait()

    @contextmanager
    def run(self, configuration: dict[str, bool | float | int | str]) -> Iterator[FleetGrid]:
        """Open a run with the configuration that nodes will be told, for as long as the context lasts."""
        run, task_id = self._create_run(configuration)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task_id, run.run_id, SUPERLINK_NODE_ID
        over = threading.Event()

        def show_signs_of_life() -> None:
            while not over.wait(TASK_HEARTBEAT_SECONDS):
                self._state.acknowledge_task_heartbeat(task_id)

        threading.Thread(target=show_signs_of_life, daemon=True).start()
        outcome = SubStatus.FAILED
        try:
            yield FleetGrid(self._state, run, self._office, self._admission)
            outcome = SubStatus.COMPLETED
        finally:
            over.set()
            self._state.finish_task(task_id, outcome, "")

    def _create_run(self, configuration: dict[str, bool | float | int | str]) -> tuple[Run, int]:
        bundle = _bundle(configuration)
        digest = hashlib.sha256(bundle).hexdigest()
        self._state.store_fab(Fab(digest, bundle, {}))
        run_id = self._state.create_run(
            APP_ID,
            APP_VERSION,
            digest,
            configuration,
            NOOP_FEDERATION_ID,
            None,
            NOOP_FLWR_AID,
            TaskType.SERVER_APP,
        )
        run = self._state.get_run_info(run_ids=[run_id])[0]
        task_id = run.primary_task_id
        if task_id is None or not (self._state.claim_task(task_id) and self._state.activate_task(task_id)):
            raise RuntimeError("Flower's link state did not let the run start")
        return run, task_id


def _grpc_server(
    listen: str, servicer: HoldingServicer, factory: LinkStateFactory, certificates: Certificates | None
) -> tuple[grpc.Server, str]:
    limited = [*CHANNEL_OPTIONS, ("grpc.max_receive_message_length", LARGEST_REQUEST_BYTES)]  # the last one counts
    server = grpc.server(
        ThreadPoolExecutor(MOST_CALLS),
        options=[*limited, ("grpc.max_concurrent_streams", MOST_CALLS), *KEEP_ALIVE, ("grpc.so_reuseport", 0)],
        interceptors=[
            RpcErrorTranslationServerInterceptor(),
            NodeAuthServerInterceptor(factory),
            create_fleet_runtime_version_server_interceptor(),
        ],
    )
    add_FleetServicer_to_server(servicer, server)
    try:
        if certificates is None:
            port = server.add_insecure_port(listen)
        else:
            authority, certificate, key = certificates
            credentials = grpc.ssl_server_credentials([(key, certificate)], root_certificates=authority)
            port = server.add_secure_port(listen, credentials)
    except RuntimeError:
        raise UserError(
            f"--listen {listen}: cannot listen there; the port is taken, or the address is not this machine's"
        ) from None
    return server, f"{listen.rpartition(':')[0]}:{port}"


def _bundle(configuration: Mapping[str, object]) -> bytes:
    """Return Flower's bundle of the app: its description alone, as every node runs the code it has installed."""
    defaults = "".join(f'{key} = ""\n' for key in configuration)
    description = f"""
[project]
name = "{APP_NAME}"
version = "{APP_VERSION}"
[tool.flwr.app]
publisher = "{APP_NAME}"
[tool.flwr.app.components]
serverapp = "server.app:app"
clientapp = "client.app:app"
[tool.flwr.app.config]
{defaults}"""
    return build_fab_from_files({"pyproject.toml": description.encode()})[0]
