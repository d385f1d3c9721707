"""Options of `txmsg rocketmq` that need no broker."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.integration.cli_harness import txmsg
from tests.ports import own_port
from tests.rocketmq.calls import Calls
from tests.rocketmq.gateway import running_gateway
from txmsg.rocketmq.api import SERVICE
from txmsg.rocketmq.v2 import messaging_pb2 as pb


def test_unreadable_token_file_is_named_before_serving_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXMSG_TOKEN_FILE", "")  # which the option sets for the process
    missing = tmp_path / "missing.token"
    assert "missing.token" in txmsg("rocketmq", "--token-file", str(missing), "--listen", "127.0.0.1:0", status=1)


def test_port_in_use_is_named_with_the_fix() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = txmsg("rocketmq", "--broker", f"127.0.0.1:{own_port()}", "--listen", listen, status=1)
    assert f"cannot listen on {listen} (Address already in use): look with `ss -ltnp`" in refused


def test_no_log_level_shows_access_keys_and_signatures(tmp_path: Path) -> None:
    log = tmp_path / "gateway.log"
    no_broker = f"127.0.0.1:{own_port()}"
    with running_gateway(no_broker, "--log-level", "debug", log=log) as gateway:
        calls = Calls(gateway.address, no_broker)
        with calls.channel:
            call = calls.channel.unary_unary(
                f"/{SERVICE}/Heartbeat", request_serializer=pb.HeartbeatRequest.SerializeToString,
                response_deserializer=pb.HeartbeatResponse.FromString,
            )  # fmt: skip
            call(pb.HeartbeatRequest(), metadata=(("authorization", "MQv2-HMAC-SHA1 Credential=key"),), timeout=60)
    assert "the gateway listens on" in log.read_text()
    assert "Credential" not in log.read_text()
