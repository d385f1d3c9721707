"""Compressed bodies count with their unpacked size before they are unpacked."""

from __future__ import annotations

import gzip

import pytest

from txmsg.rocketmq.admission import GatewayCaller
from txmsg.rocketmq.limits import BODY_SIZE_BYTES_MAX
from txmsg.rocketmq.status import CallRefused
from txmsg.rocketmq.unzipped_size import UnzippedSizes
from txmsg.rocketmq.v2 import messaging_pb2 as pb
from txmsg.wire.access.principal import ANYONE, Principal


def message(body: bytes, encoding: pb.Encoding = pb.GZIP) -> pb.Message:
    return pb.Message(system_properties=pb.SystemProperties(body_encoding=encoding), body=body)


BOMB = message(gzip.compress(bytes(BODY_SIZE_BYTES_MAX)))


def test_memory_for_unpacked_bodies_is_bounded_in_total_and_per_user() -> None:
    unzipped = UnzippedSizes(4 * BODY_SIZE_BYTES_MAX, 2 * BODY_SIZE_BYTES_MAX)
    with unzipped.held("a", BOMB), unzipped.held("a", BOMB):
        with pytest.raises(CallRefused) as refused, unzipped.held("a", BOMB):
            raise AssertionError("there is no room")
        assert refused.value.code == pb.TOO_MANY_REQUESTS
        with unzipped.held("b", BOMB), unzipped.held("b", BOMB), pytest.raises(CallRefused), unzipped.held("c", BOMB):
            raise AssertionError("there is no room")
        assert unzipped.size_bytes == 2 * BODY_SIZE_BYTES_MAX
    assert unzipped.size_bytes == 0


def test_share_belongs_to_a_user_or_address_and_not_to_a_client_id() -> None:
    user = Principal("app")
    assert GatewayCaller("one app", user, "10.0.0.1").payer == GatewayCaller("two app", user, "10.0.0.2").payer == "app"
    assert (
        GatewayCaller("one", ANYONE, "10.0.0.1").payer == GatewayCaller("two", ANYONE, "10.0.0.1").payer == "10.0.0.1"
    )
    assert GatewayCaller("one", ANYONE, "2001:db8::1").payer == GatewayCaller("two", ANYONE, "2001:db8::2").payer


def test_compressed_body_holds_its_unpacked_size_and_plain_body_nothing() -> None:
    unzipped = UnzippedSizes(BODY_SIZE_BYTES_MAX, BODY_SIZE_BYTES_MAX)
    with unzipped.held("a", BOMB) as held:
        unzipped.unzipped("a", held, 10)
        assert unzipped.size_bytes == 10
        with unzipped.held("a", message(bytes(1000), pb.IDENTITY)) as plain:
            unzipped.unzipped("a", plain, 1000)
            assert unzipped.size_bytes == 10
    assert unzipped.size_bytes == 0
