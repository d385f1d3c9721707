"""Start positions, as values and as text."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmsg.errors import MisuseError, ProtocolError
from txmsg.wire.start import Start, start_of_wire, start_to_wire

TIMES = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))


@given(TIMES)
def test_a_start_time_is_parsed(time: datetime) -> None:
    assert Start.parse(time.isoformat()) == Start.at(time)
    assert Start.parse(time.replace(tzinfo=None).isoformat()) == Start.at(time), "UTC where it says no zone"


@given(st.integers(0, 2**63 - 1))
def test_digits_are_parsed_as_an_offset(offset: int) -> None:
    assert Start.parse(str(offset)) == Start.offset(offset)


def test_words_and_durations_are_parsed() -> None:
    assert (Start.parse("earliest"), Start.parse("Latest")) == (Start.earliest(), Start.latest())
    before = Start.at(datetime.now(UTC) - timedelta(hours=2))
    ago = Start.parse("1h60m")
    assert before.value <= ago.value <= Start.at(datetime.now(UTC) - timedelta(hours=2)).value


@given(st.one_of(TIMES.map(Start.at), st.sampled_from([Start.earliest(), Start.latest()])))
def test_the_start_position_of_a_group_round_trips(start: Start) -> None:
    assert start_of_wire(start_to_wire(start)) == start


@pytest.mark.parametrize("text", ["", "now", "-1", "9" * 19, "9" * 5000, "2026-13-01", "1969-01-01", "t:1", "\u0661"])
def test_other_texts_are_refused_with_the_valid_forms(text: str) -> None:
    with pytest.raises(MisuseError, match="is not a valid start position: give earliest, latest"):
        Start.parse(text)


@pytest.mark.parametrize("text", ["earliest", "-1", "1e3", "9" * 18, "\u0661"])
def test_invalid_start_texts_on_the_wire_are_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match="a group starts at"):
        start_of_wire(text)


def test_invalid_start_values_are_refused() -> None:
    makes: tuple[Callable[[], Start], ...] = (
        lambda: Start.at(datetime(2026, 1, 1)),
        lambda: Start.at("2026-01-01"),  # type: ignore[arg-type]
        lambda: Start.offset(-1),
        lambda: Start.offset(True),
    )
    for make in makes:
        with pytest.raises(MisuseError, match="is not a valid start position"):
            make()
