"""The decoder reads the output of a real PostgreSQL, names unknown changes, and refuses truncated ones."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from txmsg.binlog import pgoutput as pg
from txmsg.errors import ProtocolError

SLOT = "decoder"


@pytest.fixture
def database(database_url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A published table and an unread slot."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("create table trade (id int primary key, buyer text, note text)")
        connection.execute("alter table trade alter note set storage external")
        connection.execute("create publication decoder for table trade")
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
        yield connection
        connection.execute("select pg_drop_replication_slot(%s)", (SLOT,))


def messages(connection: psycopg.Connection[tuple[object, ...]], **options: str) -> list[bytes]:
    """Return the changes of the slot and consume them."""
    given = {"proto_version": "1", "publication_names": "decoder", "messages": "true", **options}
    pairs = [part for pair in given.items() for part in pair]
    places = ", ".join(["%s"] * len(pairs))
    cursor = connection.cursor(binary=True)
    cursor.execute(
        f"select data from pg_logical_slot_get_binary_changes(%s, null, null, {places})".encode(), (SLOT, *pairs)
    )
    return [bytes(row[0]) for row in cursor.fetchall()]  # type: ignore[call-overload]


def changes(connection: psycopg.Connection[tuple[object, ...]], *, binary: str = "false") -> list[pg.Change]:
    return [pg.decode(each) for each in messages(connection, binary=binary)]


def test_transaction_is_decoded_from_begin_to_commit(database: psycopg.Connection[tuple[object, ...]]) -> None:
    database.execute("insert into trade values (1, 'anna', null), (2, '', 'ключ')")
    begin, relation, first, second, commit = changes(database)
    assert isinstance(begin, pg.Begin)
    assert isinstance(commit, pg.Commit)
    assert begin.final_lsn == commit.commit_lsn < commit.end_lsn
    assert begin.committed_at_2000_us == commit.committed_at_2000_us > 0
    assert isinstance(relation, pg.Relation)
    assert (relation.schema, relation.name, relation.replica_identity) == ("public", "trade", "d")
    assert [(each.name, each.type_oid, each.is_key) for each in relation.columns] == [
        ("id", 23, True),
        ("buyer", 25, False),
        ("note", 25, False),
    ]
    assert first == pg.Insert(relation.id, [b"1", b"anna", None])
    assert second == pg.Insert(relation.id, [b"2", b"", "ключ".encode()])


def test_values_are_binary_when_requested(database: psycopg.Connection[tuple[object, ...]]) -> None:
    database.execute("insert into trade values (258, 'anna', null)")
    [insert] = [each for each in changes(database, binary="true") if isinstance(each, pg.Insert)]
    assert insert.values == [(258).to_bytes(4, "big"), b"anna", None]


def test_updates_deletes_and_truncates_are_decoded(database: psycopg.Connection[tuple[object, ...]]) -> None:
    large = "x" * 10_000
    database.execute("insert into trade values (1, 'anna', %s)", (large,))
    messages(database)
    database.execute("update trade set buyer = 'berta'")
    database.execute("update trade set id = 2")
    database.execute("delete from trade")
    database.execute("truncate trade restart identity")
    told = [each for each in changes(database) if not isinstance(each, pg.Begin | pg.Commit | pg.Relation)]
    untouched, moved, deleted, emptied = told
    assert isinstance(untouched, pg.Update)
    assert untouched.old is None
    assert untouched.values == [b"1", b"berta", pg.UNCHANGED]
    assert isinstance(moved, pg.Update)
    assert moved.old == [b"1", None, None]
    assert moved.values[0] == b"2"
    assert deleted == pg.Delete(untouched.relation_id, [b"2", None, None])
    assert emptied == pg.Truncate((untouched.relation_id,), cascade=False, restart_identity=True)


def test_logical_messages_are_decoded(database: psycopg.Connection[tuple[object, ...]]) -> None:
    database.execute("select pg_logical_emit_message(true, 'txmsg', 'beat')")
    [message] = [each for each in changes(database) if isinstance(each, pg.LogicalMessage)]
    assert (message.transactional, message.prefix, message.content) == (True, "txmsg", b"beat")


def test_truncated_or_too_long_change_is_refused(database: psycopg.Connection[tuple[object, ...]]) -> None:
    database.execute("insert into trade values (1, 'anna', 'note')")
    database.execute("update trade set id = 2")
    database.execute("select pg_logical_emit_message(true, 'txmsg', 'beat')")
    database.execute("truncate trade")
    for data in messages(database):
        for size in range(1, len(data)):
            with pytest.raises(ProtocolError, match=f"of {size} bytes cannot be read|has {size} bytes"):
                pg.decode(data[:size])
        with pytest.raises(ProtocolError, match="can be explained"):
            pg.decode(data + b"\0")


def test_unknown_change_kind_is_decoded_with_its_letter() -> None:
    assert pg.decode(b"Zsomething") == pg.Unknown("Z", b"something")
