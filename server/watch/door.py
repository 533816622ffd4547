"""Who may look: a page of another site may not, nor anybody without the token where there is one."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from secrets import compare_digest
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.program.address import host_and_port

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Door:
    """Stands before an app: GET alone, by a name of this machine, with the token if there is one."""

    app: ASGIApp
    host: str  # at which we listen
    cookie: str  # its name
    token: str = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer why not."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if self._token_in_address(scope):
                    headers.append("Set-Cookie", f"{self.cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/")
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self.app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("watch only shows: GET alone\n", 405, {"Allow": "GET, HEAD"})
        if not self._is_name_of_ours(headers.get("host", "")):
            return PlainTextResponse("open watch by an address or the name of its machine\n", 403)
        if self.token and not self._token_in_address(scope) and not self._token_in_cookie(headers):
            return PlainTextResponse("open watch by the address that it has printed, with its token\n", 403)
        return None

    def _is_name_of_ours(self, host_header: str) -> bool:
        """Say so of an IP address too: a page that has had its name point here still asks by that name."""
        host = host_header if host_header.endswith("]") or ":" not in host_header else host_and_port(host_header)[0]
        host = host.strip("[]").lower()
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return host in {"localhost", self.host.lower(), socket.gethostname().lower()}
        return True

    def _token_in_address(self, scope: Scope) -> bool:
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        return bool(self.token) and any(compare_digest(one.encode(), self.token.encode()) for one in given)

    def _token_in_cookie(self, headers: Headers) -> bool:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return found is not None and compare_digest(found.value.encode(), self.token.encode())
