"""What both ends of a link agree on beside Flower's own protocol."""

from __future__ import annotations

import logging
import os
from importlib import metadata

from common.errors import UserError

APP_NAME = "sparse-proxskip"
APP_ID = f"{APP_NAME}/{APP_NAME}"  # publisher and name, as Flower calls an app
APP_VERSION = metadata.version(APP_NAME)

# A node that sends this header takes messages, and may answer them, with their content in one request.
INLINE_HEADER = "proxskip-inline"
INLINE_LIMIT_BYTES = 8 << 20  # beyond, the objects of Flower go one by one: less memory at a time, and no slower

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
    logging.getLogger("flwr").setLevel(logging.ERROR)
