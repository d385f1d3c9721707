"""A broker under fuzz: raw bytes in, and invariants of every answer, of its log, its memory and its database."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

import psutil
import psycopg
from google.protobuf.message import DecodeError

from tests.broker_process import BrokerProcess
from tests.fuzz.wild import ID_PREFIX, METHODS, STREAMS, Exchange, Pick
from tests.raw_client import RawClient
from txmsg.errors import (
    BrokerUnavailable,
    DuplicateId,
    InvalidMessage,
    MisuseError,
    OutcomeConflict,
    OutcomeExpired,
    Overloaded,
    ProtocolError,
    TopicClosed,
    TopicExists,
    TxmsgError,
    UnknownGroup,
    UnknownTopic,
    error_of_code,
)
from txmsg.message import HEADERS_SIZE_BYTES_MAX, Message, check_name
from txmsg.wire.codec import unpack_headers
from txmsg.wire.method import unpacked
from txmsg.wire.v1 import txmsg_pb2 as pb
from txmsg.wire.v1.wire_pb2 import CallError

_DEADLINE_S = 60.0
_SHORT_S = 0.3
_WAIT_MS_MAX = 1000
_TEXT_SIZE_MAX = 1000
_FORGED_TOKEN_MIN = 2**40
_REFUSALS = (
    InvalidMessage,
    UnknownTopic,
    UnknownGroup,
    TopicClosed,
    TopicExists,
    DuplicateId,
    OutcomeConflict,
    OutcomeExpired,
    MisuseError,
    ProtocolError,
)
"""Errors of a healthy broker for a bad request."""
_MAY_BE_UNAVAILABLE = ("/Receive", "/Stats")
"""Calls that need the delivery lease, which expires if the machine stalls for 5 s."""
_REPLIES = {name: each.reply for name, each in {**METHODS, **STREAMS}.items()}


class BrokerUnderFuzz:
    """Sends raw requests to a broker process and checks each answer against docs/protocol.md."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._process = psutil.Process(broker.pid)
        self._client = RawClient(broker.address)
        self._receipts: deque[pb.Receipt] = deque(maxlen=64)
        self._id_prefix = ID_PREFIX
        self.answers: Counter[str] = Counter()
        """Number of answers by method and code, of results of items, and of deliveries."""
        self.calls = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.socket.close()

    def renew_ids(self) -> None:
        """Use ids in requests that the broker has not seen."""
        self._id_prefix = os.urandom(len(ID_PREFIX))

    def exchange(self, exchanges: Sequence[Exchange]) -> None:
        """Make these calls concurrently, and check their answers."""
        calls: list[tuple[str, bytes, bool, int]] = []
        for each in exchanges:
            request = self._with_real_receipts(each).replace(ID_PREFIX, self._id_prefix)
            patient = _waits_longer_than_a_test(each.method, request)
            call = self._client.begin(
                each.method, request, timeout_ms=int(1000 * (_SHORT_S if patient else _DEADLINE_S))
            )
            calls.append((each.method, request, patient, call))
        for name, request, patient, call in calls:
            self.calls += 1
            try:
                answer = self._client.answer(call, within_s=_SHORT_S if patient else _DEADLINE_S)
            except TimeoutError:
                assert patient, f"{name} is not answered in {_DEADLINE_S} s"
                self._client.cancel(call)
                self.answers[f"{name} cancelled"] += 1
                continue
            del self._client.answers[call]
            assert not answer.pushed, f"{name} gives one reply"
            self._note(name, answer.told)
            if answer.reply is not None:
                self._check_reply(name, request, answer.reply)

    def attach(self, frames: Iterable[bytes]) -> None:
        """Open an Attach stream, send these frames, close the client's side, and read to the end."""
        (name,) = STREAMS
        call = self._client.begin_with_all(name, list(frames))
        answer = self._client.answer(call, within_s=_DEADLINE_S)
        del self._client.answers[call]
        for frame in answer.pushed:
            unpacked(_REPLIES[name], frame)
        self.calls += 1
        self._note(name, answer.told)

    def _note(self, name: str, told: CallError | None) -> None:
        self.answers[f"{name} {'OK' if told is None else told.code}"] += 1
        if told is not None:
            _check_refusal(name, told)

    def rss_bytes(self) -> int:
        """Return the resident memory of the broker."""
        return int(self._process.memory_info().rss)

    def complaints(self) -> list[str]:
        """Return lines of the broker's log that no request may cause: errors, tracebacks, interrupted delivery."""
        bad = (" ERROR ", " CRITICAL ", "Traceback", "delivery stops")
        lines = [line for line in self._broker.log.read_text().splitlines() if "leases expired before" not in line]
        return [line for line in lines if any(each in line for each in bad)]

    def _with_real_receipts(self, exchange: Exchange) -> bytes:
        if not exchange.picks or not self._receipts:
            return exchange.request
        more = pb.ReceiveRequest()
        for pick in exchange.picks:
            receipt = _changed(self._receipts[pick.slot % len(self._receipts)], pick)
            if pick.refuse_delay_ms is not None:
                more.refusals.add(receipt=receipt, error="no \0 good", delay_ms=pick.refuse_delay_ms)
            else:
                more.acks.append(receipt)
        return exchange.request + more.SerializeToString()  # messages in protobuf are joined by joining their bytes

    def _check_reply(self, name: str, request: bytes, data: bytes) -> None:
        reply = unpacked(_REPLIES[name], data)
        errors = getattr(reply, "errors", ())
        for error in errors:
            _check_code(name, error.code)
            self.answers[f"{name} item {error.code}"] += 1
            assert len(error.text) <= _TEXT_SIZE_MAX, f"{name} tells of one item in {len(error.text)} characters"
        if errors:
            assert len(data) <= 60 * len(request) + 1000, f"{name} answers {len(request)} bytes with {len(data)}"
        if isinstance(reply, pb.ReceiveReply):
            _check_forgeries(request, reply)
            self._receipts.extend(batch.receipt for batch in reply.batches)
            self.answers[f"{name} delivered"] += sum(len(batch.body) for batch in reply.batches)


