"""A private Apache Kafka for tests: KRaft nodes on this machine, from artifacts that Maven downloads once.

The jars are kept in the user's cache, as Maven keeps its own. Needs Java 17 or newer, and Maven until they are there.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.maven import are_at_hand, jars
from tests.orphans import ENDING_WITH_PARENT
from tests.ports import own_port
from tests.waiting import until

VERSION: Final = "4.3.1"
_NAME, _ARTIFACT = f"kafka-{VERSION}", f"org.apache.kafka:kafka_2.13:{VERSION}"
IMAGE: Final = "confluentinc/cp-kafka:8.2.0"
"""The container image."""
HOW_TO_INSTALL = (
    "Kafka cannot be run: `apt-get install --no-install-recommends default-jre-headless maven` (Debian), or name one "
    "of yours with --kafka=HOST:PORT"
)
USER, PASSWORD = "reader", "reader's password"
"""Users of the listener with passwords, restricted by ACLs; users of the other one may do everything."""
_START_S_MAX = 300.0
_STOP_S_MAX = 60.0
_ANSWER_S_MAX = 60.0
_LOG_LENGTH_MAX = 3_000
_HEAP = "-Xmx200m"


def is_installed() -> bool:
    return are_at_hand(_NAME)


def _shared_settings(copies: int) -> dict[str, int | str]:
    """Return the settings that tests rely on, for any kind of node."""
    enough = min(2, copies)
    return {
        "auto.create.topics.enable": "true",  # a request for a topic must not create it
        "default.replication.factor": copies,
        "min.insync.replicas": enough,
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": 3,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": enough,
        "transaction.state.log.num.partitions": 3,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": enough,
        "group.initial.rebalance.delay.ms": 0,
        # Test messages have any timestamp: none is refused, and none deleted by the retention check every five minutes.
        "log.message.timestamp.after.max.ms": 2**63 - 1,
        "log.retention.ms": -1,
    }


class Kafka(Protocol):
    """A Kafka that tests use."""

    @property
    def servers(self) -> str:
        """The bootstrap servers: HOST:PORT, separated by commas."""
        ...

    @property
    def address(self) -> str:
        """The address for `open_log`, without a prefix."""
        ...


class ExternalKafka:
    """A Kafka that runs outside of the tests."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.address = f"kafka://{servers}"


@contextmanager
def kafka_in_container() -> Iterator[ExternalKafka]:
    """A Kafka node in Docker."""
    from testcontainers.community.kafka import KafkaContainer

    container = KafkaContainer(IMAGE).with_kraft()
    for name, value in _shared_settings(copies=1).items():
        container.with_env(f"KAFKA_{name.upper().replace('.', '_')}", str(value))
    with container:
        yield ExternalKafka(container.get_bootstrap_server())


class KafkaNode:
    """A Kafka node, both broker and controller. It keeps its ports and its data across restarts."""

    def __init__(self, directory: Path, number: int) -> None:
        self.number = number
        self.port = own_port()
        self.controller_port = own_port()
        self.sasl_port = own_port()
        self.directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """The log of the node."""
        return (self.directory / "output").read_text(errors="replace")

    def format(self, cluster_id: str, nodes: int, voters: str, changed: Mapping[str, int | str]) -> None:
        """Create its directory. changed: settings that differ from the defaults."""
        self.directory.mkdir(parents=True)
        copies = min(3, nodes)
        settings = {
            "process.roles": "broker,controller",
            "node.id": self.number,
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},SASL_PLAINTEXT://127.0.0.1:{self.sasl_port},"
            f"CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port},SASL_PLAINTEXT://127.0.0.1:{self.sasl_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain."
            f'PlainLoginModule required user_{USER}="{PASSWORD}";',
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "true",
            "log.dirs": self.directory / "data",
            **_shared_settings(copies),
            "log.cleaner.dedupe.buffer.size": 2 * 1024 * 1024,
            "log.cleaner.threads": 1,
            "num.network.threads": 2,
            "num.io.threads": 4,
            **changed,
        }
        self.set(settings)
        command = [*self._java("kafka.tools.StorageTool"), "format", f"--cluster-id={cluster_id}", "-c", self._settings]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_START_S_MAX)
        assert done.returncode == 0, done.stdout + done.stderr

    def set(self, settings: Mapping[str, object]) -> None:
        """Change a setting from the next start on."""
        with Path(self._settings).open("a") as file:
            file.writelines(f"{name}={value}\n" for name, value in settings.items())

    @property
    def _settings(self) -> str:
        return str(self.directory / "server.properties")

    def _java(self, main: str) -> list[str]:
        options = [_HEAP, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
        return ["java", *options, "-cp", f"{jars(_NAME, _ARTIFACT)}/*", main]

    def start(self) -> None:
        """Start it without waiting."""
        with (self.directory / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [*ENDING_WITH_PARENT, *self._java("kafka.Kafka"), self._settings],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: int) -> None:
        """Send it a signal, such as SIGSTOP."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it, as in a crash. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_STOP_S_MAX)

    def stop(self) -> None:
        """Stop it cleanly."""
        self.signal(signal.SIGTERM)
        assert self._process is not None
        self._process.wait(_STOP_S_MAX)


class PrivateKafka:
    """One or several nodes inside `with`, in a directory that is removed afterwards.

    settings: of all nodes, where they differ from the defaults.
    """

    def __init__(self, directory: Path, nodes: int = 1, settings: Mapping[str, int | str] | None = None) -> None:
        self._directory = directory
        self._settings = settings or {}
        self.nodes = [KafkaNode(directory / f"node-{number}", number) for number in range(1, nodes + 1)]
        self.servers = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        self.address = f"kafka://{self.servers}"
        self.sasl_address = "kafka://" + ",".join(f"127.0.0.1:{node.sasl_port}" for node in self.nodes)

    def __enter__(self) -> Self:
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        voters = ",".join(f"{node.number}@127.0.0.1:{node.controller_port}" for node in self.nodes)
        try:
            for node in self.nodes:
                node.format(cluster_id, len(self.nodes), voters, self._settings)
                node.start()
            self.wait_until_ready()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        for node in self.nodes:
            node.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def wait_until_ready(self, *, nodes: int | None = None) -> None:
        """Return when so many nodes (by default all) answer."""
        wanted = len(self.nodes) if nodes is None else nodes
        client = admin(self, {"reconnect.backoff.max.ms": "200"})

        def are_there() -> bool:
            assert sum(node.is_running for node in self.nodes) >= wanted, "a node of Kafka has ended"
            with contextlib.suppress(KafkaException):
                return len(client.list_topics(timeout=2).brokers) >= wanted
            return False

        try:
            until(are_there, within_s=_START_S_MAX, why=f"of Kafka's nodes, {wanted} do not answer")
        except AssertionError as exc:
            said = "\n".join(f"node {node.number}:\n{node.log[-_LOG_LENGTH_MAX:]}" for node in self.nodes)
            raise AssertionError(f"{exc}\n{said}") from None


def admin(kafka: Kafka, config: Mapping[str, str] | None = None) -> AdminClient:
    """Return an admin client that logs nothing."""
    return AdminClient({"bootstrap.servers": kafka.servers, "log_level": 0, **(config or {})})


def create_topic(kafka: Kafka, name: str, partitions: int = 1, **config: str) -> None:
    """Create a Kafka topic. config: its settings, with _ for each dot."""
    client = admin(kafka)  # keeps the client alive until the answer arrives
    topic = NewTopic(name, partitions, config={key.replace("_", "."): value for key, value in config.items()})
    client.create_topics([topic])[name].result(_ANSWER_S_MAX)
