"""Addresses: HOST:PORT. Knows no network."""

from __future__ import annotations

import re
from ipaddress import ip_address

from txmsg.errors import InvalidName, MisuseError, shown

__all__ = [
    "KAFKA",
    "PORT_MAX",
    "UNIX",
    "check_address",
    "check_reach",
    "host_and_port",
    "host_of",
    "is_local",
    "is_loopback",
]

PORT_MAX = 65535
LOCALHOST = "localhost"
KAFKA = "kafka://"
"""Prefix of the address of a log in Kafka."""
UNIX = "unix:"
"""Prefix of an address that is a socket file on this machine."""
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:]+)(?::[0-9]{1,5})?\Z")
_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?\]):([0-9]{1,5})\Z")


def host_and_port(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT; the brackets of an IPv6 address are removed."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def host_of(header: str) -> str:
    """Return the host in a Host header of HTTP, in lower case; "" if the header has none."""
    found = _HOST.match(header)
    return found[1].strip("[]").lower() if found else ""


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach this host. No name but localhost counts: its address may change."""
    try:
        return host == LOCALHOST or ip_address(host).is_loopback
    except ValueError:
        return False


def check_address(what: str, text: object) -> str:
    """Return `text` without surrounding blanks if it is HOST:PORT. Raises InvalidName, whose text names `what`."""
    stripped = text.strip() if isinstance(text, str) else ""
    found = _ADDRESS.match(stripped)
    if found is None:
        hint = "; leave out the part before ://" if "://" in stripped else ""
        raise InvalidName(f"{what} {shown(text)} is not of the form HOST:PORT, such as localhost:7700{hint}")
    if int(found[1]) > PORT_MAX:
        raise InvalidName(f"{what} {shown(text)} has port {found[1]}: ports end at {PORT_MAX}")
    return stripped


def is_local(listen: str) -> bool:
    """Return True if only this machine can reach a server that listens there: on loopback, or at a socket file."""
    return listen.startswith(UNIX) or is_loopback(host_and_port(listen)[0])


def check_reach(option: str, listen: str, danger: str, way_out: str, *, is_guarded: bool) -> str:
    """Return `listen` if only this machine can reach it, or strangers are kept out otherwise. Raises InvalidName,
    MisuseError.

    danger: what strangers could do; way_out: what keeps them out. Both stand in the error.
    """
    listen = listen if listen.startswith(UNIX) else check_address(option, listen)
    if is_guarded or is_local(listen):
        return listen
    raise MisuseError(f"{option} {listen} is reached from other machines, and {danger}: {way_out}")
