"""Strings in all methods of all services: none makes a server fail, and a NUL is refused with a text.

Derived from the messages themselves, so added methods and fields are included.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any
from uuid import UUID

import pytest

from tests.broker_process import BrokerProcess
from tests.metaq.servers import served
from tests.methods import every_method, parts_of, unchecked
from tests.raw_client import RawClient
from txmsg.errors import TxmsgError
from txmsg.metaq.server.server_config import MetaQConfig

METHODS = every_method()
OF_LOGS = {name for name in METHODS if name.startswith("MetaQ")}
WORDS = {"NUL": "a\0b", "empty": "", "long": "x" * 100_000, "odd": "\U0001f600\u2028\x1b[31m\r\n%s{0}'\"--"}
ID = UUID("0197f3a2-8d5e-7c11-b0a4-000000000007")
PLAUSIBLE: dict[str, Any] = {
    "broker": "b",
    "client_id": "c",
    "durability": "sync",
    "group": "g",
    "id": f"{ID}.0",
    "key": "k",
    "max_messages": 1,
    "n": 0,
    "name": "t",
    "producer_group": "g",
    "topic": "t",
    "transaction_id": ID.bytes,
    "transaction_ids": ID.bytes,
}
"""Values of other fields with which a method gets as far as the field under test."""
Path = tuple[str, ...]


def strings(kind: Any, above: tuple[Any, ...] = ()) -> Iterator[Path]:
    """Yield the path to each text field in a message and its sub-messages."""
    for part in parts_of(kind).values():
        if part.kind is str:
            yield (part.name,)
        elif part.is_message and part.kind not in above:
            for path in strings(part.kind, (*above, kind)):
                yield (part.name, *path)


def request_with(kind: Any, path: Path, word: str, *, others: bool) -> Any:
    """Return a request with this string at the path, and plausible or no values in its other fields.

    A message of Protobuf, or values of JSON, which may be invalid in a dataclass.
    """
    values: dict[str, Any] = {}
    for part in parts_of(kind).values():
        is_under_test = part.name == path[0]
        if is_under_test:
            value = request_with(part.kind, path[1:], word, others=others) if part.is_message else word
        elif part.name in PLAUSIBLE and not part.is_alternative and (others or part.is_required):
            value = str(ID) if part.kind is UUID else PLAUSIBLE[part.name]
        elif part.is_required and part.is_message:
            value = request_with(part.kind, ("",), word, others=others)
        elif part.is_required and part.choices:
            value = part.choices[0]
        else:
            continue
        values[part.name] = [value] if part.is_list else {word: value} if part.is_map else value
    return values if is_dataclass(kind) else kind(**values)


def answer(client: RawClient, name: str, request: Any) -> TxmsgError | None:
    """Return the error with which the request is refused, if any."""
    return client.answer(client.begin(name, unchecked(request))).error


def ask_all(client: RawClient, names: set[str]) -> None:
    """Send each word in each string field of these methods."""
    failures = []
    refused = 0
    for name in sorted(names):
        kind = METHODS[name].request
        for path in strings(kind):
            for of, word in WORDS.items():
                for others in (True, False):
                    error = answer(client, name, request_with(kind, path, word, others=others))
                    refused += of == "NUL" and "NUL" in str(error)
                    if type(error) is TxmsgError:
                        failures.append(f"{name} {'.'.join(path)} {of}: {error}")
    assert failures == []
    assert refused, "no method looked at a NUL"


def test_no_string_makes_a_broker_fail(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client:
        ask_all(client, METHODS.keys() - OF_LOGS)
    assert "Traceback" not in broker.log.read_text()


def test_no_string_makes_a_server_of_a_log_fail(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    with served(MetaQConfig(data_dir=tmp_path / "log", listen="127.0.0.1:0")) as address:
        with RawClient(address) as client:
            ask_all(client, OF_LOGS)
    assert "Traceback" not in caplog.text
