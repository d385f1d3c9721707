"""The file of an operator's own receivers and rules. Reads it, and the secrets that it names. Knows no network.

[receivers.oncall]
webhook = {file = "/run/secrets/oncall-url"}      # or {env = "ONCALL_URL"}, or the text itself
severity = "critical"

[rules.OrdersWait]
sql = "select count(*) from orders where paid_at < now() - interval '1 hour' and not shipped"
database = {env = "SHOP_URL"}
above = 0
for = "5m"
summary = "{{ $value }} paid orders wait for over an hour"
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parseaddr
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from txmsg.checks.catalogue import BY_ALERT
from txmsg.checks.check import CRITICAL, WARNING, Severity
from txmsg.errors import MisuseError, shown
from txmsg.runtime.durations import duration_in, number_in
from txmsg.runtime.owners import refusal_text

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_SEVERITIES: Final = (CRITICAL.value, WARNING.value)
_TLS: Final = ("starttls", "tls", "none")
RULES_MAX: Final = 100
RECEIVERS_MAX: Final = 20
_TEXT_MAX: Final = 1000
_SQL_TEXT_MAX: Final = 20_000


class Secret:
    """A text that is never shown."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text, for its proper use only."""
        return self._text

    def __repr__(self) -> str:
        return "Secret('***')"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookReceiver:
    """POST of JSON to a URL."""

    kind: ClassVar = "webhook"
    url: Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class EmailReceiver:
    """Mail by SMTP."""

    kind: ClassVar = "email"
    to: Sequence[str]
    sender: str
    host: str
    port: int
    tls: str
    user: str
    password: Secret | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandReceiver:
    """A program, which gets JSON on its standard input."""

    kind: ClassVar = "command"
    argv: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """A receiver of alerts of this severity, or a worse one."""

    name: str
    target: WebhookReceiver | EmailReceiver | CommandReceiver
    severity: Severity

    @property
    def kind(self) -> str:
        """The name of its kind in the file: webhook, email, command."""
        return self.target.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlRule:
    """A rule on the result of a statement in a database of the operator's."""

    name: str
    sql: str
    database: Secret
    above: float | None
    below: float | None
    for_s: float
    timeout_s: float
    severity: Severity
    summary: str
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFile:
    """The contents of the file."""

    receivers: Mapping[str, Receiver]
    rules: Sequence[SqlRule]


NO_FILE: Final = AlertFile(receivers={}, rules=())


