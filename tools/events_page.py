"""The page of events, generated from the calls of EventLog in the code: docs/events.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from page_table import table

ROOT = Path(__file__).resolve().parent.parent
LEVELS = ("debug", "info", "warning", "error", "exception", "log")
"""The methods of EventLog."""
PLACEHOLDER = re.compile(r"%\((\w+)\)[-+ 0#]*\d*(?:\.\d+)?[a-z]")
AREAS = {
    "access": "Users, and who is let in",
    "agent": "Agents, which follow files",
    "alert": "Alerts that brokers raise",
    "app": "Applications",
    "append": "Appends to a MetaQ server",
    "audit": "The audit log",
    "attach": "Streams over which clients answer checks",
    "broker": "A broker process",
    "check": "Check-backs of half messages",
    "client": "Producers",
    "cluster": "Brokers of one database",
    "connection": "Connections of clients and servers",
    "copy": "Copies of a MetaQ log",
    "consumer": "Consumers of brokers",
    "database": "The Notify database",
    "delivery": "Delivery to consumers",
    "demo": "`txmsg demo`",
    "embedded": "The embedded PostgreSQL",
    "group": "Consumer groups",
    "half": "Half messages",
    "handler": "Handlers of consumers",
    "inbox": "Handlers with exactly-once effects",
    "journal": "Journals of topics",
    "kafka": "Clients of Kafka",
    "listener": "CheckMessageListeners of applications",
    "log": "Files of a MetaQ log",
    "member": "Consumers of a MetaQ log",
    "message": "Messages of a MetaQ log",
    "metrics": "Metrics",
    "mirror": "Tailers",
    "console": "The console for operators",
    "outbox": "The outbox of producers",
    "page": "Live pages",
    "process": "Forked processes",
    "rocketmq": "The gateway of RocketMQ's clients",
    "retention": "Messages dropped by retention",
    "segment": "Segments of the message table",
    "server": "Brokers and MetaQ servers",
    "settings": "Settings at run time",
    "spool": "Spools of log producers and agents",
    "spark": "The Spark source and sink",
    "tls": "TLS",
    "topic": "Topics",
    "tracing": "Traces",
    "transaction": "Transactions of producers",
    "worker": "`txmsg worker`",
    "write": "Batches that a broker writes",
}
"""Prefixes of event names."""

_HEAD = """# Events

Every event that txmsg logs at level info or above. [Operations](operations.md#logs) says how to get them as JSON, and
how to change the level. Generated from the code by `make generate`.

Names and fields are stable; texts may change. `{name}` in a text is a field of the event, and a key of the JSON object;
further fields follow the text. A traceback is in `exception`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of EventLog."""

    module: str
    line: int
    method: str
    event: str
    text: str
    fields: tuple[str, ...]

    @property
    def level(self) -> str:
        """Return the level as the page shows it."""
        return {"log": "varies", "exception": "error"}.get(self.method, self.method)


def calls() -> Iterator[Call]:
    """Return all calls in txmsg. Raises ValueError for one whose event or text is not a literal."""
    for path in sorted((ROOT / "txmsg").rglob("*.py")):
        if path.name != "logs.py":  # it forwards log records of others
            yield from calls_in(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))


def calls_in(source: str, path: str) -> Iterator[Call]:
    """Return the calls in the text of one module."""
    module = path.removesuffix(".py").replace("/", ".")
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS):
            continue
        if not ast.unparse(node.func.value).endswith(("_log", "_hourly")):
            continue
        given = node.args[1:] if node.func.attr == "log" else node.args
        texts = [each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        if len(given) != 2 or len(texts) != 2:
            raise ValueError(f"{path}:{node.lineno}: an event takes its name and its text as literals, then fields")
        yield Call(
            module=module,
            line=node.lineno,
            method=node.func.attr,
            event=texts[0],
            text=texts[1],
            fields=tuple(each.arg for each in node.keywords if each.arg is not None and each.arg != "exc_info"),
        )


def events_page() -> str:
    """Return the text of the page."""
    logged = sorted((each for each in calls() if each.method != "debug"), key=lambda each: (each.event, each.level))
    lines = [_HEAD]
    for area, of_area in groupby(logged, key=lambda each: each.event.partition(".")[0]):
        loggers: dict[tuple[str, ...], list[str]] = {}
        for each in of_area:
            loggers.setdefault(_event(each), []).append(f"`{each.module}`")
        rows = ((*event, "<br>".join(dict.fromkeys(names))) for event, names in loggers.items())
        lines += [f"\n## {AREAS[area]}\n", table("Event | Level | Text | Logger", rows)]
    return "".join(lines)


def _event(call: Call) -> tuple[str, ...]:
    text = PLACEHOLDER.sub(r"{\1}", call.text).replace("|", "\\|")
    further = [f"`{each}`" for each in call.fields if each not in PLACEHOLDER.findall(call.text)]
    shown = text if not further else f"{text}; {', '.join(further)}"
    return f"`{call.event}`", call.level, shown
