"""`txmsg dead-letter`: dead letters as shown to operators, redrives and purges."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.broker_process import BrokerProcess
from tests.integration.cli_harness import TIMEOUT_S, asked, json_of, said, txmsg
from tests.integration.client_harness import WAIT_S, collecting, different, nothing_comes
from tests.waiting import until
from txmsg.administration.ask import Nothing
from txmsg.administration.halves import AdminService
from txmsg.client import Producer
from txmsg.message import Message, MessageId
from txmsg.ops.cli.connections import ask_broker

REDRIVE = ("dead-letter", "redrive", "--group", "collector")
FAILURES = [
    {"attempt": 1, "at": "2026-05-01T10:00:00+00:00", "error": "no route"},
    {"attempt": 2, "at": "2026-05-01T10:00:01.5+00:00", "error": "Timeout of the bank"},
]

_BURY = """
insert into txmsg.dead_letter (group_id, queue_id, queue_offset, attempts, died_at, transaction_id, n, key, tag,
                               headers, body, born_at, stored_at, last_error, ordering_key, failures, blocks_key)
select g.id, m.queue, m.queue_offset, 2, coalesce(%(died_at)s::timestamptz, now()), m.transaction_id, m.n, m.key, m.tag,
       m.headers, m.body, m.born_at, m.stored_at, %(error)s, %(ordering_key)s, %(failures)s, %(blocks_key)s
  from txmsg.message m, txmsg.consumer_group g
 where m.transaction_id::text || '.' || m.n = any(%(ids)s) and g.name = %(group)s
"""


_THE_FIRST_BLOCKS_THE_OTHERS = """
with waiting as (delete from txmsg.dead_letter where transaction_id::text || '.' || n <> %(first)s returning *),
blocking as (update txmsg.dead_letter set queue_id = (select min(id) from txmsg.queue), queue_offset = 0
              where transaction_id::text || '.' || n = %(first)s)
insert into txmsg.retry (group_id, queue_id, queue_offset, attempt, due_at, transaction_id, n, body, born_at, stored_at,
                         ordering_key)
select w.group_id, (select min(id) from txmsg.queue), array_position(%(ids)s, w.transaction_id::text || '.' || w.n), 0,
       'infinity', w.transaction_id, w.n, w.body, w.born_at, w.stored_at, w.ordering_key from waiting w
