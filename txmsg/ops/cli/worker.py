"""`txmsg worker`: an application in processes that are supervised."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import click

from txmsg.client.app.worker.supervisor import Supervisor, WorkerPlan
from txmsg.metrics.figures import Figures
from txmsg.metrics.http import Probes, serving_on_thread
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import SECONDS, json_option, log_format_option, size
from txmsg.runtime.child import with_name
from txmsg.runtime.logs import LOG_LEVELS, StderrLines, log_to_stderr, name_process
from txmsg.runtime.signals import stopped_by_signals
from txmsg.wire.address import check_reach

_PROCESSES_MAX = 256


@click.command(
    epilog=f"{EXAMPLE_FORMAT}\n"
    "  txmsg worker shop.main:app --processes 4 --http-listen 127.0.0.1:8080\n"
    "  txmsg worker shop.main:app --groups mailer,warehouse --memory-limit 512MiB\n"
    "  txmsg worker shop.main:app --reload\n\n"
    "Prints a line when all processes are ready. SIGTERM and Ctrl-C end them in order: handlers finish for up to "
    "--drain, and what they did is acknowledged; what is left is redelivered. A second signal ends them at once. A "
    "process that ends by itself is started again, after 0.5 s, 1 s, 2 s ... 1m if it ends soon each time."
)
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--processes",
    type=click.IntRange(1, _PROCESSES_MAX),
    default=1,
    show_default=True,
    help="Number of processes. Each runs as many handlers at once as its subscriptions allow.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 4096),
    help="Handlers at once of each subscription, in each process.  [default: as the application says]",
)
@click.option("--groups", default="", metavar="GROUP,...", help="Run only the handlers of these consumer groups.")
@click.option(
    "--reload", is_flag=True, help="Restart when a .py file below the current directory changes, for development."
)
@click.option(
    "--http-listen",
    metavar="HOST:PORT",
    default="",
    help="Address of /metrics, /livez and /readyz. Port 0 picks a free port.  [default: not served]",
)
@click.option(
    "--http-token-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File with the token that readers of /metrics must send (Authorization: Bearer).",
)
@click.option(
    "--drain",
    type=SECONDS,
    metavar="TIME",
    default=30.0,
    help="Time for handlers to finish at the end.  [default: 30s]",
)
@click.option(
    "--memory-limit",
    type=size,
    metavar="SIZE",
    help="Memory of a process, above which it finishes what it handles and is replaced.  [default: none]",
)
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    default="info",
    show_default=True,
    help="Lowest level logged to stderr.",
)
@log_format_option
@json_option
def worker(
    *,
    app: str,
    processes: int,
    concurrency: int | None,
    groups: str,
    reload: bool,
    http_listen: str,
    http_token_file: Path | None,
    drain: float,
    memory_limit: int | None,
    log_level: str,
    log_format: str | None,
    as_json: bool,
) -> None:
    """Run the application MODULE:APP in supervised processes."""
    if http_listen:
        check_reach(
            "--http-listen",
            http_listen,
            "they read its metrics",
            "give --http-token-file FILE, or listen on 127.0.0.1",
            is_guarded=http_token_file is not None,
        )
    if memory_limit is not None:
        import psutil  # noqa: F401 - or say now that it is not installed
    log_to_stderr(log_level, log_format or "text")
    name_process("supervisor")
    plan = WorkerPlan(
        app=app,
        processes=processes,
        concurrency=concurrency,
        groups=tuple(filter(None, (name.strip() for name in groups.split(",")))),
        drain_s=drain,
        memory_limit_bytes=memory_limit,
        reload=Path.cwd() if reload else None,
        log_level=log_level,
        log_format=log_format or "text",
    )
    log = StderrLines()
    supervisor = Supervisor(plan, lambda name, line: log(with_name(name, line)))
    # An event, not an exception: the supervisor ends its children in order, wherever a signal meets it.
    stop = threading.Event()

    async def figures() -> Figures:
        return supervisor.figures()

    probes = Probes(figures=figures, unready=supervisor.unready)
    with stopped_by_signals(stop.set), serving_on_thread(http_listen, probes, token_file=http_token_file) as http:

        def ready() -> None:
            facts = {"app": app, "pids": supervisor.pids, **({"http": http} if http else {})}
            click.echo(json.dumps(facts) if as_json else f"{processes} processes run {app}; Ctrl-C ends them")

        supervisor.run(stop, ready)
