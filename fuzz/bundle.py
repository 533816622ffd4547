"""Join bundles: an input is the file that somebody hands to a client; the client's own key lies beside it."""

from __future__ import annotations

import base64
import binascii
import re
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from random import Random

from client.request import make_request
from common.errors import UserError
from common.program.bundle import Bundle
from fuzz.target import Change, Target, refused
from server.keys.folder import Keys
from server.keys.request import read_request

CLIENT, OTHER = "client-0", "client-1"
PLAIN = re.compile(r"[ -~\n]*")
PEM = re.compile(rb"(-----BEGIN [A-Z ]+-----\n)([^-]*?)(\s*-----END)")
VALUES = (b"", b"null", b"!!int ''", b"!!bool x", b"!!timestamp x", b"&a [*a]", b"0x" + 5_000 * b"f", b"[" * 200)
_FOLDER = tempfile.TemporaryDirectory()


def read(data: bytes) -> bool:
    """Read a bundle as a client does."""
    path = Path(_FOLDER.name) / "a.join"
    path.write_bytes(data)
    try:
        bundle = Bundle.read(path)
    except UserError as error:
        return refused(error)
    if all(PLAIN.fullmatch(getattr(bundle, part.name)) for part in fields(bundle)):  # as all are that we write
        path.write_text(bundle.to_text(), encoding="utf-8")
        assert Bundle.read(path) == bundle, "it does not come back"
    return True


def mutate(data: bytes, change: Change, random: Random) -> bytes:
    """Change what is inside a certificate or a key, or a line of the file."""
    blocks = list(PEM.finditer(data))
    if blocks and random.random() < 0.7:
        block = random.choice(blocks)
        try:
            inside = change(base64.b64decode(b"".join(block[2].split())))
        except binascii.Error:
            return change(data)
        return data[: block.start(2)] + _in_lines(inside) + data[block.end(2) :]
    lines = data.split(b"\n")
    place = random.randrange(len(lines))
    key, colon, value = lines[place].partition(b": ")
    lines[place] = key + colon + random.choice((change(value), random.choice(VALUES)))
    return b"\n".join(lines)


def _in_lines(inside: bytes) -> bytes:
    text = base64.b64encode(inside)
    return b"\n".join(b"  " + text[start : start + 64] for start in range(0, len(text), 64))


def seeds() -> Iterator[bytes]:
    """Yield a bundle with its key, and one for a key that the client made."""
    with tempfile.TemporaryDirectory() as folder:
        keys = Keys.init(Path(folder), ["127.0.0.1"], 9092)
        yield keys.add(OTHER).read_bytes()
        key_file = Path(_FOLDER.name) / f"{CLIENT}.key"
        key_file.unlink(missing_ok=True)
        made = make_request(CLIENT, Path(_FOLDER.name))
        yield keys.sign(read_request(made.request_file)).read_bytes()


TARGET = Target(read=read, seeds=seeds, mutate=mutate)
