"""The brokers of a Notify database: their state and queues; drain, resume, and forget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from txmsg.administration.cluster import BrokerId, BrokerSummary, ClusterService, ShowCluster
from txmsg.errors import MisuseError
from txmsg.ops.console.actions import Confirmation, ConsoleAction
from txmsg.ops.console.page_context import PageContext
from txmsg.ops.console.pages.overview import broker_row
from txmsg.ops.console.views import View

_LEASES_MAX: Final = 500


async def _read(look: PageContext) -> Mapping[str, Any]:
    snapshot = look.snapshot
    return {"snapshot": snapshot, "brokers": [broker_row(snapshot, each.id) for each in snapshot.cluster.brokers]}


async def _read_one(look: PageContext) -> Mapping[str, Any]:
    broker = _broker(look)
    state = await look.ask_broker(ClusterService.show, ShowCluster(with_queues=True))
    leases = [each for each in state.leases or () if broker.id in {each.broker, each.wanted_by}]
    return {
        "row": broker_row(look.snapshot, broker.id),
        "leases": leases[:_LEASES_MAX],
        "lease_count": len(leases),
        "bounds": sorted(
            (labels[0], value)
            for (name, labels), value in look.snapshot.series.get(broker.id, {}).items()
            if name == "txmsg_bound_used_ratio"
        ),
    }


def _broker(look: PageContext) -> BrokerSummary:
    found = look.snapshot.broker(look.path["broker"])
    if found is None:
        raise MisuseError(look.t("brokers.unknown", broker=look.path["broker"]))
    return found


async def _confirm_drain(look: PageContext) -> Confirmation:
    broker = _broker(look)
    others = [each for each in look.snapshot.cluster.brokers if each.state == "active" and each.id != broker.id]
    return Confirmation(
        title=look.t("brokers.drain_title", broker=broker.id),
        says=[
            look.t("brokers.drain_says", queues=broker.queues, others=len(others)),
            look.t("brokers.drain_says_clients"),
        ],
        button=look.t("brokers.drain"),
    )


async def _drain(look: PageContext) -> str:
    broker = look.path["broker"]
    left = (await look.ask_broker(ClusterService.drain, BrokerId(broker=broker))).queues
    return look.t("brokers.drained", broker=broker, queues=left)


async def _confirm_resume(look: PageContext) -> Confirmation:
    broker = _broker(look)
    return Confirmation(
        title=look.t("brokers.resume_title", broker=broker.id),
        says=[look.t("brokers.resume_says")],
        button=look.t("brokers.resume"),
    )


async def _resume(look: PageContext) -> str:
    broker = look.path["broker"]
    await look.ask_broker(ClusterService.resume, BrokerId(broker=broker))
    return look.t("brokers.resumed", broker=broker)


async def _confirm_forget(look: PageContext) -> Confirmation:
    broker = _broker(look)
    return Confirmation(
        title=look.t("brokers.forget_title", broker=broker.id),
        says=[look.t("brokers.forget_says")],
        button=look.t("brokers.forget"),
    )


async def _forget_broker(look: PageContext) -> str:
    broker = look.path["broker"]
    await look.ask_broker(ClusterService.forget, BrokerId(broker=broker))
    return look.t("brokers.forgotten", broker=broker)


VIEWS: Final = (
    View(path="/brokers", section="brokers", template="brokers.html", read=_read),
    View(path="/brokers/{broker}", section="brokers", template="broker.html", read=_read_one, every_s=2.0),
)
ACTIONS: Final = (
    ConsoleAction(path="/brokers/{broker}/drain", method="Cluster/Drain", confirm=_confirm_drain, perform=_drain),
    ConsoleAction(path="/brokers/{broker}/resume", method="Cluster/Resume", confirm=_confirm_resume, perform=_resume),
    ConsoleAction(
        path="/brokers/{broker}/forget", method="Cluster/Forget", confirm=_confirm_forget, perform=_forget_broker
    ),
)
