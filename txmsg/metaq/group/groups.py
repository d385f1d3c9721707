"""Groups of a log in a directory: members, the queues they own, and their offsets; by files and locks, with no server.

A process that dies releases everything at once. One that is stopped (SIGSTOP, a debugger) keeps its queues, and these
wait: it may continue at any moment, so no other member can take them safely.
"""

from __future__ import annotations

import os
import resource
import secrets
import shutil
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from txmsg.errors import CorruptLog, MembershipLost, MisuseError, StorageError, UnknownGroup
from txmsg.message import check_name
from txmsg.metaq.group.files import (
    MemberFile,
    OwnedQueue,
    begins_in,
    forget_sought,
    locked,
    members_in,
    offset_in,
    offset_sought,
    owner_in,
    queue_file,
    queues_in,
    seek_to,
    sought_in,
    write_begins,
    zone_in,
)
from txmsg.metaq.group.settings import alter_settings, settings_in
from txmsg.metaq.interface import (
    RETRIES,
    GroupState,
    GroupView,
    LogGroupSettings,
    LogQueue,
    Member,
    QueueRange,
    QueueState,
)
from txmsg.metaq.store.commit_log import sync_directory
from txmsg.metaq.store.lock import make_private
from txmsg.metaq.store.topics import TopicSettings
from txmsg.runtime.forks import renew_in_children
from txmsg.runtime.logs import EventLog
from txmsg.runtime.owners import refusal_text, require_own
from txmsg.wire.start import Start, check_group_start

_log = EventLog(__name__)

_SPARE_FILES = 256

P = ParamSpec("P")
T = TypeVar("T")


