"""`txmsg metaq tail`, `status`, `topics` and `set`, the same for a directory and for its server's address."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.metaq.logs import batch, fill
from tests.metaq.servers import log_at, served
from txmsg.errors import StorageError
from txmsg.metaq import Log, LogAccess, open_log
from txmsg.metaq.format.frame import FrameColumns, encode, hole
from txmsg.metaq.interface import DEAD_LETTERS, RETRIES
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.metaq.store.log import Append
from txmsg.ops.cli.main import main

_WAIT_S = 60.0


@pytest.fixture(params=["directory", "address"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A log with the topics trade, of two queues, and user."""
    root = tmp_path / "log"
    with Log(root) as log:
        fill(log, "trade", 0, [2, 3])
        tagged = FrameColumns([b"one", b"two\n"], [1_000_000, 3_000_000], key=["k", ""], tag=["paid", "new"])
        log.append([Append("trade", 1, encode(tagged)), Append("user", 0, hole(7, 5)), batch("user", 0, 7, 1)])
    if request.param == "directory":
        yield str(root)
        return
    with served(MetaQConfig(data_dir=root, listen="127.0.0.1:0")) as address:
        yield address


@pytest.fixture
def log(where: str) -> Iterator[LogAccess]:
    with open_log(where, append=True) as log:
        yield log


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["metaq", *map(str, words)])


def beside(*words: object) -> Future[Result]:
    """Run on a daemon thread, which ends with the process: a command that follows never ends by itself."""
    found: Future[Result] = Future()
    threading.Thread(target=lambda: found.set_result(run(*words)), daemon=True).start()
    return found


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def places(result: Result) -> list[tuple[int, int]]:
    return [(each["queue"], each["offset"]) for each in lines(result)]


def test_tail_starts_at_the_requested_position_and_reports_missing_messages(where: str) -> None:
    assert sorted(places(run("tail", "trade", "--log", where, "--json"))) == [(0, n) for n in range(5)] + [
        (1, 0),
        (1, 1),
    ]
    assert places(run("tail", "trade", "--log", where, "--queue", 0, "--from", 3, "--json")) == [(0, 3), (0, 4)]
    assert places(run("tail", "trade", "--log", where, "--from", "1970-01-01T00:00:02Z", "--json")) == [(1, 1)]
    missing = run("tail", "user", "--log", where, "--from", 0, "--json")
    assert places(missing) == [(0, 7)]
    assert "offsets 0 to 6 of topic user queue 0 are missing" in missing.stderr
    past = run("tail", "trade", "--log", where, "--queue", 1, "--from", 9)
    assert past.stdout == ""
    assert "offset 9 of topic trade queue 1 is not kept: there are 0 to 1" in past.stderr


def test_following_from_an_offset_prints_old_and_new_messages_and_new_queues(where: str, log: LogAccess) -> None:
    following = beside("tail", "trade", "--log", where, "--from", 0, "--follow", "--limit", 10, "--json")
    log.append([batch("trade", 1, 2, 1)])
    log.append([batch("trade", 2, 0, 2)])
    found = places(following.result(_WAIT_S))
    for queue, end in ((0, 5), (1, 3), (2, 2)):
        assert [offset for number, offset in found if number == queue] == list(range(end))


def test_following_starts_at_the_end_even_of_a_topic_not_created_yet(where: str, log: LogAccess) -> None:
    following = beside("tail", "trade", "--log", where, "--follow", "--limit", 1, "--json")
    assert append_until(following, log, "trade", 5) >= (0, 5)
    following = beside("tail", "late", "--log", where, "--follow", "--limit", 1, "--json")
    assert append_until(following, log, "late", 0)[0] == 0


def append_until(following: Future[Result], log: LogAccess, topic: str, offset: int) -> tuple[int, int]:
    """Append to the first queue until the following command has printed a message; return it."""
    while not following.done():
        log.append([batch(topic, 0, offset, 1)])
        offset += 1
        assert offset < 1_000, "nothing was printed of all that was appended"
        wait([following], 0.1)
    [place] = places(following.result(_WAIT_S))
    return place


def test_error_about_an_unknown_topic_or_queue_lists_the_existing_ones(where: str) -> None:
    for words in (("trad",), ("trad", "--queue", 0)):
        result = run("tail", *words, "--log", where)
        assert result.exit_code == 1
        assert "topic 'trad' is not in this log: its topics are trade, user" in result.stderr
    result = run("tail", "trade", "--log", where, "--queue", 3)
    assert result.exit_code == 1
    assert "topic 'trade' has no such queue: its queues are 0, 1" in result.stderr


def test_retry_and_dead_letter_logs_of_a_group_can_be_printed(where: str, log: LogAccess) -> None:
    log.join("g", ["trade"]).leave({})
    log.append([Append(DEAD_LETTERS + "g", 0, encode(FrameColumns([b"dead"], [1])))])
    log.append([Append(RETRIES + "g", 2, encode(FrameColumns([b"late"], [1])))])
    for topic, place in ((DEAD_LETTERS + "g", (0, 0)), (RETRIES + "g", (2, 0))):
        assert places(run("tail", topic, "--log", where, "--json")) == [place]
        assert topic not in log.topics()


def test_status_prints_the_state_of_a_log(where: str, log: LogAccess) -> None:
    [told] = lines(run("status", "--log", where, "--json"))
    assert (told["topics"], told["queues"], told["generation"]) == (2, 3, 1)
    assert told["log_id"] == log.identity().log_id
    assert str(told["log_id"]) in run("status", "--log", where).stdout


def test_status_fails_when_a_server_refuses_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with served(MetaQConfig(data_dir=tmp_path, listen="127.0.0.1:0")) as address, log_at(address) as log:
        log.append([batch("t", 0, 0, 1)])
        with monkeypatch.context() as patch:
            patch.setattr(os, "writev", full)
            with pytest.raises(StorageError, match="nothing was appended"):
                log.append([batch("t", 0, 1, 1)])
        result = run("status", "--log", address, "--json")
        assert (result.exit_code, "No space left" in json.loads(result.stdout)["failure"]) == (1, True)
        log.append([batch("t", 0, 1, 1)])
        assert run("status", "--log", address).exit_code == 0


def test_topics_are_listed_with_ranges_and_settings(where: str, tmp_path: Path) -> None:
    assert (
        run("set", "trade", "--log", where, "--flush", "timed", "--compression", "zstd", "--retention", "7d").exit_code
        == 0
    )
    assert run("set", "trade", "--log", where, "--compression", "lz4").exit_code == 0
    rows = lines(run("topics", "--log", where, "--json"))[0]["queues"]
    told = [tuple(row[name] for name in ("topic", "queue", "begin", "end", "flush", "compression")) for row in rows]
    assert told == [
        ("trade", 0, 0, 5, "timed", "lz4"),
        ("trade", 1, 0, 2, "timed", "lz4"),
        ("user", 0, 0, 8, "sync", "none"),
    ]
    assert [row["retention_s"] for row in rows] == [604_800.0, 604_800.0, None]
    assert "7d" in run("topics", "--log", where).stdout
    assert "as the log" in run("set", "trade", "--log", where, "--retention", "log").stdout
    assert "no log" in run("set", "trade", "--log", tmp_path / "none", "--flush", "timed").stderr
    assert not (tmp_path / "none").exists()
