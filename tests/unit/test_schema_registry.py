"""Registration of versions of a topic's schema: allowed successors, and steps."""

from __future__ import annotations

from dataclasses import make_dataclass
from typing import Any

import pydantic
import pytest

from txmsg import MisuseError, Topic
from txmsg.administration.schemas import SchemaPage, SchemaRegistered, SchemasService, register_schema, schemas_of
from txmsg.message.typed.registry import SchemaVersion, latest_before, schema_of
from txmsg.message.typed.topic import Compatibility
from txmsg.wire.method import Method

Fields = list[Any]
FIRST: Fields = [("id", str), ("note", str)]
WITH_OPTIONAL: Fields = [*FIRST, ("gift", bool, False)]
WITH_REQUIRED: Fields = [*FIRST, ("price", int)]
WITHOUT_NOTE: Fields = [("id", str)]


def topic(fields: Fields, version: int = 1, compatibility: Compatibility = "backward") -> Topic[Any]:
    return Topic("orders", make_dataclass("Order", fields), version=version, compatibility=compatibility)


def test_the_first_version_has_no_predecessor_and_a_registered_one_is_not_added_again() -> None:
    assert latest_before(topic(FIRST, 7), []) == 0
    assert latest_before(topic(FIRST), [schema_of(topic(FIRST))]) is None
    both = [schema_of(topic(FIRST)), schema_of(topic(WITH_OPTIONAL, 2))]
    assert latest_before(topic(FIRST), both) is None  # a process of the former release that starts again
    assert latest_before(topic(WITH_OPTIONAL, 3), both) == 2


@pytest.mark.parametrize(
    ("compatibility", "fields", "why"),
    [
        ("backward", WITH_OPTIONAL, None),
        ("backward", WITH_REQUIRED, "price is required and not sent"),
        ("backward", WITHOUT_NOTE, "note is sent and not read"),
        ("forward", WITH_OPTIONAL, None),
        ("forward", WITH_REQUIRED, None),
        ("forward", WITHOUT_NOTE, "consumers with version 1 .* note is required and not sent"),
        ("full", WITH_OPTIONAL, None),
        ("full", WITH_REQUIRED, "price is required and not sent"),
        ("full", WITHOUT_NOTE, "note is sent and not read"),
        ("none", WITHOUT_NOTE, None),
    ],
)
def test_compatibility_decides_which_changes_are_allowed(
    compatibility: Compatibility, fields: Fields, why: str | None
) -> None:
    new = topic(fields, 2, compatibility)
    if why is None:
        assert latest_before(new, [schema_of(topic(FIRST))]) == 1
    else:
        with pytest.raises(MisuseError, match=why):
            latest_before(new, [schema_of(topic(FIRST))])


def test_a_version_has_only_one_schema() -> None:
    registered = [schema_of(topic(FIRST)), schema_of(topic(WITH_OPTIONAL, 4))]
    with pytest.raises(MisuseError, match=r"version 1 .* with another schema: gift is sent .* version=5\)"):
        latest_before(topic(WITH_OPTIONAL), registered)
    with pytest.raises(MisuseError, match=r"version 3 .* below the latest one, 4: give Topic\(..., version=5\)"):
        latest_before(topic(FIRST, 3), registered)
    with pytest.raises(MisuseError, match=r"sent as application/json and read as text/plain"):
        latest_before(Topic("orders", str, version=5), registered)


def test_titles_and_descriptions_are_not_compared() -> None:
    bare = pydantic.create_model("Order", id=(str, ...))
    told = pydantic.create_model("Bestellung", __doc__="What is told", id=(str, pydantic.Field(title="Its id")))
    assert latest_before(Topic("orders", told), [schema_of(Topic("orders", bare))]) is None


def test_compatibility_is_one_of_four() -> None:
    with pytest.raises(MisuseError, match="compatibility='both' of topic 'orders' must be one of backward, forward"):
        topic(FIRST, compatibility="both")  # type: ignore[arg-type]


# ---- the steps


class Registered:
    """The schemas of a broker. beaten_by: topics that others register just before."""

    def __init__(self, *beaten_by: Topic[Any]) -> None:
        self.kept: list[SchemaVersion] = []
        self._beaten_by = list(beaten_by)

    def keep(self, each: Topic[Any]) -> None:
        self.kept.append(schema_of(each))

    def answer(self, method: Method[Any, Any], request: Any) -> Any:
        assert method is SchemasService.register
        if self._beaten_by:
            self.keep(self._beaten_by.pop(0))
        if request.after != max((each.version for each in self.kept), default=0):
            return SchemaRegistered(registered=False, schemas=self.kept)
        self.kept.append(
            SchemaVersion(
                topic=request.topic,
                version=request.version,
                content_type=request.content_type,
                schema=request.schema,
            )
        )
        return SchemaRegistered(registered=True)

    def register(self, each: Topic[Any]) -> bool:
        return register_schema(self.answer, each)


def test_a_concurrent_registration_of_the_same_version_is_found() -> None:
    beaten = Registered(topic(FIRST))
    assert beaten.register(topic(FIRST)) is False
    assert [each.version for each in beaten.kept] == [1]


def test_a_concurrent_registration_is_compared_with_the_first() -> None:
    beaten = Registered(topic(WITH_OPTIONAL))
    assert beaten.register(topic([*WITH_OPTIONAL, ("more", int, 0)], 2)) is True
    assert [each.version for each in beaten.kept] == [1, 2]
    with pytest.raises(MisuseError, match="gift is sent and not read"):
        Registered(topic(WITH_OPTIONAL)).register(topic(FIRST, 2))


def test_a_registration_ends_even_if_others_keep_registering() -> None:
    with pytest.raises(MisuseError, match="version 99 of topic 'orders' is not registered: others register"):
        Registered(*(topic(FIRST, n) for n in range(1, 50))).register(topic(FIRST, 99))


def test_the_next_page_starts_after_the_last_version() -> None:
    pages = [["a", "b"], ["c"]]
    asked = []

    def answer(method: Method[Any, Any], request: Any) -> Any:
        assert method is SchemasService.list
        asked.append((request.topic, request.after_topic, request.after_version))
        names = pages[len(asked) - 1]
        kept = [
            SchemaVersion(topic=name, version=n, content_type="", schema={}) for n, name in enumerate(names, start=1)
        ]
        return SchemaPage(schemas=kept, more=len(asked) < len(pages))

    assert [each.topic for each in schemas_of(answer)] == ["a", "b", "c"]
    assert asked == [("", "", 0), ("", "b", 2)]
