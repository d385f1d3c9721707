"""The table of listening sockets in docs/limits.md has the bounds and times of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from txmsg.broker.config import BrokerConfig
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.metrics import http
from txmsg.ops.console import views
from txmsg.ops.page import app, connection, sessions
from txmsg.rocketmq import server as gateway
from txmsg.rocketmq.grpc import port
from txmsg.wire import shared
from txmsg.wire.shared import ConnectionLimits
from txmsg.wire.table import ConnectionTableBounds

_PAGE: Final = (Path(__file__).parents[2] / "docs" / "limits.md").read_text(encoding="utf-8")


def rows(heading: str) -> dict[str, list[str]]:
    """Return the cells of a section's table, by the first of each row."""
    section = _PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\| .*$", section, re.M)]
    return {first: rest for first, *rest in cells}


def numbers(text: str) -> list[float]:
    return [float(found.replace(",", "")) for found in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


def test_bounds_and_timeouts_of_each_socket_match_the_code() -> None:
    table, limits, default, endpoint = (
        rows("Connections"),
        ConnectionLimits(),
        ConnectionTableBounds(connections=16_000),
        http.EndpointLimits(),
    )
    assert (default.strangers_max, default.of_user_max) == (4_000, 12_000), "a quarter; three quarters"
    of_brokers = {
        "broker": BrokerConfig(storage="postgresql://").connections_max,
        "MetaQ server": MetaQConfig(data_dir=Path("log")).connections_max,
    }
    for socket, connections in of_brokers.items():
        known_s = [limits.first_byte_s, limits.greeting_s, shared._RESERVE]
        found = [numbers(cell) for cell in table[socket]]
        assert found == [[connections], [16], [], *([each] for each in known_s)], socket
    assert ConnectionTableBounds(connections=1).strangers_max == 16
    expected = {
        "RocketMQ gateway": [
            [gateway._CONNECTIONS_MAX], [], [], [port._FIRST_BYTE_S], [port._CALL_S], [gateway._RESERVE],
        ],
        "console, pages": [
            [connection.CONNECTIONS_MAX], [], [], [default.first_byte_s], [default.greeting_s],
            [views._STREAMS_OF_ADMINS],
        ],
        "`--http-listen`, also of agents, tailers and workers": [
            [endpoint.connections], [], [], [endpoint.first_byte_s], [endpoint.request_s], [endpoint.scrapes],
        ],
    }  # fmt: skip
    assert {name: [numbers(cell) for cell in table[name]] for name in expected} == expected
    assert table.keys() - expected.keys() - of_brokers.keys() == {"Socket"}


def test_shares_of_users_match_the_code() -> None:
    brokers, pages = rows("Brokers"), rows("Spark, pages, development")
    assert numbers(brokers["sessions of the console, or of a page with a login"][0])[:2] == [
        sessions.SESSIONS_MAX,
        sessions.SESSIONS_OF_USER_MAX,
    ]
    assert numbers(brokers["live parts of the console's pages"][0]) == [
        views.STREAMS_MAX,
        views.STREAMS_OF_USER_MAX,
        views._STREAMS_OF_ADMINS,
    ]
    assert numbers(pages["browsers of a page"][0]) == [app.BROWSERS_MAX, app.BROWSERS_OF_USER_MAX]
