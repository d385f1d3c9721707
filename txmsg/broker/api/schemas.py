"""The service Schemas: what topics' payloads look like, by version. Decides nothing."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Final

from txmsg.access.permissions import DESCRIBE_TOPIC
from txmsg.broker.store.schemas import VERSIONS_MAX, SchemaRow, TopicSchemas
from txmsg.errors import InvalidMessage, shown
from txmsg.message import check_name, us_of_datetime
from txmsg.wire.caller import names_for
from txmsg.wire.v1 import schemas_pb2 as pb

SCHEMA_SIZE_BYTES_MAX: Final = 64 * 1024
_CONTENT_TYPE_LENGTH_MAX: Final = 127
_VERSION_MAX: Final = 2**31 - 1


class SchemasApi:
    """The service Schemas. ensure: creates a topic, as a send does."""

    def __init__(self, schemas: TopicSchemas, ensure: Callable[[str], Awaitable[object]]) -> None:
        self._schemas = schemas
        self._ensure = ensure

    async def list(self, request: pb.ListSchemasRequest) -> pb.ListSchemasReply:
        if request.topic:
            check_name("topic", request.topic)
        limit = min(request.limit or VERSIONS_MAX, VERSIONS_MAX)
        rows = await self._schemas.list(
            limit + 1,
            topic=request.topic,
            after=(request.after_topic, min(request.after_version, _VERSION_MAX)),
            names=names_for(DESCRIBE_TOPIC),
        )
        return pb.ListSchemasReply(schemas=map(_schema, rows[:limit]), more=len(rows) > limit)

    async def register(self, request: pb.RegisterSchemaRequest) -> pb.RegisterSchemaReply:
        topic = check_name("topic", request.topic)
        _check(request)
        await self._ensure(topic)
        registered = await self._schemas.register(
            topic, request.version, request.content_type, request.schema, after=request.after
        )
        if registered:
            return pb.RegisterSchemaReply(registered=True)
        # Who may send to a topic need not have the right to list its schemas.
        return pb.RegisterSchemaReply(schemas=map(_schema, await self._schemas.list(VERSIONS_MAX, topic=topic)))

    async def delete(self, request: pb.DeleteSchemaRequest) -> pb.DeleteSchemaReply:
        topic = check_name("topic", request.topic)
        await self._schemas.delete(topic, request.version, also_latest=request.latest, dry_run=request.dry_run)
        return pb.DeleteSchemaReply()


def _check(request: pb.RegisterSchemaRequest) -> None:
    what = f"the schema of topic {request.topic!r}"
    if not request.after < request.version <= _VERSION_MAX:
        raise InvalidMessage(
            f"version {request.version} of {what} must be above the latest one, {request.after}, and at most "
            f"{_VERSION_MAX}"
        )
    if not 1 <= len(request.content_type) <= _CONTENT_TYPE_LENGTH_MAX or "\0" in request.content_type:
        raise InvalidMessage(
            f"the content type {shown(request.content_type)} of {what} must have 1 to {_CONTENT_TYPE_LENGTH_MAX} "
            "characters, such as application/json"
        )
    size_bytes = len(request.schema.encode())
    if size_bytes > SCHEMA_SIZE_BYTES_MAX:
        raise InvalidMessage(f"{what} is {size_bytes} bytes long: at most {SCHEMA_SIZE_BYTES_MAX} are kept")
    try:
        is_object = isinstance(json.loads(request.schema), dict) and "\0" not in request.schema
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise InvalidMessage(f"{what} is not a JSON object: give a JSON Schema")


def _schema(row: SchemaRow) -> pb.TopicSchema:
    return pb.TopicSchema(
        topic=row.topic,
        version=row.version,
        content_type=row.content_type,
        schema=row.schema,
        registered_at_us=us_of_datetime(row.registered_at),
        registered_by=row.registered_by or "",
    )
