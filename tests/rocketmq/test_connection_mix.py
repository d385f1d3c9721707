"""Frames in any order, whole and broken, at any pace: only the connection fails, and nothing is left behind."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any, cast

import pytest
from hyperframe.frame import (
    Frame,
    GoAwayFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tests.rocketmq.http2 import PREFACE, Peer, Served, data, message
from txmsg.rocketmq.grpc.connection import GrpcConnection

_MIXES = 600
_FRAMES_MAX = 60
_PATHS = ("/t/Echo", "/t/Hold", "/t/Pour", "/t/Other", "")
_CHANGED: tuple[dict[str, str], ...] = ({}, {}, {"grpc-timeout": "1n"}, {"grpc-timeout": "x"}, {":method": "GET"})
_BODIES = (b"", message(b"x" * 300), message(b""), b"\0\0\0\0\5ab", bytes(40), b"\1\0\0\0\1x")


class Line:
    """A transport without a peer."""

    def __init__(self) -> None:
        self.connection: GrpcConnection
        self.is_closed = False

    def get_extra_info(self, _: str) -> None:
        return None

    def write(self, _: bytes) -> None:
        assert not self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    abort = close


def _mix(chance: random.Random) -> bytes:
    """Yield frames that a client might send, and others that none would."""
    peer = Peer(cast(Any, None), cast(Any, None))
    parts: list[bytes | Frame] = [
        PREFACE,
        SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: chance.choice([0, 1, 100, 65_535])}),
    ]
    next_id = 1
    for _ in range(chance.randrange(_FRAMES_MAX)):
        if chance.random() < 0.3:
            parts.append(peer.headers(next_id, chance.choice(_PATHS), changed=chance.choice(_CHANGED)))
            next_id += 2
            continue
        id_ = chance.choice([1, 3, max(1, next_id - 2)])
        kinds: list[Callable[[], Any]] = [
            lambda at=id_: data(at, chance.choice(_BODIES), ends=chance.random() < 0.4),  # type: ignore[misc]
            lambda at=id_: data(at, chance.choice(_BODIES), ends=False),  # type: ignore[misc]
            lambda at=id_: RstStreamFrame(at, error_code=chance.randrange(15)),  # type: ignore[misc]
            lambda at=id_: WindowUpdateFrame(chance.choice([0, at]), window_increment=chance.choice([1, 1000])),  # type: ignore[misc]
            lambda: SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: chance.choice([0, 1, 65_535])}),
            lambda: GoAwayFrame(0),
            lambda at=id_: PriorityFrame(at),  # type: ignore[misc]
            lambda: PingFrame(0, b"12345678"),
        ]
        parts.append(chance.choice(kinds)())
    whole = bytearray(b"".join(part if isinstance(part, bytes) else part.serialize() for part in parts))
    if chance.random() < 0.3:
        for _ in range(3):
            whole[chance.randrange(len(PREFACE), len(whole))] = chance.randrange(256)
    return bytes(whole)


async def _play(connection: GrpcConnection, place: Served, chance: random.Random) -> None:
    """Feed the client's bytes in pieces while calls are running, with and without reading."""
    mix, at = _mix(chance), 0
    while at < len(mix) and not connection.is_over:
        size_bytes = chance.choice([1, 9, 50, 500, len(mix)])
        connection.data_received(mix[at : at + size_bytes])
        at += size_bytes
        for odds, step in (
            (0.3, connection.pause_writing),
            (0.5, connection.resume_writing),
            (0.05, place.service.opens.set),
            (0.02, connection.go_away),
            (0.02, lambda: connection.end_if_slow(asyncio.get_running_loop().time() + chance.choice([0, 30, 100]))),
        ):
            if chance.random() < odds:
                step()
        if chance.random() < 0.5:
            await asyncio.sleep(0)
    connection.resume_writing()


@pytest.mark.parametrize("seed", range(0, _MIXES, 200))
async def test_random_input_fails_only_its_own_connection(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    failed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: failed.append(what))
    for number in range(seed, seed + 200):
        place, line = Served(calls_max=50, calls_of_connection_max=20), Line()
        connection = line.connection = place.port._connected()
        connection.connection_made(cast(asyncio.Transport, line))
        await _play(connection, place, random.Random(number))
        tasks = list(connection.tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
        if not connection.is_over:  # all received data is read, or counts as read
            window = connection._h2._inbound_flow_control_window_manager
            assert window.max_window_size - window.current_window_size == window._bytes_processed, number
        connection.close()
        await connection.ended
        assert (connection.tasks, connection._streams, connection._waiting, place.port.calls) == ({}, {}, {}, 0), number
        assert (place.port.connections, place.port.requests_size_bytes) == (set(), 0), number
        assert failed == [], number
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == [], number
