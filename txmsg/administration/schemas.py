"""Schemas of the payloads of topics, by version. Clients compare them; brokers only store them."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

from txmsg.administration.ask import AskBroker, Nothing
from txmsg.errors import MisuseError
from txmsg.message.typed.registry import SchemaVersion, latest_before, schema_of
from txmsg.message.typed.topic import Topic
from txmsg.wire.method import Method
from txmsg.wire.values import Natural32, NumberRange

Steps: TypeAlias = Generator[tuple[Method[Any, Any], Any], Any, bool]

VERSIONS_MAX: Final = 100
"""The largest number of versions of a topic."""
_ATTEMPTS_MAX: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaQuery:
    """A query of versions by topic and version, after the given ones: of one topic, or of all visible to the user.

    All versions of a topic are one page.
    """

    topic: str = ""
    after_topic: str = ""
    """The last topic of the page before."""
    after_version: Natural32 = 0
    limit: Annotated[int, NumberRange(1, VERSIONS_MAX)] = VERSIONS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaPage:
    """Versions by topic and version. more: there is another page."""

    schemas: Sequence[SchemaVersion]
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterSchema:
    """A version to add to a topic, which is created as by a send.

    after: the latest version, with which it was compared; 0: there was none. schema: a JSON Schema.
    """

    topic: str
    version: Annotated[int, NumberRange(1, 2**31 - 1)]
    content_type: str
    schema: Mapping[str, Any]
    after: Natural32 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRegistered:
    """The reply to that.

    registered False: `after` is not the latest version; schemas: the existing ones, to compare.
    """

    registered: bool
    schemas: Sequence[SchemaVersion] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSchema:
    """A version to delete. latest: even the latest one. dry_run: deletes nothing, and is refused like the deletion."""

    topic: str
    version: Annotated[int, NumberRange(1, 2**31 - 1)]
    latest: bool = False
    dry_run: bool = False


class SchemasService:
    """The service Schemas."""

    list: Final = Method("Schemas/List", SchemaQuery, SchemaPage)
    register: Final = Method("Schemas/Register", RegisterSchema, SchemaRegistered)
    delete: Final = Method("Schemas/Delete", DeleteSchema, Nothing)


def schemas_of(ask: AskBroker, topic: str = "") -> Iterator[SchemaVersion]:
    """Yield the versions of a topic, or of all, by topic and version."""
    query, more = SchemaQuery(topic=topic), True
    while more:
        page = ask(SchemasService.list, query)
        yield from page.schemas
        if more := page.more:
            last = page.schemas[-1]
            query = SchemaQuery(topic=topic, after_topic=last.topic, after_version=last.version)


def register_schema(ask: AskBroker, topic: Topic[Any]) -> bool:
    """Register the schema of a topic. Return False if it existed. Raises MisuseError for an incompatible one."""
    steps = registration(topic)
    call = next(steps)
    try:
        while True:
            call = steps.send(ask(*call))
    except StopIteration as end:
        return bool(end.value)


def registration(topic: Topic[Any]) -> Steps:
    """Register step by step, for blocking and awaiting callers: yields a method and a request, and is sent the reply.

    Returns True if the schema was added. Raises MisuseError for an incompatible one.
    """
    new = schema_of(topic)
    after = 0
    for _ in range(_ATTEMPTS_MAX):  # The broker refuses a stale `after`: another client may register meanwhile (0086).
        request = RegisterSchema(
            topic=new.topic, version=new.version, content_type=new.content_type, schema=new.schema, after=after
        )
        reply: SchemaRegistered = yield SchemasService.register, request
        if reply.registered:
            return True
        latest = latest_before(topic, reply.schemas)
        if latest is None:
            return False
        after = latest
    raise MisuseError(
        f"version {new.version} of topic {topic.name!r} is not registered: others register all the time; try again"
    )
