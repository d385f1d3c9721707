"""Creates the clients of a Kafka cluster, and remembers why it cannot be reached: librdkafka's calls only time out."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, Final, TypeVar
from weakref import ref

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from txmsg.errors import MisuseError, TxmsgError, printable
from txmsg.metaq.kafka.errors import error_of, kafka_error_of
from txmsg.metaq.kafka.location import KafkaAddress
from txmsg.metaq.store.state import LogIdentity
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)
ClientT = TypeVar("ClientT")
T = TypeVar("T")

_DEFAULTS: Final[Mapping[str, Any]] = {
    "client.id": "txmsg",
    "log.connection.close": False,  # a server closes connections that are idle
    "socket.keepalive.enable": True,
    "socket.timeout.ms": 30_000,
    "topic.metadata.refresh.interval.ms": 5_000,  # within this, new partitions are seen
    "reconnect.backoff.max.ms": 2_000,  # a node that was restarted is found within this
}
"""Properties that the user's file may override."""
_PRODUCER: Final[Mapping[str, Any]] = {
    "acks": "all",
    "allow.auto.create.topics": False,  # or a deleted topic returns with default settings
    "enable.idempotence": True,
}
_CONSUMER: Final[Mapping[str, Any]] = {
    "allow.auto.create.topics": False,
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": False,
    "isolation.level": "read_committed",
}
_TELLING: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._RESOLVE, KafkaError._TRANSPORT})
"""Codes that librdkafka reports beside the calls that then time out."""
_SILENCE: Final = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN})
"""Codes that say only that no answer came."""
_REPEAT_S: Final = 10.0
_LINES_MAX: Final = 256
"""Lines that are remembered."""

GROUP_NOT_YET_KNOWN: Final = frozenset(
    {KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR}
)
"""The code of a node that does not know a group yet. Kafka's client does not wait until it does."""
_LOOK_AGAIN_S: Final = 0.1


class KafkaClients:
    """Creates clients for the Kafka cluster at an address. Threads may share it.

    properties: from the user's file. timeout_s: the longest that one call may take.
    """

    def __init__(self, address: KafkaAddress, properties: Mapping[str, str], *, timeout_s: float) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self._properties = dict(properties)
        self._lock = threading.Lock()
        self._why: KafkaError | None = None
        self._admins: list[ref[AdminClient]] = []

    def renewed(self) -> KafkaClients:
        """Return a new instance for a process that was forked from this one."""
        return KafkaClients(self.address, self._properties, timeout_s=self.timeout_s)

    def producer(self, **more: Any) -> Producer:
        """Return an idempotent producer that waits for all in-sync copies.

        more: other properties, with _ instead of dots.
        """
        return self._made(Producer, _PRODUCER, more)

    def consumer(self, group: str, **more: Any) -> Consumer:
        """Return a consumer that reads committed records.

        It joins no group; `group` only says where offsets are stored.
        """
        return self._made(Consumer, {**_CONSUMER, "group.id": group}, more)

    def admin(self) -> AdminClient:
        """Return an administrator."""
        made = self._made(AdminClient, {}, {})
        self._admins.append(ref(made))
        return made

    def identity(self, admin: AdminClient) -> LogIdentity:
        """Identify the log by the cluster's id and the prefix, regardless of which servers the address names."""
        with self.translated("asking for the cluster"):
            cluster = admin.cluster_id(timeout=self.timeout_s)
        digest = blake2b(f"{cluster}/{self.address.prefix}".encode(), digest_size=8).digest()
        return LogIdentity(int.from_bytes(digest, "big") >> 1)

    def _made(self, kind: Callable[..., ClientT], ours: Mapping[str, Any], more: Mapping[str, Any]) -> ClientT:
        config = {
            **_DEFAULTS,
            **self._properties,
            **ours,
            **{name.replace("_", "."): value for name, value in more.items()},
            "bootstrap.servers": ",".join(self.address.servers),
            "error_cb": self._on_error,
        }
        try:
            return kind(config, logger=_LOGGER)
        except KafkaException as exc:
            said = printable(kafka_error_of(exc).str())
            raise MisuseError(f"the file of properties for {self.address} cannot be used: {said}") from exc

    def _on_error(self, error: KafkaError) -> None:
        """Record an error; librdkafka calls it in a thread that polls, or in the administrator's."""
        if error.code() in _TELLING:
            with self._lock:
                self._why = error

    def error(self, error: KafkaError, doing: str) -> TxmsgError:
        """Return the error for a failure while `doing`, with the reason why servers are not reached, if that is
        known.
        """
        if error.code() not in _SILENCE:
            return error_of(error, f"{doing} of {self.address}")
        why = self._told()
        if why is not None and why.code() == KafkaError._AUTHENTICATION:
            return error_of(why, f"{doing} of {self.address}")
        return error_of(error, f"{doing} of {self.address}", hint=self.why())

    def why(self) -> str:
        """Return the last report about servers that cannot be reached, or empty."""
        why = self._told()
        return "" if why is None else printable(why.str())

    def _told(self) -> KafkaError | None:
        for kept in self._admins:
            if (admin := kept()) is not None:
                admin.poll(0)  # otherwise it does not report errors
        with self._lock:
            return self._why

    @contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """Raise errors of Kafka inside `with` as errors of txmsg."""
        try:
            yield
        except KafkaException as exc:
            raise self.error(kafka_error_of(exc), doing) from exc

    def of_group(self, doing: str, ask: Callable[[], T]) -> T:
        """Return the result of `ask`; ask again for timeout_s while the coordinator of a group does not know it yet.

        Any other failure is raised as an error of txmsg.
        """
        deadline = time.monotonic() + self.timeout_s
        while True:
            with self.translated(doing):
                try:
                    return ask()
                except KafkaException as exc:
                    if kafka_error_of(exc).code() not in GROUP_NOT_YET_KNOWN or time.monotonic() > deadline:
                        raise
            time.sleep(_LOOK_AGAIN_S)


class ClientLog:
    """librdkafka's log lines as events. Drops immediate repeats of a line, for example about a server that is down."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[str, float] = {}

    def log(self, level: int, text: str, *args: object) -> None:
        """Log a line; librdkafka calls it in a thread that polls."""
        line = text % args if args else text
        now = self._clock()
        if now - self._told.get(line, -_REPEAT_S) < _REPEAT_S:
            return
        if len(self._told) >= _LINES_MAX:
            self._told.clear()
        self._told[line] = now
        # Servers that come and go are what Kafka is made for: callers that cannot continue without them raise an error.
        _log.log(min(level, logging.INFO), "kafka.client", "Kafka's client: %(line)s", line=printable(line))


_LOGGER: Final = ClientLog()