def _changed(receipt: pb.Receipt, pick: Pick) -> pb.Receipt:
    changed = pb.Receipt()
    changed.CopyFrom(receipt)
    if pick.change == "offset":
        changed.offset[:] = [each + 1 for each in changed.offset]
    elif pick.change == "token":
        changed.token += _FORGED_TOKEN_MIN
    elif pick.change:
        setattr(changed, pick.change, getattr(changed, pick.change) + 1)
    return changed


def _check_forgeries(request: bytes, reply: pb.ReceiveReply) -> None:
    """No broker lives long enough to issue such a token: everything under it must be refused as expired."""
    sent = pb.ReceiveRequest.FromString(request)
    given = _deliveries([*sent.acks, *(refusal.receipt for refusal in sent.refusals)])
    taken = {each for each in given if each[1] >= _FORGED_TOKEN_MIN} - _deliveries(reply.expired)
    assert not taken, f"receipts that were never given are taken: {taken}"


def _deliveries(receipts: Iterable[pb.Receipt]) -> set[tuple[int, int, int, int]]:
    return {
        (receipt.queue_id, receipt.token, receipt.epoch, offset) for receipt in receipts for offset in receipt.offset
    }


def _waits_longer_than_a_test(name: str, request: bytes) -> bool:
    """Return True if the request asks the broker to hold the call for longer than a test waits."""
    try:
        return name.endswith("/Receive") and pb.ReceiveRequest.FromString(request).wait_ms > _WAIT_MS_MAX
    except DecodeError:
        return False


def _check_refusal(name: str, told: CallError) -> None:
    error = error_of_code(told.code, told.text)
    is_unavailable = isinstance(error, BrokerUnavailable) and not isinstance(error, Overloaded)
    is_down = is_unavailable and name.endswith(_MAY_BE_UNAVAILABLE)
    assert isinstance(error, _REFUSALS) or is_down, f"{name} answers {told.code}: {told.text}"
    assert 0 < len(told.text) <= _TEXT_SIZE_MAX, f"{name} refuses in {len(told.text)} characters"


def _check_code(name: str, code: str) -> None:
    assert type(error_of_code(code, "")) is not TxmsgError, f"{name} answers with code {code!r}, which says nothing"


# ---- the database afterwards

_RULES = {
    "offsets are dense": "select queue from txmsg.message group by queue having min(queue_offset) <> 0 "
    "or max(queue_offset) <> count(*) - 1 or count(distinct queue_offset) <> count(*)",
    "an outcome is final": "select transaction_id from txmsg.message join txmsg.rolled_back using (transaction_id)",
    "what is decided is no half": "select transaction_id from txmsg.half_message where not decided and "
    "transaction_id in (select transaction_id from txmsg.message union select transaction_id from txmsg.rolled_back)",
    "a message is stored once": "select transaction_id, n from txmsg.message group by 1, 2 having count(*) > 1",
    "a half is checked or parked": "select transaction_id from txmsg.half_message group by 1 "
    "having not bool_or(decided) "
    "and count(*) filter (where n = 0 and (next_check_at is not null or parked_reason is not null)) = 0",
    "n counts from 0": "select transaction_id from txmsg.half_message where not decided group by 1 "
    "having max(n) >= count(*)",
    "cursors stay in their queue": "select c.* from txmsg.cursor c where c.next_offset > coalesce((select "
    "max(m.queue_offset) + 1 from txmsg.message m where m.queue = c.queue_id), 0)",
    "retries are of messages": "select queue_id, queue_offset from txmsg.retry r where not exists (select from "
    "txmsg.message m where (m.queue, m.queue_offset, m.body) = (r.queue_id, r.queue_offset, r.body))",
}
"""Each query finds the rows that violate the rule."""

_STORED = """
select topic.name, key, tag, headers, body, n, ordering_key from
  (select queue, key, tag, headers, body, n, ordering_key from txmsg.message
   union all select queue, key, tag, headers, body, n, null from txmsg.scheduled
   union all select queue, key, tag, headers, body, n, ordering_key from txmsg.half_message) m
  join txmsg.queue on queue.id = m.queue join txmsg.topic on topic.id = topic_id
"""


def broken_rules(url: str) -> list[str]:
    """Return violations in a Notify database that the public API cannot cause: rules and their rows."""
    broken = []
    with psycopg.connect(url, connect_timeout=10) as connection:
        for name, query in _RULES.items():
            if rows := connection.execute(query.encode()).fetchmany(3):
                broken.append(f"{name}: {rows}")
        for topic, key, tag, headers, body, n, ordering_key in connection.execute(_STORED):
            try:
                assert 0 <= n < 1000, f"n={n}"
                assert len(headers or b"") <= 2 * HEADERS_SIZE_BYTES_MAX
                Message(topic, body, key=key, tag=tag, headers=unpack_headers(headers), ordering_key=ordering_key)
            except (TxmsgError, AssertionError) as exc:
                broken.append(f"a message that cannot be sent is stored: {exc}")
        for table in ("topic.name", "consumer_group.name", "producer.group_name"):
            table_name, column = table.split(".")
            for (name,) in connection.execute(f"select {column} from txmsg.{table_name}".encode()):
                check_name(table, name)
    return broken
