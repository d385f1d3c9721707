"""Signatures as each of the official clients writes them. The digests were made by OpenSSL."""

from __future__ import annotations

from datetime import datetime

import pytest

from txmsg.rocketmq.signature import Signature, read_signature

_SHORT, _RFC_3339 = "20260531T153000Z", "2026-05-31T15:30:00.123456789+08:00"
_SHORT_HEX = "6b5e379f4293b87b425ede65d1f97894565e4973"
_RFC_3339_HEX = "83be92e32d0b67de493b68d2bf5cadb80d0cf5ae"
_REST = "SignedHeaders=x-mq-date-time, Signature="


@pytest.mark.parametrize(
    ("authorization", "date"),
    [
        pytest.param(f"Credential=key, {_REST}{_SHORT_HEX.upper()}", _SHORT, id="java"),
        pytest.param(f"Credential=key//Rocketmq, {_REST}{_SHORT_HEX}", _SHORT, id="go"),
        pytest.param(f"Credential=key, {_REST}{_SHORT_HEX}", _SHORT, id="python"),
        pytest.param(f"Credential=key/eu-1/Rocketmq, {_REST}{_SHORT_HEX}", _SHORT, id="node"),
        pytest.param(f"Credential=key,{_REST.replace(' ', '')}{_RFC_3339_HEX}", _RFC_3339, id="rust"),
    ],
)
def test_signature_formats_of_all_clients_are_parsed(authorization: str, date: str) -> None:
    read = read_signature({"authorization": f"MQv2-HMAC-SHA1 {authorization}", "x-mq-date-time": date})
    assert read is not None
    assert (read.key_id, read.date) == ("key", date)
    assert read.is_by(b"the secret")
    assert not read.is_by(b"another secret")
    assert not read.is_by(b"")
    assert not read._replace(date="20260531T153001Z").is_by(b"the secret")
    assert not read._replace(digest=b"").is_by(b"the secret")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "MQv2-HMAC-SHA1"},
        {"authorization": f"Bearer Credential=key, Signature={_SHORT_HEX}"},
        {"authorization": "MQv2-HMAC-SHA1 Credential=key, Signature=not hex"},
        pytest.param({"authorization": f"MQv2-HMAC-SHA1 Credential=, {_REST}{_SHORT_HEX}"}, id="python without keys"),
        pytest.param({"authorization": f"MQv2-HMAC-SHA1 Credential=//Rocketmq, {_REST}00"}, id="go without keys"),
    ],
)
def test_invalid_signature_is_none(headers: dict[str, str]) -> None:
    assert read_signature(headers) is None


@pytest.mark.parametrize(
    ("date", "moment"),
    [
        (_SHORT, "2026-05-31T15:30:00+00:00"),
        (_RFC_3339, "2026-05-31T07:30:00.123456+00:00"),
        ("2026-05-31T15:30:00Z", "2026-05-31T15:30:00+00:00"),
        ("2026-05-31T15:30:00", "2026-05-31T15:30:00+00:00"),
    ],
)
def test_date_is_in_its_named_time_zone(date: str, moment: str) -> None:
    assert Signature("key", date, b"").made_at() == datetime.fromisoformat(moment).timestamp()


@pytest.mark.parametrize("date", ["", "yesterday", "20260531T996000Z", "1780241400"])
def test_invalid_date_is_none(date: str) -> None:
    assert Signature("key", date, b"").made_at() is None