def _on_disk(work: Callable[P, T]) -> Callable[P, T]:
    """Raise StorageError in words if files of a group cannot be changed: the disk is full, or may not be written."""

    @wraps(work)
    def done(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(*args, **kwargs)
        except FileNotFoundError:
            raise  # another process removes the group
        except OSError as exc:
            raise StorageError(f"{exc.filename or 'a file of a group'} cannot be written: {refusal_text(exc)}") from exc

    return done


class LocalGroups:
    """The groups of one log. queues_of: the current numbers of a topic's queues. See also `LogAccess`."""

    def __init__(
        self,
        root: Path,
        queues_of: Callable[[str], list[int]],
        ranges: Callable[[Collection[LogQueue]], dict[LogQueue, QueueRange]],
        offsets_at: Callable[[Collection[LogQueue], int], dict[LogQueue, int]],
        settings_of: Callable[[str], TopicSettings],
    ) -> None:
        self.root = root
        self.directory = root / "groups"
        self.queues_of = queues_of
        self.ranges = ranges
        self.settings_of = settings_of
        self._offsets_at = offsets_at
        self._members: list[LocalMember] = []

    def close(self) -> None:
        """Leave with all members that were created here."""
        for member in self._members:
            member.leave({})

    @_on_disk
    def join(
        self,
        group: str,
        topics: Collection[str],
        *,
        start: Start = Start.earliest(),
        strategy: str = "averaged",
        zone: str = "",
    ) -> LocalMember:
        """See `LogAccess.join`."""
        require_own(self.root, "the log")
        check_name("topic", RETRIES + check_name("consumer group", group))
        for topic in topics:
            check_name("topic", topic)
        if zone:
            check_name("zone", zone)
        start = check_group_start(start, default=Start.earliest())
        while True:
            with suppress(FileNotFoundError):  # deleted this moment, as by a broadcasting member that ends
                return self._join(group, topics, start, strategy, zone)

    def _join(self, group: str, topics: Collection[str], start: Start, strategy: str, zone: str) -> LocalMember:
        directory = self.directory / group
        if not directory.is_dir():
            make_private(directory, below=self.directory.parent)
            # Synced, so that the begins written below survive a power cut together with their directory.
            sync_directory(self.directory)
            sync_directory(self.directory.parent)
        member_id = f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"
        with locked(directory):
            # Before the member's file: as soon as others see a member it gets queues, and may take them at once.
            self._store_begins(directory, topics, start)
            file = MemberFile(directory, Member(member_id, tuple(sorted(topics)), strategy, zone))
        member = LocalMember(self, group, member_id, file)
        self._members = [member for member in self._members if not member.has_left] + [member]
        return member

    def _store_begins(self, directory: Path, topics: Collection[str], start: Start) -> None:
        """Fix the group's begins in topics that are new to it, for all queues that they have now."""
        # Begins are fixed for all queues of a topic when the group first meets it. If each queue were placed when it is
        # taken, one that is added a minute later would also start at its latest message, and skip some (decision 0022).
        begins = begins_in(directory)
        new = [topic for topic in topics if topic not in begins]
        if not new:
            return
        queues: list[LogQueue] = []
        if start.kind != "earliest":  # failed messages are never skipped
            topics = [topic for topic in new if not topic.startswith(RETRIES)]
            queues = [LogQueue(topic, number) for topic in topics for number in self.queues_of(topic)]
        if start.kind == "latest":
            offsets = {queue: kept.end for queue, kept in self.ranges(queues).items()}
        else:
            offsets = self._offsets_at(queues, start.value)
        for topic in new:
            begins[topic] = {queue.queue: offset for queue, offset in offsets.items() if queue.topic == topic}
        write_begins(directory, begins)

    def groups(self) -> list[str]:
        """See `LogAccess.groups`."""
        with suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(self.directory) if not name.startswith("."))
        return []

    def group(self, group: str) -> GroupState:
        """See `LogAccess.group`."""
        directory = self._known(group)
        members = members_in(directory)
        alive, sought = {member.id for member in members}, sought_in(directory)
        queues = queues_in(directory)
        kept = self.ranges(queues)
        states: list[QueueState] = []
        for queue in queues:
            path = queue_file(directory, queue)
            owner = owner_in(path)
            offset = sought.get(queue, offset_in(path))
            states.append(QueueState(queue, owner if owner in alive else None, offset, kept[queue]))
        return GroupState(group, tuple(members), tuple(states), settings_in(directory))

    @_on_disk
    def seek(self, group: str, offsets: Mapping[LogQueue, int]) -> None:
        """See `LogAccess.seek`."""
        require_own(self.root, "the log")
        directory = self._known(group)
        with locked(directory):
            for queue, offset in offsets.items():
                # The request is stored first: an owner follows it at its next view, and a process that dies here leaves
                # it for the next owner.
                seek_to(directory, queue, offset)
        for queue in offsets:  # those without an owner, which would do it
            _take_queue(directory, queue, "")

    @_on_disk
    def alter_group(
        self, group: str, *, stopped: bool | None, concurrency: int | None, rate_per_s: float | None
    ) -> LogGroupSettings:
        """See `LogAccess.alter_group`."""
        require_own(self.root, "the log")
        directory = self._known(group)
        with locked(directory):
            return alter_settings(directory, stopped=stopped, concurrency=concurrency, rate_per_s=rate_per_s)

    @_on_disk
    def delete_group(self, group: str) -> None:
        """See `LogAccess.delete_group`."""
        require_own(self.root, "the log")
        directory = self._known(group)
        gone = self.directory / f".{group}.{secrets.token_hex(4)}"
        with locked(directory):
            if members := members_in(directory):
                raise MisuseError(f"group {group} has {len(members)} members, such as {members[0].id}: stop them first")
            # One rename ends the group for all processes at once. What a crash leaves of it begins with a dot, which
            # `groups` does not list.
            directory.rename(gone)
        shutil.rmtree(gone)

    def _known(self, group: str) -> Path:
        directory = self.directory / check_name("consumer group", group)
        if not directory.is_dir():
            raise UnknownGroup(f"group {group} is unknown to this log: it is created when its first member joins")
        return directory


