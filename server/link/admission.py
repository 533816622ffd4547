"""Who may join a running fleet: the clients whose keys are in the federation's folder, at this moment."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable

from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.server.superlink.linkstate import LinkState
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from common.errors import UserError
from common.say import Say
from server.keys.folder import Keys

SECONDS_BETWEEN_LOOKS = 2.0
HEARTBEAT_SECONDS = 30.0
MOST_REMEMBERED = 10_000  # strangers, so that nobody fills the memory, or the log, by knocking


class Admission:
    """Keeps Flower's list of nodes as the folder of keys is; who is revoked is put out within seconds."""

    def __init__(self, state: LinkState, keys: Keys, say: Say) -> None:
        self._state = state
        self._keys = keys
        self._say = say
        self._nodes: dict[bytes, tuple[str, int]] = {}  # public key -> name, node
        self._revoked: dict[bytes, str] = {}
        self._refused: set[bytes] = set()  # digests of keys
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._complaints: list[str] = []
        self.update()

    def start(self) -> None:
        """Look at the folder from now on, now and then."""
        threading.Thread(target=self._watch, daemon=True).start()

    def stop(self) -> None:
        """Look no longer."""
        self._over.set()

    def update(self) -> None:
        """Take in new keys, put out those that are gone; say once what cannot be read."""
        complaints: list[str] = []
        try:
            self._look(complaints.append)
        except UserError as error:  # without the folder all stays as it is
            complaints.append(str(error))
        for complaint in complaints:
            if complaint not in self._complaints:
                self._say(complaint)
        self._complaints = complaints

    def _look(self, complain: Callable[[str], None]) -> None:
        with self._lock:
            known = {public_key_to_bytes(key): name for name, key in self._keys.clients(complain).items()}
            self._revoked = {public_key_to_bytes(key): name for name, key in self._keys.revoked(complain)}
            for key in self._nodes.keys() - known.keys():
                name, node = self._nodes.pop(key)
                self._state.delete_node(NOOP_FLWR_AID, node)
                self._say(f"the key of {name} was revoked: it is put out, and let in no more")
            for key in known.keys() - self._nodes.keys() - self._revoked.keys():
                try:
                    node = self._state.create_node(
                        NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, HEARTBEAT_SECONDS, name=known[key]
                    )
                except ValueError:  # Flower takes a key that was put out no more
                    complain(f"the key of {known[key]} was away for a while: start the server again to let it in")
                else:
                    self._nodes[key] = known[key], node

    def name_of(self, node: int) -> str:
        """Return the name that goes with a node's key; nothing for a node that may not be here."""
        return next((name for name, known in list(self._nodes.values()) if known == node), "")

    def refuse(self, key: bytes, peer: str) -> str:
        """Say why a key is not let in: to the operator once, to its owner each time."""
        name = self._revoked.get(key)
        why = "it is not among the keys of this federation" if name is None else f"the key of {name} was revoked"
        digest = hashlib.sha256(key).digest()
        if digest not in self._refused and len(self._refused) < MOST_REMEMBERED:
            self._refused.add(digest)
            self._say(f"refused a client at {peer}: {'its key is not one of ours' if name is None else why}")
        return why

    def _watch(self) -> None:
        while not self._over.wait(SECONDS_BETWEEN_LOOKS):
            self.update()
