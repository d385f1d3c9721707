"""`txmsg health`: asks a process of this machine whether it is ready. For the probes of containers and for scripts."""

from __future__ import annotations

import http.client
import json
import ssl

import click

from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.options import SECONDS, json_option
from txmsg.errors import BrokerUnavailable, printable
from txmsg.wire.address import check_reach, host_and_port
from txmsg.wire.listening import loopback

_TEXT_SIZE_MAX = 1000


@click.command(
    short_help="Ask whether a broker, a MetaQ server or a tailer of this machine is ready.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg health\n  txmsg health 127.0.0.1:9720 --alive",
)
@click.argument("address", metavar="[HOST:PORT]", default=f"{loopback()}:9700")
@click.option("--alive", is_flag=True, help="Check only whether the process works (/livez).")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="TIME",
    type=SECONDS,
    default="3s",
    show_default=True,
    help="Timeout for the answer.",
)
@click.option("--tls", "by_tls", is_flag=True, help="The process has --tls-cert.")
@json_option
def health(*, address: str, alive: bool, timeout_s: float, by_tls: bool, as_json: bool) -> None:
    """Request /readyz from the process with this --http-listen. Exit status 1, with the reason, if it is not ready.

    The process must be on this machine, so run a probe where the process runs: in its container.
    """
    check_reach(
        "HOST:PORT", address, "this asks processes of this machine", "run it where the process runs", is_guarded=False
    )
    connection = _connection(*host_and_port(address), max(timeout_s, 0.001), by_tls=by_tls)
    try:
        connection.request("GET", "/livez" if alive else "/readyz")
        answer = connection.getresponse()
        text = printable(answer.read(_TEXT_SIZE_MAX).decode(errors="replace").strip())
    except (OSError, http.client.HTTPException) as exc:
        raise BrokerUnavailable(
            f"no answer at http://{address} ({exc}): does a process run there with --http-listen {address}"
            + ("?" if by_tls else ", and without TLS? Give --tls if it has --tls-cert")
        ) from exc
    finally:
        connection.close()
    is_good = answer.status == http.client.OK
    click.echo(json.dumps({"address": address, "ok": is_good, "answer": text}) if as_json else text)
    if not is_good:
        raise SystemExit(1)


def _connection(host: str, port: int, timeout_s: float, *, by_tls: bool) -> http.client.HTTPConnection:
    if not by_tls:
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    # Not verified: the name of a certificate is that by which other machines know the process, and nothing is told it.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