class LocalMember:
    """See `GroupMember` for the contract of each method."""

    def __init__(self, of: LocalGroups, group: str, member_id: str, file: MemberFile) -> None:
        self.group = group
        self.id = member_id
        self._of = of
        self._directory = of.directory / group
        self._file = file
        self._owned: dict[LogQueue, OwnedQueue] = {}
        self._damaged: set[LogQueue] = set()  # logged once
        self.has_left = False
        self._is_copy = False
        renew_in_children(self)

    @_on_disk
    def view(self) -> GroupView:
        self._require_member()
        if not self._file.is_there():
            # A lock on a deleted file protects nothing: another member may own the same queue by a new file.
            self._drop()
            raise MembershipLost(
                f"the files of group {self.group} were removed while member {self.id} ran: it owns no queues any "
                "more, and joins again"
            )
        members = members_in(self._directory)
        topics = {topic for member in members for topic in member.topics}
        queues = sorted(queue for topic in topics for queue in self._queues_to_read(topic))
        sought = {queue: offset for queue, offset in sought_in(self._directory).items() if queue in self._owned}
        return GroupView(tuple(members), tuple(queues), sought, zone_in(self._of.root), settings_in(self._directory))

    def _queues_to_read(self, topic: str) -> Iterable[LogQueue]:
        settings = self._of.settings_of(topic)
        return (LogQueue(topic, number) for number in self._of.queues_of(topic) if settings.gives(number))

    @_on_disk
    def take_queues(self, queues: Collection[LogQueue]) -> dict[LogQueue, int]:
        self._require_member()
        _allow_files(len(self._owned) + len(queues))
        new: list[LogQueue] = []
        for queue in queues:
            owned = self._owned.get(queue) or _take_queue(self._directory, queue, self.id)
            if owned is not None:
                self._owned[queue] = owned
                if owned.offset is None:
                    new.append(queue)
        # Nearly always every queue has a stored offset, and the file is not read.
        begins = begins_in(self._directory) if new else {}
        for queue in new:
            self._store_begin(queue, begins.get(queue.topic, {}).get(queue.queue))
        return {queue: self._owned[queue].stored for queue in queues if queue in self._owned}

    def _store_begin(self, queue: LogQueue, offset: int | None) -> None:
        """Store the group's begin in a queue. One whose begin cannot be read is released: others continue."""
        try:
            self._owned[queue].store(self._of.ranges([queue])[queue].begin if offset is None else offset)
        except CorruptLog as exc:
            self._owned.pop(queue).release()
            if queue not in self._damaged:
                self._damaged.add(queue)
                _log.error(
                    "group.queue_damaged",
                    "group %(group)s takes it when it is mended: %(error)s",
                    group=self.group,
                    topic=queue.topic,
                    queue=queue.queue,
                    error=exc,
                )

    @_on_disk
    def store(self, offsets: Mapping[LogQueue, int]) -> None:
        self._require_member()
        for queue in offsets:
            self._require_owned(queue)
        for queue, offset in offsets.items():
            self._owned[queue].store(offset)

    @_on_disk
    def seek_done(self, offsets: Mapping[LogQueue, int]) -> None:
        self.store(offsets)
        with locked(self._directory):
            for queue, offset in offsets.items():
                # Stored before the request is deleted: a crash in between repeats the seek. A later request, with
                # another offset, stays.
                if offset_sought(self._directory, queue) == offset:
                    forget_sought(self._directory, queue)

    @_on_disk
    def release(self, offsets: Mapping[LogQueue, int]) -> None:
        self.store(offsets)
        for queue in offsets:
            self._owned.pop(queue).release()

    def leave(self, offsets: Mapping[LogQueue, int]) -> None:
        if self.has_left or self._is_copy:
            return
        try:
            self.store({queue: offset for queue, offset in offsets.items() if queue in self._owned})
        finally:
            self._drop()

    @_on_disk
    def _drop(self) -> None:
        """Release everything, even if the disk fails for some of it."""
        self.has_left = True
        with ExitStack() as owned:
            owned.callback(self._file.close)
            for queue in self._owned.values():
                owned.callback(queue.release)
            self._owned.clear()

    def _require_member(self) -> None:
        if self.has_left:
            raise MisuseError(f"member {self.id} has left group {self.group}: join again")
        if self._is_copy:
            raise MisuseError(
                f"process {os.getpid()} was forked from member {self.id} of group {self.group}, and is not a member "
                "itself: join again"
            )

    def _require_owned(self, queue: LogQueue) -> None:
        if queue not in self._owned:
            raise MisuseError(
                f"topic {queue.topic} queue {queue.queue} is not owned by member {self.id} of group {self.group}: "
                "nothing was stored"
            )

    def _renew(self) -> None:
        """Drop the copies of locks in a forked child, so that it does not keep queues that its parent releases."""
        if self._is_copy:
            return  # the child of a child: by now the numbers are those of other files
        self._is_copy = True
        if not self.has_left:
            for file in self._files():
                file.close_in_child()

    def _files(self) -> Iterable[MemberFile | OwnedQueue]:
        return [self._file, *self._owned.values()]


def _take_queue(directory: Path, queue: LogQueue, owner: str) -> OwnedQueue | None:
    """Take the queue if no member owns it, at the offset of a pending seek, if any."""
    owned = OwnedQueue.taken(queue_file(directory, queue), owner)
    if owned is None:
        return None
    try:
        with locked(directory):
            # The queue's lock is held, and was taken without waiting; the group's comes second, as in `seek_done`, so
            # no two processes wait for each other.
            sought = offset_sought(directory, queue)
            if sought is not None:
                owned.store(sought)
                forget_sought(directory, queue)
    except BaseException:
        owned.release()  # else no member could take it while this process lives
        raise
    if not owner:
        owned.release()
    return owned


def _allow_files(count: int) -> None:
    """Raise this process's limit of open files if that many queues need it, up to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + _SPARE_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
