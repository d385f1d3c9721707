"""Compares the figures of two commits on this machine, and reports those that differ beyond noise.

Checks both commits out into a temporary directory, with the packages of this environment, and runs the benchmarks of
each by turns (old, new, new, old, old, ...), so that what else the machine does hits both. benchmarks/figures.py says
which numbers are compared, and by what rule. Each commit is measured by its own scripts: where they differ, a note says
so. Interrupted (Ctrl-C, SIGTERM), it ends what it has started, and shows the scripts that are complete. A script that
fails or takes too long is left out, and the exit status is 1.

    python -m benchmarks.compare OLD NEW [SCRIPT ...] [--rounds N] [--limit S] [--quick] [--json]
    python -m benchmarks.compare main HEAD fence --quick
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Final

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.figures import P_MAX, RUNS_MIN, WITHIN_NOISE, Comparison, compare, figures_of
from benchmarks.surroundings import progress_of, this_machine
from txmsg.runtime.child import Child

ROOT: Final = Path(__file__).parents[1]
SCRIPTS: Final = ("transactional_send", "decorated", "handlers", "delivery")
"""If none are named: the main job."""
LIMIT_S: Final = 1800.0
"""For one run of a script."""
END_S: Final = 60.0
"""Limit for processes that a run leaves behind, such as a PostgreSQL without users: then they are killed."""
_LOOK_S: Final = 0.05
_WIDTH_MIN: Final = 140


class RunFailed(Exception):
    """Raised if a script printed no figures. The text names it, with the reason."""


class Tree:
    """One commit in its own directory, with a directory for temporary files of its processes."""

    def __init__(self, repository: Path, commit: str, directory: Path, end_s: float) -> None:
        self.commit = commit
        self.directory = directory
        self._end_s = end_s
        # Not a worktree: after a SIGKILL, the repository would still list it. A shared clone copies no objects.
        _git(repository, "clone", "--quiet", "--shared", "--no-checkout", str(repository), str(directory))
        _git(directory, "checkout", "--quiet", "--detach", commit)
        self._temporary = directory / "tmp"
        self._temporary.mkdir()
        self._environment = {
            "PYTHONPATH": str(directory),
            "TMPDIR": str(self._temporary),
            "PYTHONDONTWRITEBYTECODE": "",
        }
        self._compile()

    def _compile(self) -> None:
        """Compile it, so that no run has to. Raises RuntimeError if programs would import another txmsg."""
        for command in (["-m", "compileall", "-q", "txmsg"], ["-P", "-c", "import txmsg; print(txmsg.__file__)"]):
            done = subprocess.run(
                [sys.executable, *command],
                cwd=self.directory,
                env={**os.environ, **self._environment},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        if not Path(done.stdout.strip()).is_relative_to(self.directory):
            raise RuntimeError(f"{self.commit} would be measured with {done.stdout.strip()}: is PYTHONPATH ignored?")

    def run(self, script: str, options: Sequence[str], limit_s: float) -> dict[str, float]:
        """Return the figures of one run. Raises RunFailed. No process that it started runs afterwards."""
        if not (self.directory / "benchmarks" / f"{script}.py").is_file():
            raise RunFailed(f"{self.commit} has no benchmarks/{script}.py")
        log = self.directory / f"{script}.log"
        child = Child(
            script, [f"benchmarks.{script}", "--json", *options], log=log, env=self._environment, start=self._spawn
        )
        try:
            status = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"{script} of {self.commit} did not end within {limit_s:g} s: see --limit") from None
        finally:
            child.send_signal(signal.SIGTERM)  # nothing if it has ended
            self._end_all()
            child.stop()
        if status:
            raise RunFailed(f"{script} of {self.commit} ended {child.ending}:\n{child.log_tail()}")
        return figures_of(json.loads(child.last_line))

    def _spawn(
        self, command: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=self.directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,  # Ctrl-C is for this process, which ends the run
        )

    def _end_all(self) -> None:
        """Brokers and PostgreSQL have sessions of their own: they end by themselves without their parent, or here."""
        deadline = time.monotonic() + self._end_s
        while started := self._started():
            if time.monotonic() > deadline:
                for process in started:
                    with suppress(psutil.Error):
                        process.kill()
            time.sleep(_LOOK_S)

    def _started(self) -> list[psutil.Process]:
        """Return all processes that use the temporary directory of this tree, also of other parents."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):  # it has ended, or is another user's
                if process.environ().get("TMPDIR") == self._environment["TMPDIR"]:
                    found.append(process)
        return found


