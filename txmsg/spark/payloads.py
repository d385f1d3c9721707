"""Converts the JSON Schema of a topic's bodies to Spark's types, for `from_json`. Pure.

Spark has no unions, no recursive types, and no objects with unknown fields. Such values stay JSON text, as in the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from txmsg.errors import MisuseError, shown
from txmsg.message.typed.topic import Topic

_TEXT: Final = StringType()
_OF_FORMAT: Final[Mapping[str, DataType]] = {"date-time": TimestampType(), "date": DateType()}
_OF_TYPE: Final[Mapping[str, DataType]] = {
    "boolean": BooleanType(),
    "integer": LongType(),
    "null": NullType(),
    "number": DoubleType(),
}
_OF_PYTHON: Final[Mapping[type, DataType]] = {
    bool: _OF_TYPE["boolean"],
    float: _OF_TYPE["number"],
    int: _OF_TYPE["integer"],
    type(None): _OF_TYPE["null"],
}


def payload_schema(topic: Topic[Any] | Mapping[str, Any]) -> StructType:
    """Return the columns of a topic's payloads: `from_json(col("value").cast("string"), payload_schema(orders))`.

    topic: a typed topic, or a JSON Schema. Integers become bigint, numbers double; strings with the format date-time
    become timestamp, with date date, with base64 binary; objects, arrays and maps become structs, arrays and maps.
    Anything else, such as a union, is its JSON as a string. Each column may be null: `from_json` returns null for
    missing fields, and for all columns of a body that does not match the schema.

    Raises MisuseError for bodies that are not JSON objects with named fields.
    """
    schema = topic.schema() if isinstance(topic, Topic) else topic
    found = _Types(schema).of(schema)
    if not isinstance(found, StructType):
        what = f"payloads of {topic}" if isinstance(topic, Topic) else f"bodies of the schema {shown(dict(schema))}"
        raise MisuseError(
            f"{what} are not JSON objects with named fields, so they have no columns: give a topic of a pydantic "
            "model, a dataclass or a msgspec struct, or a JSON Schema with properties"
        )
    return found


class _Types:
    """The types of one schema, which may refer to its own parts."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._within: list[str] = []
        """The references on the way to the current part, by which recursion is found."""

    def of(self, schema: object) -> DataType:
        if not isinstance(schema, Mapping):  # true: anything
            return _TEXT
        if "$ref" in schema:
            return self._referred(schema["$ref"])
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return _one_of([self.of(each) for each in schema[word]])
        if "allOf" in schema and len(schema["allOf"]) == 1:
            return self.of(schema["allOf"][0])
        if isinstance(schema.get("type"), list):
            return _one_of([self.of({**schema, "type": each}) for each in schema["type"]])
        return self._single(schema)

    def _single(self, schema: Mapping[str, Any]) -> DataType:
        kind = schema.get("type")
        if kind is None and ("enum" in schema or "const" in schema):
            return _one_of([_OF_PYTHON.get(type(each), _TEXT) for each in schema.get("enum", [schema.get("const")])])
        if kind == "object":
            return self._object(schema)
        if kind == "array":
            return ArrayType(_nullable(self.of(schema["items"]))) if isinstance(schema.get("items"), Mapping) else _TEXT
        if kind == "string":
            is_binary = schema.get("contentEncoding") == "base64"
            return BinaryType() if is_binary else _OF_FORMAT.get(schema.get("format", ""), _TEXT)
        return _OF_TYPE.get(kind, _TEXT) if isinstance(kind, str) else _TEXT

    def _object(self, schema: Mapping[str, Any]) -> DataType:
        if properties := schema.get("properties"):
            return StructType([StructField(name, _nullable(self.of(each))) for name, each in properties.items()])
        values = schema.get("additionalProperties")
        return MapType(StringType(), _nullable(self.of(values))) if isinstance(values, Mapping) else _TEXT

    def _referred(self, reference: str) -> DataType:
        if reference in self._within:
            return _TEXT
        place: Any = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(place, Mapping) or name not in place:
                raise MisuseError(f"the schema refers to {shown(reference)}, which is not in it: give the whole schema")
            place = place[name]
        self._within.append(reference)
        try:
            return self.of(place)
        finally:
            self._within.pop()


def _one_of(found: list[DataType]) -> DataType:
    """Return the type of a value that has one of these types. Nullability is handled by the caller."""
    kinds = [each for number, each in enumerate(found) if each != NullType() and each not in found[:number]]
    if not kinds:
        return NullType()
    if len(kinds) == 1:
        return kinds[0]
    return DoubleType() if all(isinstance(each, LongType | DoubleType) for each in kinds) else _TEXT


def _nullable(kind: DataType) -> DataType:
    """Return the type for JSON's null and others. A value that is always null is a string: files have no type without
    values.
    """
    return _TEXT if kind == NullType() else kind
