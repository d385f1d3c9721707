"""Converts values of a log to messages of `txmsg/wire/v1/metaq.proto` and back, for the server and its clients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Final

from txmsg.errors import CorruptLog, ProtocolError, TxmsgError, shown
from txmsg.message import ReceivedMessage
from txmsg.metaq.acks import Acks
from txmsg.metaq.format.batch import FrameBatch
from txmsg.metaq.format.frame import BadFrame, Buffer, Compression, FrameKind, Payload, read_header
from txmsg.metaq.interface import LogGroupSettings, LogQueue, Member
from txmsg.metaq.store.delayed import Delayed, WaitingSend
from txmsg.metaq.store.log import Append
from txmsg.metaq.store.topics import Flush, Permission, TopicSettings
from txmsg.wire.failures import error_of_told
from txmsg.wire.v1 import metaq_pb2 as pb
from txmsg.wire.v1.metaq_pb2 import (
    AppendBatch,
    DelayedInLogReply,
    FoundInLog,
    LogError,
    LogMember,
    LogTopicSettings,
    QueueOffsets,
    QueueSet,
    WaitingInLog,
)

PIECE_SIZE_BYTES: Final = 1024 * 1024
"""Bytes of a fetch that are sent at a time."""
ID_SIZE_BYTES: Final = 16
_NONE: Final = -1


# ---- queues


def sets_of_queues(queues: Iterable[LogQueue]) -> list[QueueSet]:
    """Return the queues in their order, with consecutive ones of one topic together."""
    return [
        QueueSet(topic=topic, queue=[queue.queue for queue in run])
        for topic, run in groupby(queues, key=lambda queue: queue.topic)
    ]


def queues_of_sets(sets: Iterable[QueueSet]) -> list[LogQueue]:
    """Return the queues of such sets: the inverse of `sets_of_queues`."""
    return [LogQueue(queue_set.topic, queue) for queue_set in sets for queue in queue_set.queue]


def wire_offsets(offsets: Mapping[LogQueue, int | None]) -> list[QueueOffsets]:
    """Return queues with their offsets, in their order, as messages of the protocol."""
    result = []
    for topic, run in groupby(offsets.items(), key=lambda item: item[0].topic):
        items = list(run)
        values = [_NONE if offset is None else offset for _, offset in items]
        result.append(QueueOffsets(topic=topic, queue=[queue.queue for queue, _ in items], offset=values))
    return result


def offsets_of(sets: Iterable[QueueOffsets]) -> dict[LogQueue, int | None]:
    """Return queues with their offsets: the inverse of `wire_offsets`.

    Raises ProtocolError for queues without their offsets.

    Raises ProtocolError for queues without their offsets.
    """
    found: dict[LogQueue, int | None] = {}
    for queue_set in sets:
        if len(queue_set.queue) != len(queue_set.offset):
            raise ProtocolError(f"{len(queue_set.queue)} queues of a topic come with {len(queue_set.offset)} offsets")
        for queue, offset in zip(queue_set.queue, queue_set.offset, strict=True):
            found[LogQueue(queue_set.topic, queue)] = None if offset == _NONE else offset
    return found


# ---- errors


def log_error_of(error: TxmsgError) -> LogError:
    """Return the error of one queue as a message, beside other queues' batches."""
    end = (error.next_offset or 0) if isinstance(error, CorruptLog) else getattr(error, "end", 0)
    return LogError(code=error.code, text=str(error)[:1000], begin=getattr(error, "begin", 0), end=end)


def error_of_log_error(told: LogError) -> TxmsgError:
    """Return the error of such a message: the inverse of `log_error_of`."""
    return error_of_told(told.code, told.text, told.begin, told.end)


# ---- batches


def batch_of_append(append: Append) -> AppendBatch:
    """Return a batch as a message to a server; its payload is sent separately."""
    payload = append.payload
    return AppendBatch(
        topic=append.topic,
        queue=append.queue,
        base_offset=append.base_offset,
        size=payload.size_bytes,
        payload_crc=payload.crc,
        raw_size=payload.raw_size_bytes,
        compression=payload.compression,
        kind=payload.kind,
        columns=payload.columns,
        count=payload.count,
        first_stored_at_us=payload.first_stored_at_us,
        last_stored_at_us=payload.last_stored_at_us,
        is_mirrored=append.is_mirrored,
        due_at_us=append.due_at_us,
    )


def appends_of(batches: Iterable[AppendBatch], data: memoryview) -> Iterator[Append]:
    """Return the batches of messages, with the payloads of all: the inverse of `batch_of_append`.

    `validation.check` checks them.

    Each payload is copied once, so that the bytes that are checked are those that are written.
    """
    at = 0
    for batch in batches:
        stored = bytes(data[at : at + batch.size])
        at += batch.size
        if len(stored) < batch.size:
            break
        yield _append_of(batch, stored)
    if at != len(data):
        raise ProtocolError(f"payloads of {at} bytes come with {len(data)} bytes of data; nothing was appended")


def _append_of(batch: AppendBatch, stored: bytes) -> Append:
    try:
        compression, kind = Compression(batch.compression), FrameKind(batch.kind)
    except ValueError as exc:
        raise ProtocolError(
            f"a batch for topic {shown(batch.topic)} cannot be read: {exc}; nothing was appended"
        ) from exc
    payload = Payload(
        (stored, bytes(-len(stored) & 7)),
        len(stored),
        batch.raw_size,
        batch.payload_crc,
        compression,
        kind,
        batch.columns,
        batch.count,
        batch.first_stored_at_us,
        batch.last_stored_at_us,
    )
    base_offset = batch.base_offset if batch.HasField("base_offset") else None
    due_at_us = batch.due_at_us if batch.HasField("due_at_us") else None
    return Append(batch.topic, batch.queue, payload, base_offset, batch.is_mirrored, due_at_us)