def measure(
    old: Tree, new: Tree, script: str, options: Sequence[str], *, rounds: int, limit_s: float, step: Callable[[], None]
) -> list[Comparison]:
    """Run a script by turns, and compare the figures that each run of both commits has. Raises RunFailed."""
    runs: tuple[list[dict[str, float]], list[dict[str, float]]] = [], []
    for number in range(rounds):
        for place in (0, 1) if number % 2 == 0 else (1, 0):
            runs[place].append((old, new)[place].run(script, options, limit_s))
            step()
    every = [*runs[0], *runs[1]]
    names = [name for name in every[0] if all(name in each for each in every)]
    return [compare(name, [each[name] for each in runs[0]], [each[name] for each in runs[1]]) for name in names]


def show(found: Mapping[str, Sequence[Comparison]], console: Console) -> None:
    """Print the table."""
    table = Table()
    for column in ("figure", "old", "new", "ratio", "spread", "verdict"):
        table.add_column(column, justify="left" if column in ("figure", "verdict") else "right")
    for script, comparisons in found.items():
        table.add_section()
        for each in comparisons:
            table.add_row(
                f"{script}: {each.name}",
                f"{each.old:,.6g}",
                f"{each.new:,.6g}",
                f"{each.ratio:.3f}",
                f"{each.spread:.0%}",
                each.verdict,
                style=None if each.verdict == WITHIN_NOISE else "bold",
            )
    console.print(table)


def main() -> int:
    """Measure and print. Exit status 1 if a script failed, or if it was interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD", help="a commit, as git names it")
    parser.add_argument("new", metavar="NEW", help="another one")
    parser.add_argument("scripts", metavar="SCRIPT", nargs="*", help=f"default: {' '.join(SCRIPTS)}")
    parser.add_argument("--rounds", type=int, default=RUNS_MIN, metavar="N", help=f"runs of each (default: {RUNS_MIN})")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="S", help=f"for a run (default: {LIMIT_S:g})")
    parser.add_argument(
        "--end", type=float, default=END_S, metavar="S", help=f"for what a run leaves behind (default: {END_S:g})"
    )
    parser.add_argument("--quick", action="store_true", help="short runs: about a minute each")
    parser.add_argument("--json", action="store_true", help="print one JSON object, with every run, as the last line")
    parser.add_argument("--repository", type=Path, default=ROOT, metavar="DIR", help="default: that of this file")
    options = parser.parse_args()
    if options.rounds < RUNS_MIN:
        parser.error(f"--rounds {options.rounds} could not tell a difference from chance: at least {RUNS_MIN}")
    commits = [_commit(options.repository, name) for name in (options.old, options.new)]
    for name, commit in zip((options.old, options.new), commits, strict=True):
        if not commit:
            parser.error(f"{name!r} is not a commit of {options.repository}")
    scripts = options.scripts or SCRIPTS
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    found: dict[str, list[Comparison]] = {}
    failed = []
    try:
        with (
            tempfile.TemporaryDirectory(prefix="txmsg-compare-", ignore_cleanup_errors=True) as place,
            progress_of("compare", len(scripts) * options.rounds * 2) as step,
        ):
            directories = Path(place).resolve() / "old", Path(place).resolve() / "new"
            old, new = (Tree(options.repository, *each, options.end) for each in zip(commits, directories, strict=True))
            flags = ["--quick"] if options.quick else []
            for script in scripts:
                try:
                    found[script] = measure(
                        old, new, script, flags, rounds=options.rounds, limit_s=options.limit, step=step
                    )
                except RunFailed as exc:
                    failed.append(str(exc))
    except KeyboardInterrupt:
        failed.append("interrupted")
    machine = this_machine()
    if found:
        console = Console(width=max(_WIDTH_MIN, Console().width), highlight=False)
        show(found, console)
        count = sum(map(len, found.values()))
        console.print(
            f"{options.old} {commits[0][:8]}, {options.new} {commits[1][:8]}; {options.rounds} runs of each by turns;"
            f" {', '.join(f'{name} {value}' for name, value in machine.items())}"
        )
        console.print(f"Of {count} figures without a difference, chance calls {count * P_MAX:.1f} different at most.")
        for script in found:
            if _git(options.repository, "diff", "--name-only", *commits, "--", f"benchmarks/{script}.py"):
                console.print(f"benchmarks/{script}.py differs, too: its figures may mean something else.")
    for text in failed:
        print(text, file=sys.stderr)
    if options.json:
        figures = {script: [asdict(each) for each in comparisons] for script, comparisons in found.items()}
        print(json.dumps({"machine": machine, "old": commits[0], "new": commits[1], "figures": figures}))
    return 1 if failed else 0


def _commit(repository: Path, name: str) -> str:
    """Return its hash; empty if there is none."""
    command = ["git", "-C", str(repository), "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()


def _git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
