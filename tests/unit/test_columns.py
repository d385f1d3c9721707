"""Joining and splitting of columns: an empty column means no value in any row."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from txmsg.broker.store.batch import WriteBatch, _parameters
from txmsg.message import QueueId
from txmsg.message.columns import Columns, put_value

NONE: dict[str, int | str | bytes] = {
    "n": 0,
    "key": "",
    "tag": "",
    "headers": b"",
    "ordering_key": "",
    "deliver_at_us": 0,
    "deliver_after_us": 0,
    "first_check_ms": 0,
}
VALUE: dict[str, int | str | bytes] = {
    "n": 1,
    "key": "k",
    "tag": "t",
    "headers": b"h",
    "ordering_key": "o",
    "deliver_at_us": 9,
    "deliver_after_us": 9,
    "first_check_ms": 9,
}


@st.composite
def columns(draw: st.DrawFn) -> Columns:
    """Return a few rows, with and without each optional column."""
    count = draw(st.integers(0, 3))
    made = Columns(
        transaction_id=[bytes([draw(st.integers(0, 3))]) * 16 for _ in range(count)],
        queue=[QueueId(draw(st.integers(1, 3))) for _ in range(count)],
        producer=[1] * count,
        body=[draw(st.binary(max_size=2)) for _ in range(count)],
        born_at_us=list(range(count)),
    )
    for name, none in NONE.items():
        if draw(st.booleans()):
            setattr(made, name, [draw(st.sampled_from([none, VALUE[name]])) for _ in range(count)])
    return made


def rows(of: Columns) -> list[tuple[object, ...]]:
    """Return the messages one by one."""
    filled = [
        getattr(of, each.name) or [NONE[each.name]] * len(of.transaction_id) for each in fields(of) if of.transaction_id
    ]
    return list(zip(*filled, strict=True))


@given(st.lists(columns(), max_size=4))
def test_joining_columns_keeps_all_rows_and_does_not_change_the_parts(parts: list[Columns]) -> None:
    before = deepcopy(parts)
    joined = Columns()
    for part in parts:
        joined.extend(part)
    assert rows(joined) == [row for part in before for row in rows(part)]
    assert parts == before


@given(columns(), st.sets(st.integers(0, 3).map(lambda number: bytes([number]) * 16)))
def test_selecting_transactions_keeps_values_and_order_of_rows(of: Columns, ids: set[bytes]) -> None:
    assert rows(of.only(ids)) == [row for row in rows(of) if row[0] in ids]


def test_a_column_filled_by_few_messages_is_as_long_as_the_others() -> None:
    made = Columns(transaction_id=[bytes(16)] * 4)
    put_value(made.key, 1, "b", "")
    put_value(made.key, 2, "c", "")
    made.fill()
    assert made.key == ["", "b", "c", ""]
    assert made.tag == []


@given(columns())
def test_an_empty_column_is_stored_as_one_without_values(of: Columns) -> None:
    full = deepcopy(of)
    for name, none in NONE.items():
        setattr(full, name, getattr(of, name) or [none] * len(of.transaction_id))
    for sparse, written_out in (
        (WriteBatch(half=of), WriteBatch(half=full)),
        (WriteBatch(plain=of), WriteBatch(plain=full)),
    ):
        assert _parameters(sparse) == _parameters(written_out)
