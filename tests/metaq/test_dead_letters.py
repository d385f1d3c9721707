"""Dead letters of a log's group: listed, redriven, purged; the same in a directory and at a server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.metaq.consumers import Seen
from tests.metaq.logs import fill
from tests.metaq.servers import served
from tests.waiting import until, until_async
from txmsg.administration.dead_letters import DeadLetter, DeadLetterFilter, DeadLetterQuery
from txmsg.administration.log import LogAdministration
from txmsg.consumer.failures import Retry
from txmsg.errors import MisuseError, StorageError
from txmsg.message import ReceivedMessage, datetime_of_us
from txmsg.metaq import Log, LogAccess, open_log
from txmsg.metaq.consumer.push_consumer import AsyncPushConsumer
from txmsg.metaq.consumer.retries import Tried, appends_of
from txmsg.metaq.format.frame import FrameColumns, encode
from txmsg.metaq.group.logs import GroupLogs
from txmsg.metaq.interface import DEAD_LETTERS, RETRIES, LogQueue
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.metaq.store.log import Append, LogConfig
from txmsg.ops.cli.main import main
from txmsg.runtime.backoff import Backoff
from txmsg.testing.log_progress import progress_of_log

DEAD, RETRY = LogQueue(DEAD_LETTERS + "g", 0), LogQueue(RETRIES + "g", 0)
RETRY_ONCE = Retry(retries_max=1, delays_s=[0.01])
KEYS = ["a", "b", "a", "c", "b"]


@pytest.fixture(params=["directory", "address", pytest.param("kafka", marks=pytest.mark.long)])
def access(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogAccess]:
    """A log with a group that has five dead letters."""
    if request.param == "kafka":
        where = f"{request.getfixturevalue('kafka').address}/{request.getfixturevalue('kafka_prefix')}"
        with open_log(where) as access:
            access.append([Append("t", 0, encode(FrameColumns([b""] * 5, [1])))])
            die(access, KEYS)
            yield access
        return
    with Log(tmp_path / "log") as log:
        fill(log, "t", 0, [5])
    where = str(tmp_path / "log")
    if request.param == "directory":
        with open_log(where) as access:
            die(access, KEYS)
            yield access
        return
    with (
        served(MetaQConfig(data_dir=tmp_path / "log", listen=f"unix:{tmp_path}/socket")) as where,
        open_log(where) as access,
    ):
        die(access, KEYS)
        yield access


def become_known(access: LogAccess, group: str) -> None:
    """Create a group with a stored offset: Kafka remembers no other."""
    member = access.join(group, ["t"])
    until(lambda: member.view().queues)
    member.take_queues([LogQueue("t", 0)])
    member.leave({})


def die(access: LogAccess, keys: list[str]) -> None:
    """Create a dead letter for each of these keys, in order."""
    become_known(access, "g")
    for number, key in enumerate(keys):
        message = ReceivedMessage(
            "t", b"%d" % number, key, queue=0, offset=number, attempt=17, id_bytes=bytes([number] * 16)
        )
        failed = Tried(message, (f"first {number}", f"no room for {key}"))
        _, dead = appends_of("g", [failed], Backoff(retries_max=16), 1_000_000 * (number + 1))
        access.append(dead)


def dead_letters(access: LogAccess, **which: Any) -> Sequence[DeadLetter]:
    """Return the matching dead letters of the group."""
    query = DeadLetterQuery(which=DeadLetterFilter(group="g", **which))
    return LogAdministration(access).list_dead_letters(query).letters


def bodies(access: LogAccess, **which: Any) -> list[str]:
    return [letter.body.decode() for letter in dead_letters(access, **which)]


def redrive(access: LogAccess, **which: Any) -> int:
    """Redrive dead letters; return their number."""
    administration = LogAdministration(access)
    return sum(administration.redrive(administration.select(DeadLetterFilter(group="g", **which))))


def purge(access: LogAccess) -> int:
    """Purge dead letters; return their number."""
    administration = LogAdministration(access)
    return sum(administration.purge(administration.select(DeadLetterFilter(group="g"))))


def retried(access: LogAccess) -> list[ReceivedMessage]:
    return [message for each in access.fetch({RETRY: 0}) for batch in each.batches for message in batch.messages()]


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ({}, "01234"),
        ({"key": "a"}, "02"),
        ({"topic": "u"}, ""),
        ({"error": "FOR b"}, "14"),
        ({"error": "first"}, ""),
        ({"since": datetime_of_us(2_000_000), "until": datetime_of_us(4_000_000)}, "12"),
    ],
)
def test_only_selected_dead_letters_are_listed_and_redriven(
    access: LogAccess, which: dict[str, Any], expected: str
) -> None:
    assert "".join(bodies(access, **which)) == expected
    assert redrive(access, **which) == len(expected)
    assert [each.body.decode() for each in retried(access)] == list(expected)
    left = bodies(access)
    assert sorted(left) == sorted(set("01234") - set(expected))
    assert {letter.key: letter.last_error for letter in dead_letters(access)}.items() <= {
        key: f"no room for {key}" for key in KEYS
    }.items()
    assert redrive(access, **which) == 0, "what was redriven is dead still"
    assert purge(access) == len(left)
    assert bodies(access) == []
    assert access.group("g").members == ()


async def test_redriven_message_is_delivered_as_new_with_the_next_generation(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [3])
    cured: list[bool] = []
    seen = Seen(lambda message: message.offset == 1 and not cured)
    consumer = AsyncPushConsumer(tmp_path, "g")
    consumer.subscribe("t", retry=RETRY_ONCE)(seen)
    async with consumer:
        with open_log(tmp_path) as access:
            await until_async(lambda: access.ranges([DEAD])[DEAD].end == 1)
            cured.append(True)
            assert redrive(access) == 1
            await until_async(lambda: len(seen.messages) == 5)
            again = seen.messages[-1]
            assert (again.topic, again.offset, again.attempt, again.generation) == ("t", 1, 1, 1)
            assert [message.generation for message in seen.messages[:-1]] == [0] * 4
            await until_async(lambda: access.group("g").queues[0].offset == 1)  # its retry is handled
            assert consumer.queues() == [("t", 0)], "a redrive took queues"
            assert access.ranges([DEAD])[DEAD].end == 1


def test_only_one_process_at_a_time_can_redrive_or_purge_dead_letters(access: LogAccess) -> None:
    member = access.join("g", ())
    member.take_queues([DEAD])
    with pytest.raises(MisuseError, match="are being dealt with by another process"):
        purge(access)
    member.leave({})
    assert purge(access) == 5


def test_crash_between_any_two_steps_loses_no_dead_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            redrive(access, key="b")
        seen = {each.body.decode() for each in retried(access)} | set(bodies(access))
        assert seen == set("01234")
        assert redrive(access, key="b") == 1
        assert sorted(bodies(access)) == ["0", "2", "3"]


def test_files_of_redriven_and_purged_dead_letters_are_deleted(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [1])
    logs = GroupLogs(tmp_path, LogConfig(file_size_bytes_max=300))
    with open_log(tmp_path) as access:
        access.join("g", ["t"]).leave({})
        root = logs.root_of(DEAD.topic)
        assert root is not None
        dead = Append(DEAD.topic, 0, encode(FrameColumns([b"x"], [1])))
        for _ in range(6):
            logs.append(root, [dead])
        assert access.ranges([DEAD])[DEAD] == (0, 6), "what nobody has dealt with was deleted"
        assert purge(access) == 6
        logs.append(root, [dead])
        assert access.ranges([DEAD])[DEAD] == (6, 7)
        assert [letter.offset for letter in dead_letters(access)] == [6]


async def test_invalid_retry_record_does_not_block_others_and_becomes_a_dead_letter(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [2])
    with open_log(tmp_path) as access:
        access.join("g", ["t"]).leave({})
        access.append([Append(RETRY.topic, 0, encode(FrameColumns([b"no copy"], [1])))])
        seen = Seen(lambda message: message.attempt == 1 and message.offset == 1)
        days = count()
        consumer = AsyncPushConsumer(tmp_path, "g")
        consumer._clock, consumer._balance_s = lambda: 1e6 + next(days) * 86_400.0, 0.01  # retries are due at once
        consumer.subscribe("t", retry=RETRY_ONCE)(seen)
        async with consumer:
            await until_async(lambda: (1, 2) in seen.attempts)
            await until_async(lambda: bodies(access) == ["no copy"])
        [letter] = dead_letters(access)
        assert (letter.topic, "no handler" in (letter.last_error or "")) == (RETRY.topic, True)


def run(access: LogAccess, verb: str, *words: object) -> Result:
    where = str(getattr(access, "address", None) or getattr(access, "root", None))
    return CliRunner().invoke(main, [*verb.split(), *map(str, words), "--log", where], input="n\n")


def told(access: LogAccess, verb: str, *words: object) -> Any:
    result = run(access, verb, *words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_progress_of_application_tests_counts_only_unresolved_dead_letters(access: LogAccess) -> None:
    def dead_count() -> int:
        return sum(len(progress.dead) for progress in progress_of_log(access, "g", ["t"]))

    assert dead_count() == 5
    redrive(access, key="a")
    assert dead_count() == 3
    purge(access)
    assert dead_count() == 0


def test_commands_list_show_redrive_and_purge_dead_letters(access: LogAccess) -> None:
    rows = told(access, "dead-letter list", "--group", "g", "--key", "b")["dead_letters"]
    assert [(row["offset"], row["key"], row["attempts"], row["last_error"]) for row in rows] == [
        (1, "b", 17, "no room for b"),
        (4, "b", 17, "no room for b"),
    ]
    [letter] = told(access, "dead-letter show", rows[0]["id"])["dead_letters"]
    assert (letter["body"], [failure["error"] for failure in letter["failures"]]) == ("1", ["first 1", "no room for b"])
    assert " attempt 2: no room for b\n" in run(access, "dead-letter show", rows[0]["id"]).stdout
    unknown = run(access, "dead-letter show", "01000000-0000-0000-0000-000000000000")
    assert "there is no dead letter 01000000" in unknown.stderr
    assert told(access, "dead-letter redrive", "--id", rows[0]["id"]) == {"redriven": 1}
    assert run(access, "dead-letter redrive", "--error", "for a").stdout == "dead letters redriven: 2\n"
    asked = run(access, "dead-letter purge", "--group", "g")
    assert (asked.exit_code, "purge 2 dead letter(s)" in asked.stderr + asked.stdout) == (1, True)
    until = ("--group", "g", "--until", "1970-01-01T00:00:04.5Z")
    assert told(access, "dead-letter purge", "--yes", *until) == {"purged": 1}
    [row] = told(access, "group list")["groups"]
    assert (row["dead"], row["retrying"]) == (1, 3)
    assert run(access, "dead-letter list", "--topic", "u").stdout == "no dead letters match\n"
    assert "group x is unknown" in run(access, "dead-letter list", "--group", "x").stderr
    rate = run(access, "dead-letter redrive", "--group", "g", "--rate", "5")
    assert "all at once: --rate is for groups of Notify" in rate.stderr


def test_pages_list_each_dead_letter_once_even_if_clocks_go_back(access: LogAccess) -> None:
    become_known(access, "h")
    for at_us in (3_000_000, 1_000_000, 6_000_000):  # the second one died by a clock that is behind
        failed = Tried(ReceivedMessage("t", b"h%d" % at_us, queue=0, offset=0, attempt=17, id_bytes=bytes(16)))
        access.append(appends_of("h", [failed], Backoff(retries_max=16), at_us)[1])
    administration = LogAdministration(access)
    seen: list[str] = []
    page: str | None = ""
    while page is not None:
        found = administration.list_dead_letters(DeadLetterQuery(limit=3, after=page))
        seen += [letter.body.decode() for letter in found.letters]
        page = found.next
    assert seen == ["0", "1", "h3000000", "h1000000", "2", "3", "4", "h6000000"]
    assert "is not a page of dead letters" in run(access, "dead-letter list", "--page", "7").stderr
