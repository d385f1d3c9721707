"""`txmsg cluster`: the brokers of a Notify database, and their maintenance. Talks to the service Cluster."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

import click

from txmsg.administration.cluster import BrokerId, ClientQuery, ClusterService, ClusterState, ReadFigures, ShowCluster
from txmsg.metrics.catalogue import CATALOGUE
from txmsg.ops.cli.connections import ask_broker, broker_option
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import json_option, table_options
from txmsg.ops.cli.output import json_text, print_rows

_LOOK_S = 0.25


@click.group()
def cluster() -> None:
    """Show the brokers of a Notify database, and drain one for maintenance."""


@cluster.command(
    short_help="Show the brokers.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg cluster show\n  txmsg cluster show --by-queue --json",
)
@click.option("--by-queue", is_flag=True, help="Also print which broker delivers each queue.")
@broker_option
@json_option
def show(*, by_queue: bool, broker: str, as_json: bool) -> None:
    """Show the brokers: state, last heartbeat, and number of queues.

    A dead broker is shown for a day.
    """
    state = ask_broker(broker, ClusterService.show, ShowCluster(with_queues=by_queue))
    if as_json:
        click.echo(json_text(_values(state)))
        return
    print_rows(
        {
            "broker": member.id,
            "address": member.address,
            "state": member.state,
            "queues": member.queues,
            "heartbeat": member.heartbeat_at,
            "release": member.release,
            "revision": member.schema_revision,
            "started": member.started_at,
        }
        for member in state.brokers
    )
    click.echo(f"database at revision {state.schema_revision}, with {state.queues} queues")
    if state.queues_unassigned:
        click.echo(f"{state.queues_unassigned} of them have no broker at this moment")
    if state.leases:
        print_rows(
            {
                "topic": lease.topic,
                "queue": lease.queue,
                "broker": lease.broker or "none",
                "goes_to": lease.wanted_by or "",
            }
            for lease in state.leases
        )


@cluster.command(
    short_help="List the attached producers and consumers.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg cluster clients --contains mailer",
)
@click.option("--contains", default="", metavar="TEXT", help="Only if group or host contains this text, ignoring case.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Maximum number of clients."
)
@broker_option
@json_option
@table_options
def clients(*, contains: str, limit: int, broker: str, as_json: bool) -> None:
    """List the producers and consumers attached to a broker: group, host, process, release, and attach time.

    Clients attach to every broker.
    """
    found = ask_broker(broker, ClusterService.clients, ClientQuery(limit=limit, contains=contains))
    if as_json:
        click.echo(json_text(asdict(found)))
        return
    if not found.clients:
        click.echo("no clients are attached" + (" that match" if contains else ""))
        return
    print_rows({name: value for name, value in asdict(client).items() if name != "id"} for client in found.clients)
    if found.more:
        click.echo(f"only the first {limit}: raise --limit to see more", err=True)


@cluster.command(
    short_help="Show what a broker exports as metrics.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg cluster figures\n  txmsg cluster figures txmsg_halves txmsg_group_lag_messages",
)
@click.argument("names", metavar="[METRIC]...", nargs=-1)
@broker_option
@json_option
@table_options
def figures(*, names: tuple[str, ...], broker: str, as_json: bool) -> None:
    """Show the metrics of a broker, all or those named, without histograms.

    Works without --http-listen. docs/metrics.md describes each metric.
    """
    found = ask_broker(broker, ClusterService.figures, ReadFigures(with_database=True))
    rows: list[dict[str, Any]] = [
        {"name": name, "labels": dict(zip(CATALOGUE[name].labels, labels, strict=True)), "value": value}
        for (name, labels), value in found.series.items()
        if name in CATALOGUE and (not names or name in names)
    ]
    if as_json:
        click.echo(json.dumps({"broker": found.broker, "figures": rows}))
    else:
        print_rows(row | {"labels": ", ".join(row["labels"].values()), "value": f"{row['value']:g}"} for row in rows)


@cluster.command(
    short_help="Drain a broker: move its work to the others.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg cluster drain broker-2 && systemctl restart txmsg-broker\n\n"
    "BROKER is an id as `txmsg cluster show` prints it. `txmsg cluster resume` undoes it; so does a restart of the "
    "broker.",
)
@click.argument("broker_id", metavar="BROKER")
@click.option(
    "--wait-s",
    type=click.FloatRange(min=0, max=86_400),
    default=60.0,
    show_default=True,
    help="Seconds to wait until the broker no longer delivers; 0: do not wait.",
)
@broker_option
@json_option
def drain(*, broker_id: str, wait_s: float, broker: str, as_json: bool) -> None:
    """Drain a broker: it hands its queues over and accepts no more messages. Waits until this is done.

    Clients move to the other brokers by themselves. Exit status 1 on a timeout.
    """
    deadline = time.monotonic() + wait_s
    left = ask_broker(broker, ClusterService.drain, BrokerId(broker=broker_id)).queues
    while left and time.monotonic() < deadline:
        # Polled: the broker replies at once, and hands its queues over afterwards.
        time.sleep(_LOOK_S)
        state = ask_broker(broker, ClusterService.show, ShowCluster())
        left = sum(member.queues for member in state.brokers if member.id == broker_id)
    if as_json:
        click.echo(json.dumps({"broker": broker_id, "queues": left}))
    elif left:
        click.echo(f"broker {broker_id} is draining, and still delivers {left} queues")
    else:
        click.echo(f"broker {broker_id} is drained: it delivers nothing, and accepts no messages")
    # With --wait 0 the caller has asked not to wait, so queues that are left are no failure.
    if left and wait_s:
        raise SystemExit(1)


@cluster.command(
    short_help="Undo a drain.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg cluster resume broker-2",
)
@click.argument("broker_id", metavar="BROKER")
@broker_option
@json_option
def resume(*, broker_id: str, broker: str, as_json: bool) -> None:
    """Undo a drain: the broker accepts messages again, and gets its share of the queues back."""
    ask_broker(broker, ClusterService.resume, BrokerId(broker=broker_id))
    click.echo(json.dumps({"broker": broker_id}) if as_json else f"broker {broker_id} works again")


@cluster.command(
    short_help="Forget a dead broker that is not coming back.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg cluster forget broker-3",
)
@click.argument("broker_id", metavar="BROKER")
@broker_option
@json_option
def forget(*, broker_id: str, broker: str, as_json: bool) -> None:
    """Forget a dead broker that is not coming back: its alert ends now rather than after a day.

    Refused while it is alive. A broker that was stopped gracefully need not be forgotten.
    """
    ask_broker(broker, ClusterService.forget, BrokerId(broker=broker_id))
    click.echo(json.dumps({"broker": broker_id, "forgotten": True}) if as_json else f"broker {broker_id} is forgotten")


def _values(state: ClusterState) -> dict[str, object]:
    values = asdict(state) | {"shard": str(state.shard)}
    if state.leases is None:
        del values["leases"]
    return values
