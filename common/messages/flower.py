"""Flower as we use it: its public modules everywhere, and here, guarded, the little that these leave out."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it is slow to import
    from flwr.app import Message

APP_NAME = "sparse-proxskip"
APP_VERSION = metadata.version(APP_NAME)
SOFTWARE = f"{APP_NAME} {APP_VERSION}"  # which both ends of a link must run

# The error codes of replies that bring no answer: the client says that it never can, that it cannot before something
# that it waits for has changed, or not with the control variate that the server counts on, which it has lost; or the
# client is gone.
CLIENT_FAILED = 10_001
CLIENT_CANNOT_NOW = 10_002
CLIENT_FORGOT = 10_003
CLIENT_GONE = 10_004


def begin_run() -> None:
    """Let Flower make messages in this process, as if it had started it itself."""
    with suppress(ImportError):  # a Flower that does not ask for it
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message its id when it is sent, as Flower's own grids do."""
    message.metadata.__dict__["_message_id"] = message_id


def quiet_flower() -> None:
    """Keep Flower and gRPC from telling the world about themselves, and our users what is not their business."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    os.environ.setdefault("FLWR_LOG_LEVEL", "ERROR")  # for a Flower that is imported later
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("grpc").setLevel(logging.CRITICAL)  # else a traceback for each peer that goes at a bad moment
