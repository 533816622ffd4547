"""What is on its way between the strategy and the nodes: messages down, replies up, payloads in pieces."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flwr.app import Error, Message, RecordDict

from common.messages.flower import CLIENT_CANNOT_NOW, CLIENT_FAILED
from common.messages.pieces import Assembly, payload_size
from common.storage.spool import Spool, SpoolError

LARGEST_REPLY_BYTES = 16 << 20  # unless a strategy knows better
OBJECTS_BYTES = 1 << 20  # of a reply that comes as objects, around its payload


class Mailbox:
    """What waits for one node.

    A message stays until it is answered or given up: a node that pulls again without an answer has lost it on the way,
    or its own memory of it, and gets it again.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._whole: dict[str, Message] = {}
        self._signals = 0
        self.takes_whole_messages = False

    def put(self, message: Message | None) -> None:
        """Add a message with its content, or None to say that there is one in the link state."""
        with self._changed:
            if message is not None:
                self._whole[message.metadata.message_id] = message
            self._signals += 1
            self._changed.notify_all()

    def oldest(self) -> Message | None:
        """Return the oldest whole message that is not answered yet."""
        with self._changed:
            return next(iter(self._whole.values()), None)

    def message(self, message_id: str) -> Message:
        """Return a whole message that is not answered yet."""
        with self._changed:
            return self._whole[message_id]

    def drop(self, message_id: str) -> None:
        """Take out a message that is answered or given up."""
        with self._changed:
            self._whole.pop(message_id, None)

    @property
    def signals(self) -> int:
        """Return how often something was put in."""
        return self._signals

    def wait_beyond(self, signals: int, seconds: float) -> bool:
        """Wait until more was put in; say whether it was."""
        with self._changed:
            return self._changed.wait_for(lambda: self._signals > signals, timeout=max(0.0, seconds))


@dataclass
class Parcel:
    """A reply that comes in pieces."""

    message: Message
    assembly: Assembly

    def opened(self) -> Message:
        """Return the reply with its whole content."""
        if self.message.has_content():
            self.message.content = self.assembly.content()
        return self.message


