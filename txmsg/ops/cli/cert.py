"""`txmsg cert`: certificates for trying TLS. Those of production come from your authority."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

import click
import trustme

from txmsg.errors import MisuseError, shown
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import json_option
from txmsg.ops.cli.output import json_text
from txmsg.wire.tls import CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE

_AUTHORITY = "ca"


@click.group()
def cert() -> None:
    """Create certificates for development and tests."""


@cert.command(
    short_help="Make an authority, and certificates for servers and clients.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg cert dev --server broker1.internal --client shop --client wallet",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default="certificates",
    show_default=True,
    help="Directory for the files; an existing CA there is reused.",
)
@click.option(
    "--server",
    "servers",
    metavar="HOST",
    multiple=True,
    default=("localhost", "127.0.0.1", "::1"),
    show_default=True,
    help="Host name or address of the server. Repeatable.",
)
@click.option(
    "--client",
    "clients",
    metavar="NAME",
    multiple=True,
    default=("client",),
    show_default=True,
    help="Name of a client. Repeatable; each gets separate files.",
)
@json_option
def dev(*, directory: Path, servers: Sequence[str], clients: Sequence[str], as_json: bool) -> None:
    """Create a CA, a certificate for servers, and one for each client, for development.

    Existing certificates are recreated, except the CA's, so that you can try a rotation while servers run.
    """
    for name in clients:
        if name in {"", ".", "..", _AUTHORITY, "server"} or "/" in name:
            raise MisuseError(f"--client {name!r} cannot be the name of its files: give another one, such as shop")
    _check_hosts(servers)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = _authority(directory)
    _write(directory / "server", authority.issue_cert(*servers))
    for name in clients:
        _write(directory / name, authority.issue_cert(common_name=name, organization_name="txmsg development"))
    files = {name: str(directory / f"{name}.pem") for name in (_AUTHORITY, "server", *clients)}
    if as_json:
        click.echo(json_text({"files": files, "servers": servers}))
        return
    authority_file = quote(files[_AUTHORITY])
    key = quote(str(directory / f"{clients[0]}.key"))
    click.echo(f"made {', '.join(files.values())}, each with its .key\n")
    click.echo(f"servers:  --tls-cert {quote(files['server'])} --tls-key {quote(str(directory / 'server.key'))}")
    click.echo(f"clients:  export {CA_VARIABLE}={authority_file}")
    click.echo("\nto let in only clients with a certificate:")
    click.echo(f"servers:  --tls-client-ca {authority_file}")
    click.echo(f"clients:  export {CERT_VARIABLE}={quote(files[clients[0]])} {KEY_VARIABLE}={key}")


def _check_hosts(servers: Sequence[str]) -> None:
    """Raise MisuseError before anything is written."""
    trial = trustme.CA()
    for name in servers:
        try:
            if "@" in name or "/" in name:  # an address of e-mail, or a network: no server has it
                raise ValueError("it has @ or /")
            trial.issue_cert(name)
        except ValueError as exc:
            raise MisuseError(
                f"--server {shown(name)} is not a host name or an address ({exc}): give one such as broker1.internal"
            ) from exc


def _authority(directory: Path) -> trustme.CA:
    certificate, key = directory / f"{_AUTHORITY}.pem", directory / f"{_AUTHORITY}.key"
    # One of them cannot be completed: a new CA would replace the one that clients may trust already.
    if certificate.exists() != key.exists():
        raise MisuseError(f"{directory} has only one of {certificate.name} and {key.name}: give another --dir")
    if certificate.exists():
        try:
            return trustme.CA.from_pem(certificate.read_bytes(), key.read_bytes())
        except ValueError as exc:
            raise MisuseError(f"{certificate} and {key} are not an authority: {exc}; give another --dir") from exc
    made = trustme.CA(organization_name="txmsg development")
    _write_new(key, made.private_key_pem.bytes())
    _write_new(certificate, made.cert_pem.bytes(), mode=0o666)
    return made


def _write(files: Path, issued: trustme.LeafCert) -> None:
    _write_new(files.with_name(f"{files.name}.key"), issued.private_key_pem.bytes())
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    _write_new(files.with_name(f"{files.name}.pem"), chain, mode=0o666)


def _write_new(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file by a new one that has this mode from its first byte on.

    Does not write into the existing one: in a directory of another user it can be a link that leads root elsewhere.
    """
    # O_EXCL below fails if another process puts a file or a link there between the two calls.
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
