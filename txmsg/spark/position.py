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
    """The next offset of each queue that was seen; stored as JSON in Spark's checkpoint.

    begun: the begins of queues that the previous position did not have. A batch that is repeated, after a crash
    and with retention or new messages in between, must read the same messages as before. Spark stores the end of each
    batch, but not the begin of the first one.
    """

    identity: LogIdentity
    offsets: Mapping[LogQueue, int]
    begun: Mapping[LogQueue, int] = field(default_factory=dict)
    is_initial: bool = False
    """True if no batch has ended here: a new stream begins here, and the position is found again when Spark
    asks again."""

    def to_json(self) -> dict[str, Any]:
        """Return the position as JSON for the checkpoint. Equal positions give equal texts."""
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
        """Parse the result of `to_json`. Raises MisuseError for a position that another source wrote."""
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
    """Return the begin of the batch that ends at `end`, for each queue in `end`."""
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
