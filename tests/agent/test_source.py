"""Rounds of a source on real files and a real log: rotation, truncation, inodes, restarts. Its clock is the test's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from txmsg.errors import BrokerUnavailable, Overloaded
from txmsg.message import ReceivedMessage
from txmsg.metaq import LogQueue, TopicSettings, open_log
from txmsg.metaq.agent.agent_config import SourceConfig
from txmsg.metaq.agent.positions import read_positions, write_positions
from txmsg.metaq.agent.records import stream_and_end_of
from txmsg.metaq.agent.source import Source
from txmsg.metaq.agent.stream import FollowedFile
from txmsg.metaq.interface import LogAccess
from txmsg.metaq.store.log import Append

_REST_S = 5.0
_CLOSED_S = 60.0
HEADER = "# the first line of every file"


class Followed:
    """A source that follows `app.log` in a directory, and the messages that it has sent.

    alike: it is followed through a link in another directory, each file begins with the same line, which is left out of
    what has come, and older files that begin with it and were never followed are beside it.
    """

    def __init__(self, directory: Path, *, alike: bool = False, **settings: Any) -> None:
        self.logs = directory / "logs"
        self.logs.mkdir()
        self.path = self.followed_path = self.logs / "app.log"
        self._is_alike = alike
        if alike:
            self.followed_path = directory / "links" / "app.log"
            self.followed_path.parent.mkdir()
            self.followed_path.symlink_to(self.path)
            for name in ("app.log-20200101", "app.log.0"):
                older = self.logs / name
                older.write_text("".join(f"{line}\n" for line in [HEADER, *(f"{n} older" for n in range(200))]))
                os.utime(older, (0, 0))
        self.headers = 0
        """Number of written files that begin with it."""
        self.now = 100.0
        self.log: LogAccess = open_log(directory / "log", append=True)
        self.to = SwitchableLog(self.log)
        self._state = directory / "state"
        self._state.mkdir()
        given = {"paths": (str(self.followed_path),), "topic": "t", "queues": 1, "linger_s": 0.01, **settings}
        self._config = SourceConfig(**given)
        self.source = self._start()

    def _start(self) -> Source:
        return Source(
            "s", self._config, agent="host", state_dir=self._state, log=self.to, save_s=1.0, clock=lambda: self.now
        )

    def write(self, *lines: str, path: Path | None = None, end: str = "\n") -> None:
        with open(path or self.path, "a") as file:
            if self._is_alike and not file.tell():
                file.write(f"{HEADER}\n")
                self.headers += 1
            file.write("".join(f"{line}{end}" for line in lines))

    def step(self, passed_s: float = 2.0) -> None:
        """Run rounds until nothing more is read."""
        self.now += passed_s
        for _ in range(10):
            self.source.step()

    def rename(self) -> None:
        """Rotate as logrotate with `create` does: app.log becomes app.log.1, and so on."""
        for number in range(8, 0, -1):
            if (old := self.logs / f"app.log.{number}").exists():
                old.rename(self.logs / f"app.log.{number + 1}")
        self.path.rename(self.logs / "app.log.1")

    def copy_and_truncate(self, *, then_cut: bool = True) -> None:
        """Rotate as logrotate with `copytruncate` does. then_cut=False: only the copy is made."""
        for number in range(8, 0, -1):
            if (old := self.logs / f"app.log.{number}").exists():
                old.rename(self.logs / f"app.log.{number + 1}")
        shutil.copyfile(self.path, self.logs / "app.log.1")
        if then_cut:
            os.truncate(self.path, 0)

    def restart(self, *, killed: bool = False) -> None:
        """Restart the source. killed: unsaved state is lost."""
        if not killed:
            self.source._save()
        self.source.close()
        self.source = self._start()

    def relay(self) -> None:
        """Move all batches waiting in the spool into the log. Raises the errors of log and spool."""
        assert self.source.outlet.relay is not None
        while self.source.outlet.relay.run_once():
            pass

    def messages(self) -> list[ReceivedMessage]:
        return [message for message in self.all_messages() if message.body != HEADER.encode()]

    def all_messages(self) -> list[ReceivedMessage]:
        queue = LogQueue("t", 0)
        if not self.log.ranges([queue])[queue].end:
            return []
        found = self.log.fetch({queue: 0}, size_bytes_max=100_000_000)
        return [message for each in found for batch in each.batches for message in batch.messages()]

    def lines(self) -> list[str]:
        """Return the lines received, in order, without repeats of an id."""
        return [message.body.decode() for message in {each.id: each for each in reversed(self.messages())}.values()][
            ::-1
        ]


class SwitchableLog:
    """A log that can be made unavailable."""

    def __init__(self, log: LogAccess) -> None:
        self._log = log
        self.is_away = False

    def append(self, appends: Sequence[Append]) -> list[int]:
        if self.is_away:
            raise BrokerUnavailable("it is away")
        return self._log.append(appends)

    def settings_of(self, topic: str) -> TopicSettings:
        return self._log.settings_of(topic)


@pytest.fixture(params=["plain", "alike"])
def followed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Followed]:
    found = Followed(tmp_path, alike=request.param == "alike")
    yield found
    found.source.close()
    found.log.close()


def test_lines_carry_their_file_and_position(followed: Followed) -> None:
    followed.write("one", "two")
    followed.step()
    followed.write("three")
    followed.step()
    messages = followed.messages()
    assert [message.body for message in messages] == [b"one", b"two", b"three"]
    assert {message.ordering_key for message in messages} == {f"host:{followed.followed_path}"}
    ends = [stream_and_end_of(message.id_bytes)[1] for message in messages]
    assert [end - ends[0] for end in ends] == [0, 4, 10]


def test_line_without_line_end_waits_until_the_file_stops_growing(followed: Followed) -> None:
    followed.write("one", end="")
    followed.step(0.1)
    followed.step(_REST_S / 2)
    assert followed.lines() == []
    followed.write(" and more", end="")
    followed.step(_REST_S / 2 + 1)
    assert followed.lines() == []
    followed.step(_REST_S)
    assert followed.lines() == ["one and more"]
    followed.write(", later")
    followed.step()
    assert followed.lines() == ["one and more", ", later"]


@pytest.mark.parametrize("way", ["rename", "copy_and_truncate"])
def test_a_rotated_file_is_read_to_its_end_before_the_next(followed: Followed, way: str) -> None:
    expected: list[str] = []
    for number in range(5):
        followed.write(f"{number} a", f"{number} b")
        if number != 2:
            followed.step()
        followed.write(f"{number} unread")
        expected += [f"{number} a", f"{number} b", f"{number} unread"]
        getattr(followed, way)()
        if number != 3:
            followed.step(0.1)
    followed.write("last")
    followed.step()
    assert followed.lines() == [*expected, "last"]
    assert len(followed.messages()) == len(expected) + 1
    assert followed.source.lost_bytes() == 0


@pytest.mark.parametrize("way", ["rename", "copy_and_truncate"])
def test_rotations_while_the_agent_is_down_lose_nothing(followed: Followed, way: str) -> None:
    followed.write("before")
    os.utime(followed.path, (1, 1))
    followed.rename()
    followed.write("a")
    followed.step()
    followed.restart()
    expected = ["a"]
    for number in range(3):
        followed.write(f"{number}")
        expected.append(f"{number}")
        getattr(followed, way)()
    followed.write("last")
    followed.restart()
    followed.step()
    assert followed.lines() == [*expected, "last"]
    assert followed.source.lost_bytes() == 0


def test_a_rotation_while_a_new_file_is_opened_loses_nothing(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.write("one")
    followed.step()
    followed.rename()
    followed.write("two")
    opened = FollowedFile.opened

    def rotated_before(path: Path, name: Path, *, now: float) -> FollowedFile:
        if path == followed.followed_path:
            monkeypatch.setattr(FollowedFile, "opened", opened)
            followed.rename()
            followed.write("three")
        return opened(path, name, now=now)

    monkeypatch.setattr(FollowedFile, "opened", rotated_before)
    followed.step()
    followed.rename()
    followed.write("four")
    followed.step()
    assert followed.lines() == ["one", "two", "three", "four"]


def test_lines_written_to_a_renamed_file_are_read(followed: Followed) -> None:
    followed.write("one")
    followed.step()
    followed.rename()
    followed.write("late", path=followed.logs / "app.log.1")
    followed.step()
    followed.step(10 * _CLOSED_S)
    followed.write("much later", path=followed.logs / "app.log.1")
    followed.step()
    followed.write("next")
    followed.step()
    assert followed.lines() == ["one", "late", "much later", "next"]


def test_a_file_that_is_deleted_is_read_to_its_end(followed: Followed) -> None:
    followed.write("one")
    followed.step()
    followed.write("two")
    followed.path.unlink()
    followed.step()
    followed.write("three")
    followed.step()
    assert followed.lines() == ["one", "two", "three"]
    followed.step(2 * _CLOSED_S)
    assert followed.source.files() == 1


def test_files_that_are_rotated_away_are_closed(followed: Followed) -> None:
    for number in range(10):
        followed.write(f"{number}")
        followed.step(_CLOSED_S + 1)
        followed.rename()
        if number > 2:
            (followed.logs / "app.log.3").unlink()
    assert followed.source.files() <= 4
    assert followed.lines() == [str(number) for number in range(10)]


def test_reused_inode_is_a_different_file(followed: Followed) -> None:
    followed.write("first of the old one", "second of the old one")
    followed.step()
    followed.restart()
    followed.source.close()
    inode = followed.path.stat().st_ino
    followed.path.unlink()
    followed.write("first of the new one, which is longer than the old one was by far")
    if followed.path.stat().st_ino != inode:  # as if the file system had given the inode again
        saved = followed.source._positions
        [stream] = read_positions(saved) or []
        stream.inode = followed.path.stat().st_ino
        write_positions(saved, [stream])
    followed.source = followed._start()
    followed.step()
    assert followed.lines()[2:] == ["first of the new one, which is longer than the old one was by far"]


def test_file_truncated_without_copy_is_read_from_start_and_loss_is_reported(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    followed.write("one")
    followed.step()
    followed.write("unfinished", end="")
    followed.step(0.1)
    os.truncate(followed.path, 0)
    followed.write("two")
    followed.step()
    assert followed.lines() == ["one", "two"]
    assert (followed.source.truncations(), followed.source.lost_bytes()) == (1, 10)
    assert "was truncated before its last 10 bytes were read" in caplog.text


def test_truncated_file_that_has_grown_beyond_its_position_is_read_from_start(followed: Followed) -> None:
    followed.write("one")
    followed.step()
    followed.path.write_text("another beginning that is longer\nand goes on\n")
    followed.step()
    assert followed.lines() == ["one", "another beginning that is longer", "and goes on"]


def test_truncated_file_with_same_first_lines_and_greater_size_is_read_from_start(followed: Followed) -> None:
    header = "# the same first line, " + "x" * 2000
    followed.write(header, "one")
    followed.step()
    followed.path.write_text(f"{header}\nthree\nfour\n")
    followed.step()
    assert followed.lines() == [header, "one", header, "three", "four"]


def test_copy_of_lines_after_truncation_is_not_read_twice(followed: Followed) -> None:
    followed.write("one")
    followed.step()
    followed.copy_and_truncate()
    followed.write("two", "three")
    followed.copy_and_truncate(then_cut=False)
    followed.step()
    os.truncate(followed.path, 0)
    followed.write("four")
    followed.step()
    assert followed.lines() == ["one", "two", "three", "four"]


def test_copy_with_same_first_lines_as_the_truncated_file_is_read(followed: Followed) -> None:
    followed.write("one")
    followed.step()
    for _ in range(3):
        followed.copy_and_truncate()
        followed.write("started")
        later_ns = followed.path.stat().st_mtime_ns + 1_000_000_000  # than what the file system tells apart
        os.utime(followed.path, ns=(later_ns, later_ns))
    followed.step()
    assert followed.lines() == ["one", "started", "started", "started"]


def test_files_with_same_first_lines_have_different_ids(followed: Followed) -> None:
    for _ in range(3):
        followed.write("# the same first line", "the same second line")
        followed.step()
        followed.copy_and_truncate()
        followed.step(0.1)
    assert len(followed.lines()) == len(followed.messages()) == 6


def test_lines_resent_after_a_kill_keep_their_ids(followed: Followed) -> None:
    followed.write("one")
    followed.step()
    followed.step()
    followed.write(*(f"{number}" for number in range(100)))
    followed.now += 0.1
    followed.source.step()
    followed.restart(killed=True)
    followed.write("last")
    followed.step()
    assert len(followed.messages()) > 102
    assert followed.lines() == ["one", *(f"{number}" for number in range(100)), "last"]


def test_ids_are_on_disk_before_the_first_line_is_sent(followed: Followed) -> None:
    followed.write("one")
    followed.now += 1
    followed.source.step()
    followed.restart(killed=True)
    followed.step()
    assert len({message.id for message in followed.messages()}) == 1


@pytest.mark.parametrize("way", ["rename", "copy_and_truncate"])
def test_ids_of_a_file_are_never_reused_for_other_lines(followed: Followed, way: str) -> None:
    """The source was killed after its first append, before it saved a position; then the file was rotated."""
    followed.write("one", "two")
    followed.now += 1
    followed.source.step()
    assert followed.lines() == ["one", "two"]
    getattr(followed, way)()
    followed.write("six", "ten")
    followed.restart(killed=True)
    followed.step()
    assert followed.lines() == ["one", "two", "six", "ten"]


@pytest.mark.parametrize("is_there", [True, False])
def test_lines_written_after_a_kill_are_not_skipped_as_old(tmp_path: Path, is_there: bool) -> None:
    followed = Followed(tmp_path, start="end")
    if is_there:
        followed.write("old")
    followed.source.step()
    followed.source.close()
    followed.write("while it was away")
    followed.restart(killed=True)
    followed.step()
    assert followed.lines() == ["while it was away"]
    followed.source.close()
    followed.log.close()


@pytest.mark.parametrize("way", ["rename", "copy_and_truncate"])
def test_an_empty_file_that_is_rotated_after_a_kill_is_read(followed: Followed, way: str) -> None:
    followed.path.touch()
    followed.source.step()
    followed.source.close()
    followed.write("one")
    getattr(followed, way)()
    followed.write("two")
    followed.restart(killed=True)
    followed.step()
    assert followed.lines() == ["one", "two"]


@pytest.mark.parametrize("way", ["rename", "copy_and_truncate"])
def test_ids_of_a_formerly_empty_file_are_never_reused_for_other_lines(followed: Followed, way: str) -> None:
    followed.path.touch()
    followed.step()
    followed.write("one", "two")
    followed.now += 0.1
    followed.source.step()
    assert followed.lines() == ["one", "two"]
    getattr(followed, way)()
    followed.write("six", "ten")
    followed.restart(killed=True)
    followed.step()
    assert followed.lines() == ["one", "two", "six", "ten"]


def test_lines_read_while_the_log_is_unavailable_wait_in_the_spool(followed: Followed) -> None:
    followed.write("before")
    followed.step()
    followed.to.is_away = True
    for number in range(10):
        followed.write(f"{number}")
        followed.step()
        followed.copy_and_truncate()
        (followed.logs / "app.log.1").unlink()
    followed.restart()
    followed.to.is_away = False
    followed.write("after")
    followed.step()
    assert followed.lines() == ["before"]  # nothing overtakes what is in the spool
    followed.relay()
    assert followed.lines() == ["before", *(f"{number}" for number in range(10)), "after"]
    followed.write("direct")
    followed.step()
    assert followed.lines()[-1] == "direct"


def test_a_full_spool_stops_reading(tmp_path: Path) -> None:
    followed = Followed(tmp_path, spool_size_bytes_max=1024 * 1024, batch_size_bytes=262_144, compression="none")
    followed.to.is_away = True
    lines = [f"{number} {'x' * 1000}" for number in range(3000)]
    followed.write(*lines)
    with pytest.raises(Overloaded, match=r"the spool .* holds"):
        followed.step()
    assert followed.source.unread_bytes() > 1_000_000
    followed.to.is_away = False
    followed.relay()
    followed.step()
    assert followed.lines() == lines
    followed.source.close()
    followed.log.close()


def test_lines_per_second_are_limited(tmp_path: Path) -> None:
    followed = Followed(tmp_path, lines_per_s=100.0)
    followed.write(*map(str, range(10_000)))
    followed.step(1)
    begin = len(followed.messages())
    followed.step(1)
    followed.step(1)
    assert begin <= 150
    assert len(followed.messages()) - begin <= 200
    assert len(followed.messages()) >= 100
    followed.source.close()
    followed.log.close()


def test_paused_source_reads_after_it_is_resumed(tmp_path: Path) -> None:
    followed = Followed(tmp_path, paused=True)
    followed.write("one")
    followed.step()
    assert followed.lines() == []
    followed.source.apply_settings(SourceConfig(paths=("/elsewhere",), topic="other"))
    followed.step()
    assert followed.lines() == ["one"]
    followed.source.close()
    followed.log.close()


def test_patterns_match_new_files_but_not_rotated_or_compressed_ones(tmp_path: Path) -> None:
    followed = Followed(tmp_path, paths=(str(tmp_path / "logs" / "**" / "*.log*"),), start="end")
    followed.write("old")
    followed.write("older", path=followed.logs / "app.log.1")
    followed.write("packed", path=followed.logs / "app.log.2.gz")
    followed.step()
    assert followed.lines() == []
    (followed.logs / "deep").mkdir()
    followed.write("new file", path=followed.logs / "deep" / "other.log")
    followed.write("new line")
    followed.step()
    assert sorted(followed.lines()) == ["new file", "new line"]
    assert {message.ordering_key for message in followed.messages()} == {
        f"host:{followed.path}",
        f"host:{followed.logs / 'deep' / 'other.log'}",
    }
    followed.source.close()
    followed.log.close()


def test_a_file_that_is_renamed_to_a_name_of_the_pattern_is_not_read_twice(tmp_path: Path) -> None:
    followed = Followed(tmp_path, paths=(str(tmp_path / "logs" / "*.log"),))
    followed.write("one")
    followed.step()
    followed.path.rename(followed.logs / "renamed.log")
    followed.write("two", path=followed.logs / "renamed.log")
    followed.step()
    followed.write("three")
    followed.step(10 * _CLOSED_S)
    followed.step(10 * _CLOSED_S)
    assert followed.lines() == ["one", "two", "three"]
    assert len(followed.messages()) == 3
    followed.source.close()
    followed.log.close()


def test_source_does_not_wait_between_rounds_while_data_is_unread(tmp_path: Path) -> None:
    followed = Followed(tmp_path, batch_size_bytes=4096, linger_s=3.0, record_size_bytes_max=1024)
    followed.write(*("x" * 500 for _ in range(30)))
    waits = [followed.source.step() for _ in range(6)]
    assert waits[0] == 0.0
    assert waits[-1] == 3.0
    followed.source.apply_settings(replace(followed._config, lines_per_s=10.0))
    followed.write(*("x" * 500 for _ in range(30)))
    assert followed.source.step() == 0.25
    followed.source.close()
    followed.log.close()


def test_new_batch_size_applies_at_once_to_open_files(tmp_path: Path) -> None:
    followed = Followed(tmp_path, batch_size_bytes=4096, record_size_bytes_max=1024)
    followed.write("first")
    followed.step()
    followed.source.apply_settings(replace(followed._config, batch_size_bytes=65_536))
    followed.write(*("x" * 500 for _ in range(30)))
    followed.source.step()
    assert len(followed.messages()) == 31
    followed.source.close()
    followed.log.close()


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    followed = Followed(tmp_path, paths=(str(tmp_path / "logs" / "*"),))
    os.mkfifo(followed.logs / "pipe")
    followed.write("one")
    followed.step()
    assert followed.lines() == ["one"]
    followed.source.close()
    followed.log.close()


def test_switch_to_a_copy_is_on_disk_before_more_is_sent(tmp_path: Path) -> None:
    followed = Followed(tmp_path, batch_size_bytes=4096, record_size_bytes_max=1024)
    lines = [f"{number:09} {'x' * 100}" for number in range(200)]
    followed.write(*lines)
    followed.source.step()
    assert 0 < len(followed.lines()) < 100
    followed.copy_and_truncate()
    followed.path.unlink()
    for _ in range(3):
        followed.source.step()
    assert 0 < len(followed.lines()) < 200
    followed.restart(killed=True)
    followed.write("last")
    followed.step()
    for _ in range(10):
        followed.step()
    assert followed.lines() == [*lines, "last"]
    followed.source.close()
    followed.log.close()


def test_truncated_file_is_not_mistaken_for_older_file_with_same_first_lines(followed: Followed) -> None:
    for number in range(1, 4):
        older = followed.logs / f"app.log-2020010{number}"
        older.write_text("".join(f"{line}\n" for line in [HEADER, *(f"{n} of {number}" for n in range(200))]))
        os.utime(older, (number, number))
    followed.path.write_text(f"{HEADER}\n")
    followed.step()
    os.truncate(followed.path, 0)
    followed.write("one")
    followed.step()
    assert followed.lines() == ["one"]


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_reading_continues_in_own_copy_among_copies_with_same_first_line(followed: Followed, copies: int) -> None:
    """Only the first line of each copy was read, so the copies differ in their times alone."""
    followed.path.write_text(f"{HEADER}\n")
    begun_ns = followed.path.stat().st_mtime_ns
    followed.step()
    for number in range(copies):
        with open(followed.path, "a") as file:
            file.write("" if file.tell() else f"{HEADER}\n")
            file.write(f"{number} a\n{number} b\n")
        followed.copy_and_truncate()
        later_ns = begun_ns + (number + 1) * 1_000_000_000  # more than what the file system tells apart
        os.utime(followed.logs / "app.log.1", ns=(later_ns, later_ns))
    followed.step()
    assert followed.lines() == [f"{number} {each}" for number in range(copies) for each in "ab"]


def test_renamed_file_with_same_first_lines_as_the_next_is_read(followed: Followed) -> None:
    """Both files were last written at the same moment, as by a program that rotates its own file."""
    header = "# the same first lines, " + "x" * 2000
    followed.write(header, "one")
    followed.step()
    followed.source.close()
    followed.write("two")
    followed.rename()
    followed.write(header, "three")
    now_ns = followed.path.stat().st_mtime_ns
    os.utime(followed.logs / "app.log.1", ns=(now_ns, now_ns))
    followed.rename()
    followed.write(header, "four")
    os.utime(followed.path, ns=(now_ns, now_ns))
    os.utime(followed.logs / "app.log.1", ns=(now_ns, now_ns))
    followed.restart()
    followed.step()
    assert [line for line in followed.lines() if line != header] == ["one", "two", "three", "four"]


@pytest.mark.parametrize("way", ["rename", "copy_and_truncate"])
@pytest.mark.parametrize("links", [1, 2])
def test_link_target_rotated_while_the_agent_is_down_loses_nothing(tmp_path: Path, links: int, way: str) -> None:
    places = [tmp_path / f"place{number}" for number in range(links)]
    target = tmp_path / "logs" / "app.log"
    for place in reversed(places):
        place.mkdir()
        (place / "app.log").symlink_to(os.path.relpath(target, place))
        target = place / "app.log"
    followed = Followed(tmp_path, paths=(str(target),))
    followed.write("before")
    followed.step()
    followed.source.close()
    expected = ["before"]
    for number in range(2):
        lines = [f"{number} {n}" for n in range(50)]
        followed.write(*lines)
        expected += lines
        getattr(followed, way)()
        os.utime(followed.logs / "app.log.1")
    followed.write("after")
    followed.restart()
    followed.step()
    assert followed.lines() == [*expected, "after"]
    assert followed.source.lost_bytes() == 0
    followed.source.close()
    followed.log.close()


def test_intermediate_link_rotated_while_the_agent_is_down_loses_nothing(tmp_path: Path) -> None:
    """As with containers: the path is a link to a link, which is renamed and recreated, to files of other names."""
    between = tmp_path / "between" / "app.log"
    between.parent.mkdir()
    path = tmp_path / "app.log"
    path.symlink_to(between)
    followed = Followed(tmp_path, paths=(str(path),))
    for number, name in enumerate("abc"):
        if number:
            for older in (2, 1):
                if (old := between.with_name(f"app.log.{older}")).is_symlink():
                    old.rename(between.with_name(f"app.log.{older + 1}"))
            between.rename(between.with_name("app.log.1"))
        followed.write(f"{number} x", f"{number} y", path=followed.logs / name)
        between.symlink_to(followed.logs / name)
        if not number:
            followed.step()
            followed.source.close()
    followed.restart()
    followed.step()
    assert followed.lines() == [f"{number} {each}" for number in range(3) for each in "xy"]
    followed.source.close()
    followed.log.close()


@pytest.mark.parametrize("is_running", [True, False])
def test_link_to_a_new_file_each_day_loses_nothing(tmp_path: Path, is_running: bool) -> None:
    days = [tmp_path / "logs" / f"app-2026112{number}.log" for number in range(4)]
    link = tmp_path / "logs" / "current"
    followed = Followed(tmp_path, paths=(str(link),))

    def lead_to(day: Path) -> None:
        link.unlink(missing_ok=True)
        link.symlink_to(day)

    for number, day in enumerate(days):
        lead_to(day)
        followed.write(f"{number} a", path=day)
        if number == 0:
            followed.step()
            if not is_running:
                followed.source.close()
        followed.write(f"{number} b", path=day)
    (tmp_path / "logs" / "other-20261121.log").write_text("of another program\n")
    if not is_running:
        followed.restart()
    followed.step()
    assert followed.lines() == [f"{number} {each}" for number in range(4) for each in "ab"]
    followed.source.close()
    followed.log.close()


def test_compressed_files_are_not_followed_with_custom_exclusions(tmp_path: Path) -> None:
    followed = Followed(tmp_path, paths=(str(tmp_path / "logs" / "*"),), exclude=("*.tmp",))
    for name in ("a.log.gz", "a.log.1.bz2", "a.xz", "a.zst", "a.zip", "a.lz4", "A.LOG.GZ", "a.log.Z", "a.tgz", "a.br"):
        followed.write("packed", path=followed.logs / name)
    followed.write("excluded", path=followed.logs / "a.tmp")
    followed.write("a line")
    followed.step()
    assert followed.lines() == ["a line"]
    followed.source.close()
    followed.log.close()
