"""What an application uses: producers, the decorator, consumers and the inbox. Never loads the server.

NAME_async and its sync twin NAME are one source: `make generate` makes the twin.

Producers
    async_producer, producer   for asyncio; for threads
    batch, waiting, coalescer, thread_lane   entries, and how many callers' become one request
    sender       sends requests until each entry has its answer
    shards       chooses among several Notify databases
    half, received   values: half messages, received messages
    counts, outcome_log, traced, schemas   what a producer counts, logs, traces and registers

@transactional_message
    transactional   the decorator
    body         from the arguments of a call to its messages
    flow_async, late_async   the classic flow; the late flow
    halves_async   what the flows need of a producer
    guard, sql_text   watch a session while user code runs, and prove its commit
    sent         messages of the late flow, and the savepoints that they go with
    outer        refuses outer transactions
    outbox       keeps messages in the business database while no broker answers
    connections  the flows on connections of drivers
    undecided    which transactions brokers hold, before the fence is purged

Consumers
    async_consumer, consumer   for asyncio; for threads
    links, link  polling and settling, at all brokers; at one
    held, epochs   which received messages are still reserved for us
    delivery     one message on its way through a handler
    idempotent, inbox, inbox_handler_async   effects that happen once

Both
    channel      connects to brokers, and chooses one
    attach, asker   the stream over which brokers check back; the listener's answer
    async_settings, settings, steering   settings of applications; settings that operators give clients
    options, hooks   checks of constructors' options; where tests act
"""

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
