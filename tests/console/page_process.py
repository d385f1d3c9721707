"""A real page server for tests, and what a program reads from it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.broker_process import BrokerProcess

__all__ = ["PageProcess", "eventually"]

_WAIT_S = 60.0


class PageProcess(BrokerProcess):
    """`python -m examples.trade_dashboard.page` as a child process."""

    module = "examples.trade_dashboard.page"

    def __init__(self, results: str, *options: str, log: Path) -> None:
        super().__init__(None, *options, log=log)
        self._results = results

    def arguments(self) -> list[str]:
        return ["--results", self._results, "--listen", self.address, *self.options]

    @property
    def url(self) -> str:
        return f"http://{self.address}/"

    def bulletin(self) -> dict[str, Any]:
        """The newest bulletin. Raises URLError before the first."""
        with urlopen(f"{self.url}figures", timeout=_WAIT_S) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    @contextmanager
    def events(self) -> Iterator[Iterator[dict[str, Any]]]:
        """The bulletins as they come."""
        with urlopen(f"{self.url}events", timeout=_WAIT_S) as answer:
            yield (json.loads(line.removeprefix(b"data: ")) for line in answer if line.startswith(b"data: "))


def eventually(claim: Callable[[], bool], what: str) -> None:
    """Returns when the claim holds; fails when that takes too long."""
    deadline = time.monotonic() + _WAIT_S
    while not claim():
        assert time.monotonic() < deadline, f"not within {_WAIT_S:g} s: {what}"
        time.sleep(0.02)
