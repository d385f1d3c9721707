"""The library of applications: producers, the decorator, consumers, the inbox, `Txmsg`. Never loads the server.

NAME_async and its sync twin NAME are one source: `make generate` makes the twin.

async_producer, producer   for asyncio; for threads
async_consumer, consumer   for asyncio; for threads
transactional  the decorator
settings, async_settings, steering   settings of applications; settings that operators give clients
sending/     sends messages and outcomes to brokers
flows/       the flows of the decorator around the call of a function
outbox/      keeps messages in the business database while no broker answers
connections/ the flows on connections of drivers
receiving/   brings messages to handlers, and their results back
channel      connects to brokers, and chooses one
memory       the broker of "memory:", for tests
attach, asker   the stream over which brokers check back; the listener's answer
running      the transactions that this process is running
business_sql the tables of a business database as SQL, and the rights that roles need
app          applications: declarations, dependencies, processes
fence        the fence by itself: its public names
options, hooks   checks of constructors' options; hooks for tests
"""

from __future__ import annotations

from txmsg.client.async_consumer import AsyncConsumer
from txmsg.client.async_producer import AsyncProducer
from txmsg.client.async_settings import AsyncSettings
from txmsg.client.consumer import Consumer
from txmsg.client.outbox.options import Outbox
from txmsg.client.producer import Producer
from txmsg.client.receiving.idempotent import idempotent
from txmsg.client.sending.half import Half
from txmsg.client.settings import Settings
from txmsg.client.transactional import transactional_message
from txmsg.wire.body_keys import BodyKeys

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
    "idempotent",
    "transactional_message",
]
