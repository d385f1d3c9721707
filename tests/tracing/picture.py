"""Takes docs/images/trace.png: the recorded spans of one request as a waterfall.

    python -m tests.tracing.picture docs/images

A service stores a user and "dies" after its commit; the broker checks back, and one of two subscribers fails at first.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import chdir
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from fastapi.testclient import TestClient
from opentelemetry.instrumentation.sqlalchemy import SQLAlchemyInstrumentor
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from benchmarks.surroundings import notify_database
from tests.page.pictures import Picture, camera, take
from tests.tracing.conftest import Spans, attributes_of, context_of, recording, serving
from tests.tracing.test_one_request import TOPIC, service_of
from txmsg import AsyncConsumer, Consumer, ReceivedMessage
from txmsg.testing.faults import dies_after_commit

_PICTURE: Final = Picture("trace", (1440, 440), path="/trace.html")
_WORKS_S: Final = 0.03
"""Duration of a handler in seconds."""
_STYLE: Final = """
body { margin: 0; padding: 22px 28px; font: 15px/1.3 Inter, "Segoe UI", Roboto, system-ui, sans-serif; color: #1a1a20; }
h1 { margin: 0 0 14px; font-size: 18px; } h1 small { color: #70707c; font-weight: 400; font-size: 15px; }
table { width: 100%; border-collapse: collapse; table-layout: fixed; font-variant-numeric: tabular-nums; }
td { height: 27px; padding: 0 10px; border-top: 1px solid #e5e5ea; white-space: nowrap; overflow: hidden; }
td:nth-child(1) { width: 19%; font-weight: 520; } td:nth-child(2) { width: 25%; color: #62626e; }
td:nth-child(3) { position: relative; padding: 0; } td:nth-child(4) { width: 7%; text-align: right; color: #62626e; }
i { position: absolute; top: 8px; height: 11px; min-width: 4px; border-radius: 3px; background: #5b5bd6; }
i.broker { background: #14784b; } i.statement { background: #b4b4c4; } i.error { background: #c62a2f; }
"""


def main() -> None:
    """Run one request, and take the picture."""
    target = Path(sys.argv[1])
    with TemporaryDirectory(prefix="txmsg-trace-") as directory:
        (Path(directory) / "trace.html").write_text(_page(_play(Path(directory))))
        with camera() as browser:
            take(browser, f"file://{directory}", _PICTURE, target, lambda page: page.wait_for_selector("tr"))


def _play(directory: Path) -> Sequence[ReadableSpan]:
    """Run one request and return its spans."""
    provider, exporter = recording()
    spans = Spans(provider, exporter)
    instrumentor = SQLAlchemyInstrumentor()
    # The name of a statement's span has the path of its database: a short one.
    with chdir(directory), notify_database(None) as storage, serving(storage) as broker:
        red_packets = AsyncConsumer(broker, group="red-packets", tracing=spans.tracing)

        @red_packets.subscribe(TOPIC)
        async def give(message: ReceivedMessage) -> None:
            await asyncio.sleep(_WORKS_S)
            if message.attempt == 1:
                raise RuntimeError("the bank is closed")

        mailer = Consumer(broker, group="mailer", tracing=spans.tracing)
        mailer.subscribe(TOPIC)(lambda message: time.sleep(_WORKS_S))
        app, producer = service_of(spans, broker, Path("users.db"), red_packets, instrumentor)
        with TestClient(app) as client, mailer:
            client.post("/users?email=first@example.com")  # which connects
            spans.wait(f"process {TOPIC}", 3)
            exporter.clear()
            with dies_after_commit(producer):
                client.post("/users?email=ann@example.com")
            spans.wait(f"process {TOPIC}", 3)
    instrumentor.uninstrument()
    return spans.all()


def _page(spans: Sequence[ReadableSpan]) -> str:
    (root,) = (span for span in spans if span.name == "POST /users" and span.parent is None)
    tree = list(_tree(root, spans, depth=0))
    begin, end = _times(root)[0], max(_times(span)[1] for span, _ in tree)
    rows = "".join(_row(span, depth, begin, end - begin) for span, depth in tree)
    title = f"{root.name} <small>{len(tree)} spans in {(end - begin) / 1e9:.2f} s</small>"
    return f'<!doctype html><meta charset="utf-8"><style>{_STYLE}</style><h1>{title}</h1><table>{rows}</table>'


def _tree(span: ReadableSpan, spans: Sequence[ReadableSpan], depth: int) -> Iterator[tuple[ReadableSpan, int]]:
    """Return a span and its descendants, by their begin. Without those of single ASGI messages."""
    yield span, depth
    children = [each for each in spans if each.parent and each.parent.span_id == context_of(span).span_id]
    for child in sorted(children, key=lambda each: _times(each)[0]):
        if "http send" not in child.name and "http receive" not in child.name:
            yield from _tree(child, spans, depth + 1)


def _row(span: ReadableSpan, depth: int, begin: int, whole: int) -> str:
    from_ns, to_ns = _times(span)
    kind = "error" if span.status.status_code is StatusCode.ERROR else "statement" if _statement(span) else ""
    if span.name.startswith("check "):
        kind = "broker"
    left, width = 0.99 * (from_ns - begin) / whole, 0.99 * (to_ns - from_ns) / whole
    bar = f'<i class="{kind}" style="left:{left:.3%};width:{width:.3%}"></i>'
    name = f'<td style="padding-left:{10 + 20 * depth}px">{escape(span.name)}</td>'
    return f"<tr>{name}<td>{escape(_about(span))}</td><td>{bar}</td><td>{(to_ns - from_ns) / 1e6:.1f} ms</td></tr>"


def _times(span: ReadableSpan) -> tuple[int, int]:
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time, span.end_time


def _statement(span: ReadableSpan) -> str:
    return " ".join(str(attributes_of(span).get("db.statement", "")).split())


def _about(span: ReadableSpan) -> str:
    """Return a short description of a span: group and attempt, outcome, or statement."""
    said = attributes_of(span)
    group, attempt = said.get("messaging.consumer.group.name"), said.get("messaging.txmsg.message.delivery_attempt")
    if group:
        return f"{group}, attempt {attempt}" + (f": {said['error.type']}" if "error.type" in said else "")
    if outcome := said.get("messaging.txmsg.outcome"):
        return str(outcome)
    return _statement(span)[:44]


if __name__ == "__main__":
    main()
