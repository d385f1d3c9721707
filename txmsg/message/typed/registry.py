"""Decides if a topic's schema may be registered beside the registered versions. Pure: knows no storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from txmsg.errors import MisuseError
from txmsg.message.typed.compatibility import not_read
from txmsg.message.typed.topic import Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersion:
    """A version of the schema of a topic's payloads.

    registered_at: None for one that is not registered. registered_by: the user; None without authentication.
    event_source: of CloudEvents, as which its messages are sent; None: they are not, or that is not known here.
    """

    topic: str
    version: int
    content_type: str
    schema: Mapping[str, Any]
    registered_at: datetime | None = None
    registered_by: str | None = None
    event_source: str | None = None


def schema_of(topic: Topic[Any]) -> SchemaVersion:
    """Return the schema of a topic as the application declares it."""
    return SchemaVersion(
        topic=topic.name,
        version=topic.version,
        content_type=topic._content_type,
        schema=topic.schema(),
        event_source=topic._event_source,
    )


def latest_before(topic: Topic[Any], registered: Sequence[SchemaVersion]) -> int | None:
    """Return the version after which the topic's is to be registered, 0 for the first; None if it is registered.

    registered: all versions of the topic. Raises MisuseError with the fields for a version that must not be added.
    """
    new = schema_of(topic)
    latest = max(registered, key=lambda each: each.version, default=None)
    if latest is None:
        return 0
    what = f"version {new.version} of topic {new.topic!r}"
    # Both directions rather than equal texts (decision 0086): another release of pydantic may describe the same model
    # in other words.
    for same in registered:
        if same.version == new.version:
            if found := [*_not_read(same, new, reads_all=True), *_not_read(new, same, reads_all=True)]:
                raise MisuseError(
                    f"{what} is registered with another schema: {_told(found)}; give Topic(..., "
                    f"version={latest.version + 1})"
                )
            return None
    if new.version < latest.version:
        raise MisuseError(
            f"{what} is not registered and below the latest one, {latest.version}: give Topic(..., "
            f"version={latest.version + 1})"
        )
    if topic.compatibility in ("backward", "full") and (found := _not_read(latest, new, reads_all=True)):
        raise MisuseError(f"{what} does not read what version {latest.version} sends: {_told(found)}{_WAY_OUT}")
    if topic.compatibility in ("forward", "full") and (found := _not_read(new, latest, reads_all=False)):
        raise MisuseError(
            f"consumers with version {latest.version} of topic {new.topic!r} do not read what version {new.version} "
            f"sends: {_told(found)}{_WAY_OUT}"
        )
    return latest.version


_WAY_OUT = (
    "; give new fields a default and keep the others as they are, use another topic, or give Topic(..., "
    'compatibility="none")'
)


def _not_read(sent: SchemaVersion, read: SchemaVersion, *, reads_all: bool) -> list[str]:
    if sent.content_type != read.content_type:
        return [f"bodies are sent as {sent.content_type} and read as {read.content_type}"]
    return not_read(dict(sent.schema), dict(read.schema), reads_all=reads_all)


def _told(found: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(found))
