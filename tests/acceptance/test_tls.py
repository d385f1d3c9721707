"""Brokers, MetaQ servers and clients over TLS with certificates on both sides, as users start them."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.broker_process import BrokerProcess
from tests.metaq.servers import MetaQProcess
from tests.ports import own_port
from tests.waiting import until, until_async, until_told
from txmsg import AsyncConsumer, AsyncProducer, BrokerUnavailable, Consumer, Message, Producer, ReceivedMessage
from txmsg.metaq import open_log
from txmsg.ops.cli.main import main
from txmsg.wire.tls import CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """The directory of certificates made by `txmsg cert dev`."""
    made(tmp_path / "certificates", "--client", "shop")
    return tmp_path / "certificates"


def made(directory: Path, *options: str) -> None:
    result = CliRunner().invoke(main, ["cert", "dev", "--dir", str(directory), *options])
    assert result.exit_code == 0, result.output


@pytest.fixture
def options(certificates: Path) -> list[str]:
    """Options of a server whose clients need a certificate."""
    files = {"--tls-cert": "server.pem", "--tls-key": "server.key", "--tls-client-ca": "ca.pem"}
    return [word for option, file in files.items() for word in (option, str(certificates / file))]


@pytest.fixture
def broker(notify_url: str, options: Sequence[str], tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(notify_url, *options, log=tmp_path / "broker.log") as process:
        yield process


@pytest.fixture
def as_client(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name a client certificate of this process in the environment."""
    for variable, file in ((CA_VARIABLE, "ca.pem"), (CERT_VARIABLE, "shop.pem"), (KEY_VARIABLE, "shop.key")):
        monkeypatch.setenv(variable, str(certificates / file))


@pytest.mark.usefixtures("as_client")
async def test_messages_are_sent_and_received_over_tls_of_the_environment(broker: BrokerProcess) -> None:
    seen = queue.Queue[bytes]()
    consumer = Consumer(broker.address, group="threads")

    @consumer.subscribe("t")
    def see(message: ReceivedMessage) -> None:
        seen.put(message.body)

    with Producer(broker.address, group="p") as producer, consumer:
        producer.send(Message("t", b"by a thread"))
        assert seen.get(timeout=60) == b"by a thread"

    taken: list[bytes] = []
    taking = AsyncConsumer(broker.address, group="tasks")

    @taking.subscribe("t")
    async def take(message: ReceivedMessage) -> None:
        taken.append(message.body)

    async with AsyncProducer(broker.address, group="p") as sending, taking:
        await sending.send(Message("t", b"by a task"))
        await until_async(lambda: len(taken) == 2)
    result = CliRunner().invoke(main, ["topic", "list", "--broker", broker.address])
    assert result.exit_code == 0, result.output
    assert "t" in result.output


def test_a_client_without_a_certificate_or_without_tls_is_refused(broker: BrokerProcess, certificates: Path) -> None:
    refusals = ((certificates / "ca.pem", "certificate required"), (False, "it speaks TLS only: set TXMSG_TLS_CA"))
    for tls, reason in refusals:
        with Producer(broker.address, group="p", timeout_s=1.0, tls=tls) as producer:
            told = until_told(reason, partial(producer.send, Message("t", b"x")))
            assert isinstance(told, BrokerUnavailable)
    said = broker.log.read_text()
    assert "it does not speak TLS" in said
    assert "peer did not return a certificate" in said


@pytest.mark.usefixtures("as_client")
def test_a_log_is_read_and_written_over_tls(options: Sequence[str], tmp_path: Path) -> None:
    with MetaQProcess(tmp_path / "log", *options, log=tmp_path / "metaq.log") as server:
        with open_log(server.address) as log:
            assert log.topics() == {}
        with open_log(server.address, tls=False) as log, pytest.raises(BrokerUnavailable, match="it speaks TLS only"):
            log.topics()


@pytest.mark.parametrize("given", [["--tls-key", "x.pem"], ["--tls-cert", "x.pem"], ["--tls-client-ca", "x.pem"]])
def test_a_certificate_without_its_key_is_refused(given: Sequence[str]) -> None:
    result = CliRunner().invoke(main, ["broker", *given])
    assert result.exit_code == 1
    assert "give --tls-cert and --tls-key, or neither" in result.output


def test_missing_files_are_refused_before_the_database_is_queried(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    options = ["--storage", "postgresql://nobody@127.0.0.1:1/x", "--tls-cert", missing, "--tls-key", missing]
    result = CliRunner().invoke(main, ["broker", *options])
    assert result.exit_code == 1
    assert "missing.pem" in result.output
    assert "cannot be used as certificate and key" in result.output


def test_the_authority_of_a_directory_is_reused_and_keys_are_private(certificates: Path) -> None:
    before = {file.name: file.read_bytes() for file in certificates.iterdir()}
    made(certificates)
    after = {file.name: file.read_bytes() for file in certificates.iterdir()}
    assert {name for name in after if after[name] == before.get(name)} == {"ca.pem", "ca.key", "shop.pem", "shop.key"}
    assert {"client.pem", "client.key"} <= after.keys()
    assert all(file.stat().st_mode & 0o077 == 0 for file in certificates.glob("*.key"))


@pytest.mark.parametrize("name", ["ca", "server", "../x", ""])
def test_a_client_name_that_cannot_be_a_file_name_is_refused(name: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["cert", "dev", "--dir", str(tmp_path / "new"), "--client", name])
    assert result.exit_code == 1
    assert f"--client {name!r} cannot be the name of its files" in result.output
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["a..b", "host name", "", "a_b.c", "a@b.c", "10.0.0.0/8"])
def test_an_invalid_server_name_is_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["cert", "dev", "--dir", str(tmp_path / "made"), "--server", name])
    assert (result.exit_code, f"--server {name!r} is not a host name" in result.output) == (1, True), result.output
    assert not (tmp_path / "made").exists()


def test_printed_shell_commands_are_quoted(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["cert", "dev", "--dir", str(tmp_path / "my files")])
    assert f"export TXMSG_TLS_CA='{tmp_path}/my files/ca.pem'\n" in result.output
    assert f"--tls-key '{tmp_path}/my files/server.key'\n" in result.output


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "broker-1.internal:7700"])
@pytest.mark.parametrize("command", [["broker"], ["metaq", "serve", "--data-dir", "log"]])
def test_a_publicly_reachable_server_needs_client_certificates(
    listen: str, command: Sequence[str], certificates: Path
) -> None:
    own = ["--tls-cert", str(certificates / "server.pem"), "--tls-key", str(certificates / "server.key")]
    for tls in ([], own):
        result = CliRunner().invoke(main, [*command, "--listen", listen, *tls])
        assert result.exit_code == 1
        assert f"--listen {listen} is reached from other machines" in result.output
        assert "--tls-client-ca" in result.output
        assert "--insecure" in result.output


def test_a_publicly_reachable_server_starts_with_certificates_or_an_explicit_option(
    options: Sequence[str], tmp_path: Path
) -> None:
    address = f"0.0.0.0:{own_port()}"
    log = tmp_path / "metaq.log"
    with MetaQProcess(tmp_path / "log", *options, log=log, address=address):
        pass
    assert "every client" not in log.read_text()
    with MetaQProcess(tmp_path / "log", "--insecure", log=log, address=address):
        until(lambda: "every client that reaches 0.0.0.0" in log.read_text())
