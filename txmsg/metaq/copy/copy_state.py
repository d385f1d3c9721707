"""The state beside the frames of a log: options of topics, and groups. The leader sends it, and the copy stores it.

A copy requests it about once a second, so it is that much older than the copy's frames.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from txmsg.errors import CorruptLog
from txmsg.message import check_name
from txmsg.metaq.group.files import (
    OwnedQueue,
    begins_in,
    forget_sought,
    locked,
    offset_in,
    queue_file,
    queues_in,
    seek_to,
    sought_in,
    write_begins,
)
from txmsg.metaq.group.logs import GroupLogs
from txmsg.metaq.group.settings import settings_bytes, write_settings_bytes
from txmsg.metaq.interface import DEAD_LETTERS, RETRIES, LogQueue
from txmsg.metaq.local import LocalLog
from txmsg.metaq.protocol import offsets_of, queues_of_sets, sets_of_queues, settings_of, wire_offsets, wire_settings
from txmsg.metaq.store.ahead import leave_in_doubt, queues_in_doubt
from txmsg.metaq.store.commit_log import CommitLogReader
from txmsg.metaq.store.lock import make_private
from txmsg.metaq.store.state import identity_of
from txmsg.metaq.store.topics import read_topics
from txmsg.wire.v1 import metaq_pb2 as pb

_GROUP_TOPICS: Final = (RETRIES, DEAD_LETTERS)


def state_of(log: LocalLog) -> pb.LogStateReply:
    """Return everything beside the frames of a log that this process writes."""
    reply = pb.LogStateReply(own=sets_of_queues(sorted(LogQueue(*queue) for queue in log.writer.own_queues)))
    for topic, settings in read_topics(log.root).items():
        reply.topics.add(topic=topic, settings=wire_settings(settings))
    logs = GroupLogs(log.root)
    for group in log.groups():
        with suppress(FileNotFoundError):  # deleted this moment
            _add_group(reply.groups.add(group=group), log.root / "groups" / group, logs)
    return reply


def _add_group(told: pb.StoredLogGroup, directory: Path, logs: GroupLogs) -> None:
    begins = begins_in(directory)
    told.topics.extend(begins)
    told.begins.extend(
        wire_offsets({LogQueue(topic, number): at for topic, of in begins.items() for number, at in of.items()})
    )
    told.offsets.extend(
        wire_offsets({queue: offset_in(queue_file(directory, queue)) for queue in queues_in(directory)})
    )
    told.sought.extend(wire_offsets({**sought_in(directory)}))
    told.settings = settings_bytes(directory)
    for prefix in _GROUP_TOPICS:
        root = logs.root_of(prefix + told.group)
        assert root is not None
        if (root / "log.json").exists():
            identity = identity_of(root, create=False)
            end = CommitLogReader(root / "commitlog").end_position()
            told.logs.add(topic=prefix + told.group, log_id=identity.log_id, end=end)


class CopyState:
    """The copy's current state, so that only changes are written."""

    def __init__(self, log: LocalLog) -> None:
        self._log = log
        self._groups: dict[str, bytes] = {}
        self._own = {LogQueue(*queue) for queue in queues_in_doubt(log.root)}

    def write_changes(self, told: pb.LogStateReply, copy_log: Callable[[pb.GroupLog], bool]) -> None:
        """Write the parts of the state that have changed.

        copy_log: copies the log of a group, and returns True if it has the reported messages. Offsets are written after
        it, or a message that failed could be behind the offset of its group, and not yet among the retries.
        """
        known = read_topics(self._log.root)
        for topic in told.topics:
            settings = settings_of(topic.settings)
            if known.get(topic.topic) != settings:
                self._log.writer.set_topic(topic.topic, settings)
        own = self._own.union(_checked(queues_of_sets(told.own)))
        if own != self._own:
            # Before a promotion needs it: queues whose last offsets the leader may have given out without this copy
            # having them.
            leave_in_doubt(self._log.root, own)
            self._own = own
        for gone in set(self._log.groups()).difference(group.group for group in told.groups):
            self._groups.pop(gone, None)
            self._log.forget_group(gone)
        for group in told.groups:
            content = group.SerializeToString(deterministic=True)
            # Logs before offsets: a failed message behind the stored offset must be among the retries.
            are_copied = [copy_log(log) for log in group.logs]
            if all(are_copied) and self._groups.get(group.group) != content:
                _write_group(self._log.root, group)
                self._groups[group.group] = content


def _write_group(root: Path, told: pb.StoredLogGroup) -> None:
    directory = root / "groups" / check_name("consumer group", told.group)
    make_private(directory, below=root)
    offsets = _known(offsets_of(told.offsets))
    with locked(directory):
        begins: dict[str, dict[int, int]] = {check_name("topic", topic): {} for topic in told.topics}
        for queue, offset in _known(offsets_of(told.begins)).items():
            begins.setdefault(queue.topic, {})[queue.queue] = offset
        write_begins(directory, begins)
        write_settings_bytes(directory, told.settings)
        sought = _known(offsets_of(told.sought))
        for queue in sought_in(directory).keys() - sought.keys():
            forget_sought(directory, queue)
        for queue, offset in sought.items():
            seek_to(directory, queue, offset)
    for queue, offset in offsets.items():
        path = queue_file(directory, queue)
        if offset_in(path) == offset:
            continue
        owned = OwnedQueue.taken(path, "")
        if owned is None:
            raise CorruptLog(f"{path} is owned by a member of a group, which a copy must not have: stop it")
        try:
            owned.store(offset)
        finally:
            owned.release()


def _known(offsets: Mapping[LogQueue, int | None]) -> dict[LogQueue, int]:
    return {queue: offset for queue in _checked(offsets) if (offset := offsets[queue]) is not None}


def _checked(queues: Collection[LogQueue]) -> Collection[LogQueue]:
    """Check names that become paths, and lines of a file."""
    for topic in {queue.topic for queue in queues}:
        check_name("topic", topic)
    return queues
