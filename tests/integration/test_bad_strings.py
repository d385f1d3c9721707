"""Each string that a method of any service takes: none makes a server fail, and a NUL is refused in words.

Built from the messages themselves, so a method or a field that is added is asked without a word here.
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
from txmsg.metaq.server.config import MetaQConfig

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
"""With these in the other fields a method gets as far as the one under test."""
Path = tuple[str, ...]


def strings(kind: Any, above: tuple[Any, ...] = ()) -> Iterator[Path]:
    """The way to each text in a message, through its messages."""
    for part in parts_of(kind).values():
        if part.kind is str:
            yield (part.name,)
        elif part.is_message and part.kind not in above:
            for path in strings(part.kind, (*above, kind)):
                yield (part.name, *path)


def request_with(kind: Any, path: Path, word: str, *, others: bool) -> Any:
    """A request with this string in there, and what is plausible in its other fields, or nothing.

    Of Protobuf, or as JSON has it, in which a field may have what a dataclass cannot.
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
    """With which error the request is refused, if it is."""
    return client.answer(client.begin(name, unchecked(request))).error


def ask_all(client: RawClient, names: set[str]) -> None:
    """Puts each word into each string of these methods."""
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
