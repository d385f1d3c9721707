"""Answers commands that work on the Notify database itself, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from txmsg.administration.access import AccessService
from txmsg.administration.ask import AskBroker, changer
from txmsg.administration.rules import RulesService
from txmsg.administration.schemas import SchemasService
from txmsg.broker import migrate
from txmsg.broker.api.access import AccessApi
from txmsg.broker.api.rules import RulesApi
from txmsg.broker.api.schemas import SchemasApi
from txmsg.broker.store.access_rules import AccessRules
from txmsg.broker.store.connect import Pool, open_pool
from txmsg.broker.store.schemas import TopicSchemas
from txmsg.broker.store.topics import TopicRegistry
from txmsg.broker.store.users import Users
from txmsg.wire.caller import Caller, calling_as
from txmsg.wire.method import Method, ReplyT, RequestT, methods_of


def asker_of_storage(url: str) -> AskBroker:
    """Return an asker that answers as a broker would, from the database: its owner needs no further permission."""

    def ask(method: Method[RequestT, ReplyT], request: RequestT) -> ReplyT:
        return asyncio.run(_ask_storage(url, method, request))

    return ask


async def _ask_storage(url: str, method: Method[RequestT, ReplyT], request: RequestT) -> ReplyT:
    await asyncio.to_thread(migrate.require, url)
    pool = open_pool(migrate.libpq_url(url), size_max=1)
    await pool.open()
    try:
        with calling_as(Caller(changer(), "")):
            reply: ReplyT = await _answers(pool)[method.name](request)
            return reply
    finally:
        await pool.close()


def _answers(pool: Pool) -> dict[str, Callable[[Any], Any]]:
    """Return the functions that answer the methods of users, rules and schemas, by their names."""
    topics = TopicRegistry(pool, auto_create=False, queues=1)
    services = {
        AccessService: AccessApi(Users(pool), None),
        RulesService: RulesApi(AccessRules(pool)),
        SchemasService: SchemasApi(TopicSchemas(pool), topics.ensure),
    }
    return {
        method.name: getattr(api, name)
        for service, api in services.items()
        for name, method in methods_of(service).items()
    }
