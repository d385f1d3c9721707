"""The audit log: each changing method adds an entry, which only retention removes."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.broker_process import BrokerProcess
from tests.integration.cli_harness import TIMEOUT_S, json_of, said, store_half
from tests.metaq.servers import served
from tests.unit.test_permissions import METHODS
from txmsg.administration.access import (
    AlterUser,
    CreateAccessKey,
    DeleteUser,
    LimitUser,
    NewUser,
    Revoke,
    RotateToken,
)
from txmsg.administration.alerts import EndOfSilence, NewSilence
from txmsg.administration.ask import Nothing
from txmsg.administration.audit import AuditQuery
from txmsg.administration.cluster import BrokerId
from txmsg.administration.dead_letters import DeadLetterBatch, DeadLetterFilter
from txmsg.administration.groups import CheckChange, GroupChange, GroupDeletion, RetryNow, RetrySkip, Seek
from txmsg.administration.halves import HalfDecision, ResumeHalves
from txmsg.administration.messages import Erasure
from txmsg.administration.schemas import DeleteSchema, RegisterSchema
from txmsg.administration.settings import ChangeSetting
from txmsg.administration.topics import AlterTopic, CreateTopic, DeleteTopic, TopicChange
from txmsg.broker.audit import OTHERS, REFUSALS_MAX, AuditUpkeep
from txmsg.broker.config import BrokerConfig
from txmsg.broker.store.audit import AuditLog, record
from txmsg.broker.store.connect import Pool, open_pool, session
from txmsg.metaq.location import open_log
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.wire.access.permissions import PERMISSIONS
from txmsg.wire.access.rules import Action, parse_rule
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.start import Start
from txmsg.wire.v1 import (
    metaq_pb2,
)

CHANGES = {
    method for method, needs in PERMISSIONS.items() if any(need.right.action is Action.ADMINISTER for need in needs)
}
OF_LOGS = {method for method in CHANGES if method.startswith("MetaQ")}

_FAILURES = """
insert into txmsg.consumer_group (name) values ('g');
insert into txmsg.cursor (group_id, queue_id, next_offset, epoch)
select g.id, q.id, 0, 0 from txmsg.consumer_group g, txmsg.queue q join txmsg.topic t on t.id = q.topic_id
 where t.name = 't';
insert into txmsg.retry (group_id, queue_id, queue_offset, attempt, due_at, transaction_id, n, body, born_at, stored_at)
select c.group_id, c.queue_id, 1, 1, now() + interval '1 h', '00000000-0000-7000-8000-000000000001', 0, '', now(), now()
  from txmsg.cursor c order by c.queue_id limit 1;
insert into txmsg.dead_letter (group_id, queue_id, queue_offset, attempts, transaction_id, n, body, born_at, stored_at)
select c.group_id, c.queue_id, o, 1, ('00000000-0000-7000-8000-00000000000' || o)::uuid, 0, '', now(), now()
  from txmsg.cursor c, generate_series(2, 3) o where c.queue_id = (select min(queue_id) from txmsg.cursor);
