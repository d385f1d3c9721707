"""One request followed through a FastAPI service, its database, a broker, two subscribers and a check-back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.instrumentation.sqlalchemy import SQLAlchemyInstrumentor
from opentelemetry.trace import SpanKind, StatusCode
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from tests.tracing.conftest import Spans, attributes_of, context_of, is_child
from txmsg import (
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    FenceCheckListener,
    ReceivedMessage,
    create_tables,
    transactional_message,
)
from txmsg.testing.faults import ProcessDied, dies_after_commit

TOPIC = "user.registered"


@pytest.fixture
def instrumented(spans: Spans) -> Iterator[SQLAlchemyInstrumentor]:
    instrumentor = SQLAlchemyInstrumentor()
    yield instrumentor
    instrumentor.uninstrument()


def service_of(
    spans: Spans, address: str, database: Path, red_packets: AsyncConsumer, instrumentor: SQLAlchemyInstrumentor
) -> tuple[FastAPI, AsyncProducer]:
    """Return the service, with the instrumentations of FastAPI and SQLAlchemy, and its producer."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{database}")
    producer = AsyncProducer(address, group="users", check_listener=FenceCheckListener(engine), tracing=spans.tracing)

    @transactional_message(producer, topic=TOPIC, key="email", session=async_sessionmaker(engine))
    async def register(session: AsyncSession, email: str) -> None:
        await session.execute(text("insert into users values (:email)"), {"email": email})

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with engine.begin() as connection:
            await connection.execute(text("create table users (email text primary key)"))
            await create_tables(connection)
        instrumentor.instrument(
            engine=engine.sync_engine,
            tracer_provider=spans.provider,
            skip_dep_check=True,  # it was not declared to work with SQLAlchemy 2.1 yet
        )
        async with producer, red_packets:
            yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)

    @app.post("/users")
    async def post_user(email: str) -> str:
        try:
            await register(email=email)
        except ProcessDied:
            return "as if it had died"
        return "registered"

    FastAPIInstrumentor.instrument_app(app, tracer_provider=spans.provider)
    return app, producer


def test_one_request_is_one_trace_to_both_subscribers_and_through_the_check_back(
    spans: Spans, traced_broker: str, tmp_path: Path, instrumented: SQLAlchemyInstrumentor
) -> None:
    attempts: list[int] = []
    red_packets = AsyncConsumer(traced_broker, group="red-packets", tracing=spans.tracing)

    @red_packets.subscribe(TOPIC)
    async def give(message: ReceivedMessage) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            raise RuntimeError("the bank is closed")

    mailer = Consumer(traced_broker, group="mailer", tracing=spans.tracing)
    mails: list[str | None] = []
    mailer.subscribe(TOPIC)(lambda message: mails.append(message.key))

    app, producer = service_of(spans, traced_broker, tmp_path / "users.db", red_packets, instrumented)
    with TestClient(app) as client, mailer:
        with dies_after_commit(producer):
            assert client.post("/users?email=ann@example.com").json() == "as if it had died"
        spans.wait(f"process {TOPIC}", 3)

    request, half = spans.one("POST /users"), spans.one(f"half {TOPIC}")
    local = spans.one("local transaction")
    # A slow machine is asked before it has committed, answers UNKNOWN, and is asked again.
    *unknown, check = spans.named(f"check {TOPIC}")
    answer = spans.named(f"answer {TOPIC}")[-1]
    handled = spans.named(f"process {TOPIC}")
    assert is_child(half, request)
    assert is_child(local, half)
    assert is_child(check, half)
    assert is_child(answer, check)
    assert all(is_child(each, half) for each in handled)
    assert [span.kind for span in (request, half, local, check, answer, handled[0])] == [
        *(SpanKind.SERVER, SpanKind.PRODUCER, SpanKind.INTERNAL),
        *(SpanKind.CLIENT, SpanKind.SERVER, SpanKind.CONSUMER),
    ]
    assert [link.context.span_id for each in handled for link in each.links] == [context_of(half).span_id] * 3

    inserts = [span for span in spans.all() if str(attributes_of(span).get("db.statement")).startswith("insert")]
    assert any(is_child(span, local) for span in inserts)
    fence = [span for span in spans.all() if is_child(span, answer)]
    assert fence, "the listener's statements stand beneath its answer"

    transaction_id = attributes_of(half)["messaging.txmsg.transaction.id"]
    assert attributes_of(half) == {
        "messaging.system": "txmsg",
        "messaging.operation.name": "half",
        "messaging.operation.type": "send",
        "messaging.destination.name": TOPIC,
        "messaging.message.id": f"{transaction_id}.0",
        "messaging.txmsg.transaction.id": transaction_id,
        "messaging.txmsg.producer.group": "users",
    }
    assert attributes_of(check)["messaging.txmsg.outcome"] == "commit"
    assert attributes_of(check)["messaging.txmsg.check.attempt"] == len(unknown) + 1
    assert all(attributes_of(each).get("messaging.txmsg.outcome") != "commit" for each in unknown)
    assert {
        (attributes_of(each)["messaging.consumer.group.name"], attributes_of(each)["messaging.message.id"])
        for each in handled
    } == {(group, f"{transaction_id}.0") for group in ("red-packets", "mailer")}
    by_attempt = {
        attributes_of(each)["messaging.txmsg.message.delivery_attempt"]: each
        for each in handled
        if attributes_of(each)["messaging.consumer.group.name"] == "red-packets"
    }
    assert attempts == [1, 2]
    assert by_attempt[1].status.status_code is StatusCode.ERROR
    assert attributes_of(by_attempt[1])["error.type"] == "RuntimeError"
    assert by_attempt[2].status.status_code is StatusCode.UNSET
    assert mails == ["ann@example.com"]
