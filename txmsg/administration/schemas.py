"""Schemas of the payloads of topics, by version. Clients compare them; a broker keeps what it is given."""

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
"""Of a topic."""
_ATTEMPTS_MAX: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaQuery:
    """The first versions by topic and version after these: of one topic, or of all that the user may see.

    All versions of a topic are one page.
    """

    topic: str = ""
    after_topic: str = ""
    """The last one of the page before."""
    after_version: Natural32 = 0
    limit: Annotated[int, NumberRange(1, VERSIONS_MAX)] = VERSIONS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaPage:
    """Versions by topic and version. more: there is another page."""

    schemas: Sequence[SchemaVersion]
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterSchema:
    """A version to be added to a topic, which is created as by a send.

    after: the latest version, with which it was compared; 0: there was none. schema: a JSON Schema.
    """

    topic: str
    version: Annotated[int, NumberRange(1, 2**31 - 1)]
    content_type: str
    schema: Mapping[str, Any]
    after: Natural32 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRegistered:
    """registered False: `after` is not the latest version; schemas: those that are there, to be compared with."""

    registered: bool
    schemas: Sequence[SchemaVersion] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSchema:
    """A version to be deleted. latest: also if it is the latest one. dry_run: only refuses as the call without it."""

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
    """The versions of a topic, or of all, by topic and version."""
    query, more = SchemaQuery(topic=topic), True
    while more:
        page = ask(SchemasService.list, query)
        yield from page.schemas
        if more := page.more:
            last = page.schemas[-1]
            query = SchemaQuery(topic=topic, after_topic=last.topic, after_version=last.version)


def register_schema(ask: AskBroker, topic: Topic[Any]) -> bool:
    """Adds the schema of a topic; False: it was there. Raises MisuseError for one that must not be added."""
    steps = registration(topic)
    call = next(steps)
    try:
        while True:
            call = steps.send(ask(*call))
    except StopIteration as end:
        return bool(end.value)


def registration(topic: Topic[Any]) -> Steps:
    """The same, step by step, for who blocks and who awaits: each gives a method and a request, and is sent the reply.

    Returns whether the schema was added. Raises MisuseError for one that must not be added.
    """
    new = schema_of(topic)
    after = 0
    for _ in range(_ATTEMPTS_MAX):  # others may register the next version meanwhile
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
