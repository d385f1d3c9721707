"""Parsers of outside text or bytes, without a broker: they return a value or raise a txmsg error, never another.

What is written by us is read back as it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import pytest
from click.testing import CliRunner
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.engine import make_url

from tests.fuzz.conftest import Fuzz
from tests.fuzz.wild import damaged, wild
from txmsg import errors
from txmsg.broker.config import BrokerConfig
from txmsg.broker.embedded import EmbeddedPostgres
from txmsg.client import AsyncConsumer, AsyncProducer
from txmsg.client.flows.body import body_of_arguments
from txmsg.client.receiving.received import checked, delivered
from txmsg.errors import InvalidMessage, TxmsgError
from txmsg.message import BODY_SIZE_BYTES_MAX, Message, datetime_of_us, message_id, parse_message_id
from txmsg.ops.cli.main import main
from txmsg.wire.codec import pack_headers, slices_of_ids, unpack_headers
from txmsg.wire.failures import TEXT_LENGTH_MAX, bytes_of_error, error_of_bytes, was_told
from txmsg.wire.tags import parse_tags, wants_of
from txmsg.wire.v1 import txmsg_pb2 as pb
from txmsg.wire.v1.wire_pb2 import CallError

_SETTINGS = settings(max_examples=50)
_ERROR_LENGTH_MAX = 2000
_PRINTED_LENGTH_MAX = 10 * TEXT_LENGTH_MAX
"""Maximum length of a broker's error as printed: each unprintable character becomes up to ten."""
_CODES = {kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TxmsgError)}
_ANY_TEXT = st.text() | st.text("a|*.-%_, :0", max_size=40) | st.builds(lambda n: "x" * n, st.integers(0, 200_000))
_ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.datetimes() | st.uuids(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers() | st.binary(), inner),
    max_leaves=8,
)
_HEADERS = st.dictionaries(_ANY_TEXT, _ANY_TEXT, max_size=4)


def refused_or_read(read: Callable[..., object], *args: object, **kwargs: object) -> object | None:
    """Return the parsed value, or None after a txmsg error, whose text is of readable size."""
    try:
        return read(*args, **kwargs)
    except TxmsgError as exc:
        text = str(exc)
    assert 0 < len(text) <= _ERROR_LENGTH_MAX
    return None


def test_texts_are_parsed_or_refused(fuzz: Fuzz) -> None:
    @_SETTINGS
    @given(_ANY_TEXT)
    @example("\ud800")
    @example("a" * 127 + "\n")
    @example("٧")
    def texts(text: str) -> None:
        if (tags := refused_or_read(parse_tags, text)) is not None:
            assert parse_tags(str(tags)) == tags
        refused_or_read(wants_of, ((text, text),))
        refused_or_read(lambda: AsyncConsumer(group="g").subscribe(text, text))
        with suppress(TxmsgError):
            BrokerConfig(storage="", listen=text)
        with suppress(TxmsgError):
            AsyncProducer(text, group=text)
        if (parsed := refused_or_read(parse_message_id, text)) is not None:
            assert isinstance(parsed, tuple)
            assert message_id(*parsed) == text

    fuzz(texts)


def test_message_ids_round_trip_and_altered_ones_are_refused(fuzz: Fuzz) -> None:
    @_SETTINGS
    @given(st.uuids(), st.integers(0, 2**70), st.text(" +-._0٧{}\n", min_size=1, max_size=3), st.integers(0, 60))
    def ids(transaction_id: UUID, n: int, noise: str, at: int) -> None:
        text = message_id(transaction_id, n)
        assert parse_message_id(text) == (transaction_id, n)
        noisy = text[:at] + noise + text[at:]
        with suppress(InvalidMessage):  # a digit more may be the id of another message
            assert message_id(*parse_message_id(noisy)) == noisy

    fuzz(ids)


def test_messages_accept_only_storable_values(fuzz: Fuzz) -> None:
    sizes = st.sampled_from([0, 1, BODY_SIZE_BYTES_MAX, 64 * 1024 * 1024 + 1])
    bodies = st.binary() | sizes.map(bytes) | _ANYTHING

    @_SETTINGS
    @given(_ANY_TEXT | _ANYTHING, bodies, _ANY_TEXT | _ANYTHING, _ANY_TEXT | _ANYTHING, _HEADERS | _ANYTHING)
    @example("t", b"", None, None, None)
    @example("t", b"", None, None, [("a", "b")])
    @example("t", b"", "\ud800", None, {})
    def messages(topic: Any, body: Any, key: Any, tag: Any, headers: Any) -> None:
        message = refused_or_read(Message, topic, body, key, tag, headers)
        if message is not None:
            assert isinstance(message, Message)
            "".join((message.topic, message.key or "", message.tag or "")).encode()
            assert unpack_headers(pack_headers(message.headers)) == message.headers

    fuzz(messages)


def test_arguments_are_serialized_to_json_or_refused(fuzz: Fuzz) -> None:
    @_SETTINGS
    @given(st.dictionaries(st.text(), _ANYTHING | st.just(object()), max_size=3))
    def arguments(values: dict[str, Any]) -> None:
        body = refused_or_read(body_of_arguments, values, owner="f()")
        if body is not None:
            assert isinstance(body, bytes)
            assert list(json.loads(body)) == list(values)

    fuzz(arguments)


