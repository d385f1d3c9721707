"""Codecs of payloads: one per kind of type. Knows neither topics nor messages.

pydantic is loaded by the modules that define models with it, msgspec with the first topic that needs it.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar, cast, is_typeddict

from txmsg.errors import MisuseError, shown
from txmsg.message.typed.fields import Fields
from txmsg.message.typed.text import NOT_JSON, json_of, why_not_json

P = TypeVar("P")

Schema = dict[str, Any]
"""A JSON Schema."""

JSON: Final = "application/json"


class Codec(ABC, Generic[P]):
    """Encodes payloads of a type as bodies, and decodes them."""

    content_type: str = JSON

    def __init__(self, payload_type: type[P]) -> None:
        self.payload_type = payload_type
        self.made_as: type = payload_type
        """The class of payloads."""

    @abstractmethod
    def encode(self, payload: P) -> bytes:
        """Return the body of a payload of the type. Raises ValueError, whose text names the fault."""

    @abstractmethod
    def decode(self, body: bytes) -> P:
        """Return the payload of a body. Raises ValueError, whose text names the invalid place and quotes no value."""

    def reads(self, media_type: str) -> bool:
        """Return True if a body of this media type can be decoded."""
        return media_type == JSON or media_type.endswith("+json")

    @property
    def fields(self) -> Collection[str] | None:
        """The names of a payload's fields; None if they are not known beforehand."""
        return None

    def field(self, payload: P, name: str) -> object:
        """Return the value of a field. Raises LookupError."""
        return getattr(payload, name)

    def make(self, arguments: Mapping[str, object]) -> P:
        """Return a payload made of its fields. Raises ValueError."""
        try:
            return self.payload_type(**arguments)
        except TypeError as exc:
            raise ValueError(str(exc)) from exc

    def is_made_of(self, names: Collection[str]) -> bool:
        """Return True if `make` takes arguments of these names."""
        try:
            inspect.signature(self.payload_type).bind(**dict.fromkeys(names))
        except TypeError:
            return False
        return True

    def schema(self) -> Schema:
        """Return the JSON Schema of bodies; {} if anything is valid."""
        return {}


class BytesCodec(Codec[bytes]):
    """Bytes: the payload is the body."""

    content_type = "application/octet-stream"
    fields = ()

    def encode(self, payload: bytes) -> bytes:
        return payload

    def decode(self, body: bytes) -> bytes:
        return body

    def reads(self, media_type: str) -> bool:
        return True

    def is_made_of(self, names: Collection[str]) -> bool:
        return False


class StrCodec(Codec[str]):
    """Text in UTF-8."""

    content_type = "text/plain; charset=utf-8"
    fields = ()

    def encode(self, payload: str) -> bytes:
        return payload.encode()

    def decode(self, body: bytes) -> str:
        return body.decode()

    def reads(self, media_type: str) -> bool:
        return media_type.startswith("text/")

    def schema(self) -> Schema:
        return {"type": "string"}

    def is_made_of(self, names: Collection[str]) -> bool:
        return False


class DictCodec(Codec[dict[str, Any]]):
    """A JSON object with any contents."""

    def encode(self, payload: dict[str, Any]) -> bytes:
        try:
            return json_of(payload)
        except NOT_JSON as exc:
            raise ValueError(why_not_json(exc)) from exc

    def decode(self, body: bytes) -> dict[str, Any]:
        try:
            payload = json.loads(body)
        except RecursionError as exc:
            raise ValueError(why_not_json(exc)) from exc
        if not isinstance(payload, dict):
            raise ValueError(f"it is a JSON {type(payload).__name__}, not an object")
        return payload

    def field(self, payload: dict[str, Any], name: str) -> object:
        return payload[name]

    def schema(self) -> Schema:
        return {"type": "object"}

    def is_made_of(self, names: Collection[str]) -> bool:
        return True


class FieldsCodec(DictCodec):
    """A TypedDict: a JSON object with fields of these types. Other fields of a body are ignored."""

    def __init__(self, payload_type: Any) -> None:
        super().__init__(payload_type)
        self.made_as = dict
        self._of = Fields(payload_type)

    def encode(self, payload: dict[str, Any]) -> bytes:
        # Read again after encoding: `json_of` accepts values of other types than those of the fields.
        body = super().encode(payload)
        self.decode(body)
        return body

    def decode(self, body: bytes) -> dict[str, Any]:
        return self._of.read(super().decode(body))

    @property
    def fields(self) -> Collection[str]:
        return self._of.names

    def schema(self) -> Schema:
        return self._of.schema()

    def is_made_of(self, names: Collection[str]) -> bool:
        return self._of.are_in(names)


