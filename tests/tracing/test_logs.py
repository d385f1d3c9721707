"""Spans of readers and writers of a log: handlers, polls, and the tailer's appends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind

from tests.tracing.conftest import Spans, attributes_of, context_of, is_child
from tests.waiting import until
from txmsg.binlog.mirror import open_sink
from txmsg.binlog.rows import RowBatch, TableRow
from txmsg.client.app import Txmsg
from txmsg.consumer.failures import Retry
from txmsg.message import QueueNumber, ReceivedMessage, new_transaction_id
from txmsg.metaq import PullConsumer
from txmsg.wire.headers import pack_headers


def row(traceparent: str | None) -> TableRow:
    headers = b"" if traceparent is None else pack_headers({"traceparent": traceparent, "x": "y"})
    return TableRow(new_transaction_id().bytes, 0, b"", b"", headers, b"body", 0, 0, b"")


def sent(spans: Spans, name: str) -> tuple[ReadableSpan, str]:
    """Return an ended span of a sender, and its traceparent."""
    with spans.provider.get_tracer("test").start_as_current_span(name) as span:
        context = span.get_span_context()
    return spans.one(name), f"00-{context.trace_id:032x}-{context.span_id:016x}-01"


def mirror(spans: Spans, log: Path, traceparents: Sequence[str | None], base_offset: int = 0) -> None:
    sink = open_sink(str(log), spans.tracing)
    sink.append([RowBatch("trades", QueueNumber(0), base_offset, [row(each) for each in traceparents])])
    sink.close()


def test_an_append_is_a_child_of_its_first_traced_message_with_links_to_all(spans: Spans, tmp_path: Path) -> None:
    (first, of_first), (second, of_second) = sent(spans, "first"), sent(spans, "second")

    mirror(spans, tmp_path, [None, of_first, None, of_second])

    append = spans.one("mirror trades")
    assert is_child(append, first)
    assert [link.context.span_id for link in append.links] == [context_of(each).span_id for each in (first, second)]
    assert append.kind is SpanKind.CLIENT
    assert attributes_of(append)["messaging.batch.message_count"] == 4


def test_an_append_without_traced_messages_has_no_span(spans: Spans, tmp_path: Path) -> None:
    mirror(spans, tmp_path, [None, None])

    assert spans.all() == ()


def test_handlers_of_a_log_and_their_retries_are_children_of_the_senders(spans: Spans, tmp_path: Path) -> None:
    sender, traceparent = sent(spans, "sender")
    mirror(spans, tmp_path, [traceparent])
    app = Txmsg(log=tmp_path, group="g", tracing=spans.tracing)
    attempts: SimpleQueue[int] = SimpleQueue()

    @app.subscribe("trades", source="log", retry=Retry(delays_s=[0]))
    def count(message: ReceivedMessage) -> None:
        attempts.put(message.attempt)
        if message.attempt == 1:
            raise ValueError("not yet")

    with app:
        processed = spans.wait("process trades", 2)

    assert all(is_child(each, sender) for each in processed)
    assert [attributes_of(each)["messaging.txmsg.message.delivery_attempt"] for each in processed] == [1, 2]
    assert [attributes_of(each).get("error.type") for each in processed] == ["ValueError", None]


def test_each_message_of_a_list_has_a_span_of_its_sender(spans: Spans, tmp_path: Path) -> None:
    (first, of_first), (second, of_second) = sent(spans, "first"), sent(spans, "second")
    mirror(spans, tmp_path, [of_first, of_second])
    app = Txmsg(log=tmp_path, group="g", tracing=spans.tracing)

    @app.subscribe("trades", source="log", batch=2)
    def count(messages: list[ReceivedMessage]) -> None: ...

    with app:
        processed = spans.wait("process trades", 2)

    assert {context_of(each).trace_id for each in processed} == {context_of(each).trace_id for each in (first, second)}


def test_poll_with_messages_has_links_to_the_senders(spans: Spans, tmp_path: Path) -> None:
    sender, traceparent = sent(spans, "sender")
    mirror(spans, tmp_path, [None, traceparent, None])
    consumer = PullConsumer(str(tmp_path), "g", tracing=spans.tracing)
    consumer.subscribe("trades")
    with consumer:
        with spans.provider.get_tracer("test").start_as_current_span("work"):
            until(lambda: consumer.poll(0.1))
        consumer.poll(0.0)

    poll = spans.one("poll trades")
    assert is_child(poll, spans.one("work"))
    assert [link.context.span_id for link in poll.links] == [context_of(sender).span_id]
    assert attributes_of(poll)["messaging.batch.message_count"] == 3
    assert attributes_of(poll)["messaging.operation.type"] == "receive"
