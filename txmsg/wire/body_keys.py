"""Keys of bodies of erasable topics, for readers of a log, who get ciphertext. Consumers of brokers need none.

Blocking, and fit for any thread: handlers of applications, tasks of Spark. pyarrow is loaded where there is Arrow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from txmsg.message import Message, ReceivedMessage
from txmsg.message.erasable import ERASED_HEADER, SEALED_HEADER, unseal
from txmsg.runtime.durations import Seconds, check_seconds
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.body_keys_query import BODY_KEYS, KeysQuery
from txmsg.wire.brokers import one_database_of
from txmsg.wire.codec import REQUEST_ITEMS_MAX
from txmsg.wire.credential import TokenChoice, client_token
from txmsg.wire.sealed import is_sealed, unsealed
from txmsg.wire.tls import TlsChoice, client_context

if TYPE_CHECKING:
    import pyarrow as pa

    ArrowT = TypeVar("ArrowT", pa.RecordBatch, pa.Table)

_Place: TypeAlias = tuple[bytes, int]
"""A message by its transaction's id and its number."""

TIMEOUT_S_MAX = 3600.0


class BodyKeys:
    """Decrypts messages of erasable topics that were read from a log. For `encryption=` of an application.

    brokers: of the Notify database that the log mirrors, as for a Consumer. timeout_s: of each call. tls, token:
    as for a Consumer. With authentication, reading keys needs the right to read the topic.

    Requests the keys from the broker each time, so messages that were erased meanwhile are not decrypted: their body is
    empty, and they have the header `txmsg-erased`.
    """

    def __init__(
        self,
        brokers: str | Sequence[str] | None = None,
        *,
        timeout_s: Seconds = 10.0,
        tls: TlsChoice = None,
        token: TokenChoice = None,
    ) -> None:
        self._brokers = one_database_of(brokers)
        self._timeout_s = check_seconds("timeout_s", timeout_s, least_s=0.001, most_s=TIMEOUT_S_MAX)
        self._tls = client_context(tls) or False
        self._token = client_token(token)

    def encrypt(self, message: Message) -> Message:
        """Return the message unchanged: brokers encrypt."""
        return message

    def decrypt(self, message: ReceivedMessage) -> ReceivedMessage:
        """Return the message with its body decrypted, or unchanged if its body is not encrypted. Raises
        BrokerUnavailable."""
        return self.decrypt_all((message,))[0]

    def decrypt_all(self, messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
        """Decrypt messages as `decrypt`, in one call for up to 4,096 messages of a topic."""
        opened = list(messages)
        by_topic: dict[str, list[int]] = defaultdict(list)
        for row, message in enumerate(opened):
            if SEALED_HEADER in message.headers:
                by_topic[message.topic].append(row)
        for topic, rows in by_topic.items():
            keys = self._keys(topic, [(opened[row].id_bytes, opened[row].n) for row in rows])
            for row, key in zip(rows, keys, strict=True):
                opened[row] = _opened(opened[row], key)
        return opened

    def decrypt_arrow(self, topic: str, messages: ArrowT) -> ArrowT:
        """Decrypt messages of a topic in Arrow, as `decrypt_all`; changes the columns `body` and `headers`."""
        import pyarrow as pa

        headers = messages["headers"].to_pylist()
        rows = [row for row, packed in enumerate(headers) if is_sealed(packed)]
        if not rows:
            return messages
        ids, ns, bodies = (messages[name].to_pylist() for name in ("transaction_id", "n", "body"))
        for row, key in zip(rows, self._keys(topic, [(ids[row], ns[row]) for row in rows]), strict=True):
            packed, bodies[row] = unsealed(headers[row], bodies[row], key)
            headers[row] = packed or None
        for name, values in (("headers", headers), ("body", bodies)):
            at = messages.schema.get_field_index(name)
            field = messages.schema.field(at)
            messages = messages.set_column(at, field, pa.array(values, field.type))
        return messages

    def _keys(self, topic: str, places: Sequence[_Place]) -> list[bytes]:
        keys: list[bytes] = []
        with BlockingChannel(self._brokers, tls=self._tls, token=self._token) as channel:
            # In calls of 4,096: a broker refuses more items in one request, and holds them in memory together.
            for at in range(0, len(places), REQUEST_ITEMS_MAX):
                part = places[at : at + REQUEST_ITEMS_MAX]
                query = KeysQuery(
                    topic=topic, transaction_ids=b"".join(id_bytes for id_bytes, _ in part), n=[n for _, n in part]
                )
                keys += channel.call(BODY_KEYS, query, timeout_s=self._timeout_s).keys
        return keys


def _opened(message: ReceivedMessage, key: bytes) -> ReceivedMessage:
    headers = {name: value for name, value in message.headers.items() if name != SEALED_HEADER}
    if not key:
        return message._replace(body=b"", headers={**headers, ERASED_HEADER: "1"})
    return message._replace(body=unseal(key, message.body), headers=headers)
