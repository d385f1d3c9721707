"""The method by which readers of a log get keys of bodies of an erasable topic. It belongs to the service Messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

from txmsg.wire.method import Method
from txmsg.wire.values import NumberRange


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysQuery:
    """Messages of a topic, at most 4,096. transaction_ids: 16 bytes each. n: their places in these."""

    topic: str
    transaction_ids: bytes
    n: Sequence[Annotated[int, NumberRange(0, 2**15 - 1)]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundKeys:
    """Keys in the order of the query; an empty key: erased, or never encrypted."""

    keys: Sequence[bytes] = field(repr=False)


BODY_KEYS: Final = Method("Messages/BodyKeys", KeysQuery, FoundKeys)
