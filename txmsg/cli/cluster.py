"""`txmsg cluster`: the brokers of a Notify database, and their maintenance. Talks to the service Cluster."""

from __future__ import annotations

import json
import time
from uuid import UUID

import click
from rich.table import Table

from txmsg.cli.connections import ask_broker, broker_option
from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.options import json_option
from txmsg.cli.output import moment, print_table
from txmsg.wire.v1 import cluster_pb2 as pb
from txmsg.wire.v1.cluster_rpc import Cluster

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
    reply = ask_broker(broker, Cluster.show, pb.ShowClusterRequest(with_queues=by_queue))
    if as_json:
        click.echo(json.dumps(_values(reply, with_queues=by_queue)))
        return
    table = Table("Broker", "Address", "State", "Queues", "Heartbeat", "Release", "Revision", "Started", box=None)
    for member in reply.brokers:
        table.add_row(
            *(member.id, member.address, member.state, str(member.queues), moment(member.heartbeat_at_us) or ""),
            *(member.release, member.schema_revision, moment(member.started_at_us) or ""),
        )
    print_table(table)
    click.echo(f"database at revision {reply.schema_revision}, with {reply.queues} queues")
    if reply.queues_unassigned:
        click.echo(f"{reply.queues_unassigned} of them have no broker at this moment")
    if by_queue:
        table = Table("Topic", "Queue", "Broker", "Goes to", box=None)
        for lease in reply.leases:
            table.add_row(lease.topic, str(lease.queue), lease.broker or "none", lease.wanted_by)
        print_table(table)


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
    help="Seconds to wait until it no longer delivers; 0: do not wait.",
)
@broker_option
@json_option
def drain(*, broker_id: str, wait_s: float, broker: str, as_json: bool) -> None:
    """Drain a broker: it hands its queues over and accepts no more messages. Waits until it is done.

    Clients move to the other brokers by themselves. Exit status 1 on a timeout.
    """
    deadline = time.monotonic() + wait_s
    left: int = ask_broker(broker, Cluster.drain, pb.DrainRequest(broker=broker_id)).queues
    while left and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        reply = ask_broker(broker, Cluster.show, pb.ShowClusterRequest())
        left = sum(member.queues for member in reply.brokers if member.id == broker_id)
    if as_json:
        click.echo(json.dumps({"broker": broker_id, "queues": left}))
    elif left:
        click.echo(f"broker {broker_id} is draining, and still delivers {left} queues")
    else:
        click.echo(f"broker {broker_id} is drained: it delivers nothing, and accepts no messages")
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
    """Undo a drain: the broker accepts messages, and gets its share of the queues back."""
    ask_broker(broker, Cluster.resume, pb.ResumeRequest(broker=broker_id))
    click.echo(json.dumps({"broker": broker_id}) if as_json else f"broker {broker_id} works again")


def _values(reply: pb.ShowClusterReply, *, with_queues: bool) -> dict[str, object]:
    values: dict[str, object] = {
        "shard": str(UUID(bytes=reply.shard)),
        "schema_revision": reply.schema_revision,
        "brokers": [
            {
                "id": member.id,
                "address": member.address,
                "state": member.state,
                "queues": member.queues,
                "release": member.release,
                "schema_revision": member.schema_revision,
                "started_at": moment(member.started_at_us),
                "heartbeat_at": moment(member.heartbeat_at_us),
            }
            for member in reply.brokers
        ],
        "queues": reply.queues,
        "queues_unassigned": reply.queues_unassigned,
    }
    if with_queues:
        values["leases"] = [
            {
                "topic": lease.topic,
                "queue": lease.queue,
                "broker": lease.broker or None,
                "epoch": lease.epoch,
                "wanted_by": lease.wanted_by or None,
            }
            for lease in reply.leases
        ]
    return values
