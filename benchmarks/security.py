"""Cost of security: transactional sends and deliveries with it, beside the same without.

Two settings are each measured by turns with a broker that has neither: certificates on both sides; and these with
users, whose client has a token and the rights that its calls need. Claim (docs/performance.md): >= 0.85 of the rate
without.
Each broker is on a database of its own in one PostgreSQL; callers and handlers run in this process. Each message must
reach its group exactly once, or the exit status is 1.

    python -m benchmarks.security [--quick] [--json]
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
from benchmarks.turns import Compared, by_turns
from txmsg.administration.access import AccessService, NewUser
from txmsg.administration.rules import RulesService
from txmsg.ops.cli.access import asker_of_storage
from txmsg.wire.access.rules import parse_rule
from txmsg.wire.credential import TOKEN_VARIABLE
from txmsg.wire.tls import CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE

CALLERS = (1, 64, 256)
USER = "bench"
RIGHTS = ("send topic:bench.*", "send group:bench", "receive topic:bench.deliver", "receive group:g")
TITLES = {"tls": "TLS", "users": "TLS and users"}


@contextmanager
def set_in_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for connections that this process opens within the block."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


class Turns:
    """The work of one broker: rates by kind of work, and messages not received exactly once."""

    def __init__(self, address: str, seconds: float, count: int, variables: Mapping[str, str]) -> None:
        self.lost = 0
        self._address = address
        self._seconds = seconds
        self._count = count
        self._variables = variables
        self._arrivals = Arrivals()

    def work(self) -> dict[str, float]:
        """Run the work once."""
        with set_in_environment(self._variables):
            rates = {f"transactions_{callers}": self._transactions(callers) for callers in CALLERS}
            run(send(self._address, "bench.deliver", self._count))
            rates["delivery"] = run(consume(self._address, "bench.deliver", "g", self._count, self._arrivals))
        self.lost = self._arrivals.repeated + self._arrivals.missing()
        return rates

    def _transactions(self, callers: int) -> float:
        took_s = run(send_transactions(self._address, "bench.send", callers, self._seconds))
        return len(took_s) / self._seconds


def new_token(url: str) -> str:
    """Return the token of a new user of this database, with the permissions for the work."""
    ask = asker_of_storage(url)
    token = ask(AccessService.create_user, NewUser(name=USER)).token
    assert token is not None
    for right in RIGHTS:
        ask(RulesService.allow, parse_rule(USER, *right.split(" ")))
    return token


def measure(turns: int, seconds: float, count: int) -> tuple[dict[str, dict[str, Compared]], int]:
    """Return the rates of each setting and of its reference by kind of work; and messages not received exactly once."""
    found: dict[str, dict[str, Compared]] = {name: {} for name in TITLES}
    with tempfile.TemporaryDirectory() as directory, private_server() as server:
        files = Path(directory)
        command = [sys.executable, "-m", "txmsg.ops.cli.main", "cert", "dev", "--dir", directory]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        options = [f"--tls-cert={files}/server.pem", f"--tls-key={files}/server.key", f"--tls-client-ca={files}/ca.pem"]
        certified = {
            CA_VARIABLE: f"{files}/ca.pem",
            CERT_VARIABLE: f"{files}/client.pem",
            KEY_VARIABLE: f"{files}/client.key",
        }
        plain_url, tls_url, users_url = (fresh_database(server, name) for name in ("plain", *TITLES))
        token = {TOKEN_VARIABLE: new_token(users_url)}
        with (
            broker_process(plain_url) as plain,
            broker_process(tls_url, *options) as encrypted,
            broker_process(users_url, "--auth", *options) as secure,
        ):
            reference = Turns(plain.address, seconds, count, {})
            settings = {
                "tls": Turns(encrypted.address, seconds, count, certified),
                "users": Turns(secure.address, seconds, count, certified | token),
            }
            with progress_of("turns", turns) as advance:
                for _ in range(turns):
                    for name, setting in settings.items():
                        by_turns(setting.work, reference.work, found[name])
                    advance()
            return found, sum(each.lost for each in (reference, *settings.values()))


def main() -> int:
    options = parser_of(__doc__, "shorter turns").parse_args()
    found, lost = measure(*((3, 1.5, 50_000) if options.quick else (6, 5.0, 300_000)))
    figures: dict[str, float] = {}
    for setting, kinds in found.items():
        for kind, each in kinds.items():
            with_it = f"{each.rate:10,.0f}/s with {TITLES[setting]}"
            print(f"{kind:18} {with_it}, {each.reference:10,.0f}/s without: {each.ratio:.2f}")
            figures |= each.figures(f"{setting}_{kind}")
    print(f"messages that came twice or not at all: {lost}")
    if options.json:
        print(json.dumps(figures))
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
