"""Registering the schema of a topic, step by step: the calls to make, and what to make of their replies.

A step gives a method and a request, and is sent the reply; so the same steps serve who blocks and who awaits.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Final, TypeAlias

from txmsg.errors import MisuseError
from txmsg.message import datetime_of_us
from txmsg.typed.registry import SchemaVersion, latest_before, schema_of
from txmsg.typed.topic import Topic
from txmsg.wire.method import Method
from txmsg.wire.v1 import schemas_pb2 as pb
from txmsg.wire.v1.schemas_rpc import Schemas

Steps: TypeAlias = Generator[tuple[Method[Any, Any], Any], Any, bool]

_ATTEMPTS_MAX: Final = 10


def registration(topic: Topic[Any]) -> Steps:
    """Returns whether the schema was added; False: it was there. Raises MisuseError for one that must not be added."""
    new = schema_of(topic)
    schema = json.dumps(new.schema, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    after: int | None = 0
    for _ in range(_ATTEMPTS_MAX):  # others may register the next version meanwhile
        reply = yield (
            Schemas.register,
            pb.RegisterSchemaRequest(
                topic=new.topic, version=new.version, content_type=new.content_type, schema=schema, after=after
            ),
        )
        if reply.registered:
            return True
        after = latest_before(topic, unpack_schemas(reply.schemas))
        if after is None:
            return False
    raise MisuseError(
        f"version {new.version} of topic {topic.name!r} is not registered: others register all the time; try again"
    )


def unpack_schemas(schemas: Iterable[pb.TopicSchema]) -> Sequence[SchemaVersion]:
    """Those of a reply."""
    return [
        SchemaVersion(
            topic=each.topic,
            version=each.version,
            content_type=each.content_type,
            schema=json.loads(each.schema),
            registered_at=datetime_of_us(each.registered_at_us),
            registered_by=each.registered_by or None,
        )
        for each in schemas
    ]