def read_alert_file(path: Path, environment: Mapping[str, str] = os.environ) -> AlertFile:
    """Return the receivers and rules of a file. Raises MisuseError, without any secret in it."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise MisuseError(f"alerts cannot be read from {path}: {refusal_text(exc, path)}") from exc
    except ValueError as exc:  # TOMLDecodeError, UnicodeDecodeError
        raise MisuseError(f"{path} is not a file of alerts in TOML: {exc}") from exc
    top = _Table(content, str(path), environment)
    receivers = {name: _receiver(name, table) for name, table in top.tables("receivers", RECEIVERS_MAX)}
    rules = [_rule(name, table) for name, table in top.tables("rules", RULES_MAX)]
    top.refuse_unread()
    return AlertFile(receivers=receivers, rules=rules)


def _receiver(name: str, table: _Table) -> Receiver:
    kinds: dict[str, Callable[[_Table], WebhookReceiver | EmailReceiver | CommandReceiver]] = {
        "webhook": _webhook,
        "email": _email,
        "command": _command,
    }
    given = [kind for kind in kinds if kind in table.content]
    if len(given) != 1:
        raise table.error(f"must have one of {', '.join(kinds)}")
    receiver = Receiver(
        name=name,
        target=_KINDS[given[0]](table),
        severity=Severity(table.choice("severity", _SEVERITIES, Severity.WARNING.value)),
    )
    table.refuse_unread()
    return receiver


def _webhook(table: _Table) -> WebhookReceiver:
    url = table.secret("webhook")
    parts = _split(url.reveal())
    if parts is None or parts.scheme not in {"http", "https"} or not parts.hostname:
        raise table.error("webhook must be a URL: http://HOST/PATH or https://HOST/PATH")
    if "@" in parts.netloc:  # urllib would take it for a part of the host
        raise table.error("webhook must be a URL without a user and a password: put a token into its path or query")
    return WebhookReceiver(url=url)


def _split(url: str) -> Any:
    try:
        parts = urlsplit(url)
        _ = parts.port  # it is checked only when read
    except ValueError:
        return None
    return parts if url.isascii() and url.isprintable() and " " not in url else None


def _email(table: _Table) -> EmailReceiver:
    to = table.texts("email")
    sender = table.text("from")
    for address in (*to, sender):
        if "@" not in parseaddr(address)[1] or not address.isprintable():
            raise table.error(f"{shown(address)} is not an e-mail address")
    host, _, port = table.text("smtp").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise table.error("smtp must be HOST:PORT, such as smtp.example.org:587")
    user = table.text("user", "")
    password = table.secret("password") if "password" in table.content else None
    if bool(user) != (password is not None):
        raise table.error("user and password go together")
    tls = table.choice("tls", _TLS, "starttls")
    if password is not None and tls == "none":
        raise table.error('a password is not sent without encryption: use tls = "starttls" or "tls"')
    return EmailReceiver(to=to, sender=sender, host=host, port=int(port), tls=tls, user=user, password=password)


def _command(table: _Table) -> CommandReceiver:
    argv = table.texts("command")
    if not Path(argv[0]).is_absolute():
        raise table.error(f"command must begin with an absolute path, not {shown(argv[0])}")
    return CommandReceiver(argv=argv)


_KINDS: Final[Mapping[str, Callable[[_Table], WebhookReceiver | EmailReceiver | CommandReceiver]]] = {
    "webhook": _webhook,
    "email": _email,
    "command": _command,
}


def _rule(name: str, table: _Table) -> SqlRule:
    if name in BY_ALERT:
        raise table.error("is a built-in rule: change its threshold with `txmsg config set broker.alerts...`")
    rule = SqlRule(
        name=name,
        sql=table.text("sql", length_max=_SQL_TEXT_MAX, lines=True),
        database=table.secret("database"),
        above=table.number("above"),
        below=table.number("below"),
        for_s=table.duration("for", 60.0, least_s=0.0, most_s=86_400.0),
        timeout_s=table.duration("timeout", 5.0, least_s=0.1, most_s=30.0),
        severity=Severity(table.choice("severity", _SEVERITIES, Severity.WARNING.value)),
        summary=table.text("summary"),
        action=table.text("action", ""),
    )
    if (rule.above is None) == (rule.below is None):
        raise table.error("must have one of above and below")
    if not rule.database.reveal().startswith(("postgresql://", "postgres://")):
        raise table.error("database must be the URL of a PostgreSQL: postgresql://USER@HOST/DATABASE")
    table.refuse_unread()
    return rule


class _Table:
    """A table of the file whose entries are read one by one; `refuse_unread` refuses those that nothing has read."""

    def __init__(self, content: Mapping[str, Any], place: str, environment: Mapping[str, str]) -> None:
        self.content = content
        self._place = place
        self._environment = environment
        self._read: set[str] = set()

    def error(self, what: str) -> MisuseError:
        return MisuseError(f"{self._place} {what}")

    def refuse_unread(self) -> None:
        """Raise MisuseError for an unknown entry."""
        for name in self.content:
            if name not in self._read:
                raise self.error(f"has {shown(name)}, which is not known: choose from {', '.join(sorted(self._read))}")

    def _get(self, name: str) -> Any:
        self._read.add(name)
        return self.content.get(name)

    def tables(self, name: str, count_max: int) -> list[tuple[str, _Table]]:
        given = self._get(name) or {}
        if not isinstance(given, dict) or len(given) > count_max:
            raise self.error(f"must have at most {count_max} tables [{name}.NAME]")
        found = []
        for each, content in given.items():
            table = _Table(content, f"{self._place} [{name}.{each}]", self._environment)
            if not _NAME.fullmatch(each) or not isinstance(content, dict):
                raise table.error("is not a table whose name is 1 to 63 letters, digits, dashes and underscores")
            found.append((each, table))
        return found

    def text(self, name: str, default: str | None = None, *, length_max: int = _TEXT_MAX, lines: bool = False) -> str:
        given = self._get(name)
        if given is None and default is not None:
            return default
        is_one = isinstance(given, str) and (lines or given.isprintable()) and "\0" not in given
        if not is_one or not 0 < len(given) <= length_max:
            raise self.error(f"must have a text {name} of at most {length_max} characters")
        return str(given)

    def texts(self, name: str) -> list[str]:
        given = self._get(name)
        if isinstance(given, list) and given and all(isinstance(each, str) and each for each in given):
            return given
        raise self.error(f"must have a list of texts {name}")

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        given = self._get(name)
        if given is not None and given not in choices:
            raise self.error(f"{name} must be one of {', '.join(choices)}, not {shown(given)}")
        return given or default

    def number(self, name: str) -> float | None:
        given = self._get(name)
        if given is None:
            return None
        number = number_in(given) if not isinstance(given, str) else None
        if number is None:
            raise self.error(f"{name} must be a number, not {shown(given)}")
        return number

    def duration(self, name: str, default_s: float, *, least_s: float, most_s: float) -> float:
        given = self._get(name)
        seconds = default_s if given is None else duration_in(given)
        if seconds is None or not least_s <= seconds <= most_s:
            raise self.error(f"{name} must be a duration from {least_s:g}s to {most_s:g}s, not {shown(given)}")
        return seconds

    def secret(self, name: str) -> Secret:
        """Return a text, or the contents of its source: {file = PATH} or {env = NAME}."""
        given = self._get(name)
        sources: dict[str, Callable[[str], str]] = {"file": self._of_file, "env": self._of_variable}
        if isinstance(given, dict) and len(given) == 1 and (source := next(iter(given))) in sources:
            where = given[source]
            if not isinstance(where, str) or not where:
                raise self.error(f"{name}.{source} must be a text")
            given = sources[source](where)
        if not isinstance(given, str) or not given:
            raise self.error(f'must have {name}: a text, {{file = "PATH"}}, or {{env = "NAME"}}')
        return Secret(given)

    def _of_file(self, path: str) -> str:
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as exc:
            raise self.error(f"names the file {shown(path)}, which cannot be read: {type(exc).__name__}") from exc

    def _of_variable(self, name: str) -> str:
        if not self._environment.get(name):
            raise self.error(f"names the variable {shown(name)}, which is not set")
        return self._environment[name]
