"""`txmsg demo`: the examples, run with real processes and crashes. txmsg/ops/demo/ does the work."""

from __future__ import annotations

import dataclasses
import functools
import secrets
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console
from rich.table import Table

from txmsg.broker.embedded import EmbeddedPostgres
from txmsg.broker.embedded.programs import binaries_dir
from txmsg.ops.cli.demo_play import play, print_facts, refuse_impossible_plan, seconds_option
from txmsg.ops.cli.main import EXAMPLE_FORMAT, LazyGroup
from txmsg.ops.cli.options import Decorator
from txmsg.ops.demo.browser import has_browser
from txmsg.ops.demo.registration import GROUPS

if TYPE_CHECKING:  # each demo needs packages that the other does not
    from txmsg.ops.demo.lottery import lottery_run as lottery_demo
    from txmsg.ops.demo.registration import registration_run as registration_demo
    from txmsg.ops.demo.trades import trading_run as trades_demo

_CRASHES: Final = 12
_REGISTRATION_DATABASES: Final = ("users", *GROUPS, "notify", "attempts")
_TRADES_DATABASES: Final = ("trades", "stock", "dashboard", "notify")
_LOTTERY_DATABASES: Final = ("activity", "tickets", "figures", "notify")
_DATABASES: Final = list(dict.fromkeys((*_REGISTRATION_DATABASES, *_TRADES_DATABASES, *_LOTTERY_DATABASES)))

_keep_option: Decorator = click.option(
    "--keep", type=click.Path(path_type=Path, file_okay=False), help="Keep the databases in this directory."
)
_json_option: Decorator = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object as the last line."
)


def _installed(_: click.Context, __: click.Parameter, is_wanted: bool) -> bool:
    if is_wanted:
        import txmsg.ops.console.server  # noqa: F401 - what is not installed is told before anything starts
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
    """Return the address with a prefix without topics: the topics of an earlier day would be counted, too."""
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


@click.group(cls=LazyGroup, path=("demo",), modules={"data-centres": "demo_data_centres"})
def demo() -> None:
    """Run an example with real processes."""


