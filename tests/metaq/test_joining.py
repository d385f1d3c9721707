"""Batches joined into one Arrow batch have all their messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmsg.metaq import SCHEMA, to_arrow
from txmsg.metaq.format import batch
from txmsg.metaq.format.batch import FrameBatch
from txmsg.metaq.format.frame import Compression, FrameColumns, encode, pack, read_header
from txmsg.wire.tags import ALL_TAGS, parse_tags

_TEXTS = st.sampled_from(["", "a", "paid", "ключ", "new " * 9])
_MOMENTS = st.integers(0, 2**50)


def _one_of_each(values: st.SearchStrategy[Any], count: int) -> st.SearchStrategy[list[Any]]:
    return st.just([]) | st.lists(values, min_size=count, max_size=count)


@st.composite
def _batches(draw: st.DrawFn) -> list[FrameBatch]:
    found: list[FrameBatch] = []
    offset = draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(0, 6))):
        count = draw(st.integers(1, 4))
        columns = FrameColumns(
            body=draw(st.lists(st.binary(max_size=40), min_size=count, max_size=count)),
            stored_at_us=draw(_one_of_each(_MOMENTS, count)) or [draw(_MOMENTS)],
            transaction_id=draw(st.just(b"") | st.binary(min_size=16 * count, max_size=16 * count)),
            n=draw(_one_of_each(st.integers(0, 999), count)),
            born_at_us=draw(_one_of_each(_MOMENTS, count)),
            key=draw(_one_of_each(_TEXTS, count)),
            tag=draw(_one_of_each(_TEXTS, count)),
            ordering_key=draw(_one_of_each(_TEXTS, count)),
            headers=draw(_one_of_each(st.binary(max_size=9), count)),
        )
        skip = draw(st.integers(0, count - 1)) if not found else 0
        found.append(_batch(columns, offset, draw(st.sampled_from(Compression)), skip))
        offset += count
    return found


def _batch(columns: FrameColumns, offset: int, compression: Compression, skip: int = 0) -> FrameBatch:
    payload = encode(columns, compression)
    frame = b"".join(pack(payload, b"t", 0, offset, position=0, log_id=1, synced=0, generation=1))
    header = read_header(frame)
    return FrameBatch.verified(header, frame, skip)


@pytest.fixture(scope="module", autouse=True)
def few_are_joined() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "_JOINED_MIN", 1)
        yield


@given(batches=_batches(), tags=st.sampled_from([ALL_TAGS, parse_tags("paid || a")]), tiny=st.sampled_from([0, 2**20]))
def test_joined_batches_have_all_messages(batches: Sequence[FrameBatch], tags: Any, tiny: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "_TINY_SIZE_BYTES_MAX", tiny)
        found = to_arrow(batches, tags)
    found.validate(full=True)
    assert found.equals(pa.Table.from_batches([batch.to_arrow(tags) for batch in batches], SCHEMA))
    assert found["body"].num_chunks <= 1


@pytest.mark.parametrize(("count", "size_bytes", "chunks"), [(8, 1, 1), (7, 1, 7), (8, 40_000, 8)])
def test_small_batches_are_joined_and_large_ones_stay_uncopied(
    count: int, size_bytes: int, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "_JOINED_MIN", 8)
    batches = [_batch(FrameColumns([bytes(size_bytes)], [1]), 5, Compression.NONE)] * count
    found = to_arrow(batches)
    assert (found.num_rows, found["body"].num_chunks) == (count, chunks)
    monkeypatch.setattr(batch, "_TOGETHER_SIZE_BYTES_MAX", 15 * count)
    assert to_arrow(batches)["body"].num_chunks == count
