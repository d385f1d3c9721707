"""Batches with items that the database refuses: these fail alone, with a bounded number of calls."""

from __future__ import annotations

import random
import string
from math import ceil, log2
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.integration.batch_harness import columns_of, running_writer
from txmsg.broker.config import BrokerConfig
from txmsg.broker.store.batch import AppliedBatch, WriteBatch, apply
from txmsg.broker.writer import FAILED
from txmsg.message.columns import Columns

_FULL = 4096
_UNCOMPRESSED = "".join(random.Random(3).choices(string.ascii_letters, k=4000))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of batches sent to the database, in order."""
    sizes: list[int] = []

    async def counted(connection: Any, batch: WriteBatch, **how: Any) -> AppliedBatch:
        sizes.append(len(batch))
        return await apply(connection, batch, **how)

    monkeypatch.setattr("txmsg.broker.writer.apply", counted)
    return sizes


def _calls_max(culprits: int) -> int:
    """Return the bound: each culprit refuses at most one batch per halving, and each refusal makes two calls."""
    return 1 + 2 * culprits * ceil(log2(_FULL))


_POISON: list[tuple[str, Any]] = [
    ("key", "\0"),  # 22021
    ("tag", "a\0b"),
    ("born_at_us", -(10**18)),  # 22008: before PostgreSQL's time
    ("key", "\ud800"),  # a lone surrogate, which UTF-8 does not have
    ("n", 70_000),  # not a smallint
    ("queue", 2**40),  # not an int
    ("born_at_us", 2**70),  # not 8 bytes
]
_POISON_MESSAGE = ("key", _UNCOMPRESSED)  # 54000: an index entry must fit its page; halves have no such index


def _poisoned(queue: int, poison: list[tuple[str, Any]]) -> tuple[Columns, set[bytes]]:
    """Return a full batch with each of these values in one of its messages, and the ids of those."""
    columns = columns_of([queue] * _FULL)
    rows = random.Random(5).sample(range(_FULL), len(poison))
    for row, (column, value) in zip(rows, poison, strict=True):
        getattr(columns, column)[row] = value
    return columns, {columns.transaction_id[row] for row in rows}


async def test_any_unstorable_value_fails_alone_among_plain_messages(notify_url: str, calls: list[int]) -> None:
    async with running_writer(BrokerConfig(storage=notify_url)) as (writer, queue, ends):
        plain, culprits = _poisoned(queue, [*_POISON, _POISON_MESSAGE])
        assert await writer.write(WriteBatch(plain=plain), 1) == dict.fromkeys(culprits, FAILED)
        assert ends == {queue: _FULL - len(culprits)}
        assert len(calls) <= _calls_max(len(culprits))
    assert _counts(notify_url)[0] == _FULL - len(_POISON) - 1


async def test_any_unstorable_value_fails_alone_among_halves(notify_url: str, calls: list[int]) -> None:
    async with running_writer(BrokerConfig(storage=notify_url)) as (writer, queue, _):
        half, culprits = _poisoned(queue, _POISON)
        assert await writer.write(WriteBatch(half=half), 1) == dict.fromkeys(culprits, FAILED)
        assert len(calls) <= _calls_max(len(culprits))
    assert _counts(notify_url)[2] == _FULL - len(_POISON)


_REFUSE = """
create function refuse() returns trigger language plpgsql as $$
begin
    if new.transaction_id = any(array[%s]::uuid[]) then
        raise exception 'poison' using errcode = '23514';
    end if;
    return new;
end $$;
create trigger refuse before insert on txmsg.rolled_back_1 for each row execute function refuse();
create trigger refuse before update on txmsg.half_message for each row execute function refuse();
"""


async def test_one_poison_item_of_each_kind_fails_alone_in_a_full_batch(notify_url: str, calls: list[int]) -> None:
    """Rollbacks and unknown outcomes contain only ids, so the database is made to refuse one of each."""
    share, some = _FULL // 4, 300

    async with running_writer(BrokerConfig(storage=notify_url, first_check_s=3600)) as (writer, queue, _):
        stored = columns_of([queue] * 3 * share)
        stored.key[some] = _UNCOMPRESSED
        assert await writer.write(WriteBatch(half=stored), 1) == {}
        commit, rollback, check = (stored.transaction_id[start : start + share] for start in range(0, 3 * share, share))
        refused = [rollback[some], check[some]]
        with psycopg.connect(notify_url) as connection:
            connection.execute(_REFUSE.replace("%s", ", ".join(f"'{UUID(bytes=each)}'" for each in refused)).encode())
        half, plain = columns_of([queue] * (share // 2)), columns_of([queue] * (share // 2))
        half.key[some] = plain.key[some] = "\0"
        batch = WriteBatch(half=half, plain=plain, commit=commit, rollback=rollback, check=check)
        assert len(batch) == _FULL
        calls.clear()
        culprits = [half.transaction_id[some], plain.transaction_id[some], commit[some], *refused]
        assert await writer.write(batch, 1) == dict.fromkeys(culprits, FAILED)
        assert len(calls) <= _calls_max(len(culprits))
    stored_halves = share // 2 - 1
    assert _counts(notify_url) == (
        share // 2 - 1 + share - 1,
        share - 1,
        stored_halves + 2 + share,  # two that could not be ended, and those that were only asked about
        share - 1,
    )


def _counts(url: str) -> tuple[int, int, int, int]:
    """Return the numbers of messages, rollbacks, halves, and halves to be checked at once."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "select (select count(*) from txmsg.message), (select count(*) from txmsg.rolled_back), "
            "(select count(*) from txmsg.half_message), "
            "(select count(*) from txmsg.half_message where next_check_at < stored_at + interval '1 h')"
        ).fetchone()
    assert row is not None
    return row
