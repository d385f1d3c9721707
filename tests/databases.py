"""Run the tests that use a database with each version of it, and write the table of docs/tested-on.md.

python -m tests.databases --page docs/tested-on.md
python -m tests.databases postgresql-15 mysql --part business

Exit status 1: a test failed.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psycopg
from sqlalchemy import create_engine

from tests import mariadb_server
from tests.mariadb_server import private_server
from tests.postgres_versions import VERSIONS, PrivatePostgres
from tools.fresh_system.processes import run, say
from tools.fresh_system.record import DatabaseRun, save, skips_of, summary_of

ROOT: Final = Path(__file__).resolve().parents[1]
_FLOWS: Final = ("tests/integration/fence", "tests/integration/transactional", "tests/integration/connections")
_SCHEMA: Final = tuple(
    f"tests/integration/test_{name}.py"
    for name in ("schema", "batch_function", "batch_locks", "batch_plans", "upgrade_locks", "levels")
)
PARTS: Final = {
    "schema": _SCHEMA,
    "business": (*_FLOWS, "tests/integration/test_consumer.py", "tests/contrib", "tests/forks"),
    "mirror": ("tests/binlog", "tests/mirror"),
    "notify": ("tests/integration", *(f"--ignore={path}" for path in (*_FLOWS, *_SCHEMA))),
    "operations": ("tests/doctor", "tests/console", "tests/metrics", "tests/acceptance"),
}
"""Arguments of pytest. Only tests that use the server run; on PostgreSQL without the long ones."""
DATABASES: Final = tuple(
    [f"postgresql-{version}" for version in VERSIONS]
    + [version if version == "mysql" else f"mariadb-{version}" for version in mariadb_server.VERSIONS]
)
_PART_S_MAX: Final = 5400


def main(arguments: Sequence[str]) -> int:
    """Run the tests and return the exit status."""
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that pytest is ended as well
    passed = True
    for database in options.database or DATABASES:
        for part in options.part or (PARTS if database.startswith("postgresql") else ["business"]):
            row = met(database, part, options)
            if options.page:
                save(options.page, row)
            passed &= row.is_passed
    return 0 if passed else 1


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.databases", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "database", nargs="*", choices=[*DATABASES, []], metavar="DATABASE", help=f"{', '.join(DATABASES)}; default all"
    )
    parser.add_argument(
        "--part",
        action="append",
        choices=PARTS,
        help=f"of {', '.join(PARTS)}; repeat it for several (default all, of business databases only business)",
    )
    parser.add_argument(
        "--processes", type=int, default=2 * (os.cpu_count() or 1), help="of pytest (default %(default)s)"
    )
    parser.add_argument("--page", type=Path, help="page to write the results to, with a JSON beside it")
    parser.add_argument("--pytest", default="", metavar="ARGS", help="more arguments for pytest")
    return parser


def met(database: str, part: str, options: argparse.Namespace) -> DatabaseRun:
    """Run one part with one database."""
    product, version = version_of(database)
    say(f"{product} {version}: {part}")
    is_postgres = database.startswith("postgresql")
    chosen = ["--meets", "postgres" if is_postgres else "mariadb"]
    chosen += [f"--{chosen[1]}={database.removeprefix('postgresql-').removeprefix('mariadb-')}"]
    chosen += ["-m", "not long"] if is_postgres else []
    command = [sys.executable, "-m", "pytest", "-n", str(options.processes), *chosen, *PARTS[part]]
    outcome = run([*command, *options.pytest.split()], timeout_s=_PART_S_MAX)
    print(*outcome.lines[-1 if outcome.code == 0 else -200 :], sep="\n", flush=True)
    return DatabaseRun(
        database=product,
        version=version,
        part=part,
        python=platform.python_version(),
        commit=git("rev-parse", "--short", "HEAD"),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        is_passed=outcome.code == 0,
        seconds=outcome.seconds,
        summary=summary_of(outcome.lines),
        skips=skips_of(outcome.lines),
    )


def version_of(database: str) -> tuple[str, str]:
    """Return product and version, as reported by the server."""
    with tempfile.TemporaryDirectory() as empty:
        directory = Path(empty, "private", "server")  # PostgreSQL's user has to enter the two directories above it
        directory.parent.mkdir()
        if database.startswith("postgresql"):
            with PrivatePostgres(database.removeprefix("postgresql-"), directory) as postgres:
                with psycopg.connect(postgres.url("postgres"), connect_timeout=10) as connection:
                    return "PostgreSQL", connection.info.parameter_status("server_version") or "unknown"
        with private_server(directory, database.removeprefix("mariadb-")) as server:
            engine = create_engine(server.url)
            with engine.connect() as connection:
                version = str(connection.exec_driver_sql("select version()").scalar_one())
            engine.dispose()
    return "MySQL" if database == "mysql" else "MariaDB", version.partition("-")[0]


def git(*arguments: str) -> str:
    """Return the output of a git command in the repository."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
