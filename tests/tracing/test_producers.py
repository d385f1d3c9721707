"""Spans of producers and of the handlers of their messages; `def` here, `async def` in test_one_request.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanContext, SpanKind, StatusCode
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from tests.ports import own_port
from tests.tracing.conftest import Spans, attributes_of, context_of, is_child
from txmsg import (
    AsyncProducer,
    BrokerUnavailable,
    Consumer,
    FenceCheckListener,
    InvalidMessage,
    Message,
    Producer,
    ReceivedMessage,
    TransactionState,
    create_tables,
    transactional_message,
)
from txmsg.message import HEADERS_SIZE_BYTES_MAX, new_transaction_id
from txmsg.tracing import Tracing

_UNSAMPLED = TracerProvider(sampler=ParentBased(ALWAYS_OFF))
_OTHERS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Seen:
    """The deliveries of handlers, and the context in which they ran."""

    def __init__(self) -> None:
        self._seen: SimpleQueue[tuple[ReceivedMessage, SpanContext]] = SimpleQueue()

    def note(self, message: ReceivedMessage) -> None:
        self._seen.put((message, trace.get_current_span().get_span_context()))

    def next(self) -> tuple[ReceivedMessage, SpanContext]:
        return self._seen.get(timeout=60)


@contextmanager
def consuming(address: str, topic: str, tracing: Tracing | None) -> Iterator[Seen]:
    seen = Seen()
    consumer = Consumer(address, group="g", tracing=tracing)
    consumer.subscribe(topic)(seen.note)
    with consumer:
        yield seen


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[sessionmaker[Session]]:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    create_tables(engine)
    yield sessionmaker(engine)
    engine.dispose()


@pytest.fixture
def producer(spans: Spans, traced_broker: str, sessions: sessionmaker[Session]) -> Iterator[Producer]:
    listener = FenceCheckListener(sessions.kw["bind"])
    with Producer(traced_broker, group="shop", check_listener=listener, tracing=spans.tracing) as producer:
        yield producer


def request_of(spans: Spans) -> trace.Tracer:
    return spans.provider.get_tracer("test")


def test_local_transaction_and_outcome_are_children_of_the_half_message(
    spans: Spans, producer: Producer, sessions: sessionmaker[Session]
) -> None:
    @transactional_message(producer, topic="order.placed", session=sessions)
    def place(session: Session, order_id: int) -> SpanContext:
        session.execute(text("select 1"))
        return trace.get_current_span().get_span_context()

    with request_of(spans).start_as_current_span("request"):
        within = place(order_id=42)

    request, half, local, commit = (
        spans.one(name) for name in ("request", "half order.placed", "local transaction", "commit order.placed")
    )
    assert is_child(half, request)
    assert is_child(local, half)
    assert is_child(commit, half)
    assert within.span_id == context_of(local).span_id
    assert (local.kind, commit.kind) == (SpanKind.INTERNAL, SpanKind.CLIENT)
    assert attributes_of(commit)["messaging.operation.type"] == "settle"
    assert attributes_of(commit)["messaging.txmsg.outcome"] == "commit"
    assert not trace.get_current_span().get_span_context().is_valid, "what was current before is current again"


def test_failed_local_transaction_has_an_error_span_and_is_rolled_back(
    spans: Spans, producer: Producer, sessions: sessionmaker[Session]
) -> None:
    @transactional_message(producer, topic="order.refused", session=sessions)
    def place(session: Session, order_id: int) -> None:
        raise LookupError(f"no article {order_id}")

    with pytest.raises(LookupError):
        place(order_id=42)

    local = spans.one("local transaction")
    assert local.status.status_code is StatusCode.ERROR
    assert attributes_of(local)["error.type"] == "LookupError"
    assert is_child(spans.one("rollback order.refused"), spans.one("half order.refused"))
    assert spans.one("half order.refused").status.status_code is StatusCode.UNSET


def test_half_message_stored_again_has_the_id_of_the_caller(
    spans: Spans, producer: Producer, traced_broker: str
) -> None:
    transaction_id = new_transaction_id()
    messages = [Message("order.again", b"{}")]
    with consuming(traced_broker, "order.again", spans.tracing) as seen:
        halves = [producer.half(messages, transaction_id=transaction_id) for _ in range(2)]
        producer.end(halves[1], TransactionState.COMMIT)
        message, _ = seen.next()

    assert {half.transaction_id for half in halves} == {transaction_id}
    assert message.headers == {}, "the context of either call would have made the other one's messages others"
    assert is_child(spans.one("commit order.again"), spans.named("half order.again")[1])


async def test_an_async_producer_stores_a_half_message_again(spans: Spans, traced_broker: str) -> None:
    transaction_id = new_transaction_id()
    async with AsyncProducer(traced_broker, group="shop", tracing=spans.tracing) as producer:
        first, again = [
            await producer.half([Message("async.again", b"")], transaction_id=transaction_id) for _ in range(2)
        ]
        await producer.end(again, TransactionState.ROLLBACK)
    assert first.transaction_id == again.transaction_id == transaction_id


@pytest.mark.parametrize("raises", [False, True])
def test_deferred_half_messages_are_sent_within_the_local_transaction_span(
    spans: Spans, producer: Producer, sessions: sessionmaker[Session], traced_broker: str, raises: bool
) -> None:
    with sessions() as session:
        try:
            with producer.transaction(session) as tx:
                tx.send(Message("order.paid", b"{}"))
                if raises:
                    raise LookupError
        except LookupError:
            assert spans.one("local transaction").status.status_code is StatusCode.ERROR
            assert spans.named("half order.paid") == []
            return

    local, half = spans.one("local transaction"), spans.one("half order.paid")
    assert is_child(half, local)
    assert is_child(spans.one("commit order.paid"), half)
    with consuming(traced_broker, "order.paid", spans.tracing):
        [process] = spans.wait("process order.paid")
    assert is_child(process, half)


def test_batch_send_is_one_span_carried_by_all_its_messages(spans: Spans, traced_broker: str) -> None:
    with (
        Producer(traced_broker, group="shop", tracing=spans.tracing) as producer,
        consuming(traced_broker, "several.a", spans.tracing) as seen,
    ):
        producer.send_many([Message("several.a", b"1"), Message("several.a", b"2", headers={"x": "y"})])
        found = {message.body: message for message, _ in (seen.next(), seen.next())}
        [first, second] = spans.wait("process several.a", 2)

    send = spans.one("send several.a")
    assert send.kind is SpanKind.PRODUCER
    assert attributes_of(send)["messaging.batch.message_count"] == 2
    assert "messaging.message.id" not in attributes_of(send)
    assert is_child(first, send)
    assert is_child(second, send)
    assert found[b"2"].headers["x"] == "y"


async def test_a_message_of_an_async_producer_carries_its_span(spans: Spans, traced_broker: str) -> None:
    async with AsyncProducer(traced_broker, group="shop", tracing=spans.tracing) as producer:
        message_id = await producer.send(Message("async.sent", b""))
        half = await producer.half([Message("async.half", b""), Message("async.other", b"")])
        await producer.end(half, TransactionState.ROLLBACK)

    assert attributes_of(spans.one("send async.sent"))["messaging.message.id"] == message_id
    several = spans.one("half")
    assert "messaging.destination.name" not in attributes_of(several)
    assert is_child(spans.one("rollback"), several)


def test_trace_context_of_the_application_is_kept_and_linked(spans: Spans, traced_broker: str) -> None:
    with (
        Producer(traced_broker, group="shop", tracing=spans.tracing) as producer,
        consuming(traced_broker, "others", spans.tracing) as seen,
    ):
        producer.send(Message("others", b"", headers={"traceparent": _OTHERS, "tracestate": "vendor=1"}))
        message, _ = seen.next()
        [process] = spans.wait("process others")

    send = spans.one("send others")
    assert send.kind is SpanKind.CLIENT
    assert [f"{link.context.span_id:x}" for link in send.links] == ["b7ad6b7169203331"]
    assert message.headers == {"traceparent": _OTHERS, "tracestate": "vendor=1"}
    assert f"{context_of(process).trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert context_of(process).trace_state.get("vendor") == "1"


def test_a_message_without_room_for_a_context_is_sent_without_one(spans: Spans, traced_broker: str) -> None:
    full = {"x": "y" * (HEADERS_SIZE_BYTES_MAX - 1)}
    with (
        Producer(traced_broker, group="shop", tracing=spans.tracing) as producer,
        consuming(traced_broker, "full", spans.tracing) as seen,
    ):
        producer.send(Message("full", b"", headers=full))
        message, _ = seen.next()

    assert message.headers == full
    assert spans.one("send full").status.status_code is StatusCode.UNSET


def test_failed_send_records_its_error(spans: Spans) -> None:
    producer = Producer(f"127.0.0.1:{own_port()}", group="shop", timeout_s=0.2, tracing=spans.tracing)
    with producer:
        with pytest.raises(BrokerUnavailable):
            producer.send(Message("away", b""))
        with pytest.raises(InvalidMessage):
            producer.send_many(["not a message"])  # type: ignore[list-item]

    failed = spans.one("send away")
    assert failed.status.status_code is StatusCode.ERROR
    assert attributes_of(failed)["error.type"] == "txmsg.errors.BrokerUnavailable"
    assert [event.name for event in failed.events] == ["exception"]


# ---- unsampled messages


def test_unsampled_message_carries_no_context_and_is_handled_unsampled(spans: Spans, traced_broker: str) -> None:
    with (
        Producer(traced_broker, group="shop", tracing=Tracing(_UNSAMPLED)) as producer,
        consuming(traced_broker, "unsampled", spans.tracing) as seen,
    ):
        producer.send(Message("unsampled", b""))
        message, context = seen.next()

    assert message.headers == {}
    assert context.is_valid
    assert not context.trace_flags.sampled
    assert spans.all() == ()


def test_no_span_is_started_under_an_unsampled_span(
    spans: Spans, producer: Producer, sessions: sessionmaker[Session]
) -> None:
    @transactional_message(producer, topic="order.unsampled", session=sessions)
    def place(session: Session, order_id: int) -> SpanContext:
        return trace.get_current_span().get_span_context()

    with _UNSAMPLED.get_tracer("test").start_as_current_span("request") as request:
        within = place(order_id=42)

    assert within == request.get_span_context()
    assert spans.all() == ()


def test_the_local_transaction_of_an_unsampled_half_message_is_unsampled(
    spans: Spans, traced_broker: str, sessions: sessionmaker[Session]
) -> None:
    listener = FenceCheckListener(sessions.kw["bind"])
    with Producer(traced_broker, group="shop", check_listener=listener, tracing=Tracing(_UNSAMPLED)) as producer:

        @transactional_message(producer, topic="order.unsampled", session=sessions)
        def place(session: Session, order_id: int) -> SpanContext:
            return trace.get_current_span().get_span_context()

        within = place(order_id=42)

    assert within.is_valid
    assert not within.trace_flags.sampled
    assert not trace.get_current_span().get_span_context().is_valid


def test_consumer_can_start_a_trace_for_a_message_without_one(spans: Spans, traced_broker: str) -> None:
    with (
        Producer(traced_broker, group="shop") as producer,
        consuming(traced_broker, "untraced", Tracing(spans.provider, starts_traces=True)) as seen,
    ):
        producer.send(Message("untraced", b""))
        seen.next()
        [process] = spans.wait("process untraced")

    assert process.parent is None
    assert list(process.links) == []


def test_consumer_can_start_its_own_traces(spans: Spans, traced_broker: str) -> None:
    with (
        Producer(traced_broker, group="shop", tracing=spans.tracing) as producer,
        consuming(traced_broker, "linked", Tracing(spans.provider, joins_senders=False)) as seen,
    ):
        producer.send(Message("linked", b""))
        seen.next()
        [process] = spans.wait("process linked")

    send = spans.one("send linked")
    assert process.parent is None
    assert context_of(process).trace_id != context_of(send).trace_id
    assert [link.context.span_id for link in process.links] == [context_of(send).span_id]


def test_no_span_and_no_context_without_tracing(spans: Spans, traced_broker: str) -> None:
    with Producer(traced_broker, group="shop") as producer, consuming(traced_broker, "off", None) as seen:
        with request_of(spans).start_as_current_span("request"):
            producer.send(Message("off", b""))
        message, context = seen.next()

    assert message.headers == {}
    assert not context.is_valid
    assert spans.names() == ["request"]
