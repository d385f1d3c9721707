"""The service Schemas: schemas of topics' payloads, by version. Decides on valid schemas, and on who sees which."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Final

from txmsg.administration.ask import Nothing
from txmsg.administration.schemas import (
    DeleteSchema,
    RegisterSchema,
    SchemaPage,
    SchemaQuery,
    SchemaRegistered,
)
from txmsg.broker.store.schemas import TopicSchemas
from txmsg.errors import InvalidMessage, shown
from txmsg.message import check_name
from txmsg.wire.access.permissions import DESCRIBE_TOPIC
from txmsg.wire.caller import names_for

SCHEMA_SIZE_BYTES_MAX: Final = 64 * 1024
_CONTENT_TYPE_LENGTH_MAX: Final = 127


class SchemasApi:
    """The service Schemas. ensure: creates a topic, as a send does."""

    def __init__(self, schemas: TopicSchemas, ensure: Callable[[str], Awaitable[object]]) -> None:
        self._schemas = schemas
        self._ensure = ensure

    async def list(self, request: SchemaQuery) -> SchemaPage:
        if request.topic:
            check_name("topic", request.topic)
        return await self._schemas.list(request, names=names_for(DESCRIBE_TOPIC))

    async def register(self, request: RegisterSchema) -> SchemaRegistered:
        topic = check_name("topic", request.topic)
        schema = _checked(request)
        # Created as by a send, where that is allowed: producers register before their first message.
        await self._ensure(topic)
        if await self._schemas.register(topic, request.version, request.content_type, schema, after=request.after):
            return SchemaRegistered(registered=True)
        # All versions, without a check of names: a user who may send to a topic need not have the right to list its
        # schemas.
        there = await self._schemas.list(SchemaQuery(topic=topic))
        return SchemaRegistered(registered=False, schemas=there.schemas)

    async def delete(self, request: DeleteSchema) -> Nothing:
        topic = check_name("topic", request.topic)
        await self._schemas.delete(topic, request.version, also_latest=request.latest, dry_run=request.dry_run)
        return Nothing()


def _checked(request: RegisterSchema) -> str:
    """Return the schema in its stored form. Raises InvalidMessage."""
    what = f"the schema of topic {request.topic!r}"
    if request.version <= request.after:
        raise InvalidMessage(f"version {request.version} of {what} must be above the latest one, {request.after}")
    if not 1 <= len(request.content_type) <= _CONTENT_TYPE_LENGTH_MAX:
        raise InvalidMessage(
            f"the content type {shown(request.content_type)} of {what} must have 1 to {_CONTENT_TYPE_LENGTH_MAX} "
            "characters, such as application/json"
        )
    try:
        text = json.dumps(request.schema, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
        size_bytes = len(text.encode())
    except (ValueError, RecursionError) as exc:  # NaN or infinity, half of a surrogate pair, or too deep
        raise InvalidMessage(f"{what} cannot be stored as JSON, {exc}: give a JSON Schema") from exc
    if size_bytes > SCHEMA_SIZE_BYTES_MAX:
        raise InvalidMessage(f"{what} is {size_bytes} bytes long: at most {SCHEMA_SIZE_BYTES_MAX} are kept")
    return text
