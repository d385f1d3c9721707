"""Output of `txmsg metaq check`, `topics`, `dump` and `tail`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.metaq.logs import fill
from txmsg.administration.log import LogAdministration
from txmsg.metaq.format.frame import FrameColumns, encode, hole
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.local import LocalLog
from txmsg.metaq.location import open_log
from txmsg.metaq.store.log import Append, Log
from txmsg.ops.cli.main import main


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Log(tmp_path) as log:
        fill(log, "trade", 0, [2, 3])
        tagged = FrameColumns([b"one", b"two\n"], [1_000_000, 3_000_000], key=["k", ""], tag=["paid", "new"])
        log.append([Append("trade", 1, encode(tagged)), Append("user", 0, hole(7, 5))])
    return tmp_path


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["metaq", *map(str, words)])


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_check_reports_damage_and_repair_fixes_it(root: Path) -> None:
    whole = run("check", root)
    assert (whole.exit_code, whole.stdout.splitlines()[-1]) == (0, f"{root} is whole")
    assert "missing, as the log says: topic user queue 0 offsets 0 to 6" in whole.stdout
    [file] = (root / "commitlog").iterdir()
    data = bytearray(file.read_bytes())
    data[160] ^= 1
    file.write_bytes(data)
    damaged = run("check", root)
    assert damaged.exit_code == 1
    assert "commitlog (position 144)" in damaged.stderr
    assert "lost: topic trade queue 0 offsets 2 to 4" in damaged.stderr
    assert "1 problems, 3 messages lost" in damaged.stderr
    told = json.loads(run("check", root, "--json").stdout)
    assert (told["damaged"], told["lost_messages"], told["problems"][0]["position"]) == (True, 3, 144)
    repaired = run("check", root, "--repair")
    assert repaired.exit_code == 0
    assert "positions 144 to 295: taken out, with topic trade queue 0 offsets 2 to 4" in repaired.stdout
    assert run("check", root).exit_code == 0


def test_topics_lists_queues_ranges_and_settings(root: Path) -> None:
    rows = json.loads(run("topics", "--log", root, "--json").stdout)["queues"]
    assert [(row["topic"], row["queue"], row["begin"], row["end"], row["flush"]) for row in rows] == [
        ("trade", 0, 0, 5, "sync"),
        ("trade", 1, 0, 2, "sync"),
        ("user", 0, 0, 7, "sync"),
    ]
    assert rows[2]["holes"] == [[0, 7]]
    assert "trade" in run("topics", "--log", root).stdout


def test_environment_variable_names_the_log_of_commands(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXMSG_LOG", str(root))
    assert [each["offset"] for each in lines(run("tail", "trade", "--queue", 1, "--json"))] == [0, 1]
    monkeypatch.delenv("TXMSG_LOG")
    refused = run("tail", "trade")
    assert refused.exit_code == 2
    assert "Missing option '--log' (env var: 'TXMSG_LOG')" in refused.stderr


def test_dump_prints_frames_and_the_position_of_damage(root: Path) -> None:
    [file] = (root / "commitlog").iterdir()
    data = bytearray(file.read_bytes())
    data[160] ^= 1
    file.write_bytes(data)
    frames = json.loads(run("dump", root, "--bodies", "--json").stdout)["frames"]
    assert [frame.get("kind", "damaged") for frame in frames] == ["messages", "damaged", "messages", "hole"]
    assert frames[1]["damaged"] == "the frame's header does not match its checksum"
    assert [message["body"] for message in frames[2]["messages"]] == ["one", "two\n"]
    assert len(run("dump", root, "--topic", "trade", "--queue", 1).stdout.splitlines()) == 2


def test_tail_prints_messages_from_the_requested_position(root: Path) -> None:
    offsets = {(each["queue"], each["offset"]) for each in lines(run("tail", "trade", "--log", root, "--json"))}
    assert offsets == {(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1)}
    assert [
        each["offset"] for each in lines(run("tail", "trade", "--log", root, "--queue", 0, "--from", 3, "--json"))
    ] == [3, 4]
    assert [each["key"] for each in lines(run("tail", "trade", "--log", root, "--tag", "paid", "--json"))] == ["k"]
    assert [each["body"] for each in lines(run("tail", "trade", "--log", root, "--key", "k", "--json"))] == ["one"]
    late = run("tail", "trade", "--log", root, "--queue", 1, "--from", "1970-01-01T00:00:02Z")
    assert late.stdout.splitlines() == ["1:1 1970-01-01T00:00:03+00:00 tag=new two\\n"]
    assert run("tail", "trade", "--log", root, "--from", "latest").stdout == ""
    assert run("tail", "trade", "--log", root, "--limit", 2).stdout.count("\n") == 2
    holes = run("tail", "user", "--log", root)
    assert (holes.exit_code, holes.stdout) == (0, "")
    assert "offsets 0 to 6 of topic user queue 0 are missing" in holes.stderr


def interrupts_from(call: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return the function with Ctrl-C at the call of this number."""
    calls = itertools.count(1)

    def interrupted(*args: Any, **named: Any) -> Any:
        if next(calls) >= count:
            raise KeyboardInterrupt
        return call(*args, **named)

    return interrupted


