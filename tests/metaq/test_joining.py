"""Batches made one Arrow batch together hold what each of them holds by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmsg.errors import MisuseError
from txmsg.metaq import SCHEMA, LogBatch, to_arrow
from txmsg.metaq.format import joining
from txmsg.metaq.format.frame import Columns, Compression, encode, pack, read_header, verify
from txmsg.wire.tags import ALL_TAGS, parse_tags

_TEXTS = st.sampled_from(["", "a", "paid", "ключ", "new " * 9])
_MOMENTS = st.integers(0, 2**50)


def _one_of_each(values: st.SearchStrategy[Any], count: int) -> st.SearchStrategy[list[Any]]:
    return st.just([]) | st.lists(values, min_size=count, max_size=count)


@st.composite
def _batches(draw: st.DrawFn) -> list[LogBatch]:
    found: list[LogBatch] = []
    offset = draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(0, 6))):
        count = draw(st.integers(1, 4))
        columns = Columns(
            bodies=draw(st.lists(st.binary(max_size=40), min_size=count, max_size=count)),
            stored_at_us=draw(_one_of_each(_MOMENTS, count)) or [draw(_MOMENTS)],
            transaction_ids=draw(st.just(b"") | st.binary(min_size=16 * count, max_size=16 * count)),
            n=draw(_one_of_each(st.integers(0, 999), count)),
            born_at_us=draw(_one_of_each(_MOMENTS, count)),
            keys=draw(_one_of_each(_TEXTS, count)),
            tags=draw(_one_of_each(_TEXTS, count)),
            ordering_keys=draw(_one_of_each(_TEXTS, count)),
            headers=draw(_one_of_each(st.binary(max_size=9), count)),
        )
        payload = encode(columns, draw(st.sampled_from(Compression)))
        frame = b"".join(pack(payload, b"t", 0, offset, position=0, log_id=1, synced=0, generation=1))
        header = read_header(frame)
        skip = draw(st.integers(0, count - 1)) if not found else 0
        found.append(LogBatch(header, verify(header, frame), skip))
        offset += count
    return found


@given(batches=_batches(), tags=st.sampled_from([ALL_TAGS, parse_tags("paid || a")]))
def test_joined_batches_hold_what_each_holds(batches: Sequence[LogBatch], tags: Any) -> None:
    each = [batch.to_arrow(tags) for batch in batches]
    expected = pa.Table.from_batches(each, SCHEMA).combine_chunks()
    found = to_arrow(batches, tags)
    found.validate(full=True)
    assert pa.Table.from_batches([found]).equals(expected)
    some = to_arrow(batches, tags, columns={"body", "offset"})
    assert some.schema.names == ["offset", "body"]
    assert some.equals(found.select(["offset", "body"]))


@given(batches=_batches().filter(len))
def test_what_is_too_large_together_is_refused(batches: Sequence[LogBatch]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joining, "_SIZE_BYTES_MAX", 7)
        with pytest.raises(MisuseError, match="are too much for one"):
            to_arrow(batches)
