"""`txmsg message`: search, trace and recall of messages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.broker_process import BrokerProcess
from tests.conftest import StartBroker
from tests.integration.cli_harness import asked, json_of, said, store_half
from tests.integration.client_harness import WAIT_S, collecting
from tests.integration.test_dead_letter_command import FAILURES, bury, processed
from tests.waiting import until
from txmsg.client import Producer
from txmsg.message import Message, message_id, new_transaction_id
from txmsg.rocketmq.ids import usual_id


def found(broker: BrokerProcess, *options: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = json_of("message", "find", "--broker", broker.address, *options)["messages"]
    return messages


def traced(broker: BrokerProcess, id_: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = json_of("message", "trace", id_, "--broker", broker.address)["messages"]
    return messages


def execute(notify_url: str, statement: str, *args: object) -> None:
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        assert connection.execute(statement.encode(), args).rowcount == 1


def test_messages_are_found_by_key_in_all_segments_and_by_id(broker: BrokerProcess, notify_url: str) -> None:
    with Producer(broker.address, group="shop") as producer:
        first = producer.send(Message("t", b"caf\xc3\xa9", key="42", tag="new", headers={"h": "1"}))
        other = producer.send(Message("u", b"2", key="42"))
        producer.send(Message("t", b"3", key="43"))
        with psycopg.connect(notify_url, connect_timeout=10) as connection:
            connection.execute("select txmsg.rotate((select id from txmsg.segment where state = 'open'))")
        last = producer.send(Message("t", b"4", key="42"))
    assert [each["id"] for each in found(broker, "--key", "42")] == [last, other, first]
    assert [each["id"] for each in found(broker, "--key", "42", "--topic", "t")] == [last, first]
    assert [each["segment"] for each in found(broker, "--key", "42")] == [2, 1, 1]
    (message,) = found(broker, "--id", first, "--bodies")
    assert (message["body"], message["headers"], message["tag"]) == ("café", {"h": "1"}, "new")
    assert (message["topic"], message["offset"], message["state"]) == ("t", 0, "stored")
    transaction_id = first.partition(".")[0]
    (message,) = found(broker, "--id", transaction_id)
    assert [message] == found(broker, "--id", usual_id(UUID(transaction_id).bytes))
    assert "body" not in message
    assert message["body_size_bytes"] == 5
    where = ("--broker", broker.address)
    assert json_of("message", "find", "--key", "42", "--limit", "2", *where)["more"]
    assert not json_of("message", "find", "--key", "42", "--limit", "3", *where)["more"]
    assert last in said("message", "find", "--key", "42", *where)
    assert "café" in said("message", "find", "--key", "42", "--bodies", *where)
    assert said("message", "find", "--key", "nobody", *where) == "no such message\n"


def test_a_search_by_key_takes_one_index_descent_per_segment(broker: BrokerProcess, notify_url: str) -> None:
    from txmsg.broker.store import messages

    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        connection.execute(
            "insert into txmsg.message (segment, queue, queue_offset, transaction_id, n, key, body, born_at) "
            "select 1, 1, g, gen_random_uuid(), 0, g::text, '', now() from generate_series(0, 4999) g"
        )
        connection.execute("analyze txmsg.message")
        given: dict[str, object] = {"key": "42", "topic": None, "limit": 101, "with_bodies": False, "size": 1}
        plan = "\n".join(
            row[0] for row in connection.execute(f"explain (analyze, costs off) {messages._OF_KEY}".encode(), given)
        )
        assert "Index Scan using message_1_key_idx" in plan, plan
        given = {"id": new_transaction_id(), "n": None, "limit": 101, "with_bodies": False, "size": 1}
        plan = "\n".join(
            row[0] for row in connection.execute(f"explain (analyze, costs off) {messages._OF_ID}".encode(), given)
        )
        assert "Index Scan using message_1_segment_transaction_id_n_key" in plan, plan
        assert "Seq Scan on half_message" not in plan, plan


def test_messages_outside_their_queues_are_found_by_key(start_broker: StartBroker, notify_url: str) -> None:
    broker = start_broker("--first-check-s", "600")
    with Producer(broker.address, group="shop") as producer:
        half = producer.half([Message("t", b"1", key="42")])
        delayed = producer.send(Message("t", b"2", key="42", deliver_after=timedelta(hours=1)))
        stored = producer.send(Message("u", b"3", key="42"))
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        # A retry and a dead letter of one message whose segment was dropped: it is one message.
        connection.execute("insert into txmsg.consumer_group (name) values ('one'), ('two')")
        dropped, n, queue, at = new_transaction_id(), 0, 1, "2026-05-01T10:00:00Z"
        connection.execute("insert into txmsg.segment_base (segment, queue, base) values (1, 1, 5)")
        columns = "group_id, queue_id, queue_offset, transaction_id, n, key, body, born_at, stored_at"
        values = (queue, dropped, n, at, at)
        connection.execute(
            f"insert into txmsg.retry ({columns}, attempt, due_at) select id, %s, 4, %s, %s, '42', '', %s, %s, 1, "
            "now() from txmsg.consumer_group where name = 'one'".encode(),
            values,
        )
        connection.execute(
            f"insert into txmsg.dead_letter ({columns}, attempts) select id, %s, 4, %s, %s, '42', '', %s, %s, 1 "
            "from txmsg.consumer_group where name = 'two'".encode(),
            values,
        )
    states = {each["id"]: each["state"] for each in found(broker, "--key", "42")}
    assert states == {
        message_id(half.transaction_id, 0): "half",
        delayed: "scheduled",
        stored: "stored",
        message_id(dropped, 0): "dropped",
    }
    assert [each["id"] for each in found(broker, "--key", "42", "--topic", "u")] == [stored]
    assert {each["id"]: each["state"] for each in traced(broker, "42")} == states
    assert [each["offset"] for each in found(broker, "--id", message_id(dropped, 0))] == [4]


def test_messages_are_found_from_an_offset_or_a_time_in_stored_order(broker: BrokerProcess, notify_url: str) -> None:
    said("topic", "create", "placed", "--queues", "2", "--broker", broker.address)
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        connection.execute(
            "insert into txmsg.message (segment, queue, queue_offset, transaction_id, n, body, born_at, stored_at) "
            "select s.id, q.id, o, gen_random_uuid(), 0, '', now(), "
            "timestamptz '2026-05-01T10:00:00Z' + (2 * o + q.number) * interval '1 min' "
            "from txmsg.segment s, txmsg.queue q join txmsg.topic t on t.id = q.topic_id, generate_series(0, 4) o "
            "where s.state = 'open' and t.name = 'placed'"
        )

    def places(*options: str) -> list[tuple[int, int]]:
        return [(each["queue"], each["offset"]) for each in found(broker, "--topic", "placed", *options)]

    assert places("--from", "earliest") == [(queue, offset) for offset in range(5) for queue in range(2)]
    assert places("--from", "3", "--queue", "1") == [(1, 3), (1, 4)]
    assert places("--from", "2026-05-01T10:05:00Z", "--limit", "3") == [(1, 2), (0, 3), (1, 3)]
    assert places("--from", "2026-05-01T12:00:00Z") == []
    assert json_of(
        "message", "find", "--topic", "placed", "--from", "9", "--limit", "1", "--broker", broker.address
    ) == {
        "messages": [],
        "more": False,
    }
    where = ("--broker", broker.address)
    assert "has no queue 2" in said(
        "message", "find", "--topic", "placed", "--from", "0", "--queue", "2", *where, status=1
    )
    assert "is unknown" in said("message", "find", "--topic", "nowhere", "--from", "0", *where, status=1)
    assert "behind the latest" in said("message", "find", "--topic", "placed", "--from", "latest", *where, status=1)


def test_find_needs_a_key_an_id_or_a_position() -> None:
    for options, refused in (
        ((), "a --key, for an --id, or --from"),
        (("--key", "k", "--id", "7"), "a --key, for an --id, or --from"),
        (("--topic", "t", "--id", "7"), "--topic goes with --key"),
        (("--key", "k", "--queue", "1"), "--queue goes with --from"),
        (("--from", "1"), "--from is a position in a --topic"),
    ):
        assert refused in said("message", "find", *options, status=2)


def test_a_half_is_traced_from_storage_to_its_queue_and_mirrors(start_broker: StartBroker, notify_url: str) -> None:
    broker = start_broker("--first-check-s", "600")
    transaction_id = store_half(broker, count=2)
    first, second = traced(broker, transaction_id)
    assert (first["state"], second["state"]) == ("half", "half")
    assert (first["producer_group"], second["checks"], first["decided_by"]) == ("shop", 0, None)
    assert first["half_stored_at"] is not None
    assert second["next_check_at"] is not None
    assert [each["id"] for each in traced(broker, f"{transaction_id}.1")] == [f"{transaction_id}.1"]
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        connection.execute("insert into txmsg.mirror (name, include, exclude, log) values ('m', '{*}', '{}', '/logs')")
        connection.execute("insert into txmsg.mirror_queue select 'm', id, 1 from txmsg.queue")
    said("half", "commit", transaction_id, "--yes", "--broker", broker.address)
    first, second = traced(broker, transaction_id)
    assert (first["state"], second["state"]) == ("stored", "stored")
    assert (first["offset"], second["offset"]) == (0, 1)
    assert first["groups"] == []
    assert first["decided_by"] == "operator"
    assert first["half_stored_at"] is not None
    assert [each["what"] for each in first["events"]] == ["half", "stored"]
    assert [each["mirrors"] for each in (first, second)] == [
        [{"mirror": "m", "log": "/logs", "is_mirrored": is_there}] for is_there in (True, False)
    ]
    shown = said("message", "trace", transaction_id, "--broker", broker.address)
    tail = f"txmsg metaq tail order.placed --log /logs --queue {first['queue']} --from 0 --limit 1"
    for each in (
        "no group reads its queue yet",
        f"mirror m: mirrored; `{tail}` prints it",
        "mirror m: not mirrored yet",
    ):
        assert each in shown


def test_a_trace_shows_decisions_delays_and_rollbacks(start_broker: StartBroker, notify_url: str) -> None:
    broker = start_broker("--first-check-s", "600")
    where = ("--broker", broker.address)
    dropped = store_half(broker)
    said("half", "rollback", dropped, "--yes", *where)
    (message,) = traced(broker, dropped)
    assert (message["state"], message["decided_by"], message["topic"]) == ("rolled back", "operator", "order.placed")
    assert message["producer_group"] == "shop"
    assert [(each["what"], each["by"]) for each in message["events"]] == [("half", None), ("rollback", "operator")]
    assert "rolled back, by operator" in said("message", "trace", dropped, *where)
    waiting = store_half(broker)
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        connection.execute(
            "with half as (delete from txmsg.half_message returning *) insert into txmsg.scheduled (transaction_id, n, "
            "deliver_at, queue, key, tag, headers, body, born_at, half_stored_at, decided_by) select transaction_id, "
            "n, '2099-01-01T00:00:00Z', queue, key, tag, headers, body, born_at, stored_at, 2 from half"
        )
    (message,) = traced(broker, waiting)
    assert (message["state"], message["deliver_at"]) == ("scheduled", "2099-01-01T00:00:00+00:00")
    assert (message["decided_by"], message["offset"]) == ("check-back", None)
    assert message["half_stored_at"] is not None
    assert "is unknown: it was never stored" in said("message", "trace", str(new_transaction_id()), *where, status=1)
    assert "'7' is unknown: it was never stored" in said("message", "trace", "7", *where, status=1)


def test_a_trace_shows_the_progress_of_each_group(broker: BrokerProcess, notify_url: str) -> None:
    (id_,) = processed(broker, Message("t", b"1"), group="dead")
    for group in ("done", "failing"):
        with collecting(broker.address, "t", group=group) as got:
            got.get(timeout=WAIT_S)
    execute(
        notify_url,
        "insert into txmsg.retry (group_id, queue_id, queue_offset, attempt, due_at, transaction_id, n, body, born_at, "
        "stored_at, failures) select g.id, m.queue, m.queue_offset, 2, '2099-01-01T00:00:00Z', transaction_id, n, "
        'body, born_at, stored_at, \'[{"attempt": 1, "at": "2026-05-01T10:00:00+00:00", "error": "no route"}]\' '
        "from txmsg.message m, txmsg.consumer_group g where g.name = 'failing'",
    )
    bury(notify_url, [id_], group="dead")
    execute(notify_url, "insert into txmsg.consumer_group (name) values ('waiting')")
    execute(
        notify_url,
        "insert into txmsg.cursor (group_id, queue_id, next_offset, epoch) select g.id, m.queue, 0, 0 "
        "from txmsg.message m, txmsg.consumer_group g where g.name = 'waiting'",
    )

    def groups() -> dict[str, Any]:
        (message,) = traced(broker, id_)
        return {group.pop("group"): group for group in message["groups"]}

    until(lambda: groups()["done"]["state"] == "done")  # once that is flushed
    told = groups()
    assert {group: each["state"] for group, each in told.items()} == {
        "dead": "dead",
        "done": "done",
        "failing": "retrying",
        "waiting": "waiting",
    }
    (message,) = found(broker, "--id", id_)
    assert (message["state"], message["groups_retrying"], message["groups_dead"]) == ("stored", 1, 1)
    assert "stored, retrying, dead" in said("message", "find", "--id", id_, "--broker", broker.address)
    assert told["failing"]["next_attempt_at"] == "2099-01-01T00:00:00+00:00"
    assert [failure["error"] for failure in told["failing"]["failures"]] == ["no route"]
    assert [failure["error"] for failure in told["dead"]["failures"]] == [failure["error"] for failure in FAILURES]
    shown = said("message", "trace", id_, "--broker", broker.address)
    assert " group failing: retrying, failed 2 times, next attempt 2099-01-01T00:00:00+00:00\n" in shown
    assert " group dead: dead since " in shown
    assert " 2026-05-01T10:00:00.000+00:00  refused, attempt 1, group failing: no route\n" in shown


def test_a_delayed_message_is_recalled_after_confirmation_and_others_are_refused_with_the_reason(
    start_broker: StartBroker,
) -> None:
    broker = start_broker("--first-check-s", "600")
    where = ("--broker", broker.address)
    with Producer(broker.address, group="shop") as producer:
        first = producer.send(Message("t", b"1", key="42", deliver_after=timedelta(hours=1)))
        second = producer.send(Message("t", b"2", deliver_after=timedelta(hours=1)))
        entered = producer.send(Message("t", b"3"))
    question = asked("message", "recall", first, *where)
    assert "take back the message to t with key 42, due at 20" in question
    assert [each["state"] for each in found(broker, "--id", first)] == ["scheduled"], "it was answered no"
    assert said("message", "recall", first, *where, answer="y\n").endswith(f"{first} is not delivered\n")
    for _ in range(2):  # a repeat is answered alike
        assert json_of("message", "recall", second, "--yes", *where) == {"id": second, "recalled": True}
        assert "recalled, or deleted with its topic" in said("message", "trace", second, *where)
    assert found(broker, "--id", first) == found(broker, "--id", second) == []
    too_late = said("message", "recall", entered, *where, status=1)  # nothing to ask about
    assert f"Error: message {entered} has entered its queue, so it cannot be recalled" in too_late
    assert [each["state"] for each in found(broker, "--id", entered)] == ["stored"]
    transaction_id = store_half(broker)
    undecided = said("message", "recall", f"{transaction_id}.0", *where, status=1)
    assert f"`txmsg half rollback {transaction_id}`" in undecided
    unknown = said("message", "recall", message_id(new_transaction_id(), 0), *where, status=1)
    assert "is not waiting for its time" in unknown
    assert "not of the form UUID.NUMBER" in said("message", "recall", transaction_id, *where, status=1)


@pytest.mark.parametrize("command", [["message", "trace", "7"], ["message", "find", "--id", "7"]])
def test_an_unreachable_broker_is_named(command: list[str]) -> None:
    assert "no answer from a broker at localhost:1" in said(*command, "--broker", "localhost:1", status=1)
