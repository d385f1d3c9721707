"""The options of a read, `spark.read.format("metaq")`, checked.

Named as those of Spark's own Kafka source where the meaning is the same.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, TypeAlias

from txmsg.errors import MisuseError, OffsetOutOfRange, UnknownTopic, shown
from txmsg.message import check_name, datetime_of_us
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.kafka.location import is_kafka
from txmsg.runtime.logs import EventLog
from txmsg.wire.address import check_address
from txmsg.wire.start import Start

_log = EventLog(__name__)

_EARLIEST, _LATEST = Start.earliest(), Start.latest()
_OF_NUMBER: Final = {-2: _EARLIEST, -1: _LATEST}
_NAMES: Final = (
    "path",
    "server",
    "topics",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "bodyKeys",
    "prefetch",
    "acceptGeneration",
)
_OF_STREAMS: Final = ("maxOffsetsPerTrigger", "prefetch", "acceptGeneration")
_OF_BATCHES: Final = ("endingOffsets", "endingTimestamp")
_RECORDS_PER_PARTITION: Final = 1_000_000
_COUNT_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = len(str(_COUNT_MAX))
_GLOB: Final = frozenset("*?[")


Place: TypeAlias = Start | Mapping[LogQueue, Start]
"""The begin or the end of all queues, or an offset for each queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of one read. Sent to executors."""

    where: str | Path
    """A directory, or the address of a server or of a Kafka."""
    topics: tuple[str, ...]
    """Names of topics, and patterns with * ? [ ]."""
    start: Place
    end: Place = _LATEST
    max_offsets_per_trigger: int | None = None
    """Maximum messages in a batch of a stream. Default: no limit."""
    min_partitions: int = 1
    """Minimum number of tasks of a large read. Default 1."""
    max_records_per_partition: int = _RECORDS_PER_PARTITION
    """Maximum messages in a task. Default 1,000,000."""
    fail_on_data_loss: bool = True
    """True if a read fails when messages that it should have read are gone. Default: true."""
    include_headers: bool = False
    """True for a column `headers`. Default: false."""
    body_keys: str | None = None
    """Address of a broker with the keys of erasable topics. Default: none, their bodies stay encrypted."""
    prefetch: bool = False
    """True if a batch of a stream is read while it is planned, and not by tasks. Default: false."""
    accept_generation: int | None = None
    """A later generation of the log under which a stream continues at the offsets of its checkpoint, though the log
    does not show that they name the same messages. Default: none."""

    def topics_of(self, known: Collection[str], *, all_named: bool) -> list[str]:
        """Return the topics of a log to read. all_named: raise UnknownTopic for a name that the log does not have."""
        found = [topic for topic in known if any(fnmatchcase(topic, pattern) for pattern in self.topics)]
        if all_named:
            for name in self.topics:
                if not _is_pattern(name) and name not in known:
                    raise UnknownTopic(
                        f"topic {name!r} is not in the log {self.where}{_near(name, known)}: check the spelling, or "
                        "send a message to it first"
                    )
        return sorted(found)

    def report_loss(self, queue: LogQueue, begin: int, end: int, why: str) -> None:
        """Report that messages which should have been read are gone: raise OffsetOutOfRange, or log it and return."""
        what = f"topic {queue.topic} queue {queue.queue}: offsets {begin} to {end - 1} cannot be read: {why}"
        if self.fail_on_data_loss:
            raise OffsetOutOfRange(f"{what}; look into it, then go on without them by failOnDataLoss=false", begin, end)
        _log.warning(
            "spark.messages_lost",
            "%(what)s; going on without them",
            what=what,
            topic=queue.topic,
            queue=queue.queue,
            messages=end - begin,
        )


def options_of(given: Mapping[str, str], *, streaming: bool, kafka: str | None = None) -> ReadOptions:
    """Parse the options of Spark, whose names ignore case. Raises MisuseError, InvalidName.

    kafka: the address of the Kafka to read; None: the options name the log.
    """
    values = _known(given)
    for name in _OF_BATCHES if streaming else _OF_STREAMS:
        if name in values:
            kind = "spark.read" if name in _OF_BATCHES else "spark.readStream"
            raise MisuseError(f"option {name} is one of {kind}: leave it out")
    start = _place(values, "startingOffsets", "startingTimestamp", _LATEST if streaming else _EARLIEST)
    end = _place(values, "endingOffsets", "endingTimestamp", _LATEST)
    if end == _EARLIEST or (isinstance(end, Mapping) and _EARLIEST in end.values()):
        raise MisuseError("endingOffsets is earliest, before which there is nothing: give 'latest', or offsets")
    if not streaming and (start == _LATEST or (isinstance(start, Mapping) and _LATEST in start.values())):
        raise MisuseError("startingOffsets is latest, after which there is nothing to read: give 'earliest' or offsets")
    _require_begin_before_end(start, end)
    return ReadOptions(
        where=_where(values) if kafka is None else kafka,
        topics=_topics(values.get("topics", "")),
        start=start,
        end=end,
        max_offsets_per_trigger=_count(values, "maxOffsetsPerTrigger"),
        min_partitions=_count(values, "minPartitions") or 1,
        max_records_per_partition=_count(values, "maxRecordsPerPartition") or _RECORDS_PER_PARTITION,
        fail_on_data_loss=_yes(values, "failOnDataLoss", default=True),
        include_headers=_yes(values, "includeHeaders", default=False),
        body_keys=check_address("option bodyKeys", values["bodyKeys"]) if "bodyKeys" in values else None,
        prefetch=_yes(values, "prefetch", default=False),
        accept_generation=_count(values, "acceptGeneration"),
    )


def _known(given: Mapping[str, str]) -> dict[str, str]:
    by_lower = {name.lower(): name for name in _NAMES}
    values: dict[str, str] = {}
    for name, value in given.items():
        known = by_lower.get(name.lower())
        if known is None:
            near = _near(name, _NAMES)
            raise MisuseError(f"option {shown(name)} of a read is unknown{near}: there are {', '.join(_NAMES)}")
        values[known] = value.strip()
    return values


def _near(name: str, known: Iterable[str]) -> str:
    found = get_close_matches(name, list(known), 1)
    return f" (is it {found[0]}?)" if found else ""


def _where(values: Mapping[str, str]) -> str | Path:
    path, server = values.get("path"), values.get("server")
    if bool(path) == bool(server):
        raise MisuseError(
            "a read of MetaQ needs one of the options path (a directory) and server (HOST:PORT of `txmsg metaq serve`)"
        )
    if is_kafka(path or server):
        raise MisuseError(f"{path or server} is read by Spark's own source: use txmsg.spark.read_log or stream_log")
    if path:
        return Path(path)
    assert server
    return server if server.startswith("unix:") else check_address("option server", server)


def _is_pattern(name: str) -> bool:
    return not _GLOB.isdisjoint(name)


def _topics(text: str) -> tuple[str, ...]:
    names = tuple(name for word in text.split(",") if (name := word.strip()))
    if not names:
        raise MisuseError("a read of MetaQ needs the option topics: names and patterns (trade.*), separated by commas")
    for name in names:
        if not _is_pattern(name):
            check_name("topic", name)
    return names


def _place(values: Mapping[str, str], offsets: str, timestamp: str, default: Start) -> Place:
    if offsets in values and timestamp in values:
        raise MisuseError(f"options {offsets} and {timestamp} exclude each other: leave one out")
    if timestamp in values:
        text = values[timestamp]
        ms = _whole(text)
        if ms is None or ms > _COUNT_MAX // 1000:
            raise MisuseError(f"option {timestamp}={shown(text)} is not a time: give milliseconds since 1970 (UTC)")
        return Start("time", ms * 1000)
    if offsets not in values:
        return default
    text = values[offsets]
    if not text.startswith("{"):
        return Start.parse(text)
    try:
        return {
            LogQueue(check_name("topic", topic), int(queue)): _of_number(offset)
            for topic, queues in json.loads(text).items()
            for queue, offset in queues.items()
        }
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise MisuseError(
            f"option {offsets}={shown(text)} is not a start position by queue: give JSON such as "
            '{"trade.created": {"0": 17, "1": -2}}, where -2 is the earliest and -1 the latest'
        ) from None


def _of_number(value: object) -> Start:
    """Parse an offset, or one of the two numbers by which Spark's own sources name the ends."""
    if not isinstance(value, int) or isinstance(value, bool) or value < min(_OF_NUMBER):
        raise ValueError(value)
    return _OF_NUMBER.get(value) or Start.offset(value)