class PydanticCodec(Codec[P]):
    """A pydantic model, or a dataclass of pydantic, as JSON by alias."""

    def __init__(self, payload_type: type[P]) -> None:
        from pydantic import TypeAdapter, ValidationError

        super().__init__(payload_type)
        self._adapter = TypeAdapter(payload_type)
        self._invalid = ValidationError

    def encode(self, payload: P) -> bytes:
        # By default pydantic only warns of a value of another type, and encodes it.
        body = self._adapter.dump_json(payload, by_alias=True, warnings="error")
        self.decode(body)  # Validates what is sent: the model may have been changed since it was validated.
        return body

    def decode(self, body: bytes) -> P:
        with self._told():
            return self._adapter.validate_json(body)

    def make(self, arguments: Mapping[str, object]) -> P:
        with self._told():
            return super().make(arguments)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Translate pydantic's error into one that names fields without values: pydantic's own text quotes them."""
        try:
            yield
        except self._invalid as exc:
            # `from None` below: pydantic's exception quotes values, and would be logged as the cause.
            found = exc.errors(include_url=False, include_context=False, include_input=False)
            raise ValueError(
                "; ".join(": ".join(filter(None, (".".join(map(str, each["loc"])), each["msg"]))) for each in found)
            ) from None

    @property
    def fields(self) -> Collection[str]:
        return cast(Collection[str], cast(Any, self.payload_type).__pydantic_fields__)

    def schema(self) -> Schema:
        return self._adapter.json_schema(by_alias=True)


class MsgspecCodec(Codec[P]):
    """A dataclass or a msgspec struct as JSON. Validated only here: constructing one validates nothing."""

    def __init__(self, payload_type: type[P]) -> None:
        try:
            import msgspec
        except ImportError as exc:
            raise MisuseError(
                f"a topic of the dataclass {payload_type.__name__} needs the package msgspec: "
                "pip install 'txmsg[msgspec]', or use a pydantic model"
            ) from exc
        super().__init__(payload_type)
        self._msgspec = msgspec
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(payload_type)
        self._schema = msgspec.json.schema(payload_type)

    def encode(self, payload: P) -> bytes:
        try:
            body = self._encoder.encode(payload)
        except (self._msgspec.MsgspecError, TypeError, OverflowError, RecursionError) as exc:
            raise ValueError(why_not_json(exc)) from exc
        self.decode(body)
        return body

    def decode(self, body: bytes) -> P:
        try:
            return self._decoder.decode(body)
        except (self._msgspec.DecodeError, RecursionError) as exc:
            raise ValueError(why_not_json(exc)) from None

    @property
    def fields(self) -> Collection[str]:
        names: Collection[str] | None = getattr(self.payload_type, "__struct_fields__", None)
        return names or [field.name for field in dataclasses.fields(cast(Any, self.payload_type))]

    def schema(self) -> Schema:
        return self._schema


def is_model(payload_type: Any) -> bool:
    """Return True for a pydantic model, a dataclass or a msgspec struct."""
    return isinstance(payload_type, type) and (
        dataclasses.is_dataclass(payload_type)
        or any(hasattr(payload_type, name) for name in ("__pydantic_fields__", "__struct_fields__"))
    )


def codec_of(payload_type: type[P]) -> Codec[P]:
    """Return the codec of payloads of this type. Raises MisuseError for a type that has none."""
    codec: Codec[Any]
    try:
        if payload_type is bytes:
            codec = BytesCodec(bytes)
        elif payload_type is str:
            codec = StrCodec(str)
        elif payload_type is dict:
            codec = DictCodec(dict)
        elif is_typeddict(payload_type):
            codec = FieldsCodec(payload_type)
        elif is_model(payload_type):
            is_pydantics = hasattr(payload_type, "__pydantic_fields__")
            codec = PydanticCodec(payload_type) if is_pydantics else MsgspecCodec(payload_type)
        else:
            raise MisuseError(
                f"{shown(payload_type)} is not a type of payloads: give a pydantic model, a dataclass, a msgspec "
                "struct, a TypedDict, dict, str or bytes"
            )
    except (TypeError, NameError) as exc:  # of an annotation that cannot be resolved, or that has no JSON
        raise MisuseError(f"payloads of type {payload_type.__name__} have no JSON: {exc}") from exc
    return cast(Codec[P], codec)