@demo.command(
    short_help="Register users while processes are killed.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg demo registration --users 500 --crash 20 --keep /tmp/demo",
)
@click.option("--users", default=300, show_default=True, help="Number of users who try to register.")
@click.option(
    "--crash",
    type=click.IntRange(min=0),
    show_default=f"{_CRASHES}, fewer with few users",
    help="Number of times that the service is killed (SIGKILL).",
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
    help="Use mutual TLS, and a user with minimal rights for each component; also run a log, its tailer and the "
    "console. Certificates and tokens are rotated meanwhile, and attempts without a right must fail.",
)
@_console_option
@_keep_option
@_json_option
def registration(
    *,
    users: int,
    crash: int | None,
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
    from txmsg.ops.demo.registration.registration_run import RegistrationPlan, run

    away = None if down == "none" else down
    with refuse_impossible_plan():
        plan = RegistrationPlan(
            users=users, crashes=crash or 0, slow_ms=slow_ms, down=away, with_console=with_console, secure=secure
        )
        if crash is None:
            plan = dataclasses.replace(plan, crashes=min(_CRASHES, plan.crashes_max))
    play(
        functools.partial(run, plan),
        functools.partial(_print_registration, users_waited=plan.compared),
        databases=_REGISTRATION_DATABASES,
        title_width=33,
        verdict="every user reached every subscriber once",
        keep=keep,
        as_json=as_json,
    )


def _print_registration(console: Console, result: registration_demo.RegistrationResult, *, users_waited: int) -> None:
    waits = Table(title=f"What {users_waited} users waited for each way (ms)", title_justify="left")
    for column in ("", "p50", "p99"):
        waits.add_column(column, justify="left" if not column else "right")
    titles = {"serial": "serial calls: the sum of all steps", "parallel": "parallel calls: the slowest step"}
    for way, latency in result.latency_ms.items():
        waits.add_row(titles.get(way, "messages: the core step"), f"{latency.p50:.1f}", f"{latency.p99:.1f}")
    console.print(waits)

    facts: list[tuple[str, object]] = [
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
    ]
    if result.security is not None:
        facts += [
            ("messages in the log", result.security.mirrored),
            ("users, all with another token since", result.security.users),
            ("attempts refused", result.security.refused),
            ("attempts let in", result.security.let_in),
        ]
    print_facts(console, "What the databases say", facts)


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
@seconds_option(60.0, "Length of the day in seconds.")
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
    help="Mirror to this Kafka, and let Spark read it there, instead of a log on this machine. Without a prefix, a "
    "new one is chosen.",
)
@click.option(
    "--kafka-jars",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Directory with the jars of Spark's Kafka source. Default: Spark downloads them from Maven repositories.",
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

        from txmsg.ops.demo.trades.load import Load
        from txmsg.ops.demo.trades.trading_run import TradesPlan, run
    except ModuleNotFoundError as exc:
        raise click.ClickException(f"this demo needs more ({exc}): run `pip install 'txmsg[all]'`") from exc

    with refuse_impossible_plan():
        load = Load(rate=rate, seconds=seconds, seed=seed)
        plan = TradesPlan(
            load=load,
            kill=kill,
            with_browser=not no_browser,
            with_console=with_console,
            log=log,
            kafka_jars=kafka_jars,
        )
    play(
        functools.partial(run, plan),
        _print_trades,
        databases=_TRADES_DATABASES,
        title_width=22,
        verdict="page, trade database and log agree to the cent",
        keep=keep,
        as_json=as_json,
    )


def _print_trades(console: Console, result: trades_demo.TradesResult) -> None:
    facts = [("trades", f"{result.trades:,}")]
    facts += [
        (f"turnover: {name}", f"¥{cents / 100:,.2f}")
        for name, cents in result.turnover_cents.items()
        if cents is not None
    ]
    facts += [
        ("paid orders that are short of stock", f"{result.stock_short:,}"),
        ("sold, and not in stock", f"{result.stock_oversold:,}"),
    ]
    if result.late_events is not None:
        facts.append(("events that came late, and counted", f"{result.late_events:,}"))
    facts += [
        (f"trade until {name}, p50 and p99", f"{latency.p50} and {latency.p99} ms")
        for name, latency in (result.latency_ms or {}).items()
        if latency.p50 is not None
    ]
    if result.spark_batch_ms is not None:
        facts.append(("Spark batch, p50 and p99", f"{result.spark_batch_ms.p50} and {result.spark_batch_ms.p99} ms"))
    facts += [
        (f"of these until {name}", f"{waited.p50} and {waited.p99} ms")
        for name, waited in (result.waits_ms or {}).items()
    ]
    print_facts(console, "What the day came to", (*facts, *_killed(result.kills)))


def _killed(kills: dict[str, int]) -> list[tuple[str, str]]:
    return [("killed", ", ".join(kills))] if kills else []


def _drawn(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and not has_browser():
        raise click.BadParameter(
            "drawing the page needs Chromium and the package playwright: install both, or leave --picture out."
        )
    return path


@demo.command(
    short_help="Enter users into a lottery in seconds, while processes are killed.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg demo lottery --users 5000 --seconds 10 --kill --picture lottery.png",
)
@click.option("--users", type=int, default=5000, show_default=True, help="Number of users who enter.")
@seconds_option(10.0, "Seconds within which users arrive, most of them at the beginning.")
@click.option("--kill", is_flag=True, help="Kill a process of the page, a printer and the broker once each (SIGKILL).")
@click.option(
    "--picture",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_drawn,
    help="Save a picture of the live page at the end as this PNG file.",
)
@_console_option
@_keep_option
@_json_option
def lottery(
    *,
    users: int,
    seconds: float,
    kill: bool,
    picture: Path | None,
    with_console: bool,
    keep: Path | None,
    as_json: bool,
) -> None:
    """Let users enter a lottery all at once, while slow printers print their tickets; then count the tickets.

    Printers are added and stopped meanwhile. Exit status 1 unless each user has exactly one ticket, and there are no
    other tickets.
    """
    import txmsg.ops.console.server  # noqa: F401 - what is not installed is told before anything starts
    from txmsg.ops.demo.lottery.lottery_run import LotteryPlan, run

    with refuse_impossible_plan():
        plan = LotteryPlan(users=users, seconds=seconds, kill=kill, with_console=with_console, picture=picture)
    play(
        functools.partial(run, plan),
        _print_lottery,
        databases=_LOTTERY_DATABASES,
        title_width=22,
        verdict="every user has exactly one ticket",
        keep=keep,
        as_json=as_json,
    )


def _print_lottery(console: Console, result: lottery_demo.LotteryResult) -> None:
    facts = (
        ("users", f"{result.users:,}"),
        ("tickets", f"{result.tickets:,}"),
        ("tickets missing", result.missing),
        ("tickets duplicated", result.duplicated),
        ("tickets without an entry (phantom)", result.phantom),
        ("response time, p50 and p99", f"{result.request_ms.p50} and {result.request_ms.p99} ms"),
        ("waiting for a ticket, at most", f"{result.backlog_max:,}"),
        ("users refused at first", f"{result.refused:,}"),
        ("tries repeated", f"{result.repeated:,}"),
        *_killed(result.kills),
    )
    print_facts(console, "What the lottery came to", facts)


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
