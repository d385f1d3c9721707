"""Bytes as records with ids. Any split of a file into blocks gives the same records under the same ids."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from txmsg.errors import MisuseError
from txmsg.metaq.agent.agent_config import SourceConfig
from txmsg.metaq.agent.records import RecordSplitter, ids_of, stream_and_end_of

_STREAM = bytes(range(200, 210))


def _all(cutter: RecordSplitter, data: bytes, block_size: int) -> list[tuple[int, bytes]]:
    """Yield every record of a file and its end, read block by block."""
    found: list[tuple[int, bytes]] = []
    at = 0
    while at < len(data):
        block = data[at : at + block_size]
        records = cutter.cut(block, is_end=len(block) < block_size)
        assert records, "a block that is larger than the longest record has one"
        found += zip([at + end for end in records.ends], records.bodies, strict=True)
        at += records.size_bytes
    return found


def test_each_line_is_a_record_without_its_line_end() -> None:
    records = RecordSplitter().cut(b"one\n\ntwo\r\nthr", is_end=False)
    assert (list(records.bodies), list(records.ends)) == ([b"one", b"", b"two"], [4, 5, 10])


def test_last_line_without_line_end_is_a_record_if_nothing_follows() -> None:
    records = RecordSplitter().cut(b"one\ntwo", is_end=True)
    assert (list(records.bodies), list(records.ends)) == ([b"one", b"two"], [4, 7])


def test_continuation_lines_belong_to_the_record_before() -> None:
    cutter = RecordSplitter(record_start=r"\d{4}-")
    data = b"2026-01 a\n  at x\n  at y\n2026-02 b\n2026-03 c\n"
    assert list(cutter.cut(data, is_end=False).bodies) == [b"2026-01 a\n  at x\n  at y", b"2026-02 b"]
    assert list(cutter.cut(data, is_end=True).bodies)[-1] == b"2026-03 c"


def _as_it_grows(cutter: RecordSplitter, data: bytes, steps: list[int]) -> list[tuple[int, bytes]]:
    """Yield the same records for a file that is read each time it has grown by so many bytes."""
    found: list[tuple[int, bytes]] = []
    at = come = 0
    for step in [*steps, len(data)]:
        come = min(come + step, len(data))
        while records := cutter.cut(data[at : min(come, at + cutter.block_size_bytes_least)], is_end=False):
            found += zip([at + end for end in records.ends], records.bodies, strict=True)
            at += records.size_bytes
    rest = cutter.cut(data[at:], is_end=True)
    return [*found, *zip([at + end for end in rest.ends], rest.bodies, strict=True)]


_PIECES = (b"1234-", b"2024-", b"20", b"4-", b"a", b"b", b"abc", b"\n", b"\n", b"\r\n", b"\r")


@example(b"1234-xxx\n2024-abc\n", 10, [11], r"\d{4}-")
@given(
    st.lists(st.sampled_from(_PIECES), max_size=40).map(b"".join),
    st.integers(4, 12),
    st.lists(st.integers(1, 9), max_size=40),
    st.sampled_from(["", r"\d{4}-", "ab+c", ".*c", "a$", "(?!.*c)"]),
)
def test_records_do_not_depend_on_how_the_file_grows(
    data: bytes, size_max: int, steps: list[int], record_start: str
) -> None:
    cutter = RecordSplitter(record_start=record_start, record_size_bytes_max=size_max)
    assert _as_it_grows(cutter, data, steps) == list(_all(cutter, data, 1_000_000))


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(0, 70), st.sampled_from(["", "[ab0-9]"]))
def test_records_do_not_depend_on_block_boundaries(lines: list[bytes], more: int, record_start: str) -> None:
    cutter = RecordSplitter(record_start=record_start, record_size_bytes_max=16)
    data = b"\n".join(lines) + b"\nlast\n"
    in_blocks = _all(cutter, data, cutter.block_size_bytes_least + more)
    assert in_blocks == _all(cutter, data, 1_000_000)
    assert b"".join(body for _, body in in_blocks).replace(b"\n", b"").replace(b"\r", b"") == data.replace(
        b"\n", b""
    ).replace(b"\r", b"")


def test_too_long_record_is_split_at_the_same_places_when_read_in_parts() -> None:
    cutter = RecordSplitter(record_size_bytes_max=10)
    whole = cutter.cut(b"x" * 25 + b"\ny\n", is_end=False)
    assert [len(body) for body in whole.bodies] == [10, 10, 5, 1]
    begun = cutter.cut(b"x" * 25, is_end=False)
    assert list(begun.ends) == list(whole.ends)[:2] == [10, 20]


@pytest.mark.parametrize(("record_start", "line_end"), [("", b"\r\n"), ("[a-z]", b"\n"), ("[a-z]", b"\r\n")])
def test_line_end_of_split_record_is_not_a_piece_of_its_own(record_start: str, line_end: bytes) -> None:
    """The block can end before, within or after the line end."""
    cutter = RecordSplitter(record_start=record_start, record_size_bytes_max=10)
    data = b"x" * 20 + line_end + b"y" * 20 + line_end
    for block_size in range(cutter.block_size_bytes_least, 50):
        assert [body for _, body in _all(cutter, data, block_size)] == [b"x" * 10] * 2 + [b"y" * 10] * 2, block_size


def test_bytes_invalid_in_the_encoding_are_replaced() -> None:
    assert list(RecordSplitter(encoding="utf-8").cut(b"\xff\xc3\xa9\n", is_end=False).bodies) == [
        "\N{REPLACEMENT CHARACTER}é".encode()
    ]
    assert list(RecordSplitter(encoding="latin-1").cut(b"\xe9\n", is_end=False).bodies) == ["é".encode()]
    assert list(RecordSplitter().cut(b"\xff\xe9\n", is_end=False).bodies) == [b"\xff\xe9"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32-le", "utf-8-sig", "klingon"])
def test_encoding_without_ascii_line_ends_is_refused(encoding: str) -> None:
    with pytest.raises(MisuseError, match="encoding"):
        RecordSplitter(encoding=encoding)


def test_id_contains_file_and_end_of_record() -> None:
    ids = ids_of(_STREAM, 2**40, [5, 9])
    first, second = ids[:16], ids[16:]
    assert uuid.UUID(bytes=first).version == 8
    assert uuid.UUID(bytes=first).variant == uuid.RFC_4122
    assert [stream_and_end_of(each)[1] for each in (first, second)] == [2**40 + 5, 2**40 + 9]
    assert stream_and_end_of(first)[0] == stream_and_end_of(second)[0]
    other = ids_of(_STREAM[::-1], 2**40, [5])
    assert stream_and_end_of(other)[0] != stream_and_end_of(first)[0]


def test_unfinished_and_complete_record_have_different_ids() -> None:
    cutter = RecordSplitter(record_start="[A-Z]")
    early, late = cutter.cut(b"A\n", is_end=True), cutter.cut(b"A\n b\n", is_end=True)
    assert ids_of(_STREAM, 0, early.ends) != ids_of(_STREAM, 0, late.ends)


def test_the_longest_record_fits_a_block() -> None:
    assert SourceConfig(paths=("/a",), topic="t", record_size_bytes_max=2 * 1024 * 1024).batch_size_bytes == 1024 * 1024
