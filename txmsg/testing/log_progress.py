"""The remaining work of a log's group in its topics, in the form used for groups of brokers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from txmsg.metaq.consumer.retries import tried_of
from txmsg.metaq.interface import DEAD_LETTERS, RETRIES, LogAccess, LogQueue
from txmsg.testing.progress import Late, Progress

_ERROR_LENGTH_MAX = 200


def progress_of_log(access: LogAccess, group: str, topics: Sequence[str]) -> list[Progress]:
    """Return the group's progress in each of these topics, and in its retries. Offsets are stored twice a second."""
    is_known = group in access.groups()
    offsets = {each.queue: each.offset or 0 for each in access.group(group).queues} if is_known else {}
    found = []
    for topic in (*topics, RETRIES + group):
        queues = [LogQueue(topic, number) for number in access.queues_of(topic)]
        kept = access.ranges(queues)
        found.append(
            Progress(
                group,
                topic,
                known=is_known,
                committed=sum(each.end - each.begin for each in kept.values()),
                passed=sum(max(offsets.get(queue, 0) - each.begin, 0) for queue, each in kept.items()),
                retries=[],  # they are in the topic of retries
                dead=list(_dead_letters_of(access, group, offsets)) if topic.startswith(RETRIES) else [],
                undecided=[],
                scheduled=[],
            )
        )
    return found


def _dead_letters_of(access: LogAccess, group: str, offsets: Mapping[LogQueue, int]) -> Iterator[Late]:
    """Yield the dead letters without an operator's decision: those from the group's own offset on."""
    for number in access.queues_of(DEAD_LETTERS + group):
        queue = LogQueue(DEAD_LETTERS + group, number)
        kept = access.ranges([queue])[queue]
        offset = max(kept.begin, offsets.get(queue, 0))
        while offset < kept.end and (found := access.fetch({queue: offset})):
            [fetched] = found
            if fetched.error is not None:
                raise fetched.error
            for batch in fetched.batches:
                for tried in map(tried_of, batch.messages()):
                    said = (tried.errors[-1] if tried.errors else "no error").splitlines()[0][:_ERROR_LENGTH_MAX]
                    yield Late(f"key {tried.message.key!r}, delivery {tried.message.attempt} failed: {said}", None)
                offset = batch.end_offset
