"""Spans kept in memory, and a broker in this process whose spans are kept with them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import SimpleQueue

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from tests import unclosed
from tests.conftest import PostgresServer
from tests.waiting import until
from txmsg.broker.config import BrokerConfig
from txmsg.broker.server import serve
from txmsg.checker.loop import CheckLoopConfig
from txmsg.settings.live import GivenSettings
from txmsg.tracing import Tracing

_START_S_MAX = 60.0


class Spans:
    """The spans recorded since the test began. `provider` is the global one: it can be set once per process."""

    def __init__(self, provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
        self.provider = provider
        self._exporter = exporter
        self.tracing = Tracing(provider)

    def all(self) -> Sequence[ReadableSpan]:
        """Return the ended spans, in the order of their ends."""
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        """Return the spans of this name."""
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """Return the only span of this name."""
        [span] = self.named(name)
        return span

    def wait(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """Return the spans of this name once there are so many."""
        until(lambda: len(self.named(name)) >= count, why=f"{name!r} is not {count} times in {self.names()}")
        return self.named(name)

    def names(self) -> list[str]:
        """Return the names of all spans."""
        return [span.name for span in self.all()]


def context_of(span: ReadableSpan) -> SpanContext:
    """Return the context of a span."""
    context: SpanContext | None = span.context
    assert context is not None
    return context


def attributes_of(span: ReadableSpan) -> Mapping[str, object]:
    """Return the attributes of a span."""
    assert span.attributes is not None
    return span.attributes


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    """Return True if one span is the parent of the other, in one trace."""
    return (
        span.parent is not None
        and span.parent.span_id == context_of(parent).span_id
        and context_of(span).trace_id == context_of(parent).trace_id
    )


def recording() -> tuple[TracerProvider, InMemorySpanExporter]:
    """Set the global provider; return it with the exporter of its spans."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider, exporter


@contextmanager
def serving(storage: str) -> Iterator[str]:
    """Run a broker with --tracing on a thread of this process; yields its address."""
    config = BrokerConfig(
        storage=storage,
        listen="127.0.0.1:0",
        tracing=True,
        first_check_s=0.2,
        check_interval_s=20.0,
        check_loop=CheckLoopConfig(poll_interval_s=0.1, sweep_interval_s=0.1),
        stop_timeout_s=2.0,
    )
    told: SimpleQueue[str] = SimpleQueue()
    stops: SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = SimpleQueue()

    async def run() -> None:
        stop = asyncio.Event()
        stops.put((asyncio.get_running_loop(), stop))
        await serve(GivenSettings(config), told.put, stop)

    def work() -> None:
        with unclosed.serving_several_tests():
            asyncio.run(run())

    thread = threading.Thread(target=work)
    thread.start()
    loop, stop = stops.get(timeout=_START_S_MAX)
    try:
        yield told.get(timeout=_START_S_MAX)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


@pytest.fixture(scope="session")
def _recorded() -> tuple[TracerProvider, InMemorySpanExporter]:
    return recording()


@pytest.fixture
def spans(_recorded: tuple[TracerProvider, InMemorySpanExporter]) -> Spans:
    """The spans recorded from now on."""
    provider, exporter = _recorded
    exporter.clear()
    return Spans(provider, exporter)


@pytest.fixture(scope="session")
def traced_broker(
    _recorded: tuple[TracerProvider, InMemorySpanExporter], postgres: PostgresServer, notify_template: str
) -> Iterator[str]:
    """The address of a broker with --tracing."""
    name = f"tracing_{os.getpid()}"
    with serving(postgres.create_database(name, template=notify_template)) as address:
        yield address
    postgres.drop_database(name)
