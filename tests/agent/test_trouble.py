"""Trouble of a source stays its own: unreadable files, spools and positions block only what depends on them."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.agent.test_source import Followed
from txmsg.errors import CorruptLog, StorageError
from txmsg.metaq import open_log
from txmsg.metaq.agent.agent import Agent
from txmsg.metaq.agent.agent_config import AgentConfig, AgentFile, SourceConfig
from txmsg.metaq.agent.figures import dead, figures_of


class Unreadable:
    """Files that the system cannot open or read, as on a failing disk or an unavailable mount."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._read: set[int] = set()
        self._open: set[int] = set()
        self._pread, self._os_open = os.pread, os.open
        patch.setattr(os, "pread", self._reading)
        patch.setattr(os, "open", self._opening)

    def fail(self, path: Path, *, is_opened: bool = True) -> None:
        """Make reads of the file fail with EIO; is_opened=False: opening it fails."""
        (self._read if is_opened else self._open).add(path.stat().st_ino)

    def heal(self) -> None:
        self._read.clear()
        self._open.clear()

    def _reading(self, fd: int, size: int, at: int) -> bytes:
        if os.fstat(fd).st_ino in self._read:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._pread(fd, size, at)

    def _opening(self, path: Any, *args: Any, **named: Any) -> int:
        try:
            inode = os.stat(path).st_ino
        except OSError:
            inode = -1
        if inode in self._open:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return self._os_open(path, *args, **named)


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> Unreadable:
    return Unreadable(monkeypatch)


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    """A source that follows all of `logs/*.log`."""
    found = Followed(tmp_path, paths=(str(tmp_path / "logs" / "*.log"),))
    yield found
    found.source.close()
    found.log.close()


@pytest.mark.parametrize("is_opened", [True, False])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_unreadable_file_does_not_block_others_and_is_retried(
    followed: Followed, unreadable: Unreadable, caplog: pytest.LogCaptureFixture, is_opened: bool, is_restarted: bool
) -> None:
    caplog.set_level(logging.INFO)
    bad = followed.logs / "a.log"
    followed.write("bad 1", path=bad)
    followed.write("good 1")
    followed.step()
    if is_restarted:
        followed.restart()
    unreadable.fail(bad, is_opened=is_opened)
    followed.write("bad 2", path=bad)
    followed.write("good 2")
    followed.step()
    followed.write("good 3")
    followed.step()
    assert [line for line in followed.lines() if line.startswith("good")] == ["good 1", "good 2", "good 3"]
    if is_opened or is_restarted:
        reason = os.strerror(errno.EIO if is_opened else errno.EACCES)
        assert followed.source.troubles() == [f"{bad} cannot be read: {reason}"]
        assert "check the disk or the mount; to go on without the rest of the file, delete it" in caplog.text
        assert caplog.text.count("cannot be read") == 1
    unreadable.heal()
    followed.step(30)
    assert followed.source.troubles() == []
    assert sorted(followed.lines()) == ["bad 1", "bad 2", "good 1", "good 2", "good 3"]
    assert len(followed.messages()) == 5
    assert followed.source.lost_bytes() == 0