def test_wire_bytes_are_parsed_or_refused(fuzz: Fuzz) -> None:
    @_SETTINGS
    @given(st.data())
    def wire(data: st.DataObject) -> None:
        packed = pack_headers(
            data.draw(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.just("v")))
        )
        for each in (packed, data.draw(damaged(packed)), data.draw(st.binary())):
            found = refused_or_read(unpack_headers, each)
            assert found is None or len(pack_headers(found)) <= len(each) + 4 * len(found)  # type: ignore[arg-type]
            refused_or_read(slices_of_ids, each)
        us = data.draw(st.integers(-(2**70), 2**70))
        assert refused_or_read(datetime_of_us, us) in (None, datetime(1970, 1, 1, tzinfo=UTC) + _delta(us))
        with suppress(DecodeError):
            refused_or_read(checked, data.draw(wild(pb.Check)))
            refused_or_read(checked, pb.Check.FromString(data.draw(st.binary())))
            refused_or_read(delivered, data.draw(wild(pb.DeliveredColumns)))
            refused_or_read(delivered, pb.DeliveredColumns.FromString(data.draw(st.binary())))

    fuzz(wire)


def _delta(us: int) -> timedelta:
    with suppress(OverflowError):
        datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
        return timedelta(microseconds=us)
    return timedelta(0)


def test_any_refusal_of_a_broker_becomes_a_txmsg_error(fuzz: Fuzz) -> None:
    codes = st.sampled_from(sorted(_CODES)) | st.text(st.characters(exclude_categories=["Cs"]))
    texts = st.text(st.characters(exclude_categories=["Cs"])) | st.integers(0, 200_000).map(lambda n: "\0" * n)
    offsets = st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1])
    told = st.builds(CallError, code=codes, text=texts, begin=offsets, end=offsets).map(CallError.SerializeToString)

    @_SETTINGS
    @given(told | told.flatmap(damaged) | st.binary())
    @example(CallError(code="no such code").SerializeToString())
    @example(CallError(code="internal", text="\x1b[2J").SerializeToString())
    @example(b"")
    def refusals(payload: bytes) -> None:
        error = error_of_bytes(payload, "broker b:1")
        assert type(error) in _CODES.values(), "of ours, and a plain one for a code that is not known"
        assert 0 < len(str(error)) <= _PRINTED_LENGTH_MAX
        assert str(error).isprintable(), "what somebody at the other end says goes to terminals"
        assert was_told(error)
        again = error_of_bytes(bytes_of_error(error), "broker b:1")
        assert (type(again), str(again)) == (type(error), str(error)[:TEXT_LENGTH_MAX])
        assert vars(again) == vars(error)

    fuzz(refusals)


def test_error_with_any_text_can_be_sent(fuzz: Fuzz) -> None:
    @_SETTINGS
    @given(st.sampled_from(sorted(_CODES)), _ANY_TEXT)
    @example("storage", "the file \udcff cannot be read")
    @example("misuse", "\ud800" * 2000)
    def tellings(code: str, text: str) -> None:
        found = error_of_bytes(bytes_of_error(_CODES[code](text)), "broker b:1")
        assert type(found) is _CODES[code]
        assert str(found)

    fuzz(tellings)


_URL_PARTS = st.sampled_from(
    [
        "postgresql://",
        "mysql://",
        "u:p@",
        "127.0.0.1:1",
        ":",
        "@",
        "/",
        "/d",
        "?",
        "host=%2F",
        "&",
        "=",
        "[",
        "%",
        "\0",
        "ü",
    ]
)


@pytest.mark.parametrize("command", ["upgrade", "check"])
def test_invalid_database_url_is_reported_in_one_line(command: str) -> None:
    @settings(max_examples=25)
    @given(st.lists(_URL_PARTS, max_size=6).map("".join))
    @example("postgresql://127.0.0.1:port/d")
    @example("postgresql://127.0.0.1:1/d?unknown=1")
    def urls(url: str) -> None:
        result = CliRunner().invoke(main, ["db", command, "--storage", url], env={"PGHOST": "127.0.0.1", "PGPORT": "1"})
        assert isinstance(result.exception, SystemExit), (url, result.exception)
        assert result.exit_code in (1, 2)
        assert result.stderr.count("\n") <= 4, result.stderr

    urls()


def test_urls_of_the_embedded_database_are_parsed_as_intended(tmp_path: Path, fuzz: Fuzz) -> None:
    postgres = EmbeddedPostgres(tmp_path / "a dir%2F?&=#@:é")

    @_SETTINGS
    @given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
    def names(name: str) -> None:
        url = postgres.url(name)
        assert conninfo_to_dict(url)["dbname"] == name
        parsed = make_url(url)
        assert parsed.database is not None
        assert name in {parsed.database, unquote(parsed.database)}, "SQLAlchemy 2.0 leaves the name quoted"
        assert parsed.query["host"] == conninfo_to_dict(url)["host"]

    fuzz(names)