@pytest.mark.parametrize("moment", ["while it waits", "while it asks"])
def test_ctrl_c_ends_a_watched_lag_cleanly(root: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    with open_log(root) as access:
        access.join("audit", ["trade"]).leave({LogQueue("trade", 0): 1})
    is_waiting = moment == "while it waits"
    monkeypatch.setattr("txmsg.ops.cli.group.time.sleep", interrupts_from(lambda _: None, 2 if is_waiting else 10))
    if not is_waiting:
        monkeypatch.setattr(LogAdministration, "show_group", interrupts_from(LogAdministration.show_group, 3))
    words = ["group", "lag", "audit", "--log", str(root), "--json", "--watch", "1s"]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, "Aborted" in done.output) == (0, False)
    assert len(done.output.splitlines()) == 2
    monkeypatch.setattr(LogAdministration, "show_group", interrupts_from(LogAdministration.show_group, 1))
    assert CliRunner().invoke(main, words[:-2]).exit_code == 1, "it was to be shown once, and was not"


def test_ctrl_c_ends_only_following_and_cleanly(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txmsg.ops.cli.metaq_contents.say", interrupts_from(lambda _: None, 2))
    words = ["metaq", "tail", "trade", "--log", str(root), "--from", "earliest"]
    done = CliRunner().invoke(main, [*words, "--follow"])
    assert (done.exit_code, "Aborted" in done.output) == (0, False)
    assert CliRunner().invoke(main, words).exit_code == 1, "not all was printed"


def test_error_about_an_unknown_topic_lists_the_existing_ones(root: Path) -> None:
    result = run("tail", "trad", "--log", root)
    assert result.exit_code == 1
    assert "topic 'trad' is not in this log: its topics are trade, user" in result.stderr


def group(verb: str, where: Path, *words: object) -> Result:
    return CliRunner().invoke(main, ["group", verb, *map(str, words), "--log", str(where)])


def test_group_is_shown_sought_and_deleted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert group("list", root).stdout == "no consumer groups\n"
    zero, one = LogQueue("trade", 0), LogQueue("trade", 1)
    with open_log(root) as access:
        member = access.join("g", ["trade"])
        member.take_queues([zero])
        member.store({zero: 4})
        access.append([Append("%DLQ%g", 0, encode(FrameColumns([b"x"], [1])))])
        [row] = lines(group("list", root, "--json"))[0]["groups"]
        assert (row["waiting"], row["retrying"], row["dead"], row["members"]) == (1, 0, 1, 1)
        assert row["topics"] == [{"topic": "trade", "waiting": 1, "retrying": None, "dead": None}]
        [shown] = lines(group("show", root, "g", "--json"))
        assert [
            (state["queue"], state["owner"], state["next_offset"], state["waiting"]) for state in shown["queues"]
        ] == [(0, member.id, 4, 1)]
        assert [reader["id"] for reader in shown["members"]] == [member.id]
        assert member.id in group("show", root, "g").stdout
        assert lines(group("lag", root, "g", "--json"))[0]["waiting"] == 1
        sought = lines(group("seek", root, "g", "--topic", "trade", "--to", "earliest", "--json"))[0]
        assert [(state["queue"], state["next_offset"]) for state in sought["queues"]] == [(0, 0), (1, 0)]
        assert dict(member.view().sought) == {zero: 0}
        later = ("g", "--topic", "trade", "--to", "1970-01-01T00:00:02Z")
        [plan] = lines(group("seek", root, *later, "--dry-run", "--json"))
        assert (plan["skipped"], plan["repeated"], [state["to"] for state in plan["queues"]]) == (6, 0, [5, 1])
        assert dict(member.view().sought) == {zero: 0}
        assert group("seek", root, *later).exit_code == 1  # without a confirmation
        group("seek", root, *later, "--yes")
        assert dict(member.view().sought) == {zero: 5}
        group("seek", root, "g", "--topic", "trade", "--queue", "1", "--to", "1", "--yes")
        assert member.take_queues([one]) == {one: 1}
        assert "group g has 1 members" in group("delete", root, "g", "--yes", "--force").stderr
        member.leave({})
    seek_all = group("seek", root, "g", "--topic", "trade", "--to", "1")
    assert "offset 1 needs a queue, and topic 'trade' has 2: give --queue" in seek_all.stderr
    assert "topic 'x' has no such queue" in group("seek", root, "g", "--topic", "x", "--to", "latest").stderr
    kept = group("delete", root, "g", "--yes")
    assert "group 'g' has 0 messages in retry and 1 dead letters: --force deletes it with them" in kept.stderr
    assert group("delete", root, "g", "--yes", "--force").stdout == "group g deleted\n"
    assert "group g is unknown to this log" in group("show", root, "g").stderr
    monkeypatch.setattr(LocalLog, "groups", lambda _: ["gone"])
    assert group("list", root).stdout == "no consumer groups\n"


def test_operators_can_stop_a_group_and_set_its_rate_and_concurrency(root: Path) -> None:
    with open_log(root) as access:
        access.join("g", ["trade"]).leave({})
    assert group("stop", root, "g").stdout == "delivery to group g stops\n"
    [row] = lines(group("list", root, "--json"))[0]["groups"]
    assert row["stopped"] is True
    [altered] = lines(group("alter", root, "g", "--rate", "2.5", "--concurrency", "3", "--json"))
    [shown] = lines(group("show", root, "g", "--json"))
    names = ("stopped", "rate", "concurrency")
    assert [found[name] for found in (altered, shown) for name in names] == [True, 2.5, 3] * 2
    group("start", root, "g")
    [reset] = lines(group("alter", root, "g", "--rate", "0", "--concurrency", "0", "--json"))
    assert [reset[name] for name in names] == [False, None, None]
    assert "group x is unknown to this log" in group("stop", root, "x").stderr
    assert "is not in the range" in group("alter", root, "g", "--concurrency", "-1").stderr


def test_operation_unsupported_by_a_log_is_refused_by_name(root: Path) -> None:
    with open_log(root) as access:
        access.join("g", ["trade"]).leave({})
    retries = group("alter", root, "g", "--retries", "3")
    assert "retries are options of each subscription" in retries.stderr
    assert "producer groups are those of Notify" in group("alter", root, "g", "--checks-max", "3").stderr
    again = group("seek", root, "g", "--topic", "trade", "--to", "earliest", "--again")
    assert "retries of a log are the work of its members" in group("retries", root, "g").stderr
    assert "a log has no generations: --again is for groups of Notify" in again.stderr
    both = group("list", root, "--broker", "localhost:1")
    assert (both.exit_code, "--broker is for groups of Notify, --log for those of a log" in both.stderr) == (2, True)