"""
"""Writes the messages behind a dead letter of a parked key, as delivery does."""


def processed(broker: BrokerProcess, *messages: Message, group: str = "collector") -> list[MessageId]:
    """Send messages and return their ids when a group has acknowledged them, its cursors included."""
    with Producer(broker.address, group="shop") as producer:
        sent = [producer.send(message) for message in messages]
    with collecting(broker.address, messages[0].topic, group=group) as got:
        assert different(got, len(sent)) == set(sent)
    ask_broker(broker.address, AdminService.stats, Nothing())  # after which it writes its cursors
    return sent


def bury(
    notify_url: str,
    ids: Sequence[str],
    *,
    group: str = "collector",
    died_at: str | None = None,
    error: str = "Timeout of the bank",
    ordering_key: str | None = None,
    blocks_key: bool = False,
) -> None:
    """Create dead letters as delivery does after the last attempt."""
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        buried = connection.execute(
            _BURY,
            {
                "ids": list(ids),
                "group": group,
                "died_at": died_at,
                "error": error,
                "ordering_key": ordering_key,
                "blocks_key": blocks_key,
                "failures": Jsonb(FAILURES),
            },
        )
        assert buried.rowcount == len(ids)


def listed(broker: BrokerProcess, *options: str) -> list[str]:
    letters = json_of("dead-letter", "list", "--broker", broker.address, *options)["dead_letters"]
    return [letter["id"] for letter in letters]


def retries(notify_url: str) -> list[tuple[str, int, bool]]:
    """Return (id, attempt, is due) of every retry, in order of queue and offset."""
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        return connection.execute(
            "select transaction_id::text || '.' || n, attempt, due_at <= now() from txmsg.retry "
            "order by queue_id, queue_offset"
        ).fetchall()


def test_dead_letters_are_found_by_group_topic_time_error_id_and_key(broker: BrokerProcess, notify_url: str) -> None:
    assert said("dead-letter", "list", "--broker", broker.address) == "no dead letters\n"
    old, new = processed(broker, Message("t", b"1", key="k1"), Message("t", b"2", key="k2"))
    (other,) = processed(broker, Message("other", b"3"), group="second")
    bury(notify_url, [old], died_at="2026-05-01T10:00:00Z", error="no route")
    bury(notify_url, [new])
    bury(notify_url, [other], group="second", error='100% \\ full\n  File "bank.py", line 7')
    assert listed(broker) == [old, new, other]
    assert listed(broker, "--group", "second") == [other]
    assert listed(broker, "--topic", "t") == [old, new]
    assert listed(broker, "--since", "1h") == [new, other]
    assert listed(broker, "--until", "2026-05-01T12:00:00+02:00") == []
    assert listed(broker, "--until", "2026-05-01T10:00:01") == [old]
    assert listed(broker, "--error", "TIMEOUT") == [new]
    assert listed(broker, "--error", "% \\") == [other]
    assert listed(broker, "--id", new) == [new]
    assert listed(broker, "--id", old.partition(".")[0]) == [old]
    assert listed(broker, "--key", "k1", "--group", "collector") == [old]
    assert listed(broker, "--key", "k1", "--group", "second") == []
    where = ("--broker", broker.address)
    assert said("dead-letter", "list", *where, "--topic", "no") == "no dead letters match\n"
    table = said("dead-letter", "list", *where)
    assert [old in table, "100% \\ full" in table, "bank.py" in table] == [True, True, False]
    assert "neither that of a message" in said("dead-letter", "list", *where, "--id", "7", status=1)
    assert "is not a page of" in said("dead-letter", "list", *where, "--page", "1.2.-3.4", status=1)


def test_pages_contain_every_dead_letter_once(broker: BrokerProcess, notify_url: str) -> None:
    ids = processed(broker, *(Message("t", b"x") for _ in range(7)))
    bury(notify_url, ids)  # all in the same microsecond
    where = ("dead-letter", "list", "--broker", broker.address, "--limit", "3")
    seen, page = [], json_of(*where)
    while page["next"]:
        seen += [dead_letter["id"] for dead_letter in page["dead_letters"]]
        page = json_of(*where, "--page", page["next"])
    seen += [dead_letter["id"] for dead_letter in page["dead_letters"]]
    assert sorted(seen) == sorted(ids)
    assert len(page["dead_letters"]) == 1


def test_show_prints_the_whole_message_and_the_error_of_each_attempt(broker: BrokerProcess, notify_url: str) -> None:
    (id_,) = processed(broker, Message("t", b"caf\xc3\xa9 \xff [red]", key="k1", headers={"h": "1"}))
    bury(notify_url, [id_])
    where = ("dead-letter", "show", id_, "--broker", broker.address)
    (letter,) = json_of(*where)["dead_letters"]
    assert (letter["body"], letter["headers"]) == ("café \\xff [red]", {"h": "1"})
    assert [(failure["attempt"], failure["error"]) for failure in letter["failures"]] == [
        (1, "no route"),
        (2, "Timeout of the bank"),
    ]
    shown = said(*where)
    assert "café \\xff [red]" in shown
    assert " attempt 1 at 2026-05-01T10:00:00+00:00: no route\n" in shown
    assert "there is no dead letter" in said(*where, "--group", "nobody", status=1)


def test_a_redriven_message_is_redelivered_with_a_new_generation(broker: BrokerProcess, notify_url: str) -> None:
    dead, other = processed(broker, Message("t", b"1"), Message("t", b"2"))
    bury(notify_url, [dead])
    bury(notify_url, [other], error="no route")
    where = ("--broker", broker.address)
    with collecting(broker.address, "t") as got:
        assert said("dead-letter", "redrive", "--error", "bank", *where) == "dead letters redriven: 1\n"
        again = got.get(timeout=WAIT_S)
        assert (again.id, again.attempt, again.generation) == (dead, 1, 1)
        assert json_of("dead-letter", "redrive", "--error", "bank", *where) == {"redriven": 0}
        assert nothing_comes(got)
    assert listed(broker) == [other]
    assert retries(notify_url) == []


def test_a_message_that_dies_during_a_redrive_is_not_redriven(broker: BrokerProcess, notify_url: str) -> None:
    (id_,) = processed(broker, Message("t", b"1"))
    bury(notify_url, [id_], died_at="2099-01-01T00:00:00Z")  # after the command began
    assert json_of("dead-letter", "redrive", "--group", "collector", "--broker", broker.address) == {"redriven": 0}
    assert listed(broker) == [id_]


def test_messages_of_one_ordering_key_are_redriven_in_order(broker: BrokerProcess, notify_url: str) -> None:
    ids = processed(broker, *(Message("t", b"%d" % n) for n in range(12)))
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        in_one_queue = [
            row[0]
            for row in connection.execute(
                "select transaction_id::text || '.' || n from txmsg.message where queue = "
                "(select queue from txmsg.message group by queue having count(*) > 1 order by queue limit 1) "
                "order by queue_offset"
            )
        ]
    assert set(in_one_queue) <= set(ids)
    bury(notify_url, in_one_queue, ordering_key="order-7")
    where = ("--broker", broker.address)
    assert json_of("dead-letter", "redrive", "--id", in_one_queue[0], *where) == {"redriven": 1}
    assert json_of("dead-letter", "redrive", "--group", "collector", *where) == {"redriven": len(in_one_queue) - 1}
    assert retries(notify_url) == [(in_one_queue[0], 0, True)] + [(id_, 0, False) for id_ in in_one_queue[1:]]


def test_purge_asks_for_confirmation_and_unblocks_a_parked_key(broker: BrokerProcess, notify_url: str) -> None:
    ids = processed(broker, *(Message("t", b"%d" % n) for n in range(3)))
    bury(notify_url, ids, ordering_key="order-7", blocks_key=True)
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        connection.execute(_THE_FIRST_BLOCKS_THE_OTHERS, {"ids": ids, "first": ids[0]})
    command = ("dead-letter", "purge", "--group", "collector", "--broker", broker.address)
    assert json_of(*command, "--dry-run", "--yes") == {"dead_letters": 1, "dry_run": True}
    assert "purge 1 dead letter(s), for good?" in asked(*command)
    assert listed(broker) == [ids[0]]
    assert said(*command, "--yes") == "dead letters purged: 1\n"
    assert listed(broker) == []
    assert retries(notify_url) == [(ids[1], 0, True), (ids[2], 0, False)]
    assert json_of(*command, "--yes") == {"purged": 0}


@pytest.mark.parametrize("what", ["redrive", "purge"])
def test_a_command_without_a_selection_is_refused(what: str) -> None:
    assert f"name which dead letters to {what}" in said("dead-letter", what, status=2)


def interrupted(redrive: subprocess.Popen[str], count: int) -> int:
    """Return how many of `count` the command reports as redriven when Ctrl-C interrupts it."""
    redrive.send_signal(signal.SIGINT)
    _, told = redrive.communicate(timeout=TIMEOUT_S)
    assert redrive.returncode == 130, told
    redriven, _, rest = told.removeprefix("at least ").partition(f" of {count} redriven; ")
    assert rest == "the rest is as it was: call it again\n"
    return int(redriven)


def slow_redrive(broker: BrokerProcess) -> subprocess.Popen[str]:
    """Start a redrive of one message per second."""
    # A background process passes its ignored SIGINT on to its children.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from txmsg.ops.cli.main import main; main(prog_name='txmsg')"
    )
    command = [sys.executable, "-c", program, *REDRIVE, "--broker", broker.address, "--rate", "1"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_an_interrupted_redrive_reports_its_progress_and_is_completed_by_the_next(
    broker: BrokerProcess, notify_url: str
) -> None:
    count = 120  # at one a second: it cannot be done before it is interrupted
    ids = processed(broker, *(Message("t", b"x") for _ in range(count)))
    bury(notify_url, ids)
    slow = slow_redrive(broker)
    with collecting(broker.address, "t") as got:
        # The first may come before the command has the reply to its first step; it asks for a second one with that.
        again = different(got, 2)
        redriven = interrupted(slow, count)
        assert 1 <= redriven < count
        left = json.loads(txmsg(*REDRIVE, "--broker", broker.address, "--json"))["redriven"]
        assert left in (count - redriven, count - 1 - redriven), "one step at most was under way"
        while again != set(ids):
            again.add(got.get(timeout=WAIT_S).id)
            assert again <= set(ids)
        assert nothing_comes(got)


def test_a_redrive_interrupted_in_its_first_step_reports_none_redriven(broker: BrokerProcess, notify_url: str) -> None:
    ids = processed(broker, *(Message("t", b"x") for _ in range(3)))
    bury(notify_url, ids)
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        connection.execute("lock table txmsg.retry in share mode")  # a step waits to write there
        slow = slow_redrive(broker)
        waits = "select from pg_locks where relation = 'txmsg.retry'::regclass and not granted"
        until(lambda: connection.execute(waits).rowcount == 1)
        assert interrupted(slow, len(ids)) == 0
    # Now the step continues: the broker completes it without a waiting client.
    assert json_of(*REDRIVE, "--broker", broker.address)["redriven"] in (len(ids), len(ids) - 1)
    until(lambda: len(retries(notify_url)) == len(ids))
    assert listed(broker) == []
