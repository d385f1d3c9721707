"""A real page server for tests, and a program that reads from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from tests.broker_process import BrokerProcess
from tests.waiting import until

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
        """Return the newest bulletin with figures; waits for the first."""
        return until(self._with_figures, why=f"no figures; see {self.log}")

    def _with_figures(self) -> dict[str, Any] | None:
        try:
            with urlopen(f"{self.url}figures", timeout=_WAIT_S) as answer:
                found: dict[str, Any] = json.load(answer)
        except HTTPError as exc:
            if exc.code != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            return None
        return found if found["figures"] is not None else None

    @contextmanager
    def events(self) -> Iterator[Iterator[dict[str, Any]]]:
        """Yield the bulletins as they arrive."""
        with urlopen(f"{self.url}events", timeout=_WAIT_S) as answer:
            yield (json.loads(line.removeprefix(b"data: ")) for line in answer if line.startswith(b"data: "))
