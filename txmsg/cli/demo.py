"""`txmsg demo`: the examples, run with real processes and crashes. txmsg/demo/ does the work."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.options import Decorator
from txmsg.demo.registration import GROUPS
from txmsg.embedded import EmbeddedPostgres, binaries_dir
from txmsg.runtime.child import ChildFailed

if TYPE_CHECKING:  # each demo needs packages that the other does not
    from txmsg.demo.registration import supervisor as registration_demo
    from txmsg.demo.trades import supervisor as trades_demo

_REGISTRATION_DATABASES: Final = ("users", *GROUPS, "notify", "attempts")
_TRADES_DATABASES: Final = ("trades", "stock", "dashboard", "notify")
_DATABASES: Final = list(dict.fromkeys((*_REGISTRATION_DATABASES, *_TRADES_DATABASES)))
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_keep_option: Decorator = click.option(
    "--keep", type=click.Path(path_type=Path, file_okay=False), help="Keep the databases in this directory."
)
_json_option: Decorator = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object as the last line."
)


def _installed(_: click.Context, __: click.Parameter, is_wanted: bool) -> bool:
    if is_wanted:
        import txmsg.console.server  # noqa: F401 - what is not installed is told before anything starts
    return is_wanted


def _all_installed(context: click.Context, parameter: click.Parameter, is_wanted: bool) -> bool:
    if _installed(context, parameter, is_wanted):
        import txmsg.metaq.location  # noqa: F401
    return is_wanted


_console_option: Decorator = click.option(
    "--console",
    "with_console",
    is_flag=True,
    callback=_installed,
    help="Also run `txmsg console`, for a browser on this machine.",
)


def _kafka(_: click.Context, __: click.Parameter, where: str | None) -> str | None:
    """The address with a prefix under which there are no topics yet: those of another day would count as well."""
    if where is None:
        return None
    from txmsg.metaq.kafka.location import is_kafka, parse_address
    from txmsg.metaq.location import open_log

    if not is_kafka(where):
        raise click.BadParameter(f"{where!r} is not the address of a Kafka: give kafka://HOST:PORT.")
    address = parse_address(where)
    if not address.prefix:
        address = dataclasses.replace(address, prefix=f"demo-{secrets.token_hex(4)}-")
    with open_log(str(address)) as log:
        if found := log.topics():
            raise click.BadParameter(f"{where} has topics, such as {min(found)}: give another prefix.")
    return str(address)


@click.group()
def demo() -> None:
    """Run an example with real processes on an embedded database."""


@demo.command(
    short_help="Register users while processes are killed.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg demo registration --users 500 --crash 20 --keep /tmp/demo",
)
@click.option("--users", default=300, show_default=True, help="Number of users who try to register.")
@click.option(
    "--crash",
    type=click.IntRange(min=0),
    default=12,
    show_default=True,
    help="How many times the service is killed (SIGKILL).",
)
@click.option(
    "--slow-ms",
    type=click.IntRange(min=0),
    default=200,
    show_default=True,
    help="Milliseconds that the slowest subscriber takes per user.",
)
@click.option(
    "--down",
    type=click.Choice([*GROUPS, "none"]),
    default="social_import",
    show_default=True,
    help="Subscriber that is down for a while.",
)
@click.option(
    "--secure",
    is_flag=True,
    callback=_all_installed,
    help="Mutual TLS, and a user with no more rights than it needs for each part; also a log, its tailer and the "
    "console. Certificates and tokens are rotated meanwhile, and attempts without a right must fail.",
)
@_console_option
@_keep_option
@_json_option
def registration(
    *,
    users: int,
    crash: int,
    slow_ms: int,
    down: str,
    secure: bool,
    with_console: bool,
    keep: Path | None,
    as_json: bool,
) -> None:
    """Register users by calls and by messages while processes are killed, then compare the databases.

    Exit status 1 if an effect is missing, duplicated or phantom, or a transaction is undecided; with --secure also if
    the log differs, or an attempt without a right succeeds.
    """
    from txmsg.demo.registration.supervisor import Plan, run

    try:
        away = None if down == "none" else down
        plan = Plan(users=users, crashes=crash, slow_ms=slow_ms, down=away, with_console=with_console, secure=secure)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    _play(
        functools.partial(run, plan),
        functools.partial(_print_registration, users_waited=plan.compared),
        databases=_REGISTRATION_DATABASES,
        title_width=33,
        verdict="every user reached every subscriber once",
        keep=keep,
        as_json=as_json,
    )


def _print_registration(console: Console, result: registration_demo.Result, *, users_waited: int) -> None:
    waits = Table(title=f"What {users_waited} users waited for each way (ms)", title_justify="left")
    for column in ("", "p50", "p99"):
        waits.add_column(column, justify="left" if not column else "right")
    titles = {"serial": "serial calls: the sum of all steps", "parallel": "parallel calls: the slowest step"}
    for way, latency in result.latency_ms.items():
        waits.add_row(titles.get(way, "messages: the core step"), f"{latency.p50:.1f}", f"{latency.p99:.1f}")
    console.print(waits)

    facts = Table(title="What the databases say", title_justify="left", show_header=False)
    facts.add_column()
    facts.add_column(justify="right")
    for name, value in (
        ("users who tried", result.users),
        ("committed", result.committed),
        ("rolled back, or never begun", result.rolled_back),
        ("services killed", result.crashes),
        ("settled by a check-back: commit", result.resolved_by_check["commit"]),
        ("settled by a check-back: rollback", result.resolved_by_check["rollback"]),
        *((f"effects in {group}", count) for group, count in result.effects.items()),
        ("effects missing", result.missing),
        ("effects duplicated", result.duplicated),
        ("effects without a user (phantom)", result.phantom),
        ("transactions still undecided", result.in_doubt),
        *(
            ()
            if result.security is None
            else (
                ("messages in the log", result.security.mirrored),
                ("users, all with another token since", result.security.users),
                ("attempts refused", result.security.refused),
                ("attempts let in", result.security.let_in),
            )
        ),
    ):
        facts.add_row(name, str(value))
    console.print(facts)


@demo.command(
    short_help="Run a day of trades with a live page, while processes are killed.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg demo trades --rate 1000 --seconds 60 --kill",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    default=200.0,
    show_default=True,
    help="Trades per second, on average.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    help="Length of the day in seconds.",
)
@click.option("--seed", type=int, default=11, show_default=True, help="The same seed gives the same trades.")
@click.option("--kill", is_flag=True, help="Kill trade service, broker, tailer and Spark driver once each (SIGKILL).")
@click.option(
    "--no-browser",
    is_flag=True,
    help="Read the page's totals over HTTP, even if a browser is installed.",
)
@click.option(
    "--log",
    metavar="kafka://HOST:PORT[,...][/PREFIX]",
    callback=_kafka,
    help="Mirror into this Kafka, and let Spark read it there, instead of a log on this machine. Without a prefix, the "
    "topics get one of their own.",
)
@click.option(
    "--kafka-jars",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Jars of Spark's source for Kafka. Default: Spark gets them from Maven's repositories.",
)
@_console_option
@_keep_option
@_json_option
def trades(
    *,
    rate: float,
    seconds: float,
    seed: int,
    kill: bool,
    no_browser: bool,
    log: str | None,
    kafka_jars: Path | None,
    with_console: bool,
    keep: Path | None,
    as_json: bool,
) -> None:
    """Create, pay, ship and refund orders, show their sums live on a page, then compare all totals.

    Exit status 1 unless page, trade database and log agree to the cent, and nothing was oversold.
    """
    try:
        import pyspark  # noqa: F401 - the largest of what this demo needs and the other one does not

        from txmsg.demo.trades.load import Load
        from txmsg.demo.trades.supervisor import Plan, run
    except ModuleNotFoundError as exc:
        raise click.ClickException(f"this demo needs more ({exc}): run `pip install 'txmsg[all]'`") from exc

    try:
        load = Load(rate=rate, seconds=seconds, seed=seed)
        plan = Plan(
            load=load,
            kill=kill,
            with_browser=not no_browser,
            with_console=with_console,
            log=log,
            kafka_jars=kafka_jars,
        )
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    _play(
        functools.partial(run, plan),
        _print_trades,
        databases=_TRADES_DATABASES,
        title_width=22,
        verdict="page, trade database and log agree to the cent",
        keep=keep,
        as_json=as_json,
    )


def _print_trades(console: Console, result: trades_demo.Result) -> None:
    facts = Table(title="What the day came to", title_justify="left", show_header=False)
    facts.add_column()
    facts.add_column(justify="right")
    facts.add_row("trades", f"{result.trades:,}")
    for name, cents in result.turnover_cents.items():
        if cents is not None:
            facts.add_row(f"turnover: {name}", f"¥{cents / 100:,.2f}")
    facts.add_row("paid orders that are short of stock", f"{result.stock_short:,}")
    facts.add_row("sold, and not in stock", f"{result.stock_oversold:,}")
    if result.late_events is not None:
        facts.add_row("events that came late, and counted", f"{result.late_events:,}")
    for name, latency in (result.latency_ms or {}).items():
        if latency.p50 is None:
            continue
        facts.add_row(f"trade until {name}, p50 and p99", f"{latency.p50} and {latency.p99} ms")
    if result.spark_batch_ms is not None:
        facts.add_row("Spark batch, p50 and p99", f"{result.spark_batch_ms.p50} and {result.spark_batch_ms.p99} ms")
    for name, waited in (result.waits_ms or {}).items():
        facts.add_row(f"of these until {name}", f"{waited.p50} and {waited.p99} ms")
    if result.kills:
        facts.add_row("killed", ", ".join(result.kills))
    console.print(facts)


@demo.command(
    short_help="Open psql on a database of a kept demo.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg demo connect /tmp/demo users",
)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.argument("database", type=click.Choice(_DATABASES), default="users")
def connect(directory: Path, database: str) -> None:
    """Open psql on a DATABASE that a demo kept with `--keep DIRECTORY`. Stops the server at the end."""
    with EmbeddedPostgres(directory / "postgres") as postgres:
        sys.exit(subprocess.run([binaries_dir() / "psql", postgres.url(database)], check=False).returncode)


# ---- a demo that runs


def _play(
    run: Callable[[Path, Bars], Any],
    show: Callable[[Console, Any], None],
    *,
    databases: Sequence[str],
    title_width: int,
    verdict: str,
    keep: Path | None,
    as_json: bool,
) -> NoReturn:
    """Runs a demo, shows its result, and exits. verdict: what is said of a good one."""
    console = Console(stderr=as_json)  # stdout is for the JSON then
    try:
        with (
            _directory(keep) as directory,
            Interrupts() as interrupts,
            Bars(console, interrupts, title_width=title_width) as bars,
        ):
            result = run(directory, bars)
            interrupts.check()
    except ChildFailed as exc:  # it names the process and the end of its log
        raise click.ClickException(str(exc)) from exc
    show(console, result)
    for finding in result.findings:
        console.print(finding, style="red", highlight=False)
    told = verdict if result.clean else "NOT as it must be"
    console.print(f"{told}; {result.seconds:.1f} s", style="green" if result.clean else "bold red")
    if keep is not None:
        console.print(
            f"The databases are in {keep}; the server ends with the demo. To look into them:", highlight=False
        )
        for database in databases:
            console.print(f"  txmsg demo connect {keep} {database}", highlight=False, soft_wrap=True)
    if as_json:
        values = dataclasses.asdict(result)
        print(json.dumps({name: value for name, value in values.items() if name != "findings"}), flush=True)
    sys.exit(0 if result.clean else 1)


class Bars:
    """The audience of the demo: one progress bar per phase, behind titles of at most so many characters."""

    def __init__(self, console: Console, interrupts: Interrupts, *, title_width: int) -> None:
        self._interrupts = interrupts
        self._progress = Progress(
            TextColumn(f"{{task.description:<{title_width}}}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            console=console,
            expand=True,  # a narrow terminal cuts the note, not the numbers
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
        self._progress.stop()

    def phase(self, title: str, steps: int) -> None:
        self._finish()
        self._task = self._progress.add_task(title, total=steps, note="")

    def progress(self, steps: int, note: str) -> None:
        assert self._task is not None
        self._interrupts.check()
        self._progress.update(self._task, completed=steps, note=note)

    def say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False)

    def _finish(self) -> None:
        if self._task is not None:
            task = self._progress.tasks[self._task]
            self._progress.update(self._task, completed=task.total)
            self._progress.stop_task(self._task)


@contextlib.contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    """The empty directory that is to be kept, or one that is removed afterwards. Raises UsageError."""
    if keep is not None:
        try:
            keep.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise click.UsageError(f"{keep} cannot be made ({exc}): name another directory") from exc
        if any(keep.iterdir()):
            raise click.UsageError(f"{keep} is not empty: name another directory, or empty it")
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="txmsg-demo-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


class Interrupts:
    """Ctrl-C, SIGTERM and a terminal that is closed end the demo in order, with all its processes.

    Raised where the main thread is just then, KeyboardInterrupt may be lost (in a finalizer, in a callback of a
    library). So it is remembered, and `check` raises it again.
    """

    def __init__(self) -> None:
        self._interrupted = False

    def __enter__(self) -> Self:
        is_without_terminal = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # as under nohup
        heard = [signum for signum in _SIGNALS if signum != signal.SIGHUP or not is_without_terminal]
        self._before = {signum: signal.signal(signum, self._interrupt) for signum in heard}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        self._interrupted = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raises KeyboardInterrupt if there was one."""
        if self._interrupted:
            raise KeyboardInterrupt
