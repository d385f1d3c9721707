"""Makes a minimal Debian, and runs the README's commands in it from a fresh clone of HEAD.

python3 -m tools.fresh_system debian-13
python3 -m tools.fresh_system debian-12 debian-13 debian-unstable --page docs/tested-on.md
python3 -m tools.fresh_system debian-13 --run none --circumstance all --users 30
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tools.fresh_system.circumstances import CIRCUMSTANCES, CLONE, Circumstance
from tools.fresh_system.place import BUNDLE, PYTHON, SYSTEMS, USERS, NoSystem, Place, base_of
from tools.fresh_system.processes import Outcome, delete, say
from tools.fresh_system.record import Met, Run, save, skips_of, summary_of

ROOT = Path(__file__).resolve().parents[2]
STEPS = {"demo": 900, "test": 3600, "lint": 1800}
"""Targets of the Makefile, and the time limit of each in seconds."""
CLONING = "git -c advice.detachedHead=false clone --quiet"
INSTALL_S = 900
DEMO_S = 600
LINES_PRINTED = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A command in a place, its commit, and its time."""

    title: str
    place: Place
    make: str
    commit: str
    date: str
    users: int


def main(arguments: Sequence[str]) -> int:
    """Run the tool. Exit status 1 if anything failed."""
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        missing = [name for name in ("debootstrap", "unshare", "taskset", "ip") if not shutil.which(name)]
        if missing or os.geteuid():
            raise NoSystem(
                f"needs root, and {', '.join(missing) or 'nothing else'} (Debian: apt-get install debootstrap)"
            )
        return 0 if all([one_system(name, options) for name in options.system]) else 1
    except NoSystem as exc:
        say(str(exc))
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python3 -m tools.fresh_system",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("system", nargs="+", choices=SYSTEMS, metavar="SYSTEM", help=", ".join(SYSTEMS))
    parser.add_argument("--python", type=Path, metavar="PREFIX", help="relocatable Python to use, not the system's own")
    parser.add_argument("--run", type=listed(STEPS), default="demo,test,lint", help="of demo,test,lint; or none")
    parser.add_argument(
        "--circumstance",
        type=listed(CIRCUMSTANCES),
        default="none",
        metavar="NAMES",
        help="circumstances in which the demo runs, by commas; all, or none: " + ", ".join(CIRCUMSTANCES),
    )
    parser.add_argument("--users", type=int, default=30, help="users of the demo in circumstances (default 30)")
    parser.add_argument("--page", type=Path, help="page to write the results to, with a JSON beside it")
    parser.add_argument(
        "--place",
        type=Path,
        default=Path("/var/cache/txmsg-fresh-system"),
        help="directory that keeps the base systems, 400 MB each (default %(default)s)",
    )
    parser.add_argument("--keep", action="store_true", help="keep what the commands wrote, and say where")
    return parser