class PostOffice:
    """Mailboxes of the nodes, payloads on their way down in pieces, and replies on their way up."""

    def __init__(self) -> None:
        self._boxes: dict[int, Mailbox] = {}
        self._changed = threading.Condition()
        self._payloads: dict[
            str, tuple[int, bytes | Spool]
        ] = {}  # message id -> the node it is for, all of its payload
        self._parcels: dict[str, Parcel] = {}  # answered message -> its reply, until the last piece is here
        self._complete: dict[str, Parcel] = {}
        self._uploading: dict[str, set[str]] = {}  # push session of a stock node -> its missing objects
        self._room_bytes: dict[str, int] = {}  # push session -> what its objects may still take
        self._traffic_bytes: dict[int, tuple[int, int]] = {}  # node -> down, up
        self._news = False
        self.closed = False
        self.largest_reply_bytes = LARGEST_REPLY_BYTES  # no room is made for more, whatever a node may announce

    def box(self, node_id: int) -> Mailbox:
        """Return the mailbox of a node."""
        with self._changed:
            return self._boxes.setdefault(node_id, Mailbox())

    def count(self, node_id: int, down: int, up: int) -> None:
        """Count the bytes of a node's request and of the answer to it."""
        with self._changed:
            down_so_far, up_so_far = self._traffic_bytes.get(node_id, (0, 0))
            self._traffic_bytes[node_id] = (down_so_far + down, up_so_far + up)

    def traffic_bytes(self) -> dict[int, tuple[int, int]]:
        """Return what was sent to and by each node that was counted: down, up."""
        with self._changed:
            return dict(self._traffic_bytes)

    def sweep(self, online: set[int]) -> None:
        """Forget the mailboxes of nodes that have gone, and let go of a pull that may still wait at one."""
        with self._changed:
            gone = [self._boxes.pop(node_id) for node_id in self._boxes.keys() - online]
        for box in gone:
            box.put(None)

    def close(self) -> None:
        """Let go of all that wait."""
        self.closed = True
        for box in list(self._boxes.values()):
            box.put(None)
        self._announce()

    def send(self, message: Message, payload: bytes | Spool) -> None:
        """Hand a message to the node's next pull, and keep the payload at hand until it is answered."""
        node_id = message.metadata.dst_node_id
        with self._changed:
            self._payloads[message.metadata.message_id] = (node_id, payload)
        self.box(node_id).put(message)

    def redirect(self, message: Message) -> None:
        """Hand a message that is not answered yet to another node, to which it is now addressed."""
        message_id = message.metadata.message_id
        with self._changed:
            if message_id in self._payloads:
                _, payload = self._payloads[message_id]
                self._drop(message_id)
                self._parcels.pop(message_id, None)  # half a reply of the other node
                self.send(message, payload)

    def payload_for(self, node_id: int, message_id: str) -> bytes | Spool | None:
        """Return the payload of a message to this node that is not answered yet."""
        owner, payload = self._payloads.get(message_id, (None, None))
        return payload if owner == node_id else None

    def receive(self, message: Message, node_id: int) -> bool:
        """Take a reply with the first piece of its payload; say whether this node was asked for it."""
        answered = message.metadata.reply_to_message_id
        content = message.content if message.has_content() else RecordDict()
        with self._changed:
            asked = self.payload_for(node_id, answered)
            if asked is None or message.metadata.src_node_id != node_id:
                return False
            size = payload_size(content)
            if size > self.largest_reply_bytes:
                why = f"a reply of {size} bytes where at most {self.largest_reply_bytes} were expected"
                self._refuse(node_id, answered, why)
            else:
                with self._refusal_where_full(node_id, answered):
                    self._parcels[answered] = Parcel(message, Assembly(content))
            self._finish(answered)
        return True

    def _refuse(self, node_id: int, answered: str, why: str, code: int = CLIENT_FAILED) -> None:
        """Put a refusal in the place of a reply that is too large, or for which there is no room now."""
        refusal = Message(Error(code, why), reply_to=self._boxes[node_id].message(answered))
        self._parcels[answered] = Parcel(refusal, Assembly(RecordDict()))

    @contextmanager
    def _refusal_where_full(self, node_id: int, answered: str) -> Iterator[None]:
        try:
            yield
        except SpoolError as error:
            self._refuse(node_id, answered, str(error), CLIENT_CANNOT_NOW)

    def receive_piece(self, node_id: int, answered: str, number: int, content: bytes) -> bool:
        """Take a further piece of a reply; say whether it was expected."""
        with self._changed:
            parcel = self._parcels.get(answered)
            if parcel is None or self.payload_for(node_id, answered) is None:
                return False
            with self._refusal_where_full(node_id, answered):
                parcel.assembly.add(number, content)
            self._finish(answered)
        return True

    def expect_objects(self, session: str, missing: Iterable[str]) -> None:
        """Note which objects of a stock node's reply are still to come."""
        with self._changed:
            self._uploading[session] = set(missing)
            self._room_bytes[session] = self.largest_reply_bytes + OBJECTS_BYTES
        self.object_arrived(session, "")

    def has_room_for(self, session: str, size: int) -> bool:
        """Say whether an object still fits into what a reply may take."""
        with self._changed:
            left = self._room_bytes.get(session, OBJECTS_BYTES) - size
            if left < 0:
                return False
            if session in self._room_bytes:
                self._room_bytes[session] = left
            return True

    def object_arrived(self, session: str, object_id: str) -> None:
        """Note an object; with the last one the reply is complete."""
        with self._changed:
            if session not in self._uploading:
                return
            self._uploading[session].discard(object_id)
            if self._uploading[session]:
                return
            del self._uploading[session], self._room_bytes[session]
        self._announce()

    def take_replies(self, message_ids: set[str]) -> list[Message]:
        """Return the complete replies to these messages."""
        with self._changed:
            parcels = [self._complete.pop(one) for one in message_ids & self._complete.keys()]
        return [parcel.opened() for parcel in parcels]

    def forget(self, message_ids: Iterable[str]) -> None:
        """Expect no reply to these messages any more."""
        with self._changed:
            for one in message_ids:
                self._drop(one)
                self._parcels.pop(one, None)
                self._complete.pop(one, None)

    def wait_for_reply(self, seconds: float) -> None:
        """Wait until some reply is complete, at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._news, timeout=seconds)
            self._news = False

    def _finish(self, answered: str) -> None:
        if not self._parcels[answered].assembly.missing:
            self._complete[answered] = self._parcels.pop(answered)
            self._drop(answered)
            self._announce()

    def _drop(self, message_id: str) -> None:
        node_id, _ = self._payloads.pop(message_id, (None, b""))
        if node_id in self._boxes:
            self._boxes[node_id].drop(message_id)

    def _announce(self) -> None:
        with self._changed:
            self._news = True
            self._changed.notify_all()
