"""The commands `proxskip-server keys ...`."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from common.program.identity import fingerprint
from server.commands import options
from server.keys.folder import Keys
from server.keys.request import read_request

app = typer.Typer(no_args_is_help=True, help="Who may join: certificates, keys, join bundles.")
DEFAULT_PORT = 9092
KEYS = Path("keys")
JOIN = "proxskip-client join NAME.join --state DIR, with --data PATH (its own data) or --partition I/N"


@app.command()
def init(folder: options.KeysFolder, host: options.Hosts, port: options.Port = DEFAULT_PORT) -> None:
    """Make the keys of a federation: an authority of its own, and a certificate for this server.

    Called again for the same DIR it keeps the authority and the clients, and makes a new certificate: for other names,
    or because the old one expires.
    """
    keys = Keys.init(folder, host, port)
    typer.echo(f"keys: {folder}; clients will reach the server at {keys.address}")
    typer.echo(f"next: proxskip-server keys add CLIENT_NAME... --keys {folder}")


@app.command()
def add(client_names: options.ClientNames, keys: options.InKeys = KEYS) -> None:
    """Let clients join: make a key and a certificate for each, and the bundle to hand over to it.

    Needs the authority's private key, DIR/admin/ca.key. Where clients make their keys themselves: `keys sign`.
    """
    opened = Keys.open(keys)
    for name in client_names:
        path = opened.add(name)
        typer.echo(f"{name}: hand over {path}, in secret, then delete it here")
    typer.echo(f"there: {JOIN}")


@app.command()
def sign(requests: options.Requests, keys: options.InKeys = KEYS) -> None:
    """Let clients join that made their keys themselves, with `proxskip-client keys request`.

    Needs the authority's private key, DIR/admin/ca.key. Who can change a request on its way can join in its place:
    compare the fingerprints.
    """
    opened = Keys.open(keys)
    for file in requests:
        request = read_request(file)
        path = opened.sign(request)
        typer.echo(f"{request.client}: hand over {path}; it is no secret, as it holds no private key")
        typer.echo(
            f"{request.client}: is its key there {fingerprint(request.key)}? If not: keys revoke {request.client}"
        )
    typer.echo(f"there: {JOIN}; NAME.key is beside it, or where --key FILE says")


@app.command("list")
def list_command(keys: options.InKeys = KEYS, as_json: options.Json = False) -> None:
    """List the clients that may join, and those that no longer may."""
    opened = Keys.open(keys)
    if as_json:
        may_join = [{"name": name, "fingerprint": fingerprint(key)} for name, key in opened.clients().items()]
        no_longer = [{"name": name, "fingerprint": fingerprint(key)} for name, key in opened.revoked()]
        listed = {"server": opened.address, "clients": may_join, "revoked": no_longer}
        typer.echo(json.dumps(listed, indent=2))
        return
    typer.echo(f"server: {opened.address}")
    typer.echo(f"clients: {', '.join(opened.clients()) or 'none'}")
    typer.echo(f"revoked: {', '.join(name for name, _ in opened.revoked()) or 'none'}")


@app.command()
def revoke(client_names: options.ClientNames, keys: options.InKeys = KEYS) -> None:
    """Let clients in no more; a running server puts them out within seconds."""
    opened = Keys.open(keys)
    for name in client_names:
        opened.revoke(name)
        typer.echo(f"{name} may no longer join")
