"""Settings of agents at run time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.waiting import until
from txmsg.errors import BrokerUnavailable, MisuseError, StorageError
from txmsg.message import Message
from txmsg.metaq import LogProducer, LogQueue, open_log
from txmsg.metaq.agent.agent_config import SourceConfig
from txmsg.metaq.agent.control import SourceChange, SourceControl, applied, change_settings, without_overruled
from txmsg.metaq.format.frame import FrameColumns, encode, hole
from txmsg.metaq.interface import Fetched
from txmsg.metaq.store.log import Append

_FILE = SourceConfig(paths=("/a",), topic="t", lines_per_s=7.0)


def _of(*changes: SourceChange, agent: str = "web-1", source: str = "app") -> SourceConfig:
    return applied(_FILE, changes, agent=agent, source=source)


def test_last_matching_change_wins() -> None:
    changes = [SourceChange("*", "*", "lines_per_s", 100.0), SourceChange("web-*", "app", "lines_per_s", 50.0)]
    assert _of(*changes).lines_per_s == 50.0
    assert _of(*changes, agent="db-1").lines_per_s == 100.0
    assert _of(*changes, source="other").lines_per_s == 100.0
    assert _of(*changes, SourceChange("web-1", "*", "lines_per_s", None)).lines_per_s == 7.0
    assert _of(SourceChange("web-1", "*", "paused", True)).paused


def test_changes_that_conflict_with_the_file_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    assert _of(SourceChange("*", "*", "linger_s", 30.0)) == _FILE
    assert "source app keeps its settings: rest_s=5 is less than linger_s=30" in caplog.text


@pytest.mark.parametrize(
    ("setting", "value", "error"),
    [
        ("topic", "x", "cannot be changed at run time: linger_s"),
        ("lines_per_s", "fast", "the value 'fast' is not a number"),
    ],
)
def test_invalid_setting_change_is_refused(setting: str, value: str, error: str) -> None:
    with pytest.raises(MisuseError, match=error):
        SourceChange("*", "*", setting, value).checked()


def test_overridden_changes_are_dropped() -> None:
    changes = [SourceChange("*", "*", "lines_per_s", float(n)) for n in range(5)] + [
        SourceChange("a", "*", "lines_per_s", 1.0)
    ]
    assert without_overruled(changes) == changes[-2:]


def test_agent_reads_each_change_once_and_stores_it(tmp_path: Path) -> None:
    told: list[int] = []
    with open_log(tmp_path / "log", append=True) as log:
        control = SourceControl(log, "settings", tmp_path / "kept", lambda: told.append(1))
        control.read_changes()
        assert (control.changes, told) == ([], [])
        change_settings(log, "settings", [SourceChange("*", "*", "lines_per_s", "20")])
        LogProducer(log, queues=1).send(Message("settings", b"strange"), queue=0)
        control.read_changes()
        control.read_changes()
        assert control.changes == [SourceChange("*", "*", "lines_per_s", 20.0)]
        assert told == [1]
        again = SourceControl(log, "settings", tmp_path / "kept", lambda: told.append(2))
        assert again.changes == control.changes  # before the log was asked, which may be down
        again.read_changes()
        assert told == [1]
        with pytest.raises(MisuseError):
            change_settings(log, "settings", [SourceChange("*", "*", "topic", "x")])
    with open_log(tmp_path / "other", append=True) as other:  # another log: its changes are read from the beginning
        change_settings(other, "settings", [SourceChange("*", "*", "paused", "true")])
        moved = SourceControl(other, "settings", tmp_path / "kept", lambda: told.append(3))
        moved.read_changes()
        assert moved.changes[-1] == SourceChange("*", "*", "paused", True)
    (tmp_path / "kept").write_text("{}")
    with open_log(tmp_path / "log") as log, pytest.raises(StorageError, match="delete it"):
        SourceControl(log, "settings", tmp_path / "kept", lambda: None)


def test_settings_are_stored_before_they_take_effect(tmp_path: Path) -> None:
    """Otherwise an agent killed a moment later would send lines that it had been told to hold back."""
    kept: list[list[SourceChange]] = []
    with open_log(tmp_path / "log", append=True) as log:

        def look_into_file() -> None:
            kept.append(SourceControl(log, "settings", tmp_path / "kept", lambda: None).changes)

        control = SourceControl(log, "settings", tmp_path / "kept", look_into_file)
        change_settings(log, "settings", [SourceChange("*", "*", "paused", True)])
        control.read_changes()
    assert kept == [[SourceChange("*", "*", "paused", True)]]


def test_changes_after_a_hole_in_the_log_are_read(tmp_path: Path) -> None:
    with open_log(tmp_path / "log", append=True) as log:
        control = SourceControl(log, "settings", tmp_path / "kept", lambda: None)
        change_settings(log, "settings", [SourceChange("*", "*", "paused", True)])
        log.append([Append("settings", 0, hole(1000, 1))])
        change_settings(log, "settings", [SourceChange("*", "*", "paused", False)])
        control.read_changes()
        assert control.changes == [SourceChange("*", "*", "paused", False)]


def test_empty_fetch_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_log(tmp_path / "log", append=True) as log:
        change_settings(log, "settings", [SourceChange("*", "*", "paused", True)])
        control = SourceControl(log, "settings", tmp_path / "kept", lambda: None)
        with monkeypatch.context() as patched:
            patched.setattr(log, "fetch", lambda _: [])
            control.read_changes()
        assert control.changes == []
        control.read_changes()
        assert control.changes == [SourceChange("*", "*", "paused", True)]


@pytest.mark.parametrize("failure", [StorageError("no space left"), RuntimeError("unforeseen")])
def test_settings_take_effect_when_they_cannot_be_stored_and_are_stored_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    """A disk that is full for a while: the thread that reads settings continues."""
    told: list[int] = []
    monkeypatch.setattr("txmsg.metaq.agent.control._LOOK_S", 0.01)
    with open_log(tmp_path / "log", append=True) as log:
        control = SourceControl(log, "settings", tmp_path / "kept", lambda: told.append(1))
        change_settings(log, "settings", [SourceChange("*", "*", "lines_per_s", 2.0)])
        with monkeypatch.context() as patched:
            patched.setattr("txmsg.metaq.agent.control.write_checked", Mock(side_effect=failure))
            control.start()
            until(lambda: str(failure) in caplog.text)
        until((tmp_path / "kept").exists)
        control.close()
        assert SourceControl(log, "settings", tmp_path / "kept", lambda: None).changes == control.changes
    assert control.changes == [SourceChange("*", "*", "lines_per_s", 2.0)]
    assert told == [1]


def test_changes_after_an_unreadable_message_are_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_log(tmp_path / "log", append=True) as log:
        control = SourceControl(log, "settings", tmp_path / "kept", lambda: None)
        change_settings(log, "settings", [SourceChange("*", "*", "paused", True)])
        log.append([Append("settings", 0, encode(FrameColumns([b"strange"], [1], headers=[b"\xff"])))])
        change_settings(log, "settings", [SourceChange("*", "*", "paused", False)])
        control.read_changes()
        assert control.changes == [SourceChange("*", "*", "paused", False)]
        assert "left out: offset 1 of topic settings queue 0 cannot be read" in caplog.text


def test_changes_read_before_an_error_take_effect_and_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    with open_log(tmp_path / "log", append=True) as log:
        control = SourceControl(log, "settings", tmp_path / "kept", lambda: told.append(1))
        first, second = SourceChange("*", "*", "paused", True), SourceChange("*", "*", "lines_per_s", 2.0)
        change_settings(log, "settings", [first])
        change_settings(log, "settings", [second])
        fetch = log.fetch

        def fetch_the_first(wanted: Mapping[LogQueue, int]) -> list[Fetched]:
            if any(wanted.values()):
                raise BrokerUnavailable("it is away")
            return fetch(wanted, size_bytes_max=1)

        with monkeypatch.context() as patched:
            patched.setattr(log, "fetch", fetch_the_first)
            with pytest.raises(BrokerUnavailable):
                control.read_changes()
        assert (control.changes, told) == ([first], [1])
        assert SourceControl(log, "settings", tmp_path / "kept", lambda: None).changes == [first]
        control.read_changes()
        assert (control.changes, told) == ([first, second], [1, 1])
