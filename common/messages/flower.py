"""What both ends of a link agree on beside Flower's own protocol."""

from __future__ import annotations

import logging
import os
from importlib import metadata

from common.errors import UserError

APP_NAME = "sparse-proxskip"
APP_ID = f"{APP_NAME}/{APP_NAME}"  # publisher and name, as Flower calls an app
APP_VERSION = metadata.version(APP_NAME)

# A node that sends this header takes messages, and may answer them, with their content: the first piece of the payload
# in the message itself, and if there are more, those by their number.
WHOLE_MESSAGES_HEADER = "proxskip-whole-messages"
CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Larger frames and windows than gRPC's own: a third of the time for a piece.
    ("grpc.http2.max_frame_size", (1 << 24) - 1),
    ("grpc.http2.lookahead_bytes", 1 << 22),
    ("grpc.http2.write_buffer_size", 1 << 22),
    ("grpc.use_local_subchannel_pool", 1),  # a new connection is a new one, not a share in one that may be dead
)

# The error codes of replies in which a client says why it cannot do what it is asked: never, not before something that
# it waits for has changed, or not with the control variate that the server counts on, which it has lost.
CLIENT_FAILED = 10_001
CLIENT_CANNOT_NOW = 10_002
CLIENT_FORGOT = 10_003

_KNOWN_FLOWER = "1.39."


def require_known_flower() -> None:
    """Refuse a flwr whose insides we do not know."""
    version = metadata.version("flwr")
    if not version.startswith(_KNOWN_FLOWER):
        raise UserError(f"flwr {version} is installed, but this program works with flwr {_KNOWN_FLOWER}* only")


def quiet_flower() -> None:
    """Keep Flower from telling the world about itself, and from telling our users what is not their business."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    os.environ.setdefault("FLWR_LOG_LEVEL", "ERROR")  # for a Flower that is imported later
    logging.getLogger("flwr").setLevel(logging.ERROR)