def listed(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a parser of names separated by commas, in the order of the known ones."""
    names = list(known)

    def parse(text: str) -> list[str]:
        if text in ("all", "none"):
            return names if text == "all" else []
        if unknown := [name for name in text.split(",") if name not in names]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(names)}")
        return [name for name in names if name in text.split(",")]

    return parse


def one_system(name: str, options: argparse.Namespace) -> bool:
    """Run all requested steps on one system, and save the results; return True if all passed."""
    system = SYSTEMS[name]
    options.place.mkdir(parents=True, exist_ok=True)
    base = base_of(system, options.place.resolve())
    with scratch(options.place.resolve(), is_kept=options.keep) as directory:
        bundle = directory / "txmsg.bundle"
        git("bundle", "create", "--quiet", str(bundle), "HEAD")
        if git("status", "--porcelain", "--untracked-files=no"):
            say("note: changes that are not committed are not in the clone")
        make = "make" if options.python is None else f"make PYTHON={PYTHON}/bin/python3"
        job = Job(
            title=system.title,
            place=Place(layers=(directory / "clone", base), bundle=bundle, python=options.python),
            make=make,
            commit=git("rev-parse", "--short", "HEAD"),
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            users=options.users,
        )
        cloned = job.place.run(f"{CLONING} {BUNDLE} {CLONE}", timeout_s=INSTALL_S)
        if cloned.code:
            raise NoSystem("\n".join(["the clone failed:", *cloned.lines]))
        passed = []
        for row in rows(job, options):
            if options.page:
                save(options.page, row)
            passed.append(row.is_passed)
    return all(passed)


def rows(job: Job, options: argparse.Namespace) -> Iterator[Run | Met]:
    """Yield the results as they arrive."""
    if options.circumstance:  # before tests and lint, whose packages each copy would have to chown
        yield from circumstances(job, options.circumstance)
    for name in options.run:
        yield step(job, name)


def step(job: Job, name: str) -> Run:
    """Run a target of the Makefile."""
    say(f"{job.title}: make {name}")
    outcome = job.place.run(f"cd {CLONE} && {job.make} {name}", timeout_s=STEPS[name])
    job.place.layers[0].with_name(f"make-{name}.log").write_text("\n".join(outcome.lines) + "\n", encoding="utf-8")
    report(f"{job.title}: make {name}", outcome)
    return Run(
        system=job.title,
        python=python_of(job),
        command=f"make {name}",
        commit=job.commit,
        date=job.date,
        is_passed=outcome.code == 0,
        seconds=outcome.seconds,
        summary=summary_of(outcome.lines),
        skips=skips_of(outcome.lines),
    )


def circumstances(job: Job, names: Sequence[str]) -> Iterator[Met]:
    """Run the demo in each circumstance, from one installation."""
    say(f"{job.title}: installing for the circumstances")
    installed = job.place.run(f"cd {CLONE} && {job.make} .venv/.broker", timeout_s=INSTALL_S)
    if installed.code:
        raise NoSystem("\n".join(["the installation failed:", *installed.lines[-LINES_PRINTED:]]))
    python = python_of(job)
    for name in names:
        circumstance = CIRCUMSTANCES[name]
        outcomes, end = {}, ""
        for user in circumstance.users:
            outcome = demo(job, circumstance, user)
            if circumstance.end:
                end = next((line for line in outcome.lines if outcome.code and circumstance.end in line), "")
                outcome = replace(outcome, code=0 if end else 1)
            outcomes[user] = outcome
            report(f"{job.title}: {name} as {user}", outcomes[user])
        yield Met(
            system=job.title,
            python=python,
            name=name,
            meaning=circumstance.meaning,
            commit=job.commit,
            date=job.date,
            users=job.users,
            results={user: None if outcome.code else outcome.seconds for user, outcome in outcomes.items()},
            end=end,
        )


def demo(job: Job, circumstance: Circumstance, user: str) -> Outcome:
    """Run the demo in a circumstance, in a copy of the place that is deleted afterwards."""
    changes = job.place.layers[0].with_name("circumstance")
    place = replace(job.place, layers=(changes, *job.place.layers), limits=circumstance.limits)
    clone, owner = shlex.quote(circumstance.clone), USERS[user]
    arguments = f"--users {job.users}"
    is_own = circumstance.clone != CLONE
    cloning = f"{CLONING} {BUNDLE} {clone} && " if is_own else ""
    try:
        return place.run(
            f"{circumstance.before or ':'}; {cloning}cd {clone} && {job.make} demo DEMO_ARGS={shlex.quote(arguments)}",
            timeout_s=DEMO_S + INSTALL_S * is_own,
            user=user,
            environment=circumstance.environment,
            prepare="\n".join([f"chown -R {owner}:{owner} srv/place", circumstance.prepare]),
            own_network=circumstance.own_network,
        )
    finally:
        for suffix in ("", ".work", ".root"):
            delete(changes.with_name(changes.name + suffix))


def python_of(job: Job) -> str:
    """Return the version of Python in the clone's environment; "unknown" if there is none."""
    version = "import platform; print(platform.python_version())"
    outcome = job.place.run(f"{CLONE}/.venv/bin/python -c {shlex.quote(version)}", timeout_s=60)
    return "unknown" if outcome.code else outcome.lines[-1]


def report(title: str, outcome: Outcome) -> None:
    """Print how a command ended: its last line if it passed, or more of them."""
    last = outcome.lines[-1 if outcome.code == 0 else -LINES_PRINTED :]
    print(f"{title}: {'passed' if outcome.code == 0 else 'FAILED'} after {outcome.seconds:.0f} s")
    print(*(f"    {line}" for line in last), sep="\n", flush=True)


def git(*arguments: str) -> str:
    """Return the output of a git command in the repository."""
    # It can belong to another user than root, who runs this.
    command = ["git", "-c", f"safe.directory={ROOT}", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def scratch(place: Path, *, is_kept: bool) -> Iterator[Path]:
    """Yield a directory for the changes of this run."""
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=place))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        if is_kept:
            say(f"kept {directory}")
        else:
            delete(directory)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
