"""A real Prometheus: a private server on its own port, and `promtool`, which checks rules."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.ports import own_port
from tests.waiting import until

HOW_TO_INSTALL = "Prometheus is not installed: `apt-get install --no-install-recommends prometheus` (Debian)"
_CHECK_S_MAX = 120
_STOP_S_MAX = 60
_ANSWER_S_MAX = 30


def is_installed() -> bool:
    return all(map(shutil.which, ("prometheus", "promtool")))


def promtool(*words: str | Path) -> None:
    """Run promtool and fail with its output unless it succeeds."""
    done = subprocess.run(
        ["promtool", *map(str, words)], capture_output=True, text=True, check=False, timeout=_CHECK_S_MAX
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A running Prometheus server."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def api(self, path: str, **query: str) -> Any:
        """Return the data of an answer of its API."""
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=_ANSWER_S_MAX) as answer:
            return json.load(answer)["data"]

    def values(self, expr: str) -> list[float]:
        """Return the values of an instant query."""
        return [float(found["value"][1]) for found in self.api("query", query=expr)["result"]]

    def alerts(self) -> dict[str, str]:
        """Return the alerts that are pending or firing, with their state."""
        return {alert["labels"]["alertname"]: alert["state"] for alert in self.api("alerts")["alerts"]}

    def targets(self) -> dict[str, str]:
        """Return the health of its targets by address, with the reason for those that are down."""
        return {
            target["labels"]["instance"]: target["lastError"] or target["health"]
            for target in self.api("targets")["activeTargets"]
        }


@contextmanager
def running(targets: Sequence[str], rules: Path, directory: Path) -> Iterator[Prometheus]:
    """A server that scrapes these addresses each second."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "txmsg", "static_configs": [{"targets": list(targets)}]}],
    }
    file = directory / "prometheus.yml"
    file.write_text(json.dumps(config))  # which is YAML, too
    promtool("check", "config", file)
    port = own_port()
    log = directory / "prometheus.log"
    command = [
        *("prometheus", f"--config.file={file}", f"--storage.tsdb.path={directory / 'tsdb'}"),
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            prometheus = Prometheus(port)

            def is_there() -> bool:
                assert process.poll() is None, log.read_text()
                try:
                    return bool(prometheus.targets())
                except OSError:
                    return False

            until(is_there)
            yield prometheus
        finally:
            process.terminate()
            process.wait(_STOP_S_MAX)
