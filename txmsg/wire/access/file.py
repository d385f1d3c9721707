"""Users and rules in a file, for a log whose server has no brokers. Parses the text only; its caller reads the file.

[users.shop]
tokens = ["k2zq5h7a4mv3xw2c:9f86d081884c7d65..."]  # of each the id, and the SHA-256 of its secret
certificate = "shop.example"                       # or the name in its client certificate
roles = ["sender"]
limits = {connections = 20, messages_per_s = 500}  # where they are not as of others

[rules]
"role:sender" = ["send topic:orders*"]
ops = ["administer cluster", "describe group:*"]
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final

from txmsg.errors import MisuseError, TxmsgError, shown
from txmsg.wire.access.limits import checked_limits
from txmsg.wire.access.principal import check_role_name, check_user_name
from txmsg.wire.access.rules import RuleSet, rules_of
from txmsg.wire.access.snapshot import AccessSnapshot, Credential, User
from txmsg.wire.access.tokens import NewToken

_TOKEN: Final = re.compile(r"([a-z2-7]{16}):([0-9a-f]{64})")
_OF_USER: Final = {"tokens", "certificate", "roles", "limits"}


def entry_of(token: NewToken) -> str:
    """Return the text that stands for a token in the file."""
    return f"{token.id}:{token.secret_sha256.hex()}"


def read_access(text: str, version: int, file: str = "") -> AccessSnapshot:
    """Return the snapshot that a file's text describes. Raises MisuseError, which names the wrong entry."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise MisuseError(f"it is not TOML: {exc}") from exc
    if unknown := sorted(table.keys() - {"users", "rules"}):
        raise MisuseError(f"the table {shown(unknown[0])} is unknown: there are [users.NAME] and [rules]")
    users: dict[str, User] = {}
    credentials: dict[str, Credential] = {}
    for name, entry in _table(table.get("users", {}), "users").items():
        try:
            users[name], its_credentials = _user(name, _table(entry, f"users.{name}"))
        except TxmsgError as exc:
            raise MisuseError(f"[users.{name}] is not a user: {exc}") from exc
        if twice := credentials.keys() & its_credentials.keys():
            raise MisuseError(f"[users.{name}]: token {min(twice)} is that of user {credentials[min(twice)].user}")
        credentials |= its_credentials
    # One certificate has to mean one user: the snapshot looks users up by certificate, and the later entry would win.
    certificates = [user.certificate for user in users.values() if user.certificate]
    if len(certificates) != len(set(certificates)):
        raise MisuseError("one certificate is given for two users: give each its own")
    rules = {subject: _texts(entries, subject) for subject, entries in _table(table.get("rules", {}), "rules").items()}
    return AccessSnapshot(
        version=version, users=users, credentials=credentials, rules=RuleSet(rules_of(rules)), file=file
    )


def _user(name: str, entry: dict[str, Any]) -> tuple[User, dict[str, Credential]]:
    check_user_name(name)
    if unknown := sorted(entry.keys() - _OF_USER):
        raise MisuseError(f"{shown(unknown[0])} is unknown: a user has {', '.join(sorted(_OF_USER))}")
    certificate = entry.get("certificate", "")
    if not isinstance(certificate, str):
        raise MisuseError(f"certificate={shown(certificate)} is not a text")
    roles = [check_role_name(role) for role in _texts(entry.get("roles", []), "roles")]
    credentials = {}
    for text in _texts(entry.get("tokens", []), "tokens"):
        found = _TOKEN.fullmatch(text)
        if found is None:
            raise MisuseError(
                "a token is not of the form ID:SHA256 as `txmsg metaq token` prints it; the token itself has no place "
                "here"
            )
        credentials[found[1]] = Credential(id=found[1], user=name, secret_sha256=bytes.fromhex(found[2]))
    limits = _limits(_table(entry.get("limits", {}), "limits"))
    return User(name=name, roles=frozenset(roles), certificate=certificate, limits=limits), credentials


def _limits(entry: dict[str, Any]) -> Mapping[str, float]:
    for name, value in entry.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise MisuseError(f"{name}={shown(value)} is not a number")
    return checked_limits(entry)


def _table(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MisuseError(f"{what} is {shown(value)}, not a table")
    return value


def _texts(value: object, what: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise MisuseError(f"{what} is {shown(value)}, not a list of texts")
    return value
