"""The position of a stream, which Spark keeps in the checkpoint after each batch. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from txmsg.errors import MisuseError
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.store.state import LogIdentity


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """The offset to go on at, of each queue that was seen; as JSON in Spark's checkpoint.

    begun: where queues began that the position before this one did not have. A batch that is run again, after a crash
    and with retention or new messages in between, must read what it read the first time, and Spark keeps where a batch
    ends, but not where the first one began.
    """

    identity: LogIdentity
    offsets: Mapping[LogQueue, int]
    begun: Mapping[LogQueue, int] = field(default_factory=dict)
    is_initial: bool = False
    """Whether no batch ended here: it is where a new stream begins, and is found again when Spark asks again."""

    def to_json(self) -> dict[str, Any]:
        """As JSON for the checkpoint. Equal positions give equal texts."""
        told: dict[str, Any] = {
            "log": self.identity.log_id,
            "generation": self.identity.generation,
            "offsets": _by_topic(self.offsets),
        }
        if self.begun:
            told["begun"] = _by_topic(self.begun)
        if self.is_initial:
            told["initial"] = True
        return told

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> StreamPosition:
        """Return the inverse of `to_json`. Raises MisuseError for what another source wrote."""
        try:
            identity = LogIdentity(int(told["log"]), int(told["generation"]))
            offsets, begun = _by_queue(told["offsets"]), _by_queue(told.get("begun", {}))
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise MisuseError(
                f"the checkpoint contains a position that this release cannot read ({exc!r}): was it written by "
                "another source? Use a separate checkpointLocation for each stream"
            ) from exc
        return cls(identity, offsets, begun, bool(told.get("initial")))


def begins_between(start: StreamPosition, end: StreamPosition) -> dict[LogQueue, int]:
    """Of each queue in `end`, where the batch that ends there begins."""
    if start == end:
        return dict(end.offsets)
    known = {**start.offsets, **end.begun}
    return {queue: known.get(queue, offset) for queue, offset in end.offsets.items()}


def _by_topic(offsets: Mapping[LogQueue, int]) -> dict[str, dict[str, int]]:
    told: dict[str, dict[str, int]] = {}
    for (topic, queue), offset in sorted(offsets.items()):
        told.setdefault(topic, {})[str(queue)] = offset
    return told


def _by_queue(told: Mapping[str, Mapping[str, int]]) -> dict[LogQueue, int]:
    return {LogQueue(topic, int(queue)): int(at) for topic, queues in told.items() for queue, at in queues.items()}
