"""Dead letters of a log's group: looked at, handed to the group again, given up; alike on a path and at an address."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.metaq.consumers import Seen, on_loop, until
from tests.metaq.logs import fill
from tests.metaq.servers import served
from txmsg.cli.main import main
from txmsg.errors import MisuseError, StorageError
from txmsg.message import ReceivedMessage
from txmsg.metaq import AsyncLogConsumer, Log, LogAccess, open_log
from txmsg.metaq.access import DEAD_LETTERS, RETRIES, QueueId
from txmsg.metaq.consumer.dead_letters import Which, dead_letters, purge, redrive
from txmsg.metaq.consumer.retries import Tried, appends_of
from txmsg.metaq.format.frame import Columns, encode
from txmsg.metaq.group.group_logs import GroupLogs
from txmsg.metaq.server.config import MetaQConfig
from txmsg.metaq.store.log import Append, LogConfig
from txmsg.runtime.backoff import Backoff

DEAD, RETRY = QueueId(DEAD_LETTERS + "g", 0), QueueId(RETRIES + "g", 0)
KEYS = ["a", "b", "a", "c", "b"]


@pytest.fixture(params=["directory", "address"])
def access(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogAccess]:
    """A log with a group, of which five messages are dead."""
    with Log(tmp_path / "log") as log:
        fill(log, "t", 0, [5])
    where = str(tmp_path / "log")
    if request.param == "directory":
        with open_log(where) as access:
            die(access, KEYS)
            yield access
        return
    with (
        served(MetaQConfig(root=tmp_path / "log", listen=f"unix:{tmp_path}/socket")) as where,
        open_log(where) as access,
    ):
        die(access, KEYS)
        yield access


def die(access: LogAccess, keys: list[str]) -> None:
    """A dead letter of each of these keys, one after the other."""
    access.join("g", ["t"]).leave({})
    for number, key in enumerate(keys):
        message = ReceivedMessage(
            "t", b"%d" % number, key, queue=0, offset=number, attempt=17, id_bytes=bytes([number] * 16)
        )
        failed = Tried(message, (f"first {number}", f"no room for {key}"))
        _, dead = appends_of("g", [failed], Backoff(retries_max=16), 1_000_000 * (number + 1))
        access.append(dead)


def bodies(access: LogAccess, which: Which = Which()) -> list[str]:  # noqa: B008 - it is frozen
    return [each.message.body.decode() for each in dead_letters(access, "g", which)]


def retried(access: LogAccess) -> list[ReceivedMessage]:
    return [message for each in access.fetch({RETRY: 0}) for batch in each.batches for message in batch.messages()]


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        (Which(), "01234"),
        (Which(key="a"), "02"),
        (Which(topic="u"), ""),
        (Which(error="for b"), "14"),
        (Which(error="first"), ""),
        (Which(since_us=2_000_000, until_us=4_000_000), "12"),
    ],
)
def test_those_that_are_meant_are_found_and_redriven_and_the_others_stay(
    access: LogAccess, which: Which, expected: str
) -> None:
    assert "".join(bodies(access, which)) == expected
    assert redrive(access, "g", which) == len(expected)
    assert [each.body.decode() for each in retried(access)] == list(expected)
    left = bodies(access)
    assert sorted(left) == sorted(set("01234") - set(expected))
    assert {each.message.key: each.tried.errors[-1] for each in dead_letters(access, "g")}.items() <= {
        key: f"no room for {key}" for key in KEYS
    }.items()
    assert redrive(access, "g", which) == 0, "what was redriven is dead still"
    assert purge(access, "g") == len(left)
    assert bodies(access) == []
    assert access.group("g").members == ()


@on_loop
async def test_a_redriven_message_comes_as_if_it_were_new_and_of_the_next_generation(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [3])
    cured: list[bool] = []
    seen = Seen(lambda message: message.offset == 1 and not cured)
    consumer = AsyncLogConsumer(tmp_path, "g", retries_max=1, retry_delays_s=[0.01])
    consumer.subscribe("t")(seen)
    async with consumer:
        with open_log(tmp_path) as access:
            await until(lambda: access.ranges([DEAD])[DEAD].end == 1)
            cured.append(True)
            assert redrive(access, "g") == 1
            await until(lambda: len(seen.messages) == 5)
            again = seen.messages[-1]
            assert (again.topic, again.offset, again.attempt, again.generation) == ("t", 1, 1, 1)
            assert [each.generation for each in seen.messages[:-1]] == [0] * 4
            await until(lambda: access.group("g").queues[0].offset == 1)  # its retry is handled
            assert consumer.queues() == [("t", 0)], "a redrive took queues"
            assert access.ranges([DEAD])[DEAD].end == 1


def test_one_deals_with_dead_letters_at_a_time(access: LogAccess) -> None:
    member = access.join("g", ())
    member.take([DEAD])
    with pytest.raises(MisuseError, match="are being dealt with by somebody else"):
        purge(access, "g")
    member.leave({})
    assert purge(access, "g") == 5


def test_a_crash_between_any_two_steps_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [5])
    with open_log(tmp_path) as access:
        die(access, KEYS)
        append = type(access).append
        calls = 0

        def failing(self: Any, appends: list[Append]) -> list[int]:
            nonlocal calls
            calls += 1
            if calls == 4:
                raise StorageError("the disk is full")
            return append(self, appends)

        monkeypatch.setattr(type(access), "append", failing)
        with pytest.raises(StorageError):
            redrive(access, "g", Which(key="b"))
        seen = {each.body.decode() for each in retried(access)} | set(bodies(access))
        assert seen == set("01234")
        assert redrive(access, "g", Which(key="b")) == 1
        assert sorted(bodies(access)) == ["0", "2", "3"]


def test_files_of_dead_letters_that_were_dealt_with_go(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [1])
    logs = GroupLogs(tmp_path, LogConfig(file_size_bytes_max=300))
    with open_log(tmp_path) as access:
        access.join("g", ["t"]).leave({})
        root = logs.root_of(DEAD.topic)
        assert root is not None
        dead = Append(DEAD.topic, 0, encode(Columns([b"x"], [1])))
        for _ in range(6):
            logs.append(root, [dead])
        assert access.ranges([DEAD])[DEAD] == (0, 6), "what nobody has dealt with was deleted"
        assert purge(access, "g") == 6
        logs.append(root, [dead])
        assert access.ranges([DEAD])[DEAD] == (6, 7)
        assert [each.offset for each in dead_letters(access, "g")] == [6]


@on_loop
async def test_what_is_no_copy_holds_no_other_retry_back_and_ends_as_a_dead_letter(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [2])
    with open_log(tmp_path) as access:
        access.join("g", ["t"]).leave({})
        access.append([Append(RETRY.topic, 0, encode(Columns([b"no copy"], [1])))])
        seen = Seen(lambda message: message.attempt == 1 and message.offset == 1)
        consumer = AsyncLogConsumer(tmp_path, "g", retries_max=1, retry_delays_s=[0.01])
        consumer.subscribe("t")(seen)
        async with consumer:
            await until(lambda: (1, 2) in seen.attempts)
            await until(lambda: bodies(access) == ["no copy"])
        [letter] = dead_letters(access, "g")
        assert (letter.message.topic, "no handler" in letter.tried.errors[-1]) == (RETRY.topic, True)


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["metaq", "dead-letter", *map(str, words)])


def told(*words: object) -> Any:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def where_of(access: LogAccess) -> str:
    return str(getattr(access, "address", None) or getattr(access, "root", None))


def test_the_commands_list_show_redrive_and_purge(access: LogAccess) -> None:
    where = where_of(access)
    rows = told("list", where, "g", "--key", "b")["dead_letters"]
    assert [(row["offset"], row["key"], row["attempts"], row["last_error"]) for row in rows] == [
        (1, "b", 17, "no room for b"),
        (4, "b", 17, "no room for b"),
    ]
    [letter] = told("show", where, "g", rows[0]["id"])["dead_letters"]
    assert (letter["body"], letter["errors"]) == ("1", ["first 1", "no room for b"])
    assert "no room for b" in run("show", where, "g", rows[0]["id"]).stdout
    assert "has no dead letter 01000000" in run("show", where, "g", "01000000-0000-0000-0000-000000000000").stderr
    assert "only the first 2" in run("list", where, "g", "--limit", 2).stderr
    assert told("redrive", where, "g", "--id", rows[0]["id"]) == {"redriven": 1}
    assert run("redrive", where, "g", "--error", "for a").stdout == "dead letters redriven: 2\n"
    asked = CliRunner().invoke(main, ["metaq", "dead-letter", "purge", where, "g"], input="n\n")
    assert asked.exit_code == 1
    assert "purge 2 dead letter(s)" in asked.stderr
    assert told("purge", where, "g", "--yes", "--until", "1970-01-01T00:00:04.5Z") == {"purged": 1}
    [row] = json.loads(CliRunner().invoke(main, ["metaq", "group", "list", where, "--json"]).stdout)["groups"]
    assert (row["dead"], row["retrying"]) == (1, 3)
    assert run("list", where, "g", "--topic", "u").stdout == "there is no dead letter like that\n"
    assert "group x is unknown" in run("list", where, "x").stderr
