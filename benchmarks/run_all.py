"""Runs every benchmark of this folder, or those that are named, one after the other, and prints their figures.

python -m benchmarks.run_all [--quick] [--json] [NAME ...]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from rich.console import Console
from rich.progress import Progress

BENCHMARKS = (
    "transactional_send",
    "slow_disk",
    "decorated",
    "handlers",
    "delivery",
    "fence",
    "backlog",
    "held_xmin",
    "idle_groups",
    "idle_consumers",
    "backend_down",
    "ordered",
    "hot_key",
    "delayed",
    "failover",
    "two_brokers",
    "security",
    "observability",
    "metaq_append",
    "metaq_read",
    "metaq_over_wire",
    "agent",
    "kafka",
    "rocketmq",
    "tailer",
    "tailer_kafka",
    "capacity",
    "peers",
    "spark_read",
    "dashboard_latency",
    "console",
)


def main() -> int:
    """Exit status 1 if any benchmark failed or disagreed with the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short runs: under a minute each")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which to run, of {', '.join(BENCHMARKS)} (default: all)"
    )
    options = parser.parse_args()
    names = options.names or BENCHMARKS
    if unknown := set(names).difference(BENCHMARKS):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}: choose from {', '.join(BENCHMARKS)}")
    results: dict[str, object] = {}
    failed = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("benchmarks", total=len(names))
        for name in names:
            progress.update(task, description=name)
            command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *(["--quick"] if options.quick else [])]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            *lines, last = done.stdout.splitlines() or [""]
            progress.console.print(f"== {name}")
            print("\n".join(lines), flush=True)
            if done.returncode == 0:
                results[name] = json.loads(last)
            else:
                failed.append(name)
            progress.advance(task)
    if options.json:
        print(json.dumps(results))
    for name in failed:
        print(f"{name} failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
