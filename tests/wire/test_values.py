"""Values of administration round-trip through JSON; an invalid field is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.methods import made
from txmsg.administration.access import CreateAccessKey, IssuedToken
from txmsg.errors import InvalidName, MisuseError, ProtocolError
from txmsg.wire.access.keys import AccessKey
from txmsg.wire.access.snapshot import Credential
from txmsg.wire.users import WatchedAccess
from txmsg.wire.values import Natural32, NumberRange, check, packed, unpacked


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    id: UUID
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    name: str
    count: Natural32 = 0
    some: Annotated[int, NumberRange(1, 3)] | None = None
    offset: int = 0
    rate: float | None = None
    is_on: bool = True
    at: datetime | None = None
    colour: Colour = Colour.RED
    mode: Literal["keep", "drop"] = "keep"
    inner: Inner | None = None
    inners: Sequence[Inner] = ()
    counts: Sequence[Natural32] = ()
    by_name: Mapping[str, Inner] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    state: Any = None


_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
_INNERS = st.builds(Inner, id=st.uuids(), body=st.binary(max_size=8))
_JSON = st.recursive(st.none() | st.booleans() | _TEXTS, lambda each: st.lists(each) | st.dictionaries(_TEXTS, each))
_OUTERS = st.builds(
    Outer,
    name=_TEXTS,
    count=st.integers(0, 2**31 - 1),
    some=st.none() | st.integers(1, 3),
    offset=st.integers(-(2**63), 2**63 - 1),
    rate=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    is_on=st.booleans(),
    at=st.none() | st.datetimes(timezones=st.just(UTC)),
    colour=st.sampled_from(Colour),
    mode=st.sampled_from(["keep", "drop"]),
    inner=st.none() | _INNERS,
    inners=st.lists(_INNERS, max_size=2),
    counts=st.lists(st.integers(0, 2**31 - 1), max_size=2),
    by_name=st.dictionaries(_TEXTS, _INNERS, max_size=2),
    tags=st.frozensets(_TEXTS, max_size=3),
    state=_JSON,
)


@given(_OUTERS)
def test_value_round_trips(value: Outer) -> None:
    assert unpacked(Outer, packed(value), strict=True) == value


def test_fields_equal_to_their_default_are_not_sent() -> None:
    assert packed(Outer(name="a")) == b'{"name":"a"}'
    assert packed(Outer(name="", count=7, at=datetime(2026, 5, 1, tzinfo=timezone(timedelta(hours=2))))) == (
        b'{"name":"","count":7,"at":"2026-04-30T22:00:00+00:00"}'
    )


def test_unknown_field_is_ignored_in_a_reply_and_refused_in_a_request() -> None:
    told = b'{"name":"a","later":[1]}'
    assert unpacked(Outer, told, strict=False) == Outer(name="a")
    with pytest.raises(ProtocolError, match="has later, which this release does not know: upgrade it"):
        unpacked(Outer, told, strict=True)


_ID = "0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01"


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ("", "lacks name"),
        ("[", "1 bytes are not a Outer in JSON: Expecting value"),
        ("[" * 100_000, "are not a Outer in JSON"),
        ("7", "7 must be an object, a Outer"),
        ('{"name":7}', "name=7 must be a text"),
        ('{"name":"\\ud800"}', "contains half of a surrogate pair"),
        ('{"name":"","count":true}', "count=True must be a whole number from 0 to 2147483647"),
        ('{"name":"","count":1.0}', "count=1.0 must be a whole number"),
        ('{"name":"","some":4}', "some=4 must be a whole number from 1 to 3"),
        ('{"name":"","offset":9223372036854775808}', "offset=9223372036854775808 must be a whole number from -9223"),
        ('{"name":"","offset":' + "9" * 5000 + "}", "are not a Outer in JSON"),
        ('{"name":"","rate":NaN}', "rate=nan must be a finite number"),
        ('{"name":"","rate":-Infinity}', "rate=-inf must be a finite number"),
        ('{"name":"","rate":1' + "0" * 400 + "}", "must be a finite number"),
        ('{"name":"","is_on":1}', "is_on=1 must be true or false"),
        ('{"name":"","at":"2026-05-01T10:00:00"}', "must be a time with its zone"),
        ('{"name":"","at":"0001-01-01T00:00:00+10:00"}', "at='0001-01-01T00:00:00.10:00' must be a time"),
        ('{"name":"","at":7}', "at=7 must be a text"),
        ('{"name":"","colour":"green"}', "colour='green' must be one of red, blue"),
        ('{"name":"","colour":[]}', r"colour=\[\] must be one of red, blue"),
        ('{"name":"","mode":null}', "mode=None must be one of keep, drop"),
        ('{"name":"","inner":{}}', "inner={} lacks id"),
        ('{"name":"","inners":[{"id":"' + _ID + '"},{"id":"x"}]}', "inners.1.id='x' must be a UUID"),
        ('{"name":"","inners":{}}', "inners={} must be a list"),
        ('{"name":"","by_name":{"k":{"id":"' + _ID + '","body":"*"}}}', r"by_name.k.body='\*' must be base64"),
        ('{"name":"","by_name":[]}', r"by_name=\[\] must be an object"),
        ('{"name":null}', "name=None must be a text"),
    ],
)
def test_an_invalid_value_is_refused_with_the_path_of_its_field(told: str, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        unpacked(Outer, told.encode(), strict=True)


def test_unknown_enum_value_is_shown_in_a_reply() -> None:
    told = unpacked(Outer, b'{"name":"a","colour":"green","mode":"forget"}', strict=False)
    assert (str(told.colour), told.mode) == ("green", "forget")


def test_nul_is_refused() -> None:
    told = b'{"name":"a\\u0000"}'
    with pytest.raises(InvalidName, match=r"name='a.x00' contains a NUL"):
        unpacked(Outer, told, strict=True)
    assert unpacked(Outer, told, strict=False).name == "a\0", "what is shown may be of a strange client"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (Outer(name="a", count=-1), "count=-1 is not possible: it must be a whole number from 0 to 2147483647"),
        (Outer(name="a", count=2.5), "count=2.5 is not possible: it must be a whole number"),  # type: ignore[arg-type]
        (Outer(name="a", rate=float("inf")), "rate=inf is not possible: it must be a finite number"),
        (Outer(name="a\0"), "contains a NUL"),
        (Outer(name="a", at=datetime(2026, 5, 1)), "must be a time with its zone"),
    ],
)
def test_an_invalid_request_is_refused_before_it_is_sent(value: Outer, says: str) -> None:
    with pytest.raises(MisuseError, match=says):
        check(value)


SECRET = "s3cret"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    name: str
    text: str = field(default="", repr=False)
    data: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    kept: Kept
    all: Sequence[Kept] = ()


@pytest.mark.parametrize(
    "told",
    [
        '{"kept":{"text":"s3cret"}}',
        '{"kept":{"name":"","text":"s3cret\\u0000"}}',
        '{"kept":{"name":"","text":["s3cret"]}}',
        '{"kept":{"name":"","text":{"s3cret":1}}}',
        '{"kept":{"name":"","data":"*s3cret"}}',
        '{"kept":{"name":"","text":"s3cret","later":1}}',
        '{"kept":[{"name":"","text":"s3cret"}]}',
        '{"kept":{"name":""},"all":{"name":"","text":"s3cret"}}',
        '{"all":[{"name":"","text":"s3cret"}]}',
        '[{"name":"","text":"s3cret"}]',
        '{"kept":{"name":"","text":"s3cret"',
    ],
)
def test_errors_do_not_show_secrets(told: str) -> None:
    with pytest.raises((ProtocolError, InvalidName)) as refused:
        unpacked(Keeper, told.encode(), strict=True)
    assert SECRET not in str(refused.value)


def test_the_error_of_an_invalid_secret_does_not_show_it() -> None:
    with pytest.raises(MisuseError, match=r"kept.text='\(a secret\)' is not possible: it contains a NUL") as refused:
        check(Keeper(kept=Kept(name="", text=f"{SECRET}\0")))
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "value",
    [
        made(IssuedToken, token=SECRET),
        made(CreateAccessKey, sealed_secret=SECRET.encode()),
        made(WatchedAccess, tokens=[made(Credential, secret_sha256=SECRET.encode())]),
        made(WatchedAccess, access_keys=[made(AccessKey, sealed_secret=SECRET.encode())]),
    ],
)
def test_text_of_a_value_does_not_show_its_secret(value: object) -> None:
    assert SECRET not in f"{value!r} {value}"


@given(st.binary(max_size=40) | _JSON.map(lambda each: json.dumps(each).encode()))
def test_any_bytes_are_parsed_or_refused_with_a_txmsg_error(data: bytes) -> None:
    with suppress(ProtocolError, InvalidName):
        assert isinstance(unpacked(Outer, data, strict=True), Outer)
