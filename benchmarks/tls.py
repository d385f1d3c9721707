"""What TLS costs: transactional sends and deliveries with certificates on both sides, beside the same without.

Claim (docs/performance.md): >= 0.85 of the rate without. Two brokers, each on a database of its own in one PostgreSQL,
take turns; callers and handlers run in this process. Each message must reach its group exactly once, or the exit status
is 1.

    python -m benchmarks.tls [--quick] [--json]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.load import Arrivals, consume, run, send, send_transactions
from benchmarks.surroundings import broker_process, fresh_database, parser_of, private_server, progress_of
from benchmarks.turns import Compared, Work, by_turns
from txmsg.wire.tls import CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE

CALLERS = (1, 64, 256)


@contextmanager
def set_in_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """For connections that this process makes meanwhile."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


class Turns:
    """The work of one broker: rates by kind of work, and what came not exactly once."""

    def __init__(self, address: str, seconds: float, count: int, variables: Mapping[str, str]) -> None:
        self.lost = 0
        self._address = address
        self._seconds = seconds
        self._count = count
        self._variables = variables
        self._arrivals = Arrivals()

    def work(self) -> dict[str, float]:
        """Works once."""
        with set_in_environment(self._variables):
            rates = {f"transactions_{callers}": self._transactions(callers) for callers in CALLERS}
            run(send(self._address, "bench.deliver", self._count))
            rates["delivery"] = run(consume(self._address, "bench.deliver", "g", self._count, self._arrivals))
        self.lost = self._arrivals.repeated + self._arrivals.missing()
        return rates

    def _transactions(self, callers: int) -> float:
        took_s = run(send_transactions(self._address, "bench.send", callers, self._seconds))
        return len(took_s) / self._seconds


def measure(turns: int, seconds: float, count: int) -> tuple[dict[str, Compared], int]:
    """The rates of both by kind of work; and how many messages came twice or not at all."""
    found: dict[str, Compared] = {}
    with tempfile.TemporaryDirectory() as directory, private_server() as server:
        files = Path(directory)
        command = [sys.executable, "-m", "txmsg.cli.main", "cert", "dev", "--dir", directory]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        options = [f"--tls-cert={files}/server.pem", f"--tls-key={files}/server.key", f"--tls-client-ca={files}/ca.pem"]
        variables = {
            CA_VARIABLE: f"{files}/ca.pem",
            CERT_VARIABLE: f"{files}/client.pem",
            KEY_VARIABLE: f"{files}/client.key",
        }
        plain_url, tls_url = fresh_database(server, "plain"), fresh_database(server, "tls")
        with broker_process(plain_url) as plain, broker_process(tls_url, *options) as encrypted:
            reference = Turns(plain.address, seconds, count, {})
            setting = Turns(encrypted.address, seconds, count, variables)
            both: tuple[Work, Work] = (setting.work, reference.work)
            with progress_of("turns", turns) as advance:
                for _ in range(turns):
                    by_turns(*both, found)
                    advance()
            return found, setting.lost + reference.lost


def main() -> int:
    options = parser_of(__doc__, "shorter turns").parse_args()
    found, lost = measure(*((3, 1.5, 50_000) if options.quick else (6, 5.0, 300_000)))
    for name, each in found.items():
        print(f"{name:18} {each.rate:10,.0f}/s with TLS, {each.reference:10,.0f}/s without: {each.ratio:.2f}")
    print(f"messages that came twice or not at all: {lost}")
    if options.json:
        print(json.dumps({name: value for kind, each in found.items() for name, value in each.figures(kind).items()}))
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
