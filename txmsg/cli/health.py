"""`txmsg health`: asks a process of this machine whether it is ready. For the probes of containers and for scripts."""

from __future__ import annotations

import http.client
import json

import click

from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.options import SECONDS, json_option
from txmsg.errors import BrokerUnavailable, printable
from txmsg.metrics.http import check_loopback
from txmsg.wire.address import host_and_port

_TEXT_SIZE_MAX = 1000


@click.command(
    short_help="Ask whether a broker, a MetaQ server or a tailer of this machine is ready.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg health\n  txmsg health 127.0.0.1:9720 --alive",
)
@click.argument("address", metavar="[HOST:PORT]", default="127.0.0.1:9700")
@click.option("--alive", is_flag=True, help="Ask whether it works at all, and need not be restarted.")
@click.option(
    "--timeout", "timeout_s", metavar="TIME", type=SECONDS, default="3s", show_default=True, help="For the answer."
)
@json_option
def health(*, address: str, alive: bool, timeout_s: float, as_json: bool) -> None:
    """Ask the process whose --http-listen this is for /readyz. Exit status 1, with the reason, if it is not ready.

    The endpoint is on loopback, so a probe runs where the process runs: in its container.
    """
    host, port = host_and_port(check_loopback(address))
    connection = http.client.HTTPConnection(host, port, timeout=max(timeout_s, 0.001))
    try:
        connection.request("GET", "/livez" if alive else "/readyz")
        answer = connection.getresponse()
        text = printable(answer.read(_TEXT_SIZE_MAX).decode(errors="replace").strip())
    except (OSError, http.client.HTTPException) as exc:
        raise BrokerUnavailable(
            f"no answer at http://{address} ({exc}): does a process run there with --http-listen {address}?"
        ) from exc
    finally:
        connection.close()
    is_good = answer.status == http.client.OK
    click.echo(json.dumps({"address": address, "ok": is_good, "answer": text}) if as_json else text)
    if not is_good:
        raise SystemExit(1)
