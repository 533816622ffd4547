"""A join bundle: the one file that a client needs to join a federation.

With the client's private key in it, it is to be handed over in secret. Where the client made its key itself, the bundle
is without one, and no secret.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes

from common.errors import UserError
from common.experiment.plain_yaml import read_yaml
from common.program.identity import UNREADABLE, checked_name, load_private_key, name_in, private_pem
from common.storage.replace import read_small_file

_IN_ALL = ("server", "client", "authority")  # in bundles of older versions too
_LINES = re.compile(r"([!-~][ -~]*\n)+")


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """Where the server is, who the client is to it, and how each knows the other."""

    server: str  # HOST:PORT
    client: str
    authority: str  # the certificate (PEM) of who signed the server's and the client's
    certificate: str  # the client's own (PEM), which names it
    # The client's private key (PEM); nothing in a file that is for a key which never left the client's machine.
    key: str = field(default="", repr=False)

    @classmethod
    def read(cls, path: Path, key_file: Path | None = None) -> Bundle:
        """Read what `keys add` or `keys sign` wrote, with the key: from its own file where the bundle has none."""
        bundle = cls(**_parts(path))
        checked_name(bundle.client)
        if bundle.key and key_file is not None:
            raise UserError(f"the private key of {bundle.client} is in {path}: leave out --key")
        _certified_key(bundle.authority, path)
        certified = _certified_key(bundle.certificate, path, bundle.client)
        source = path if bundle.key else key_file or path.with_name(f"{bundle.client}.key")
        try:
            key = load_private_key(bundle.key.encode() or _read_key(source, path))
        except ValueError as error:
            raise UserError(f"the private key in {source} cannot be read: {error}; {_remedy(bundle)}") from None
        if key.public_key() != certified:
            raise UserError(
                f"the private key in {source} does not go with the certificate in {path}; {_remedy(bundle)}"
            )
        return replace(bundle, key=private_pem(key).decode())

    def to_text(self) -> str:
        """Return the file: text that can be read, and pasted into a terminal."""
        if self.key:
            first = f"Keep it secret: whoever has this file is {self.client}."
        else:
            first = f"It is no secret: only who has {self.client}.key can join with it."
        values = ((part.name, getattr(self, part.name)) for part in fields(self))
        lines = "".join(f"{name}: {_block(value)}" for name, value in values if value)
        return f"# Join bundle of {self.client}. {first}\n{lines}"


def _parts(path: Path) -> dict[str, str]:
    """Return what is in a file, if it looks like a bundle."""
    try:
        found = read_yaml(read_small_file(path).decode(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the join bundle {path}: {error}") from None
    except UserError:
        found = None
    values = found if isinstance(found, dict) else {}
    parts = {part.name: values.get(part.name, "") for part in fields(Bundle)}
    if not (all(isinstance(value, str) for value in parts.values()) and all(parts[name] for name in _IN_ALL)):
        raise UserError(f"{path} is not a join bundle, as `proxskip-server keys add NAME` makes them")
    if not parts["certificate"]:
        client = parts["client"]
        raise UserError(
            f"{path} is a join bundle of an older version, without a certificate: ask for a new one "
            f"(`proxskip-server keys revoke {client}`, then `proxskip-server keys add {client}`)"
        )
    return parts


def _certified_key(pem: str, path: Path, client: str | None = None) -> CertificatePublicKeyTypes:
    """Return the key that a certificate is for, if it can be read and names whom it should."""
    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
        key, name = certificate.public_key(), name_in(certificate.subject)
    except UNREADABLE:
        raise UserError(f"{path} is damaged: a certificate in it cannot be read; ask for a new bundle") from None
    if client not in (None, name):
        raise UserError(f"{path} is damaged: it is for {client}, its certificate for {name!r}; ask for a new bundle")
    return key


def _read_key(path: Path, bundle: Path) -> bytes:
    try:
        return read_small_file(path)
    except OSError as error:
        raise UserError(
            f"{bundle} is without a private key, and {path} cannot be read ({error.strerror}): say with --key FILE "
            "where the key is that `proxskip-client keys request` made"
        ) from None


def _remedy(bundle: Bundle) -> str:
    if bundle.key:
        return "ask for a new bundle"
    return (
        f"say with --key FILE where the right one is, or make a new one: `proxskip-client keys request {bundle.client}`"
    )


def _block(value: str) -> str:
    """Return a value as YAML: lines as a block, if that keeps them as they are."""
    if not _LINES.fullmatch(value):
        return f"{json.dumps(value)}\n"  # in quotes, so that no name is read as a number
    return "|\n" + "".join(f"  {line}\n" for line in value.splitlines())
