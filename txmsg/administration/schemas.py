"""Schemas of topics in a Notify database, by the service Schemas of any of its brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from txmsg.administration.ask import Ask
from txmsg.typed.registry import SchemaVersion, latest_before
from txmsg.typed.topic import Topic
from txmsg.wire.schemas import registration, unpack_schemas
from txmsg.wire.v1 import schemas_pb2 as pb
from txmsg.wire.v1.schemas_rpc import Schemas


class SchemaAdministration:
    """What `txmsg schema` does. Calls block. Raises the errors of errors.py."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def list(self, topic: str = "") -> Iterator[SchemaVersion]:
        """The versions of a topic, or of all, by topic and version."""
        request = pb.ListSchemasRequest(topic=topic)
        more = True
        while more:
            reply = self._ask(Schemas.list, request)
            yield from (page := unpack_schemas(reply.schemas))
            if more := reply.more:
                request = pb.ListSchemasRequest(topic=topic, after_topic=page[-1].topic, after_version=page[-1].version)

    def check(self, topic: Topic[Any]) -> int | None:
        """After which version that of the topic can be registered, 0 if it is the first; None: it is there.

        Raises MisuseError with the fields for one that must not be added.
        """
        return latest_before(topic, list(self.list(topic.name)))

    def delete(self, topic: str, version: int, *, also_latest: bool = False, dry_run: bool = False) -> None:
        """Removes a version, for good. Raises MisuseError for the latest one without also_latest.

        dry_run: changes nothing, and raises what it would raise.
        """
        request = pb.DeleteSchemaRequest(topic=topic, version=version, latest=also_latest, dry_run=dry_run)
        self._ask(Schemas.delete, request)

    def register(self, topic: Topic[Any]) -> bool:
        """Adds the schema of a topic; False: it was there. Raises what `check` raises."""
        steps = registration(topic)
        call = next(steps)
        try:
            while True:
                call = steps.send(self._ask(*call))
        except StopIteration as end:
            return bool(end.value)