def batches_of_frames(
    queue: LogQueue, offset: int, frames: Buffer, *, following: int | None = None
) -> tuple[tuple[FrameBatch, ...], CorruptLog | None]:
    """Return the batches from this offset on, up to the first that is not whole, and the error of that one.

    They refer to the bytes as received: nothing is copied. following: the offset at which they must begin, if others
    came before them.
    """
    batches: list[FrameBatch] = []
    view = memoryview(frames)
    at = 0
    try:
        while at < len(view):
            frame = view[at:]
            header = read_header(frame)
            batch = FrameBatch.verified(header, frame[: header.size_bytes], max(0, offset - header.base_offset))
            # The checksum says only that the frame is whole. A server that sends frames of another queue, or leaves one
            # out, is found here.
            if (header.topic, header.queue) != queue or following not in {None, header.base_offset}:
                raise BadFrame(f"a frame of topic {header.topic} queue {header.queue} at {header.base_offset} came")
            batches.append(batch)
            at, following = at + header.size_bytes, header.base_offset + header.count
    except BadFrame as exc:
        return tuple(batches), CorruptLog(
            f"what a server sent of topic {queue.topic} queue {queue.queue} from offset {offset} on is damaged: {exc}"
        )
    return tuple(batches), None


def acks_of(told: str) -> Acks | None:
    """Return the level that a sender asks for; None: that of topics and the server. Raises ProtocolError."""
    try:
        return Acks(told) if told else None
    except ValueError as exc:
        raise ProtocolError(f"an append asks for acks={shown(told)}: {', '.join(Acks)} are known") from exc


# ---- delayed messages


def wire_delayed(found: Delayed, following: int) -> DelayedInLogReply:
    """Return one step of listing delayed messages as a message of the protocol."""
    first = (
        WaitingInLog(due_at_us=due_at_us, number=number, topic=topic, queue=queue, messages=messages)
        for due_at_us, number, topic, queue, messages in found.first
    )
    return DelayedInLogReply(messages=found.messages, first=first, following=following)


def delayed_of(reply: DelayedInLogReply) -> Delayed:
    """Return the step from its message: the inverse of `wire_delayed`."""
    first = [WaitingSend(each.due_at_us, each.number, each.topic, each.queue, each.messages) for each in reply.first]
    return Delayed(dict(reply.messages), first)


# ---- topics


def wire_settings(settings: TopicSettings) -> LogTopicSettings:
    return LogTopicSettings(
        flush=settings.flush.value,
        compression=settings.compression.name.lower(),
        retention_s=settings.retention_s,
        write_queues=settings.write_queues,
        read_queues=settings.read_queues,
        permission=settings.permission.value,
    )


def settings_of(told: LogTopicSettings) -> TopicSettings:
    """Return the settings of a message: the inverse of `wire_settings`. Raises ProtocolError for unknown values."""
    try:
        if not math.isfinite(told.retention_s):
            raise ValueError(f"{told.retention_s} seconds")
        return TopicSettings(
            flush=Flush(told.flush),
            compression=Compression[told.compression.upper()],
            retention_s=told.retention_s if told.HasField("retention_s") else None,
            write_queues=told.write_queues if told.HasField("write_queues") else None,
            read_queues=told.read_queues if told.HasField("read_queues") else None,
            permission=Permission(told.permission or Permission.READ_WRITE),
        )
    except (ValueError, KeyError) as exc:
        raise ProtocolError(f"settings of a topic cannot be read: {exc}") from exc


# ---- members and messages


def wire_member(member: Member) -> LogMember:
    return LogMember(id=member.id, topics=member.topics, strategy=member.strategy, zone=member.zone)


def member_of(member: LogMember) -> Member:
    return Member(member.id, tuple(member.topics), member.strategy, member.zone)


def wire_group_settings(settings: LogGroupSettings) -> pb.LogGroupSettings:
    """Return the settings of a group as a message of the protocol."""
    return pb.LogGroupSettings(
        stopped=settings.stopped, concurrency=settings.concurrency, rate_per_s=settings.rate_per_s
    )


def group_settings_of(told: pb.LogGroupSettings) -> LogGroupSettings:
    """Return the settings of a group from such a message."""
    return LogGroupSettings(
        stopped=told.stopped,
        concurrency=told.concurrency if told.HasField("concurrency") else None,
        rate_per_s=told.rate_per_s if told.HasField("rate_per_s") else None,
    )


def wire_found(message: ReceivedMessage) -> FoundInLog:
    """Return a message that was found, for the protocol."""
    return FoundInLog(
        queue=message.queue,
        offset=message.offset,
        transaction_id=message.id_bytes,
        n=message.n,
        key=message.key,
        tag=message.tag,
        ordering_key=message.ordering_key,
        headers=message.headers,
        body=message.body,
        born_at_us=message.born_at_us,
        stored_at_us=message.stored_at_us,
    )


def message_of_found(topic: str, found: FoundInLog) -> ReceivedMessage:
    """Return the message from its form in the protocol: the inverse of `wire_found`."""
    return ReceivedMessage(
        topic,
        found.body,
        found.key if found.HasField("key") else None,
        found.tag if found.HasField("tag") else None,
        dict(found.headers),
        found.queue,
        found.offset,
        id_bytes=found.transaction_id,
        n=found.n,
        born_at_us=found.born_at_us,
        stored_at_us=found.stored_at_us,
        ordering_key=found.ordering_key if found.HasField("ordering_key") else None,
    )
