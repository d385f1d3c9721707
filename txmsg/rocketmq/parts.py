"""The parts of a gateway, for its figures and its readiness."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from txmsg.client.attach import AttachedStreams
from txmsg.client.channel import Brokers
from txmsg.rocketmq.admission import CallAdmission
from txmsg.rocketmq.api import Api
from txmsg.rocketmq.clients import GatewayClients
from txmsg.rocketmq.config import GatewayConfig
from txmsg.rocketmq.grpc.port import Port
from txmsg.rocketmq.receivers import Receivers


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """The parts of a gateway, for reading their state."""

    config: GatewayConfig
    brokers: Brokers
    presence: AttachedStreams
    clients: GatewayClients
    receivers: Receivers
    door: CallAdmission
    api: Api
    port: Port
    stop: asyncio.Event
