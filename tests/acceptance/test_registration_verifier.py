"""The verifier of the registration example finds planted defects, and nothing in consistent data."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID, uuid4

import psycopg
import pytest

from examples.user_registration.verify import EFFECT_TABLES, verify
from txmsg.broker.embedded import EmbeddedPostgres

ANNE, BERT, CARL = uuid4(), uuid4(), uuid4()
"""Registered; registered while the service died, without an answer; refused."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path_factory.mktemp("verifier") / "pg") as postgres:
        for database in ("attempts", "users", "notify", *EFFECT_TABLES):
            postgres.create_database(database)
        run(postgres, "attempts", "create table attempt (user_id uuid primary key, answer text not null)")
        run(postgres, "users", "create table users (id uuid primary key)")
        run(postgres, "notify", "create schema txmsg")
        run(postgres, "notify", "create table txmsg.half_message (transaction_id uuid, n int)")
        for group, table in EFFECT_TABLES.items():
            run(postgres, group, f"create table {table} (user_id uuid)")
        yield postgres


@pytest.fixture
def finished(server: EmbeddedPostgres) -> EmbeddedPostgres:
    """The databases after a successful demo."""
    run(server, "attempts", "truncate attempt")
    run(server, "users", "truncate users")
    run(server, "notify", "truncate txmsg.half_message")
    for user_id, answer in ((ANNE, "registered"), (BERT, "nothing"), (CARL, "refused")):
        run(server, "attempts", "insert into attempt values (%s, %s)", user_id, answer)
    for group, table in EFFECT_TABLES.items():
        run(server, group, f"truncate {table}")
    for user_id in (ANNE, BERT):
        run(server, "users", "insert into users values (%s)", user_id)
        for group in EFFECT_TABLES:
            take_effect(server, group, user_id)
    return server


def run(server: EmbeddedPostgres, database: str, statement: str, *values: object) -> None:
    with psycopg.connect(server.url(database)) as connection:
        connection.execute(statement.encode(), values)


def take_effect(server: EmbeddedPostgres, group: str, user_id: UUID) -> None:
    run(server, group, f"insert into {EFFECT_TABLES[group]} values (%s)", user_id)


def test_a_consistent_demo_is_clean(finished: EmbeddedPostgres) -> None:
    verdict = verify(finished.url("postgres"))
    assert verdict.clean
    assert (verdict.users, verdict.committed, verdict.rolled_back) == (3, 2, 1)
    assert verdict.effects == dict.fromkeys(EFFECT_TABLES, 2)
    assert verdict.findings == []


@pytest.mark.parametrize("group", EFFECT_TABLES)
def test_a_missing_effect_is_found(finished: EmbeddedPostgres, group: str) -> None:
    run(finished, group, f"delete from {EFFECT_TABLES[group]} where user_id = %s", BERT)
    verdict = verify(finished.url("postgres"))
    assert (verdict.missing, verdict.duplicated, verdict.phantom) == (1, 0, 0)
    assert f"{group}: user {BERT} has no effect" in verdict.findings


@pytest.mark.parametrize("group", EFFECT_TABLES)
def test_a_duplicate_effect_is_found(finished: EmbeddedPostgres, group: str) -> None:
    take_effect(finished, group, ANNE)
    take_effect(finished, group, ANNE)
    verdict = verify(finished.url("postgres"))
    assert (verdict.missing, verdict.duplicated, verdict.phantom) == (0, 2, 0)
    assert not verdict.clean


@pytest.mark.parametrize("group", EFFECT_TABLES)
def test_an_effect_of_a_rolled_back_user_is_found(finished: EmbeddedPostgres, group: str) -> None:
    take_effect(finished, group, CARL)
    verdict = verify(finished.url("postgres"))
    assert (verdict.missing, verdict.duplicated, verdict.phantom) == (0, 0, 1)
    assert not verdict.clean


def test_an_effect_of_an_unknown_user_is_found(finished: EmbeddedPostgres) -> None:
    take_effect(finished, "red_packet", uuid4())
    assert verify(finished.url("postgres")).phantom == 1


def test_a_missing_and_a_duplicate_effect_do_not_cancel_out(finished: EmbeddedPostgres) -> None:
    run(finished, "red_packet", "delete from red_packets where user_id = %s", ANNE)
    take_effect(finished, "red_packet", BERT)
    verdict = verify(finished.url("postgres"))
    assert verdict.effects["red_packet"] == verdict.committed
    assert (verdict.missing, verdict.duplicated) == (1, 1)


def test_a_missing_user_with_a_reported_success_is_found(finished: EmbeddedPostgres) -> None:
    run(finished, "attempts", "insert into attempt values (%s, 'registered')", uuid4())
    assert verify(finished.url("postgres")).missing == 1


def test_an_existing_user_with_a_reported_refusal_is_found(finished: EmbeddedPostgres) -> None:
    run(finished, "users", "insert into users values (%s)", CARL)
    for group in EFFECT_TABLES:
        take_effect(finished, group, CARL)
    assert verify(finished.url("postgres")).phantom == 1


def test_a_remaining_half_message_is_found(finished: EmbeddedPostgres) -> None:
    transaction_id = uuid4()
    for n in (0, 1):
        run(finished, "notify", "insert into txmsg.half_message values (%s, %s)", transaction_id, n)
    verdict = verify(finished.url("postgres"))
    assert verdict.in_doubt == 1
    assert not verdict.clean
