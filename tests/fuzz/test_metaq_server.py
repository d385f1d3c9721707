"""For any bytes, a MetaQ server answers with its own errors, and its log stays readable."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google_crc32c import value as crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tests.fuzz.conftest import Fuzz
from tests.fuzz.wild import damaged, wild
from tests.metaq.servers import log_at, served
from tests.raw_client import RawClient
from tests.waiting import until
from txmsg.errors import (
    InvalidMessage,
    MembershipLost,
    MisuseError,
    OffsetOutOfRange,
    OffsetsMissing,
    ProtocolError,
    UnknownGroup,
    UnknownTopic,
)
from txmsg.metaq.format.frame import Compression, FrameColumns, encode
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.location import open_log
from txmsg.metaq.protocol import batch_of_append
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.metaq.store.log import Append
from txmsg.wire.method import methods_of
from txmsg.wire.v1 import metaq_pb2 as pb
from txmsg.wire.v1.metaq_rpc import MetaQ, MetaQGroups

_SETTINGS = settings(max_examples=40, suppress_health_check=list(HealthCheck))
_DEADLINE_S = 60.0
_PATIENT_S = 0.3
_TRIES_MAX = 20
_APPENDED = f"{MetaQ.append.name} OK"
_REFUSALS = (
    InvalidMessage,
    ProtocolError,
    MisuseError,
    UnknownTopic,
    UnknownGroup,
    MembershipLost,
    OffsetOutOfRange,
)
_METHODS = {method.name: method for service in (MetaQ, MetaQGroups) for method in methods_of(service).values()}
_PRODUCERS = [bytes([n]) * 16 for n in range(3)]
_VALUES: dict[str, SearchStrategy[Any]] = {
    "base_offset": st.sampled_from([0, 1, 2, 2**62 - 1, 2**62, 2**63, 2**64 - 1]),
    "columns": st.sampled_from([0, 16, 256, 257, 511, 512, 2**16, 2**32 - 1]),
    "compression": st.integers(0, 4),
    "count": st.sampled_from([0, 1, 2, 3, 2**20, 2**20 + 1, 2**32 - 1]),
    "first_stored_at_us": st.sampled_from([-1, 0, 5, 2**62, 2**63 - 1]),
    "kind": st.integers(0, 4),
    "last_stored_at_us": st.sampled_from([-1, 0, 5, 2**62, 2**63 - 1]),
    "payload_crc": st.just(7),
    "queue": st.sampled_from([0, 1, 1023, 1024, 2**32 - 1]),
    "size": st.sampled_from([0, 8, 2**32 - 1]),
    "raw_size": st.sampled_from([0, 8, 2**28, 2**28 + 1, 2**32 - 1]),
    "topic": st.sampled_from(["", ".", "..", "%RETRY%", "%RETRY%..", "%DLQ%nobody", "%APPENDS%", "a/b", "x" * 128]),
}


@st.composite
def _batches(draw: DrawFn) -> tuple[pb.AppendBatch, bytes]:
    """A valid batch and its payload, or with one change, or damaged under a matching checksum."""
    count = draw(st.integers(1, 4))
    columns = FrameColumns(
        draw(st.lists(st.binary(max_size=30), min_size=count, max_size=count)),
        draw(st.lists(st.integers(0, 9), min_size=count, max_size=count)),
        key=["k", "", "ü", "k"][:count],
        headers=[b"", b"\n\x06\n\x01a\x12\x01b", b"", b""][:count],
    )
    payload = encode(columns, draw(st.sampled_from(Compression)))
    batch = batch_of_append(Append(draw(st.sampled_from(["a", "b"])), draw(st.integers(0, 2)), payload))
    stored = bytes(payload.parts[0])
    match draw(st.integers(0, 3)):
        case 0:
            name = draw(st.sampled_from(sorted(_VALUES)))
            setattr(batch, name, draw(_VALUES[name]))
        case 1:
            stored = draw(damaged(stored))
            batch.size, batch.payload_crc = len(stored), crc32c(stored)
    return batch, stored


@st.composite
def _appends(draw: DrawFn) -> pb.AppendRequest:
    sequence = draw(st.integers(1, 30))
    batches = draw(st.lists(_batches(), max_size=3))
    head = pb.AppendHead(
        producer_id=draw(st.sampled_from(_PRODUCERS)),
        sequence=sequence,
        settled=draw(st.integers(max(1, sequence - 3), sequence)),
        is_repeat=draw(st.booleans()),
        batches=[batch for batch, _ in batches],
    )
    return pb.AppendRequest(head=head, data=b"".join(stored for _, stored in batches))


@st.composite
def _of_members(draw: DrawFn, kind: Any) -> Any:
    """Requests of members of a few sessions: mostly valid ones."""
    request = draw(wild(kind))
    if draw(st.integers(0, 3)):
        request.session = draw(st.sampled_from(_PRODUCERS))
        if isinstance(request, pb.JoinGroupRequest):
            good = pb.JoinGroupRequest(group=draw(st.sampled_from(["g", "h"])), topics=["a", "b"], session_ms=60_000)
            good.session = request.session
            return good
        request.call = draw(st.integers(1, 50))
        request.ClearField("queues")
        request.ClearField("offsets")
        request.queues.add(topic="a", queue=[0, draw(_VALUES["queue"])])
        request.offsets.add(topic="a", queue=[0], offset=[draw(st.sampled_from([0, 1, 2**62, 2**63 - 1]))])
    return request


@st.composite
def _calls(draw: DrawFn) -> tuple[str, list[bytes]]:
    """A method, and the bytes of its requests; one in five is damaged."""
    name = draw(st.sampled_from([*_METHODS, *[MetaQ.append.name] * len(_METHODS)]))
    kind = _METHODS[name].request
    if kind in {pb.JoinGroupRequest, pb.MemberRequest}:
        request = draw(_of_members(kind)).SerializeToString()
    else:
        request = draw(_appends() if kind is pb.AppendRequest else wild(kind)).SerializeToString()
    return name, [draw(damaged(request)) if draw(st.integers(0, 4)) == 0 else request]


class _Target:
    """Sends raw requests and checks the answers."""

    def __init__(self, client: RawClient) -> None:
        self._client = client
        self.answers: Counter[str] = Counter()

    def ask(self, calls: Sequence[tuple[str, list[bytes]]]) -> None:
        """Make these calls concurrently."""
        under_way = [(name, self._client.begin_with_all(name, requests)) for name, requests in calls]
        for name, call in under_way:
            method = _METHODS[name]
            try:
                answer = self._client.answer(call, within_s=_PATIENT_S if method.gives_many else _DEADLINE_S)
            except TimeoutError:
                assert method.gives_many, f"{name} is not answered in {_DEADLINE_S} s"
                self._client.cancel(call)  # it was asked to wait for longer than a test does
                self.answers[f"{name} cancelled"] += 1
                continue
            del self._client.answers[call]
            self.answers[f"{name} {'OK' if answer.told is None else answer.told.code}"] += 1
            if answer.told is not None:
                assert isinstance(answer.error, _REFUSALS), f"{name} answers {answer.told.code}: {answer.told.text}"
                assert 0 < len(answer.told.text) <= 1000
            replies = answer.pushed if method.gives_many else [answer.reply] if answer.reply is not None else []
            for reply in replies:
                method.reply.FromString(reply)


def test_random_requests_do_not_harm_server_log_or_other_clients(
    tmp_path: Path, fuzz: Fuzz, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "log"
    with served(MetaQConfig(data_dir=root, listen="127.0.0.1:0")) as address, log_at(address) as good:
        with RawClient(address) as client:
            target = _Target(client)

            @_SETTINGS
            @given(st.lists(_calls(), min_size=1, max_size=8))
            def calls(batch: list[tuple[str, list[bytes]]]) -> None:
                target.ask(batch)

            fuzz(calls)
            for _ in range(_TRIES_MAX):  # a busy machine makes few examples in its time
                if not target.answers[_APPENDED]:
                    calls()
        print(*sorted(target.answers.items()), sep="\n")
        good.append([Append("good", 0, encode(FrameColumns([b"good"], [1])))])
        assert good.fetch({LogQueue("good", 0): 0})[0].batches[0].to_arrow()["body"].to_pylist() == [b"good"]
        until(lambda: good.describe().appending_bytes == 0)  # also of timed-out calls
    assert target.answers[_APPENDED] > 0
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert list(tmp_path.iterdir()) == [root], "something was written elsewhere"
    with open_log(root) as log:
        for topic, queues in log.topics().items():
            for queue in queues:
                _read_all(log, LogQueue(topic, queue))


def _read_all(log: Any, queue: LogQueue) -> None:
    offset, end = log.ranges([queue])[queue]
    while offset < end:
        [found] = log.fetch({queue: offset})
        if isinstance(found.error, OffsetsMissing):
            offset = found.error.end
            continue
        assert found.error is None
        for batch in found.batches:
            batch.to_arrow().validate(full=True)
            assert len(list(batch.messages())) == len(batch)
            offset = batch.end_offset
