"""A source: finds its files, reads what is new in them, and appends it. A thread for each.

Everything it needs is opened and retried on its thread, so that its failures affect no other source: a damaged spool or
positions that cannot be read hold the source, a file that cannot be read holds its lane.
"""

from __future__ import annotations

import glob
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from hashlib import blake2b
from pathlib import Path
from stat import S_ISREG
from typing import Final

from google_crc32c import value as crc32c

from txmsg.errors import CorruptLog, Overloaded, TxmsgError
from txmsg.message import KEY_SIZE_BYTES_MAX, now_us
from txmsg.metaq.agent.agent_config import LIVE, SourceConfig
from txmsg.metaq.agent.log_output import LogOutput
from txmsg.metaq.agent.names import bases_of, is_compressed
from txmsg.metaq.agent.path_follower import GONE, FileId, FileReadOptions, PathFollower, RecordBlock, RetriedFailure
from txmsg.metaq.agent.positions import read_positions, write_positions
from txmsg.metaq.agent.records import ids_of
from txmsg.metaq.agent.stream import FollowedFile
from txmsg.metaq.format.frame import Compression, FrameColumns, encode
from txmsg.metaq.relay import Appendable
from txmsg.metaq.store.log import Append
from txmsg.runtime.logs import EventLog
from txmsg.wire.access.rate import TokenBucket

_log = EventLog(__name__)

_RECORDS_MAX: Final = 262_144
"""Records of one file in one append: a block of line feeds is as many records."""
_REFUSED_S: Final = 5.0
_DAMAGED_S: Final = 15.0
"""Seconds until a damaged spool is tried again. Longer than other pauses: each attempt reads the spool."""
_RATE_LOOK_S: Final = 0.25
_FULL_S: Final = 0.5
_JOIN_S_MAX: Final = 60.0


@dataclass(slots=True)
class SourceCounts:
    """Counters of a source since it started."""

    lines: int = 0
    """Records that are in the log or in the spool."""
    bytes: int = 0
    """Bytes of the files that these records were."""
    truncations: int = 0
    lost_bytes: int = 0


