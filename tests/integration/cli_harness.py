"""Helpers for tests of the `txmsg` command: the command as a process, and stored half messages."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from click.testing import CliRunner

from tests.broker_process import BrokerProcess
from txmsg.message import new_transaction_id
from txmsg.ops.cli.main import main
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.v1 import txmsg_pb2 as pb
from txmsg.wire.v1.txmsg_rpc import Notify

TIMEOUT_S = 120


def txmsg(*args: str, status: int = 0, answer: str | None = None) -> str:
    """Run the command; return stdout if `status` is 0, else stderr."""
    command = [sys.executable, "-m", "txmsg.ops.cli.main", *args]
    done = subprocess.run(command, input=answer, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr if status else done.stdout


def said(*args: str, status: int = 0, answer: str | None = None) -> str:
    """Run the command within this process, faster than `txmsg`."""
    result = CliRunner().invoke(main, args, input=answer)
    assert result.exit_code == status, result.output
    assert not isinstance(result.exception, Exception), result.exception
    return result.stderr if status else result.stdout


def json_of(*args: str) -> Any:
    """Return the JSON that a command prints."""
    return json.loads(said(*args, "--json"))


def asked(*args: str, answer: str = "n\n") -> str:
    """Return the output of a command whose confirmation is declined."""
    result = CliRunner().invoke(main, args, input=answer)
    assert result.exit_code == 1, result.output
    return result.output


def store_half(broker: BrokerProcess, *, group: str = "shop", body: bytes = b'{"n":1}', count: int = 1) -> str:
    """Store the half messages of a transaction as a client would, and return its id."""
    transaction_id = new_transaction_id()
    batch = pb.MessageColumns(
        topic="order.placed",
        transaction_id=transaction_id.bytes * count,
        n=range(count),
        body=[body] * count,
        key=["k1"] * count,
        tag=["t1"] * count,
        headers=[pb.Headers(values={"h": "1"}).SerializeToString()] * count,
        born_at_us=[1_700_000_000_000_000] * count,
    )
    with BlockingChannel(broker.address) as channel:
        request = pb.SendRequest(group=group, half=True, batches=[batch])
        reply = channel.call(Notify.send, request, timeout_s=TIMEOUT_S)
    assert not reply.errors
    return str(transaction_id)


def listed(broker: BrokerProcess, *options: str) -> list[str]:
    halves = json_of("half", "list", "--broker", broker.address, *options)["halves"]
    return [half["transaction_id"] for half in halves]