def _require_begin_before_end(start: Place, end: Place) -> None:
    """Raise MisuseError if offsets or times end before they begin. Ends that depend on the log are checked by the
    planner.
    """
    if isinstance(start, Start) and isinstance(end, Start):
        if start.kind == end.kind and end.value < start.value:
            raise MisuseError(f"the read ends at {_shown(end)}, before it starts at {_shown(start)}: nothing is read")
    elif isinstance(start, Mapping) and isinstance(end, Mapping):
        for queue, to in end.items():
            begin = start.get(queue, _EARLIEST)
            if to.kind == begin.kind == "offset" and to.value < begin.value:
                raise MisuseError(
                    f"endingOffsets {to.value} for topic {queue.topic} queue {queue.queue} is below startingOffsets "
                    f"{begin.value}: nothing is read"
                )


def _shown(start: Start) -> str:
    return str(datetime_of_us(start.value)) if start.kind == "time" else f"{start.kind} {start.value}"


def _count(values: Mapping[str, str], name: str) -> int | None:
    if name not in values:
        return None
    count = _whole(values[name])
    if count is None or not 1 <= count <= _COUNT_MAX:
        raise MisuseError(f"option {name}={shown(values[name])} must be a whole number from 1 to {_COUNT_MAX}")
    return count


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= _DIGITS_MAX else None


def _yes(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = values.get(name, str(default)).lower()
    if text not in {"true", "false"}:
        raise MisuseError(f"option {name}={shown(text)} must be true or false")
    return text == "true"
