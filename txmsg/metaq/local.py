"""A log in a directory, as `LogAccess`: read in this process, and appended to if this process is its writer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from txmsg.errors import CorruptLog, MisuseError, OffsetOutOfRange, StorageError
from txmsg.message import ReceivedMessage
from txmsg.metaq.acks import Acks
from txmsg.metaq.finding import KeySearch, search_id
from txmsg.metaq.group.groups import LocalGroups, LocalMember
from txmsg.metaq.group.logs import GroupLogs
from txmsg.metaq.interface import FETCH_SIZE_BYTES_MAX, OWN, Fetched, GroupState, LogGroupSettings, LogQueue, QueueRange
from txmsg.metaq.store.cells import queues_of_topic
from txmsg.metaq.store.delayed import Delayed, delayed_from
from txmsg.metaq.store.growth import Growth
from txmsg.metaq.store.log import Append, Log, LogConfig, LogCounts, LogSize
from txmsg.metaq.store.reader import CurrentReader, LogReader, QueueReader
from txmsg.metaq.store.role import require_no_copy
from txmsg.metaq.store.state import LogIdentity, identity_of
from txmsg.metaq.store.topics import TopicSettings, read_topics
from txmsg.runtime.forks import renew_in_children
from txmsg.runtime.owners import refusal_text
from txmsg.wire.start import Start

_STEP_SIZE_BYTES: Final = 64 * 1024 * 1024


class LocalLog:
    """A log in a directory. See `LogAccess` for the contract of each method.

    A forked child can read and join groups, but not append.
    """

    def __init__(
        self, root: Path, *, append: bool = False, config: LogConfig | None = None, follows: bool = False
    ) -> None:
        """Open the log. follows: for one that is opened with append: see `Log`."""
        self.root = root
        try:
            self._log = Log(root, config, follows=follows) if append else None
            self._renew()
            self._require_reader()
        except OSError as exc:
            where = exc.filename or root
            raise StorageError(f"the log {root} cannot be opened: {where}: {refusal_text(exc, root)}") from exc
        renew_in_children(self)

    def _renew(self) -> None:
        root = self.root
        self._current = CurrentReader(root)
        self._reading = threading.Lock()  # readers remember where they were
        self._of_groups = GroupLogs(root)
        self._groups = LocalGroups(root, self.queues_of, self.ranges, self.offsets_at, self.settings_of)
        self._closed = threading.Event()
        self._growth = Growth(root, self._closed)

    def close(self) -> None:
        self._closed.set()
        self._groups.close()
        if self._log is not None:
            self._log.close()

    def apply_settings(self, config: LogConfig) -> None:
        """Apply these settings from now on, as far as they are live. Only for a log that is open for writing."""
        assert self._log is not None
        self._log.apply_settings(config)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- reading

    def identity(self) -> LogIdentity:
        return identity_of(self.root, create=False)

    def topics(self) -> dict[str, list[int]]:
        return {topic: queues for topic, queues in self._require_reader().topics().items() if topic not in OWN}

    def ranges(self, queues: Collection[LogQueue]) -> dict[LogQueue, QueueRange]:
        with self._reading:
            readers = {queue: self._queue(queue) for queue in queues}
            return {
                queue: QueueRange(*reader.range()) if reader else QueueRange(0, 0) for queue, reader in readers.items()
            }

    def offsets_at(self, queues: Collection[LogQueue], at_us: int) -> dict[LogQueue, int]:
        with self._reading:
            readers = {queue: self._queue(queue) for queue in queues}
            return {queue: reader.offset_at(at_us) if reader else 0 for queue, reader in readers.items()}

    def _queue(self, queue: LogQueue) -> QueueReader | None:
        reader = self._reader_of(queue.topic)
        return reader.queue(*queue) if reader else None

    def _reader_of(self, topic: str) -> LogReader | None:
        root = self._of_groups.root_of(topic)
        return self._require_reader() if root is None else self._of_groups.reader(root)

    def _require_reader(self) -> LogReader:
        reader = self._log.reader if self._log and not self._log.is_copy else self._current.get()
        if reader is None:
            raise CorruptLog(
                f"{self.root} is not a log: it has no log.json; if it is one, `txmsg metaq check --repair` recreates it"
            )
        return reader

    def queues_of(self, topic: str) -> list[int]:
        root = self._of_groups.root_of(topic)
        if root is not None:
            return queues_of_topic(root, topic)
        known = self._require_reader().checkpoint()  # a queue whose cells are lost is there, too
        lost = {queue for of, queue in (known.ends if known else ()) if of == topic}
        return sorted(lost.union(queues_of_topic(self.root, topic)))

    def fetch(
        self,
        wanted: Mapping[LogQueue, int],
        *,
        size_bytes_max: int = FETCH_SIZE_BYTES_MAX,
        wait_s: float = 0.0,
    ) -> list[Fetched]:
        def found() -> list[Fetched]:
            return self._found(wanted, size_bytes_max)

        return self._growth.wait(found, wait_s) if wait_s > 0 else found()

    def _found(self, wanted: Mapping[LogQueue, int], size_bytes_max: int) -> list[Fetched]:
        left_bytes = size_bytes_max
        found: list[Fetched] = []
        for queue, offset in wanted.items():
            if found and left_bytes <= 0:
                break
            try:
                with self._reading:
                    reader = self._queue(queue)
                    batches = reader.fetch(offset, size_bytes_max=left_bytes) if reader else []
            except (OffsetOutOfRange, CorruptLog) as exc:
                found.append(Fetched(queue, error=exc))
                continue
            if batches:
                found.append(Fetched(queue, tuple(batches)))
                left_bytes -= found[-1].size_bytes
        return found

    def raw(self, topic: str, position: int, size_bytes: int) -> memoryview:
        """Return stored bytes of the log that has this topic. Raises CorruptLog if they are deleted."""
        with self._reading:
            reader = self._reader_of(topic)
            if reader is None:
                raise CorruptLog(f"the log of topic {topic} was deleted")
            return reader.commit_log.read(position, size_bytes)

    def find(self, topic: str, key: str, *, count_max: int = 100) -> list[ReceivedMessage]:
        with self._reading:
            reader = self._reader_of(topic)
            return reader.find(topic, key, count_max=count_max) if reader else []

    def find_id(self, topic: str, message_id: str) -> ReceivedMessage | None:
        search = KeySearch(None, {})
        while not (search := search_id(self, topic, message_id, search.following)).is_done:
            pass
        return search.found

    def delayed(self, limit: int = 100) -> Delayed:
        found, following = self.delayed_from(0, limit)
        while following:
            more, following = self.delayed_from(following, limit)
            found = found.plus(more, limit)
        return found

    def delayed_from(
        self, start: int, limit: int, shows: Callable[[str], bool] = lambda _: True
    ) -> tuple[Delayed, int]:
        """Run one step of `delayed` for topics that `shows` allows; return it and the next step's start; 0: it was the
        last.
        """
        return delayed_from(LogReader(self.root), start, limit, size_bytes=_STEP_SIZE_BYTES, shows=shows)

    # ---- appending

    def append(self, appends: Sequence[Append], acks: Acks | None = None) -> list[int]:
        if acks is Acks.COPIES:
            raise MisuseError(
                f"acks=copies of an append to the directory {self.root}: only a server has copies; use its address"
            )
        if roots := {root for append in appends if (root := self._of_groups.root_of(append.topic))}:
            return self._of_groups.append(roots.pop(), appends)
        return self.writer.append(appends, None if acks is None else acks.flush)

    def recall(self, topic: str, number: int) -> None:
        self._require_leader()
        self.writer.recall(topic, number)

    def settings_of(self, topic: str) -> TopicSettings:
        if self._log is None:
            return read_topics(self.root).get(topic, TopicSettings())
        return self._log.settings_of(topic)

    def set_topic(self, topic: str, settings: TopicSettings) -> None:
        self._require_leader()
        self.writer.set_topic(topic, settings)

    def _require_leader(self) -> None:
        """Raise NotLeader for a copy. The writer also knows if it is to follow a log that has not answered yet."""
        if self._log is None:
            require_no_copy(self.root)
        else:
            self._log.require_leader()

    @property
    def writer(self) -> Log:
        """The log as this process writes it. Raises MisuseError if it does not."""
        if self._log is None:
            raise MisuseError(f"the log {self.root} was opened to be read: open it with append=True, or use its server")
        return self._log

    def size(self) -> LogSize:
        """Return the size of the log, for its writer. Reads its directory."""
        return self.writer.size()

    @property
    def retention_s(self) -> float | None:
        """The seconds for which its writer keeps topics without a retention of their own; None: forever."""
        return self.writer.config.retention_s

    def counts(self) -> LogCounts:
        """Return the counters of its writer. Reads nothing."""
        return self.writer.counts()

    def flush(self) -> None:
        if self._log is not None:
            self._log.flush()

    # ---- groups

    def join(
        self,
        group: str,
        topics: Collection[str],
        *,
        start: Start = Start.earliest(),
        strategy: str = "averaged",
        zone: str = "",
    ) -> LocalMember:
        self._require_leader()
        return self._groups.join(group, topics, start=start, strategy=strategy, zone=zone)

    def groups(self) -> list[str]:
        return self._groups.groups()

    def group(self, group: str) -> GroupState:
        return self._groups.group(group)

    def seek(self, group: str, offsets: Mapping[LogQueue, int]) -> None:
        self._require_leader()
        self._groups.seek(group, offsets)

    def alter_group(
        self,
        group: str,
        *,
        stopped: bool | None = None,
        concurrency: int | None = None,
        rate_per_s: float | None = None,
    ) -> LogGroupSettings:
        self._require_leader()
        return self._groups.alter_group(group, stopped=stopped, concurrency=concurrency, rate_per_s=rate_per_s)

    def delete_group(self, group: str) -> None:
        self._require_leader()
        self._groups.delete_group(group)

    def forget_group(self, group: str) -> None:
        """Delete a group of a copy whose leader has deleted it."""
        self._groups.delete_group(group)
