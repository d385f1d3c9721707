"""A topic has more queues for reading than for writing while it shrinks, or is closed for producers or groups."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.metaq.consumers import Seen
from tests.metaq.logs import batch
from tests.metaq.servers import log_at, served
from tests.waiting import until
from txmsg.client.app import Txmsg
from txmsg.errors import MisuseError
from txmsg.message import Message
from txmsg.metaq.interface import LogAccess, LogQueue
from txmsg.metaq.location import open_log
from txmsg.metaq.producer import LogProducer
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.metaq.store.topics import Permission, TopicSettings
from txmsg.ops.cli.main import main

SHRINKING = TopicSettings(write_queues=2, read_queues=4)
SHRUNK = replace(SHRINKING, read_queues=2)


@pytest.fixture(params=["directory", "server"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, LogAccess]]:
    """The location of a log, and the log opened for appending."""
    root = tmp_path / "log"
    if request.param == "directory":
        with open_log(root, append=True) as log:
            yield str(root), log
    else:
        with served(MetaQConfig(data_dir=root, listen="127.0.0.1:0")) as address, log_at(address) as log:
            yield address, log


def send(log: LogAccess, count: int, **kwargs: str) -> set[int]:
    """Send messages one by one; return their queues."""
    producer = LogProducer(log)
    return {producer.send(Message("t", b"%d" % each, **kwargs)).queue for each in range(count)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"write_queues": 0},
        {"read_queues": 1025, "write_queues": 1},
        {"read_queues": 2},
        {"read_queues": 2, "write_queues": 3},
        {"permission": "rw"},
    ],
)
def test_settings_that_would_leave_messages_unread_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(MisuseError, match=f"{next(iter(wrong))}="):
        TopicSettings(**wrong)  # type: ignore[arg-type]


def test_a_topic_shrinks_without_loss(where: tuple[str, LogAccess]) -> None:
    address, log = where
    assert send(log, 8) == {0, 1, 2, 3}
    log.set_topic("t", SHRINKING)
    assert log.settings_of("t") == SHRINKING
    seen = Seen()
    app = Txmsg(log=address, group="g")
    app.subscribe("t", source="log")(seen)
    assert send(log, 8) == send(log, 8, ordering_key="k") | send(log, 8) == {0, 1}
    assert log.append([batch("t", 3, 2, 1)]) == [2], "from a producer that has not heard of it"
    with app:
        until(lambda: len(seen.messages) == 33)
        log.set_topic("t", SHRUNK)
        until(lambda: [queue.queue.queue for queue in log.group("g").queues if queue.owner] == [0, 1])
        with pytest.raises(MisuseError, match=r"queue 3 of topic t is not read, but 0 to 1: nothing was appended"):
            log.append([batch("t", 3, 3, 1)])
        send(log, 2)
        until(lambda: len(seen.messages) == 35)
    assert all(offsets == list(range(len(offsets))) for offsets in seen.offsets.values()), "each once, in order"
    assert (len(seen.offsets[2]), len(seen.offsets[3])) == (2, 3)


def test_read_only_topic_accepts_only_mirrored_messages(where: tuple[str, LogAccess]) -> None:
    _, log = where
    send(log, 1)
    log.set_topic("t", TopicSettings(permission=Permission.READ))
    with pytest.raises(
        MisuseError, match=r"topic t has permission r: nothing was appended.*txmsg metaq set t --log LOG"
    ):
        log.append([batch("u", 0, 0, 1), batch("t", 0, 1, 1)])
    assert log.queues_of("u") == []
    assert log.append([batch("t", 5, 0, 1)._replace(is_mirrored=True)]) == [0]
    member = log.join("g", ["t"])
    assert len(member.view().queues) == 2
    member.leave({})


def test_groups_do_not_read_a_write_only_topic(where: tuple[str, LogAccess]) -> None:
    _, log = where
    log.set_topic("t", TopicSettings(permission=Permission.WRITE))
    send(log, 4)
    member = log.join("g", ["t", "u"])
    log.append([batch("u", 0, 0, 1)])
    assert member.view().queues == (LogQueue("u", 0),)
    log.set_topic("t", TopicSettings())
    assert len(member.view().queues) == 5
    log.set_topic("t", TopicSettings(permission=Permission.NONE))
    assert member.view().queues == (LogQueue("u", 0),)
    with pytest.raises(MisuseError, match="permission none"):
        send(log, 1)
    member.leave({})


def metaq(*words: object) -> Result:
    return CliRunner().invoke(main, ["metaq", *map(str, words)])


def test_command_shrinks_a_topic_only_after_groups_have_read_the_removed_queues(tmp_path: Path) -> None:
    with open_log(tmp_path, append=True) as log:
        send(log, 4)
        member = log.join("g", ["t"])
        offsets = member.take_queues(member.view().queues)
        member.leave(dict.fromkeys(offsets, 1) | {LogQueue("t", 3): 0})
    shown = json.loads(metaq("set", "t", "--log", tmp_path, "--write-queues", 2, "--json").stdout)
    assert (shown["write_queues"], shown["read_queues"], shown["permission"]) == (2, None, "rw")
    assert [row["access"] for row in rows(tmp_path)] == ["rw", "rw", "r", "r"]
    refused = metaq("set", "t", "--log", tmp_path, "--read-queues", 2)
    assert (refused.exit_code, rows(tmp_path)[3]["access"]) == (1, "r")
    assert "group g has not read the last 1 messages of topic t queue 3" in refused.stderr
    with open_log(tmp_path) as log:
        log.seek("g", {LogQueue("t", 3): 1})
    assert metaq("set", "t", "--log", tmp_path, "--read-queues", 2).exit_code == 0
    assert [row["access"] for row in rows(tmp_path)] == ["rw", "rw", "-", "-"]
    assert metaq("set", "t", "--log", tmp_path, "--read-queues", 3, "--permission", "w").exit_code == 0
    assert [row["access"] for row in rows(tmp_path)] == ["w", "w", "-", "-"]
    assert metaq("set", "t", "--log", tmp_path, "--write-queues", 0).exit_code == 2


def rows(root: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(metaq("topics", "--log", root, "--json").stdout)["queues"]
    return found