def test_new_file_that_cannot_be_opened_does_not_block_others(followed: Followed, unreadable: Unreadable) -> None:
    bad = followed.logs / "a.log"
    followed.write("bad", path=bad)
    followed.write("good")
    unreadable.fail(bad, is_opened=False)
    followed.step()
    assert followed.lines() == ["good"]
    assert str(bad) in followed.source.troubles()[0]
    unreadable.heal()
    followed.step(30)
    assert followed.lines() == ["good", "bad"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_source_waits_for_unreadable_rotated_file_until_it_is_deleted(
    followed: Followed, unreadable: Unreadable, is_restarted: bool
) -> None:
    followed.write("one")
    followed.step()
    if is_restarted:
        followed.source.close()
    followed.write("two")
    unreadable.fail(followed.path)
    followed.rename()
    followed.write("three")
    if is_restarted:
        followed.restart()
    followed.step()
    assert followed.lines() == ["one"]
    assert "app.log.1 cannot be read" in followed.source.troubles()[0]
    (followed.logs / "app.log.1").unlink()
    followed.step(30)
    assert followed.lines() == ["one", "three"]
    assert followed.source.lost_bytes() == (0 if is_restarted else 4)  # the part that the agent had read


def test_source_waits_for_unreadable_copy(followed: Followed, unreadable: Unreadable) -> None:
    followed.write("one")
    followed.step()
    followed.write("two")
    followed.copy_and_truncate()
    unreadable.fail(followed.logs / "app.log.1", is_opened=False)
    followed.write("x")
    followed.step()
    assert followed.lines() == ["one"]
    unreadable.heal()
    followed.step(30)
    assert followed.lines() == ["one", "two", "x"]
    assert followed.source.truncations() == 1


def test_directory_that_cannot_be_listed_is_reported(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        followed.step()
        assert followed.source.troubles() == [f"{followed.logs} cannot be read: {os.strerror(errno.EACCES)}"]
    followed.step(30)
    assert followed.source.troubles() == []


def test_lines_after_truncation_are_read_after_rename_while_unreadable(
    followed: Followed, unreadable: Unreadable
) -> None:
    followed.write("a line")
    followed.step()
    os.truncate(followed.path, 0)
    followed.write("cut")
    unreadable.fail(followed.path, is_opened=False)
    followed.step()
    assert followed.source.troubles()
    followed.rename()
    followed.write("x")
    unreadable.heal()
    followed.step(30)
    assert followed.lines() == ["a line", "cut", "x"]


def test_successor_of_deleted_file_is_read_after_rename_while_unreadable(
    followed: Followed, unreadable: Unreadable
) -> None:
    followed.write("one")
    followed.step()
    followed.source._save()
    followed.source.close()
    followed.write("two", path=followed.logs / "next")
    os.replace(followed.logs / "next", followed.path)
    unreadable.fail(followed.path, is_opened=False)
    followed.restart()
    followed.step()
    assert followed.source.troubles()
    followed.rename()
    followed.write("three")
    unreadable.heal()
    followed.step(30)
    assert followed.lines() == ["one", "two", "three"]


class Unlistable:
    """Directories that the system cannot list, though it opens files in them: mode 0711, or a failing disk."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.directories: set[Path] = set()
        self._listdir = os.listdir
        patch.setattr(os, "listdir", self._listing)

    def _listing(self, path: Any = ".") -> list[str]:
        if Path(path) in self.directories:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return self._listdir(path)


@pytest.mark.parametrize("way", ["rename", "copy_and_truncate"])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_source_waits_for_rotated_files_in_unlistable_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, is_restarted: bool
) -> None:
    unlistable = Unlistable(monkeypatch)
    followed = Followed(tmp_path)
    unlistable.directories.add(followed.logs)
    followed.write("one")
    followed.step()
    followed.restart()
    followed.write("two")
    followed.step()
    assert followed.lines() == ["one", "two"]  # a file with an unchanged name is opened without listing
    if is_restarted:
        followed.source.close()
    followed.write("three")
    getattr(followed, way)()
    followed.write("x")
    if is_restarted:
        followed.restart()
    followed.step()
    assert followed.source.troubles() == [f"{followed.logs} cannot be read: {os.strerror(errno.EACCES)}"]
    unlistable.directories.clear()
    followed.step(30)
    followed.step()
    assert followed.lines() == ["one", "two", "three", "x"]
    assert followed.source.lost_bytes() == 0
    followed.source.close()
    followed.log.close()


def test_rotated_link_target_in_unlistable_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlistable = Unlistable(monkeypatch)
    followed = Followed(tmp_path, alike=True)
    unlistable.directories.add(followed.followed_path.parent)
    followed.write("one")
    followed.step()
    followed.source._save()
    followed.source.close()
    followed.write("two")
    followed.path.rename(followed.logs / "app.log.1")
    followed.restart()
    followed.step()
    assert followed.lines() == ["one", "two"]
    followed.source.close()
    followed.log.close()


def _damage(state: Path) -> Path:
    """Change a byte of the oldest waiting frame."""
    file = min((state / "s.spool").glob("*.spool"))
    with open(file, "r+b") as damaged:
        damaged.seek(200)
        byte = damaged.read(1)
        damaged.seek(200)
        damaged.write(bytes([byte[0] ^ 1]))
    return file


@pytest.mark.parametrize("is_restarted", [False, True])
def test_damaged_spool_stops_its_source_until_the_file_is_moved_away(
    followed: Followed, tmp_path: Path, is_restarted: bool
) -> None:
    followed.write("before")
    followed.step()
    followed.to.is_away = True
    for number in range(3):
        followed.write(f"{number} {'x' * 300}")
        followed.step()
    if is_restarted:
        followed.source.close()
    file = _damage(tmp_path / "state")
    if is_restarted:
        followed.restart()
    followed.to.is_away = False
    if not is_restarted:
        with pytest.raises(CorruptLog):
            followed.relay()
    followed.write("waits in its file")
    followed.path.rename(followed.logs / "app.log.1")
    for _ in range(2):
        with pytest.raises(CorruptLog, match=r"is damaged at byte 0 .* move the file away; the agent"):
            followed.step()
    (followed.logs / "app.log.1").unlink()  # it is open, though nothing is read
    file.rename(tmp_path / "moved")
    followed.step()
    followed.write("after")
    followed.step()
    assert followed.lines() == ["before", "waits in its file", "after"]


def test_spool_is_reopened_after_failed_sync(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    followed.write("one")
    followed.step()
    followed.to.is_away = True
    followed.write("two")

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(StorageError, match="cannot be synced"):
            followed.step()
    followed.step()
    followed.to.is_away = False
    followed.relay()
    assert followed.lines() == ["one", "two"]


def test_damaged_positions_stop_their_source_and_are_kept(followed: Followed, tmp_path: Path) -> None:
    followed.write("one")
    followed.step()
    followed.restart()
    positions = tmp_path / "state" / "s.positions"
    good = positions.read_bytes()
    positions.write_bytes(good[:-5])
    followed.source.close()
    followed.source = followed._start()
    followed.write("two")
    with pytest.raises(StorageError, match="delete it, and all files of the source are read from their beginning"):
        followed.step()
    followed.source.close()
    assert positions.read_bytes() == good[:-5]
    positions.write_bytes(good)
    followed.source = followed._start()
    followed.step()
    assert followed.lines() == ["one", "two"]
    assert len(followed.messages()) == 2


@pytest.mark.parametrize("is_damaged", [False, True])
def test_the_spool_is_relayed_while_positions_cannot_be_written_or_read(
    followed: Followed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_damaged: bool
) -> None:
    """Relaying is the only way to free a full disk."""
    followed.write("one")
    followed.step()
    followed.to.is_away = True
    followed.write("two")
    followed.step()
    followed.restart()
    positions = tmp_path / "state" / "s.positions"
    good = positions.read_bytes()
    followed.write("new", path=followed.logs / "b.log")
    with monkeypatch.context() as patch:
        if is_damaged:
            positions.write_bytes(good[:-5])
        else:
            full = StorageError("no space left")
            patch.setattr("txmsg.metaq.agent.positions.write_checked", Mock(side_effect=full))
        for _ in range(2):
            with pytest.raises(StorageError, match="cannot be read" if is_damaged else "no space left"):
                followed.step()
        followed.to.is_away = False
        followed.relay()
        assert followed.lines() == ["one", "two"]
    positions.write_bytes(good)
    followed.step()
    assert followed.lines() == ["one", "two", "new"]


def test_trouble_of_one_source_does_not_affect_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three sources: one with a damaged spool, one whose positions are damaged, and one in which all is well."""
    state = tmp_path / "state"
    (state / "spooled.spool").mkdir(parents=True)
    (state / "spooled.spool" / "00000001.spool").write_bytes(b"x" * 100)
    (state / "spooled.spool" / "00000002.spool").write_bytes(b"")
    (state / "placed.positions").write_bytes(b"{")
    paths = {name: tmp_path / f"{name}.log" for name in ("spooled", "placed", "well")}
    for name, path in paths.items():
        path.write_text(f"{name}\n")
    sources = {name: SourceConfig(paths=(str(path),), topic=name, queues=1) for name, path in paths.items()}
    file = AgentFile(agent=AgentConfig(log=str(tmp_path / "log"), state_dir=state, control=""), sources=sources)
    with open_log(tmp_path / "log", append=True) as log:
        agent = Agent(file, log)
        for source in agent.sources.values():
            source._stopped.set()  # `_run` ends after one round, and records its result
            source._stopped.is_set = iter([False, True]).__next__  # type: ignore[method-assign]
            source._run()
        told = agent.status()["sources"]
        assert [told[name]["lines"] for name in paths] == [0, 0, 1]
        assert "move the file away" in told["spooled"]["held"]
        assert "placed.positions cannot be read" in told["placed"]["held"]
        assert told["well"]["held"] == ""
        [series] = [values for metric, values in figures_of(agent).series() if metric.name == "txmsg_agent_held"]
        held = {source: value for (source,), value in series.items()}
        assert [held[name] for name in paths] == [1, 1, 0]
        hung = agent.sources["spooled"]
        hung.stepped_at -= 1000
        assert dead(agent) == ""
        assert "check the mounts of its paths" in agent.held("spooled")
        for source in agent.sources.values():
            source.stepped_at = hung.stepped_at
        assert "spooled, placed, well" in dead(agent)
        agent._opened.close()
