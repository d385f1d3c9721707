"""`txmsg schema`, and schemas registered by producers and applications: versions stored with their topics."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import make_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.broker_process import BrokerProcess
from tests.conftest import StartBroker
from tests.errors_page import is_documented
from tests.integration.cli_harness import TIMEOUT_S, asked, json_of, said
from tests.integration.test_topic_command import settle
from txmsg import AsyncProducer, InvalidMessage, MisuseError, Producer, Topic, Txmsg
from txmsg.administration.schemas import RegisterSchema, SchemaQuery, SchemasService, register_schema, schemas_of
from txmsg.broker.api.schemas import SchemasApi
from txmsg.errors import InvalidName, ProtocolError, UnknownTopic
from txmsg.ops.cli.connections import asker
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.values import unpacked

EVENTS = """
from dataclasses import dataclass
from txmsg import Topic, Txmsg

@dataclass
class First:
    order_id: str

@dataclass
class Second(First):
    gift: bool = False

@dataclass
class Wrong(First):
    price: int

FIRST = Topic("order.placed", First)
SECOND = Topic("order.placed", Second, version=2)
WRONG = Topic("order.placed", Wrong, version=2)
NOTE = Topic("note", str)
app = Txmsg(sends=[SECOND, NOTE])
price = 1
"""

Named = Callable[[str], str]


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Named:
    """Return the qualified name of an object in a new module."""
    module = f"events_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{module}.py").write_text(EVENTS)
    monkeypatch.syspath_prepend(tmp_path)
    return lambda name: f"{module}:{name}"


def topic(*fields: Any, name: str = "t", version: int = 1) -> Topic[Any]:
    return Topic(name, make_dataclass("Order", fields), version=version)


def test_versions_are_registered_listed_shown_and_checked(broker: BrokerProcess, notify_url: str, named: Named) -> None:
    where = ("--broker", broker.address)
    assert said("schema", "list", *where) == "no schemas\n"
    assert said("schema", "check", named("FIRST"), *where) == "version 1 of topic order.placed can be the first one\n"
    assert said("schema", "list", *where) == "no schemas\n"

    registered = "version 1 of topic order.placed registered\n"
    assert said("schema", "register", named("FIRST"), *where) == registered
    assert said("schema", "register", named("FIRST"), *where) == registered.replace("regi", "was regi").replace(
        "registered\n", "registered already\n"
    )
    refused = said("schema", "register", named("WRONG"), *where, status=1)
    assert refused == (
        "Error: version 2 of topic 'order.placed' does not read what version 1 sends: price is required and not sent; "
        "give new fields a default and keep the others as they are, use another topic, or give Topic(..., "
        'compatibility="none")\n'
    )
    assert is_documented(MisuseError(refused.removeprefix("Error: ").strip()))
    assert said("schema", "check", named("WRONG"), *where, status=1) == refused
    assert said("schema", "check", named("SECOND"), *where) == "version 2 of topic order.placed can follow version 1\n"
    assert json_of("schema", "register", named("app"), *where) == {
        "topics": [
            {"topic": "order.placed", "version": 2, "registered": True},
            {"topic": "note", "version": 1, "registered": True},
        ]
    }
    assert json_of("schema", "check", named("SECOND"), *where)["topics"][0]["is_registered"]

    listed = json_of("schema", "list", *where)["schemas"]
    assert [(each["topic"], each["version"], each["content_type"], each["registered_by"]) for each in listed] == [
        ("note", 1, "text/plain; charset=utf-8", None),
        ("order.placed", 1, "application/json", None),
        ("order.placed", 2, "application/json", None),
    ]
    assert all(each["registered_at"] for each in listed)
    assert len(json_of("schema", "list", "order.placed", *where)["schemas"]) == 2
    assert "gift" in said("schema", "show", "order.placed", *where)
    assert "gift" not in said("schema", "show", "order.placed", "1", *where)
    assert "has no version 3 of a schema: there are 1, 2" in said(
        "schema", "show", "order.placed", "3", *where, status=1
    )
    assert "none is registered" in said("schema", "show", "unheard", *where, status=1)
    assert "is 1, not a topic" in said("schema", "register", named("price"), *where, status=1)

    document = json.loads(said("schema", "asyncapi", *where))
    assert set(document["channels"]) == {"order.placed", "note"}
    assert set(document["channels"]["order.placed"]["messages"]) == {"v1", "v2"}
    document = json_of("schema", "asyncapi", named("app"), "--document-version", "1.4", "--broker", "127.0.0.1:1")
    assert set(document["operations"]) == {"send.order.placed", "send.note"}
    assert document["info"] == {"title": named("app"), "version": "1.4"}

    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        entries = connection.execute(
            "select target, after from txmsg.audit where action = 'schema.register' order by id"
        ).fetchall()
    assert [(target, after["version"]) for target, after in entries] == [
        ("order.placed", 1),
        ("order.placed", 2),
        ("note", 1),
    ]
    said("topic", "alter", "order.placed", "--permission", "none", *where)
    settle(notify_url)
    said("topic", "delete", "order.placed", "--yes", *where)
    assert [each["topic"] for each in json_of("schema", "list", *where)["schemas"]] == ["note"]


def test_a_version_is_deleted_and_the_latest_one_only_with_an_option(broker: BrokerProcess, notify_url: str) -> None:
    where = ("--broker", broker.address)
    ask = asker(broker.address)
    versions = [topic(("id", str), *((f"f{n}", int, 0) for n in range(v)), version=v) for v in range(1, 4)]
    for version in versions:
        register_schema(ask, version)

    assert "delete version 1 of the schema of topic t, for good?" in asked("schema", "delete", "t", "1", *where)
    dry_run = json_of("schema", "delete", "t", "1", "--dry-run", *where)
    assert dry_run == {"topic": "t", "version": 1, "is_latest": False, "left": [2, 3], "dry_run": True}
    assert "is the latest one" in said("schema", "delete", "t", "3", "--dry-run", *where, status=1)
    assert json_of("schema", "delete", "t", "3", "--dry-run", "--latest", *where)["is_latest"]
    assert "has no version 4" in said("schema", "delete", "t", "4", "--dry-run", *where, status=1)
    assert len(list(schemas_of(ask, "t"))) == 3
    deleted = said("schema", "delete", "t", "1", "--yes", *where)
    assert deleted == "version 1 of the schema of topic t deleted\n"
    refused = said("schema", "delete", "t", "1", "--yes", *where, status=1)
    assert "topic 't' has no version 1 of a schema: there are 2, 3" in refused
    refused = said("schema", "delete", "t", "3", "--yes", *where, status=1)
    assert "is the latest one, with which the next is compared: register that first, or say --latest" in refused
    assert "topic 'u' is unknown" in said("schema", "delete", "u", "1", "--yes", *where, status=1)
    with pytest.raises(MisuseError, match=r"version 1 .* is not registered and below the latest one, 3"):
        register_schema(ask, versions[0])

    assert json_of("schema", "delete", "t", "3", "--latest", "--yes", *where)["deleted"]
    assert register_schema(ask, versions[2])
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        entries = connection.execute("select before from txmsg.audit where action = 'schema.delete' order by id")
        assert [before["version"] for (before,) in entries] == [1, 3]


def test_schemas_are_managed_without_a_broker(notify_url: str, named: Named) -> None:
    where = ("--storage", notify_url)
    assert said("schema", "list", *where) == "no schemas\n"
    unknown = said("schema", "register", named("FIRST"), *where, status=1)
    assert "topic 'order.placed' is unknown" in unknown
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        connection.execute(
            "with made as (insert into txmsg.topic (name, queue_count, ordered_queues) values ('order.placed', 1, 1) "
            "returning id) insert into txmsg.queue (topic_id, number) select id, 0 from made"
        )
    assert "registered\n" in said("schema", "register", named("FIRST"), *where)
    assert "can follow version 1" in said("schema", "check", named("SECOND"), *where)
    assert "gift" not in said("schema", "show", "order.placed", *where)
    assert "order.placed" in json.loads(said("schema", "asyncapi", *where))["channels"]
    said("schema", "delete", "order.placed", "1", "--latest", "--yes", *where)
    assert said("schema", "list", *where) == "no schemas\n"


def test_concurrent_registrations_add_each_version_once(broker: BrokerProcess) -> None:
    versions = [topic(("id", str), *((f"f{n}", int, 0) for n in range(v)), version=v) for v in range(1, 4)]
    ask = asker(broker.address)
    with ThreadPoolExecutor(6) as threads:
        for version in versions:
            added = list(threads.map(partial(register_schema, ask), [version] * 6))
            assert sorted(added) == [False] * 5 + [True]
    assert [each.version for each in schemas_of(ask, "t")] == [1, 2, 3]
    assert [each.schema for each in schemas_of(ask, "t")] == [each.schema() for each in versions]
    register_schema(ask, topic(("id", str), name="u"))
    with BlockingChannel(broker.address) as channel:
        page = channel.call(SchemasService.list, SchemaQuery(limit=2), timeout_s=TIMEOUT_S)
        assert ([each.version for each in page.schemas], page.more) == ([1, 2], True)
        after = SchemaQuery(limit=2, after_topic="t", after_version=2)
        page = channel.call(SchemasService.list, after, timeout_s=TIMEOUT_S)
        assert ([(each.topic, each.version) for each in page.schemas], page.more) == ([("t", 3), ("u", 1)], False)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"version": 3, "after": 3}, "must be above the latest one, 3"),
        ({"content_type": ""}, "must have 1 to 127 characters, such as application/json"),
        (
            {"schema": {"a": ["\ud800"]}},
            "the schema of topic 't' cannot be stored as JSON, .*surrogates not allowed: give",
        ),
        ({"schema": {"\udfff": 1}}, "cannot be stored as JSON"),
        ({"schema": {"a": math.inf}}, "cannot be stored as JSON"),
        ({"schema": {"a": "x" * 65_536}}, "is 65544 bytes long: at most 65536 are kept"),
    ],
)
async def test_an_invalid_registration_is_refused(changed: dict[str, Any], says: str) -> None:
    values = {"topic": "t", "version": 1, "content_type": "application/json", "schema": {}}
    api = SchemasApi(None, None)  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match=says):
        await api.register(RegisterSchema(**{**values, **changed}))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"version": 0}, "version=0 must be a whole number from 1 to 2147483647"),
        ({"version": 2**31}, "version=2147483648 must be a whole number from 1 to 2147483647"),
        ({"schema": []}, "schema=.* must be an object"),
        ({"content_type": "a\0b"}, "content_type=.* contains a NUL character"),
    ],
)
def test_an_incompatible_field_is_refused_before_registration(changed: dict[str, Any], says: str) -> None:
    values = {"topic": "t", "version": 1, "content_type": "application/json", "schema": {}}
    with pytest.raises((ProtocolError, InvalidName), match=says):
        unpacked(RegisterSchema, json.dumps({**values, **changed}).encode(), strict=True)


def test_producers_and_applications_register_the_schemas_they_send(start_broker: StartBroker) -> None:
    broker = start_broker("--no-topic-auto-create")
    said("topic", "create", "t", "--broker", broker.address)
    first, second = topic(("id", str)), topic(("id", str), ("gift", bool, False), version=2)
    wrong = topic(("id", int), version=3)
    with Producer(broker.address, group="shop") as producer:
        producer.register_schemas(first)
        producer.register_schemas(first)
        with pytest.raises(UnknownTopic, match="create it with `txmsg topic create other`"):
            producer.register_schemas(topic(("id", str), name="other"))

    async def by_coroutines() -> None:
        async with AsyncProducer(broker.address, group="shop") as producer:
            await producer.register_schemas(first, second)
        with pytest.raises(MisuseError, match="id is sent as string and read as integer"):
            await Txmsg(broker.address, sends=[wrong]).start()
        async with Txmsg(broker.address, sends=[second]):
            pass

    asyncio.run(by_coroutines())
    assert [each.version for each in schemas_of(asker(broker.address))] == [1, 2]
