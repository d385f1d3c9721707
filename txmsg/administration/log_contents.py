"""The contents of a log: its state, its topics and their queues, for a directory or a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from txmsg.errors import CorruptLog, MisuseError
from txmsg.metaq.interface import LogAccess, LogQueue, QueueRange
from txmsg.metaq.local import LocalLog
from txmsg.metaq.remote.remote_log import RemoteLog
from txmsg.metaq.store.commit_log import CommitLogReader
from txmsg.metaq.store.role import copy_of
from txmsg.metaq.store.topics import TopicSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCopy:
    """A copy of a log, as known to its leader."""

    name: str
    behind_bytes: int
    """Bytes on the leader's disk that are not on that of the copy."""
    silent_s: float
    """Seconds since its last request, which it sends every second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """A log, and the load of its server. Fields from `release` on are None for a directory.

    size_bytes, and the fields from `waiting_fetches` on except `retention_s`, are also None for users without
    `describe` on the cluster.
    """

    topics: int
    queues: int
    log_id: int
    generation: int
    size_bytes: int | None
    """The size of its files; None in Kafka, whose brokers have them."""
    release: str | None = None
    failure: str | None = None
    """The reason why the server accepts no appends; None: it does."""
    waiting_fetches: int | None = None
    members: int | None = None
    appending_bytes: int | None = None
    retention_s: float | None = None
    """The retention of topics without their own; None also for forever."""
    follows: str | None = None
    """The leader of a copy."""
    disk_free_ratio: float | None = None
    """The free share of the disk of its files."""
    certificate_remaining_s: float | None = None
    """Seconds until the server's certificate expires; None without TLS."""
    copies: Sequence[LogCopy] | None = None
    """Its copies on other machines that reported recently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTopic:
    """A topic of a log. queues: by number, the kept range, or the damage."""

    topic: str
    settings: TopicSettings
    queues: Sequence[tuple[int, QueueRange | CorruptLog]]

    @property
    def kept(self) -> int:
        """The number of kept offsets, in all undamaged queues."""
        return sum(found.end - found.begin for _, found in self.queues if isinstance(found, QueueRange))

    @property
    def damage(self) -> str | None:
        """The damage of its first damaged queue; None without one."""
        return next((str(found) for _, found in self.queues if isinstance(found, CorruptLog)), None)


def log_state(access: LogAccess) -> LogState:
    """Return the state of a log."""
    topics = access.topics()
    topic_count, queue_count = len(topics), sum(map(len, topics.values()))
    if not isinstance(access, RemoteLog):
        identity, size_bytes, copy = access.identity(), None, None
        if isinstance(access, LocalLog):
            files, copy = CommitLogReader(access.root / "commitlog"), copy_of(access.root)
            size_bytes = files.end_position() - files.begin_position()
        return LogState(
            topics=topic_count,
            queues=queue_count,
            log_id=identity.log_id,
            generation=identity.generation,
            size_bytes=size_bytes,
            follows=copy.leader if copy else None,
        )
    told = access.describe()
    return LogState(
        topics=topic_count,
        queues=queue_count,
        log_id=told.log_id,
        generation=told.generation,
        size_bytes=told.size_bytes if told.HasField("size_bytes") else None,
        release=told.release,
        failure=told.failure or None,
        waiting_fetches=told.waiting if told.HasField("waiting") else None,
        members=told.sessions if told.HasField("sessions") else None,
        appending_bytes=told.appending_bytes if told.HasField("appending_bytes") else None,
        retention_s=told.retention_s if told.HasField("retention_s") else None,
        follows=told.follows or None,
        disk_free_ratio=told.disk_free_ratio if told.HasField("disk_free_ratio") else None,
        certificate_remaining_s=told.certificate_remaining_s if told.HasField("certificate_remaining_s") else None,
        copies=[
            LogCopy(name=copy.name, behind_bytes=copy.behind_bytes, silent_s=round(copy.silent_s, 1))
            for copy in told.copies
        ]
        if told.HasField("size_bytes")
        else None,
    )


def log_topics(
    access: LogAccess, limit: int | None = None, *, after: str = "", contains: str = ""
) -> tuple[Sequence[LogTopic], str | None]:
    """Return the first topics after `after` whose names contain `contains`, by name, and `after` of the next page."""
    found = access.topics()
    names = sorted(name for name in found if name > after and contains.lower() in name.lower())
    shown = names[:limit]
    topics = [
        LogTopic(
            topic=name,
            settings=access.settings_of(name),
            queues=[
                (queue.queue, kept)
                for queue, kept in _kept(access, [LogQueue(name, number) for number in found[name]]).items()
            ],
        )
        for name in shown
    ]
    return topics, shown[-1] if len(names) > len(shown) else None


def require_read(access: LogAccess, topic: str, before: TopicSettings, after: TopicSettings) -> None:
    """Raises MisuseError if a change ends the reading of queues that a group has not read to the end."""
    gone = [number for number in access.queues_of(topic) if before.gives(number) and not after.gives(number)]
    if not gone or after.permission is not before.permission:
        return  # A change of permission stops groups for a while, and drops nothing.
    for group in access.groups():
        for state in access.group(group).queues:
            waiting = state.kept.end - max(state.kept.begin, state.offset or 0)
            if state.queue.topic == topic and state.queue.queue in gone and waiting > 0:
                raise MisuseError(
                    f"group {group} has not read the last {waiting} messages of topic {topic} queue "
                    f"{state.queue.queue}, and no group would: lower the write queues, wait until "
                    f"`txmsg group show {group} --log LOG` shows nothing waiting, or give --force"
                )


def _kept(access: LogAccess, queues: Sequence[LogQueue]) -> dict[LogQueue, QueueRange | CorruptLog]:
    """Return the kept range of each queue, or its damage."""
    try:
        return {**access.ranges(queues)}
    except CorruptLog as exc:
        if len(queues) == 1:
            return {queues[0]: exc}
    # One call for all queues is the rule; each by itself only after it failed, to find the damaged ones.
    return {queue: _kept(access, [queue])[queue] for queue in queues}
