"""A join bundle: the one file that a client needs to join a federation, to be handed over in secret."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from common.errors import UserError

_KEYS = ("server", "client", "authority", "key")


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """Where the server is, who the client is to it, and how each knows the other."""

    server: str  # HOST:PORT
    client: str
    authority: str  # the certificate (PEM) of who signed the server's
    key: str  # the client's private key (OpenSSH)

    @classmethod
    def read(cls, path: Path) -> Bundle:
        """Read what `proxskip-server keys add` wrote."""
        try:
            found = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read the join bundle {path}: {error}") from None
        except yaml.YAMLError:
            found = None
        if not (isinstance(found, dict) and all(isinstance(found.get(key), str) for key in _KEYS)):
            raise UserError(f"{path} is not a join bundle, as `proxskip-server keys add NAME` makes them")
        try:
            x509.load_pem_x509_certificate(found["authority"].encode())
        except ValueError:
            raise UserError(f"{path} is damaged: its certificate cannot be read; ask for a new bundle") from None
        return cls(**{key: found[key] for key in _KEYS})

    def to_text(self) -> str:
        """Return the file: text that can be read, and pasted into a terminal."""
        values = {key: getattr(self, key) for key in _KEYS}
        warning = f"# Join bundle of {self.client}. Keep it secret: whoever has this file is {self.client}.\n"
        return warning + "".join(f"{key}: {_block(value)}" for key, value in values.items())

    def private_key(self) -> ec.EllipticCurvePrivateKey:
        """Return the key that the client signs its calls with."""
        try:
            key = load_ssh_private_key(self.key.encode(), None)
        except (ValueError, TypeError):
            key = None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UserError("the key in the join bundle is damaged: ask for a new one (`proxskip-server keys add`)")
        return key


def _block(value: str) -> str:
    """Return a value as YAML: several lines as a block, which keeps them as they are."""
    if "\n" not in value:
        return f"{json.dumps(value)}\n"  # in quotes, so that no name is read as a number
    return "|\n" + "".join(f"  {line}\n" for line in value.splitlines())
