"""Who may join: the clients whose keys are in the federation's folder now, or anybody where there is none."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import grpc

from common.errors import UserError
from common.say import Event, Say
from server.keys.folder import Keys, public_bytes, public_bytes_of_certificate
from server.link.limits import Limit

CERTIFICATE = "x509_pem_cert"
SECONDS_BETWEEN_LOOKS = 1.0  # at the folder for the sake of one key, which whoever was revoked may show without end


class TurnedAwayError(Exception):
    """A client is not served, or no longer: why, for both operators."""

    what_was_done = "cut off"
    is_final = False  # it would not help to come again


class NotLetInError(TurnedAwayError):
    """A client may not join."""

    what_was_done = "refused"
    is_final = True


class BusyError(TurnedAwayError):
    """A client has to come again later."""

    what_was_done = "put off"


class ViolationError(TurnedAwayError):
    """A client does not keep to the protocol."""


class Admission:
    """Knows a client by the certificate of its connection; the folder of keys says whether it is still good."""

    def __init__(self, keys: Keys | None, say: Say) -> None:
        self._keys = keys
        self._say = say
        self._names: dict[bytes, str] = {}  # by public key
        self._revoked: dict[bytes, str] = {}
        self._put_out: list[str] = []  # who was revoked since anybody asked
        self._complaints: list[str] = []
        self._looks = Limit(1, SECONDS_BETWEEN_LOOKS)
        self._looking = threading.Lock()  # it may be for who keeps watch and for who joins at the same time
        self.update()

    def update(self) -> list[str]:
        """Look at the folder again; return who was revoked since this was last asked, and say what cannot be read."""
        with self._looking:
            if self._keys is not None:
                self._look(self._keys)
            put_out, self._put_out = self._put_out, []
            return put_out

    def _look(self, keys: Keys) -> None:
        complaints: list[str] = []
        before = self._names
        try:
            names = {public_bytes(key): name for name, key in keys.clients(complaints.append).items()}
            self._revoked = {public_bytes(key): name for name, key in keys.revoked(complaints.append)}
            self._names = {key: name for key, name in names.items() if key not in self._revoked}
        except UserError as error:  # without the folder all stays as it is
            complaints.append(str(error))
        for complaint in complaints:
            if complaint not in self._complaints:
                self._say(complaint)
        self._complaints = complaints
        put_out = [before[key] for key in before.keys() - self._names.keys()]
        for name in put_out:
            text = f"the key of {name} was revoked: it is put out, and let in no more"
            self._say(Event(text, kind="revoked", client=name))
        self._put_out += put_out

    def check(self, name: str, proofs: Mapping[str, object]) -> None:
        """Refuse a client that has no right to its name; `proofs` is what TLS knows of the connection."""
        if self._keys is None:
            return
        key = _public_key(proofs)
        if key not in self._names and self._looks.allows(key):
            with self._looking:
                self._look(self._keys)  # it may have been added in this moment
        registered = self._names.get(key)
        if registered is None:
            revoked = self._revoked.get(key)
            raise NotLetInError(
                "its key is not among the keys of this federation"
                if revoked is None
                else f"the key of {revoked} was revoked"
            )
        if registered != name:
            raise NotLetInError(f"the key of {registered} does not go with the name {name}")


def _public_key(proofs: Mapping[str, object]) -> bytes:
    found = proofs.get(CERTIFICATE)
    try:
        (certificate,) = found if isinstance(found, (list, tuple)) else ()
        return public_bytes_of_certificate(certificate)
    except ValueError:
        raise NotLetInError("its certificate cannot be read") from None


def credentials_of(keys: Keys) -> grpc.ServerCredentials:
    """Return TLS in which both sides show a certificate of the federation's authority."""
    authority, certificate, key = keys.certificates()
    return grpc.ssl_server_credentials([(key, certificate)], root_certificates=authority, require_client_auth=True)