insert into txmsg.broker (id, address, release, schema_revision, expires_at)
values ('another', '127.0.0.1:1', '0', '0001', now() + interval '1 h');
"""
_RETRY = "00000000-0000-7000-8000-000000000001.0"


def call(address: str, method: str, request: Any) -> Any:
    with BlockingChannel(address) as channel:
        return channel.call(METHODS[method], request, timeout_s=TIMEOUT_S)


def test_every_changing_method_of_a_broker_adds_an_audit_entry(  # noqa: PLR0915 - one broker for all
    broker: BrokerProcess, notify_url: str
) -> None:
    called: set[str] = set()

    with psycopg.connect(notify_url, autocommit=True, connect_timeout=10) as connection:

        def entries() -> list[tuple[Any, ...]]:
            return connection.execute(
                "select who, address, action, target, before, after from txmsg.audit order by id"
            ).fetchall()

        def changes(method: str, request: Any, action: str, target: str) -> tuple[Any, Any]:
            """Call a changing method and return the state before and after, from its single audit entry."""
            known = len(entries())
            call(broker.address, method, request)
            called.add(method)
            (who, address, *entry, before, after), *more = entries()[known:]
            assert (who, entry, more) == ("anyone", [action, target], []), method
            assert address.startswith("127.0.0.1:"), method
            return before, after

        topic = CreateTopic(topic="t", queues=2)
        assert changes("Topics/Create", topic, "topic.create", "t") == (None, {"queues": 2})
        call(broker.address, "Topics/Create", topic)
        connection.execute(_FAILURES)
        altered = AlterTopic(topic="t", change=TopicChange(queues=3, permission="r"))
        before, after = changes("Topics/Alter", altered, "topic.alter", "t")
        assert (before["permission"], after["permission"], after["queues"]) == ("rw", "r", 3)
        assert "durability" not in before

        call(
            broker.address,
            "Schemas/Register",
            RegisterSchema(topic="t", version=1, content_type="application/json", schema={}),
        )
        deleted_schema = DeleteSchema(topic="t", version=1, latest=True)
        assert changes("Schemas/Delete", deleted_schema, "schema.delete", "t") == ({"version": 1}, None)

        stopped = GroupChange(group="g", stopped=True)
        assert changes("Groups/Alter", stopped, "group.alter", "g") == ({"stopped": False}, {"stopped": True})
        seek = Seek(group="g", topic="t", queue=0, to=Start.latest())
        known = entries()
        call(broker.address, "Groups/Seek", replace(seek, dry_run=True))
        assert entries() == known
        before, after = changes("Groups/Seek", seek, "group.seek", "g")
        assert (before["next_offsets"], after["next_offsets"]) == ({"0": 0}, {"0": 0})
        changes("Groups/RetryNow", RetryNow(group="g", id=_RETRY), "retry.hasten", "g")
        before, _ = changes("Groups/SkipRetry", RetrySkip(group="g", id=_RETRY), "retry.skip", "g")
        assert before["retries"] == 1
        which = DeadLetterFilter(group="g")
        redrive = DeadLetterBatch(which=which, limit=1)
        assert changes("DeadLetters/Redrive", redrive, "dead_letter.redrive", "g")[1]["dead_letters"] == 1
        purge = DeadLetterBatch(which=which, limit=9)
        assert changes("DeadLetters/Purge", purge, "dead_letter.purge", "g")[0] == {"group": "g", "dead_letters": 1}
        changes("Groups/Delete", GroupDeletion(group="g", force=True), "group.delete", "g")

        connection.execute(
            "insert into txmsg.body_key (transaction_id, n, topic_id, key, expires_at) "
            "select %s, 0, id, %s, now() + interval '1 h' from txmsg.topic where name = 't'",
            (_RETRY.partition(".")[0], bytes(32)),
        )
        erase = Erasure(topic="t", ids=[_RETRY])
        assert changes("Messages/Erase", erase, "message.erase", _RETRY) == (None, {"topic": "t", "messages": 1})

        half = store_half(broker)
        checks = CheckChange(group="shop", checks_max=3)
        before, after = changes("Groups/AlterChecks", checks, "group.checks", "shop")
        assert (before, after) == ({"checks_max": None}, {"checks_max": 3})
        connection.execute("update txmsg.half_message set parked_reason = 'planted', next_check_at = null")
        changes("Admin/ResumeHalves", ResumeHalves(group="shop"), "half.resume", "shop")
        commit = HalfDecision(transaction_id=UUID(half), commit=True, reason="the order is there")
        assert changes("Admin/ResolveHalf", commit, "half.commit", half)[1] == {"reason": "the order is there"}

        silence = NewSilence(matchers=["rule=x"], for_s=60, reason="r", created_by="ada")
        number = str(connection.execute("select coalesce(max(id), 0) + 1 from txmsg.alert_silence").fetchall()[0][0])
        assert changes("Alerts/Silence", silence, "alert.silence", number)[1]["created_by"] == "ada"
        changes("Alerts/Unsilence", EndOfSilence(id=int(number)), "alert.unsilence", number)
        changes("Alerts/Test", Nothing(), "alert.test", "")

        drain, resume = BrokerId(broker="another"), BrokerId(broker="another")
        changes("Cluster/Drain", drain, "broker.drain", "another")
        changes("Cluster/Resume", resume, "broker.resume", "another")
        connection.execute("update txmsg.broker set expires_at = now() - interval '1 s' where id = 'another'")
        changes("Cluster/Forget", BrokerId(broker="another"), "broker.forget", "another")

        setting = ChangeSetting(name="app.x", value="1", changed_by="ada")
        changes("Settings/Change", setting, "setting.set", "app.x")
        unset = ChangeSetting(name="app.x", changed_by="ada")
        before, after = changes("Settings/Change", unset, "setting.unset", "app.x")
        assert (before["value"], after["value"], after["changed_by"]) == ("1", None, "ada")

        made = NewUser(name="eve", roles=["r"])
        assert changes("Access/CreateUser", made, "user.create", "eve")[1]["roles"] == ["r"]
        altered_user = AlterUser(name="eve", add_roles=["s"])
        assert changes("Access/AlterUser", altered_user, "user.alter", "eve")[1]["roles"] == ["r", "s"]
        rotate = RotateToken(name="eve")
        before, after = changes("Access/RotateToken", rotate, "user.rotate", "eve")
        assert (len(before["tokens"]), len(after["tokens"])) == (1, 2)
        key = CreateAccessKey(name="eve", id="a" * 16, sealed_secret=b"sealed")
        before, after = changes("Access/CreateAccessKey", key, "user.access_key", "eve")
        assert (before["access_keys"], after["access_keys"]) == ([], ["a" * 16])
        before, after = changes("Access/Revoke", Revoke(name="eve"), "user.revoke", "eve")
        assert (len(before["tokens"]), len(after["tokens"])) == (2, 0)
        assert (before["access_keys"], after["access_keys"]) == (["a" * 16], [])
        limits = LimitUser(name="eve", limits={"connections": 3})
        assert changes("Access/LimitUser", limits, "user.limit", "eve")[1]["limits"] == {"connections": 3}
        rule = parse_rule("eve", "send", "topic:t")
        told = {"rule": "eve send topic:t"}
        assert changes("Rules/Allow", rule, "rule.allow", "eve") == (None, told)
        assert changes("Rules/Deny", rule, "rule.deny", "eve") == (told, None)
        changes("Access/DeleteUser", DeleteUser(name="eve"), "user.delete", "eve")

        connection.execute("update txmsg.topic set write_changed_at = now() - interval '11 s'")
        deleted = DeleteTopic(topic="t", force=True)
        assert changes("Topics/Delete", deleted, "topic.delete", "t")[0]["queues"] == 3

    assert called == CHANGES - OF_LOGS
    page = json_of("audit", "list", "--action", "topic", "--limit", "2", "--broker", broker.address)
    assert [(entry["action"], entry["target"]) for entry in page["entries"]] == [
        ("topic.delete", "t"),
        ("topic.create", "order.placed"),
    ]
    rest = json_of("audit", "list", "--action", "topic", "--page", str(page["next"]), "--broker", broker.address)
    assert [entry["action"] for entry in rest["entries"]][-1] == "topic.create"
    assert "half.commit" in said("audit", "list", "--target", half, "--since", "1h", "--broker", broker.address)
    assert f"half.commit {half}" in broker.log.read_text()


def test_every_changing_method_of_a_log_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with served(MetaQConfig(data_dir=tmp_path, listen="127.0.0.1:0")) as address:
        with open_log(address) as log:
            fence = metaq_pb2.FenceLogRequest(log_id=log.identity().log_id, generation=2, copy_id=bytes(16))
        requests: dict[str, tuple[object, str]] = {
            "MetaQ/SetTopic": (
                metaq_pb2.SetLogTopicRequest(
                    topic="t", settings=metaq_pb2.LogTopicSettings(flush="sync", compression="none", retention_s=60)
                ),
                "t",
            ),
            "MetaQGroups/SeekGroup": (metaq_pb2.SeekLogGroupRequest(group="g"), "g"),
            "MetaQGroups/AlterGroup": (metaq_pb2.AlterLogGroupRequest(group="g", stopped=True), "g"),
            "MetaQGroups/DeleteGroup": (metaq_pb2.DeleteLogGroupRequest(group="g"), "g"),
            "MetaQCopies/Fence": (fence, str(tmp_path)),  # the last one: a fenced log refuses further changes
        }
        assert set(requests) == OF_LOGS
        session = bytes(16)
        join = metaq_pb2.JoinGroupRequest(group="g", topics=["t"], session=session, session_ms=60_000)
        call(address, "MetaQGroups/Join", join)
        call(address, "MetaQGroups/Leave", metaq_pb2.MemberRequest(session=session, call=1))
        for method, (request, target) in requests.items():
            caplog.clear()
            call(address, method, request)
            (told,) = [
                record.txmsg  # type: ignore[attr-defined]
                for record in caplog.records
                if getattr(record, "txmsg", {}).get("event") == "audit.recorded"
            ]
            assert told["who"] == "anyone"
            assert told["address"].startswith("127.0.0.1:")
            assert told["target"] == target


@pytest.mark.parametrize(
    "statement", ["update txmsg.audit set who = 'eve'", "delete from txmsg.audit", "truncate txmsg.audit"]
)
def test_audit_entries_cannot_be_changed(notify_url: str, statement: str) -> None:
    with psycopg.connect(notify_url, autocommit=True, connect_timeout=10) as connection:
        connection.execute("insert into txmsg.audit (who, address, action, target) values ('ada', '', 'x.y', 'z')")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="append-only"):
            connection.execute(statement)


async def test_retention_removes_old_entries_and_never_those_of_the_last_day(notify_url: str) -> None:
    pool = open_pool(notify_url)
    await pool.open()
    async with pool, pool.connection() as connection:
        for age in ("1 hour", "25 hours", "100 days"):
            await connection.execute(
                "insert into txmsg.audit (at, who, address, action, target) "
                "values (now() - %s::interval, 'ada', '', 'x.y', %s)",
                (age, age),
            )
        log = AuditLog(pool)

        async def left() -> list[str]:
            return [row.target for row in (await log.list(AuditQuery(who="ada", limit=9))).entries]

        assert await log.forget_entries(90 * 86_400) == 1
        assert await left() == ["25 hours", "1 hour"]
        assert await log.forget_entries(0) == 1
        assert await left() == ["1 hour"]


async def test_repeated_denials_add_few_audit_entries(notify_url: str) -> None:
    pool = open_pool(notify_url)
    await pool.open()
    async with pool:
        log = AuditLog(pool)
        upkeep = AuditUpkeep(BrokerConfig(storage=notify_url), log)
        for number in range(10_000):
            upkeep.refused(f"10.0.{number // 256}.{number % 256}", "the token is wrong")
        for _ in range(500):
            upkeep.refused("10.0.0.0", "the token is wrong")
        await upkeep.write_once()
        rows = (await log.list(AuditQuery(action="login.refused", limit=1000))).entries
        assert len(rows) == REFUSALS_MAX
        counts = {row.target: (row.after or {})["times"] for row in rows}
        assert counts["10.0.0.0"] == 501
        assert counts[OTHERS] == 10_000 - (REFUSALS_MAX - 1)
        await upkeep.write_once()
        assert len((await log.list(AuditQuery(action="login", limit=1000))).entries) == REFUSALS_MAX


async def test_denied_changing_calls_are_recorded(notify_url: str) -> None:
    pool = open_pool(notify_url)
    await pool.open()
    async with pool:
        log = AuditLog(pool)
        upkeep = AuditUpkeep(BrokerConfig(storage=notify_url), log)
        for _ in range(3):
            upkeep.denied("eve", "10.0.0.1", "administer topic:orders")
        upkeep.denied("eve", "10.0.0.1", "send topic:orders")
        for number in range(1000):
            upkeep.denied("mallory", "10.0.0.2", f"administer topic:{number}")
        upkeep.refused("10.0.0.3", "the token is wrong")
        await upkeep.write_once()
        rows = (await log.list(AuditQuery(action="call.denied", limit=1000))).entries
        assert len(rows) == REFUSALS_MAX
        noted = {(row.who, row.target): (row.address, row.after) for row in rows}
        assert noted["eve", "administer topic:orders"] == ("10.0.0.1", {"times": 3})
        assert noted[OTHERS, "administer"][1] == {"times": 1000 - (REFUSALS_MAX - 2)}
        assert "send" not in " ".join(target for _, target in noted)
        assert [row.target for row in (await log.list(AuditQuery(action="login", limit=9))).entries] == ["10.0.0.3"]


async def undone(pool: Pool) -> None:
    async with session(pool) as conn, conn.transaction():
        await record(conn, "x.y", "undone")
        raise ZeroDivisionError


async def test_a_change_is_logged_after_its_commit_and_not_after_a_rollback(
    notify_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def logged() -> list[str]:
        told = [getattr(each, "txmsg", {}) for each in caplog.records]
        return [each["target"] for each in told if each.get("event") == "audit.recorded"]

    pool = open_pool(notify_url)
    await pool.open()
    async with pool:
        with pytest.raises(ZeroDivisionError):
            await undone(pool)
        async with session(pool) as conn:
            async with conn.transaction():
                await record(conn, "x.y", "done")
                assert logged() == []
        assert logged() == ["done"]