class Source:
    """A source, as the module says. `step` is one round; `run` repeats it. agent: the agent's name."""

    def __init__(
        self,
        name: str,
        config: SourceConfig,
        *,
        agent: str,
        state_dir: Path,
        log: Appendable,
        save_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.config = config
        self.counts = SourceCounts()
        self.failure = ""
        """The reason why nothing is read now; empty if it reads."""
        self.lanes: dict[Path, PathFollower] = {}
        self.stepped_at = clock()
        """The time at which the last round began."""
        self._agent = agent
        self._clock = clock
        self._save_s = save_s
        self._positions = state_dir / f"{name}.positions"
        self.outlet = LogOutput(log, state_dir / f"{name}.spool", spool_size_bytes_max=config.spool_size_bytes_max)
        self._compression = Compression[config.compression.upper()]
        self._cutter = config.cutter()
        self._reading = FileReadOptions(self._cutter, self._block_size_bytes(), config.rest_s, config.closed_s)
        self._found: set[FileId] = set()
        self._find_at = self._save_at = clock()
        self._changed = False
        self._is_restored = False
        self._is_first = True
        self._unlisted: dict[str, RetriedFailure] = {}
        self._bucket = TokenBucket(config.lines_per_s, clock()) if config.lines_per_s else None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"txmsg-agent-{name}", daemon=True)

    # ---- life

    def start(self) -> None:
        """Start the thread that reads."""
        self.outlet.start()
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end after the append under way; does not wait for it."""
        self._stopped.set()

    def close(self) -> None:
        """Wait until the thread has ended. Positions are on disk then. Closing twice is fine."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S_MAX)
        self.outlet.close()
        for lane in self.lanes.values():
            lane.close()

    def apply_settings(self, config: SourceConfig) -> None:
        """Apply the live settings of this configuration from now on."""
        if config.lines_per_s != self.config.lines_per_s:
            self._bucket = TokenBucket(config.lines_per_s, self._clock()) if config.lines_per_s else None
        self.config = replace(self.config, **{name: getattr(config, name) for name in LIVE})
        self._reading.block_size_bytes = self._block_size_bytes()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                wait_s = self.step()
                self._say("")
            except Overloaded as exc:
                self._say(str(exc))
                wait_s = _FULL_S
            except CorruptLog as exc:
                self._say(str(exc))
                wait_s = _DAMAGED_S
            except TxmsgError as exc:
                self._say(str(exc))
                wait_s = _REFUSED_S
            except Exception as exc:  # noqa: BLE001 - the root of a thread: positions are those of what was handed on
                _log.exception("agent.source_failed", "source %(source)s failed, and tries again", source=self.name)
                self.failure = f"{type(exc).__name__}: {exc}"
                wait_s = _REFUSED_S
            if wait_s:
                self._stopped.wait(wait_s)
        try:
            self._save()
        except TxmsgError as exc:
            self._say(str(exc))

    def _say(self, failure: str) -> None:
        if failure and not self.failure:
            _log.warning("agent.held", "source %(source)s reads nothing: %(error)s", source=self.name, error=failure)
        elif self.failure and not failure:
            _log.info("agent.goes_on", "source %(source)s reads again", source=self.name)
        self.failure = failure

    # ---- one round

    def step(self) -> float:
        """Check all files once, and return the seconds to wait until the next round.

        Raises the errors of the output, and StorageError for positions that cannot be read or written.
        """
        now = self.stepped_at = self._clock()
        unopened: TxmsgError | None = None
        try:
            self.outlet.open()  # first: positions that cannot be written may wait for the space that relaying frees
        except TxmsgError as exc:
            unopened = exc  # raised after the files were looked at, so that they stay open
        if not self._is_restored:
            self._restore()
        for lane in list(self.lanes.values()):
            lane.restore(now)
        if now >= self._find_at:
            # Patterns are searched less often than files are read: a search lists directories.
            self._find_at = now + self.config.find_s
            self._find_files(now)
        for lane in list(self.lanes.values()):
            lane.look_at_path(now)  # also while nothing is read: files that are open cannot be deleted
        if self._is_first or not all(stream.is_saved for stream in self._streams()):
            self._is_first = False
            self._save()  # or lines written before a restart would be taken for old, or not be found
        if unopened is not None:
            raise unopened
        if not self.config.paused:
            self._read(now)
        if self._changed and now >= self._save_at:
            self._save()
        unread_bytes = max(
            (stream.unread_bytes for lane in self.lanes.values() if not lane.is_held for stream in lane.streams),
            default=0,
        )
        if self._bucket is not None and unread_bytes:  # it holds the tokens of half a second
            return min(self.config.linger_s, _RATE_LOOK_S)
        return 0.0 if unread_bytes >= self.config.batch_size_bytes and not self.config.paused else self.config.linger_s

    def _read(self, now: float) -> None:
        blocks: list[RecordBlock] = []
        size = 0
        room = self._room(now)
        for lane in list(self.lanes.values()):
            block = lane.read(now, room) if room else None
            if block is None:
                continue
            blocks.append(block)
            size += block.records.size_bytes
            room -= 0 if self._bucket is None else len(block.records)
            if size >= self.config.batch_size_bytes:
                self._hand_on(blocks)
                blocks, size = [], 0
        if blocks:
            self._hand_on(blocks)

    def _room(self, now: float) -> int:
        return _RECORDS_MAX if self._bucket is None else min(_RECORDS_MAX, self._bucket.room(now))

    def _hand_on(self, blocks: list[RecordBlock]) -> None:
        # The id and the head are on disk before the first line is sent under them.
        if new := [block for block in blocks if not (block.stream.is_saved and block.stream.head.size)]:
            for block in new:
                block.stream.begin_content(block.data)
            self._save()  # or, after a crash, the same lines would get other ids, or other lines the same ones
        self.outlet.hand_on([self._append_of(block) for block in blocks])
        for block in blocks:
            # After the append: a crash in between sends these lines again under the same ids, which receivers drop.
            block.commit()
            if self._bucket is not None:
                self._bucket.take_tokens(len(block.records))
            self.counts.lines += len(block.records)
            self.counts.bytes += block.records.size_bytes
        self._changed = True

    def _append_of(self, block: RecordBlock) -> Append:
        count = len(block.records)
        key = self._ordering_key(block.stream.path)
        # The ordering key is the path, so lines of one path stay in order in one queue.
        columns = FrameColumns(
            body=block.records.bodies,
            stored_at_us=[now_us()],
            transaction_id=ids_of(block.stream.id, block.base, block.records.ends),
            ordering_key=[key] * count,
            tag=[self.config.tag] * count if self.config.tag else (),
        )
        queue = crc32c(key.encode()) % self.config.queues
        return Append(self.config.topic, queue, encode(columns, self._compression))

    def _ordering_key(self, path: Path) -> str:
        """Return AGENT:PATH: the known origin of a line, which keeps the lines of a path in one queue."""
        key = os.fsencode(f"{self._agent}:{path}")
        if len(key) > KEY_SIZE_BYTES_MAX:
            key = b"%s:%s" % (self._agent.encode(), blake2b(key, digest_size=16).hexdigest().encode())
        return key.decode("utf-8", "backslashreplace")

    # ---- files

    def _find_files(self, now: float) -> None:
        paths = self._paths(now)
        for path in paths:
            # What rotation has renamed is followed with the file that has its name now.
            is_part = any(path.with_name(base) in paths for base in bases_of(path.name))
            if path not in self.lanes and not is_part:
                self._new_lane(path, at_end=self._is_first and self.config.start == "end").look_at_path(now)
        for path, lane in list(self.lanes.items()):
            if not lane.known() and path not in paths:
                self.counts.truncations += lane.truncations
                self.counts.lost_bytes += lane.lost_bytes
                del self.lanes[path]

    def _paths(self, now: float) -> set[Path]:
        """Return the files that exist now and that the source follows. Records their inodes."""
        found: set[Path] = set()
        self._found.clear()
        for pattern in self.config.paths:
            self._look_at_place(pattern, now)
            for name in glob.iglob(pattern, recursive=True):
                path = Path(name)
                if is_compressed(path.name) or any(fnmatch(path.name, each) for each in self.config.exclude):
                    continue
                try:
                    stat = path.stat()
                except OSError:  # deleted; or its lane, or the place, reports it
                    continue
                if S_ISREG(stat.st_mode):
                    found.add(path)
                    self._found.add((stat.st_dev, stat.st_ino))
        return found

    def _look_at_place(self, pattern: str, now: float) -> None:
        """Report a pattern whose directory, or whose only file, cannot be accessed: `glob` finds nothing there."""
        place = _place_of(pattern)
        trouble = self._unlisted.setdefault(pattern, RetriedFailure())
        try:
            if place == pattern:
                os.stat(place)
            else:
                os.scandir(place).close()
        except GONE:
            pass
        except OSError as exc:
            trouble.note(place, exc, now)
            return
        trouble.clear(Path(place))

    def _new_lane(self, path: Path, *, at_end: bool = False) -> PathFollower:
        lane = self.lanes[path] = PathFollower(
            path, self._reading, knows=self._knows, is_found=self._found.__contains__, at_end=at_end
        )
        return lane

    def _block_size_bytes(self) -> int:
        return max(self.config.batch_size_bytes, self._cutter.block_size_bytes_least)

    def _knows(self, file: FileId) -> bool:
        return any((stream.device, stream.inode) == file for stream in self._streams())

    def _streams(self) -> Iterator[FollowedFile]:
        for lane in list(self.lanes.values()):
            yield from lane.known()

    def _restore(self) -> None:
        saved = read_positions(self._positions)
        self._is_first, self._is_restored = saved is None, True
        for stream in saved or ():
            lane = self.lanes.get(stream.path) or self._new_lane(stream.path)
            lane.saved.append(stream)

    def _save(self) -> None:
        if not self._is_restored:
            return
        write_positions(self._positions, self._streams())
        self._changed, self._save_at = False, self._clock() + self._save_s

    # ---- what is told

    def files(self) -> int:
        """Return the number of open files."""
        return sum(len(lane.streams) for lane in list(self.lanes.values()))

    def unread_bytes(self) -> int:
        """Return the unread bytes of all files, when they were last checked."""
        return sum(stream.unread_bytes for stream in self._streams())

    def troubles(self) -> list[str]:
        """Return the files and directories that cannot be read now, with the reasons."""
        found = [lane.trouble for lane in list(self.lanes.values())]
        found += [trouble.text for trouble in list(self._unlisted.values())]
        return [text for text in found if text]

    def truncations(self) -> int:
        return self.counts.truncations + sum(lane.truncations for lane in list(self.lanes.values()))

    def lost_bytes(self) -> int:
        return self.counts.lost_bytes + sum(lane.lost_bytes for lane in list(self.lanes.values()))


def _place_of(pattern: str) -> str:
    """Return the directory below which a pattern finds files; of a path without * ? [] the path itself."""
    if not glob.has_magic(pattern):
        return pattern
    place = pattern
    while glob.has_magic(place):
        place = os.path.dirname(place)
    return place
