"""What an application uses: producers, the decorator, consumers and the inbox. Never loads the server."""

from __future__ import annotations

from txmsg.body_keys import BodyKeys
from txmsg.client.async_consumer import AsyncConsumer
from txmsg.client.async_producer import AsyncProducer
from txmsg.client.async_settings import AsyncSettings
from txmsg.client.consumer import Consumer
from txmsg.client.half import Half
from txmsg.client.idempotent import idempotent
from txmsg.client.inbox import purge_inbox
from txmsg.client.outbox.options import Outbox
from txmsg.client.producer import Producer
from txmsg.client.settings import Settings
from txmsg.client.transactional import transactional_message
from txmsg.client.undecided import held_by, held_by_async

__all__ = [
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncSettings",
    "BodyKeys",
    "Consumer",
    "Half",
    "Outbox",
    "Producer",
    "Settings",
    "held_by",
    "held_by_async",
    "idempotent",
    "purge_inbox",
    "transactional_message",
]
