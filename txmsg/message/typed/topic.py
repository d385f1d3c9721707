"""`Topic`: the name of a topic with the type of its payloads, one object for senders and receivers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, Literal, TypeVar, get_args

from txmsg.errors import InvalidMessage, MisuseError, shown
from txmsg.message import Message, ReceivedMessage, check_name, new_transaction_id
from txmsg.message.typed.codecs import Schema, codec_of
from txmsg.message.typed.text import key_of, named, named_type

P = TypeVar("P")

CONTENT_TYPE_HEADER: Final = "content-type"
VERSION_HEADER: Final = "txmsg-schema-version"

Compatibility = Literal["backward", "forward", "full", "none"]
"""backward: a new version reads what the latest one sends; forward: the latest one reads what it sends; full: both."""

KeyOfPayload = str | Callable[[P], object] | None


class Topic(Generic[P]):
    """A topic whose messages carry payloads of one type. Use it instead of its name to send and to subscribe.

    payload_type: a pydantic model, a dataclass, a msgspec struct or a TypedDict (JSON objects in messages), dict (any
    JSON object), str or bytes. Dataclasses and structs need the package msgspec.
    key, ordering_key: of messages: the name of a field, or a function of the payload.
    version: of the payload's schema, from 1 on; raise it when the type changes. It is sent with each message.
    compatibility: with the latest version, checked when this one is registered: "backward" (this version reads messages
    of the latest one), "forward" (the latest one reads messages of this version), "full" (both) or "none".
    cloudevents: also sends the headers of CloudEvents 1.0; a str is the source of the events, by default "/" and the
    topic's name.

        orders = Topic("order.placed", OrderPlaced, key="order_id")

        producer.send(orders.message(OrderPlaced(...)))

        @consumer.subscribe(orders)
        def mail(message: ReceivedMessage[OrderPlaced]) -> None:
            print(message.payload.email)

    An invalid message becomes a dead letter at once, with the validator's text as its reason. Messages that were sent
    with the topic's name, as JSON without these headers, are accepted, too.
    """

    def __init__(
        self,
        name: str,
        payload_type: type[P],
        *,
        key: KeyOfPayload[P] = None,
        ordering_key: KeyOfPayload[P] = None,
        version: int = 1,
        compatibility: Compatibility = "backward",
        cloudevents: bool | str = False,
    ) -> None:
        self.name = check_name("topic", name)
        self.payload_type = payload_type
        self._codec = codec_of(payload_type)
        self._key = self._checked("key", key)
        self._ordering_key = self._checked("ordering_key", ordering_key)
        if type(version) is not int or not 1 <= version < 2**31:
            raise MisuseError(f"version={shown(version)} of topic {name!r} must be a whole number from 1 on")
        self.version = version
        """The version of the schema."""
        if compatibility not in get_args(Compatibility):
            choices = ", ".join(get_args(Compatibility))
            raise MisuseError(f"compatibility={shown(compatibility)} of topic {name!r} must be one of {choices}")
        self.compatibility = compatibility
        """The compatibility with the latest version that is demanded when this one is registered."""
        if cloudevents == "" or not isinstance(cloudevents, bool | str):
            raise MisuseError(
                f"cloudevents={shown(cloudevents)} of topic {name!r} must be True, False, or the source of its events"
            )
        self._source = f"/{name}" if cloudevents is True else cloudevents
        self._headers = {CONTENT_TYPE_HEADER: self._codec.content_type, VERSION_HEADER: str(version)}

    def __repr__(self) -> str:
        return f"Topic({self.name!r}, {self.payload_type.__name__})"

    @property
    def _content_type(self) -> str:
        """The content type of its bodies."""
        return self._codec.content_type

    @property
    def _event_source(self) -> str | None:
        """The CloudEvents source of its messages; None: they are not sent as CloudEvents."""
        return str(self._source) if self._source else None

    def schema(self) -> Schema:
        """Return the JSON Schema of the bodies; {} if anything is valid."""
        return self._codec.schema()

    # ---- sending

    def message(
        self,
        payload: P,
        *,
        tag: str | None = None,
        headers: Mapping[str, str] | None = None,
        deliver_at: datetime | None = None,
        deliver_after: timedelta | None = None,
        first_check_after: timedelta | None = None,
    ) -> Message:
        """Return a message with this payload; the other parameters are those of `Message`.

        Raises InvalidMessage, too.
        """
        if not isinstance(payload, self._codec.made_as):
            raise InvalidMessage(
                f"the payload for topic {self.name!r} is {shown(payload)}, not {named_type(self.payload_type)}: "
                "give the type that its Topic was made with"
            )
        try:
            body = self._codec.encode(payload)
        except ValueError as exc:
            raise InvalidMessage(
                f"the payload for topic {self.name!r} is not a valid {self.payload_type.__name__}: {exc}"
            ) from exc
        return Message(
            self.name,
            body,
            key=self._key_of("key", self._key, payload),
            tag=tag,
            headers={**self._headers, **self._event(), **(headers or {})},
            ordering_key=self._key_of("ordering_key", self._ordering_key, payload),
            deliver_at=deliver_at,
            deliver_after=deliver_after,
            first_check_after=first_check_after,
        )

    def _event(self) -> dict[str, str]:
        if not self._source:
            return {}
        return {
            "ce_specversion": "1.0",
            # Not the message's id, which it gets only when it is sent.
            "ce_id": str(new_transaction_id()),
            "ce_source": str(self._source),
            "ce_type": self.name,
            "ce_time": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        }

    def _checked(self, what: str, key: KeyOfPayload[P]) -> KeyOfPayload[P]:
        fields = self._codec.fields
        if not isinstance(key, str | None) and not callable(key):
            raise MisuseError(
                f"{what}={shown(key)} of topic {self.name!r} must be the name of a field or a function of the payload"
            )
        if isinstance(key, str) and fields is not None and key not in fields:
            raise MisuseError(
                f"{what}={key!r} of topic {self.name!r} is not a field of {self.payload_type.__name__}: there are "
                f"{', '.join(fields) or 'none'}; give one of these, or a function of the payload"
            )
        return key

    def _key_of(self, what: str, key: KeyOfPayload[P], payload: P) -> str | None:
        if key is None:
            return None
        try:
            value = key(payload) if callable(key) else self._codec.field(payload, key)
        except LookupError:
            raise InvalidMessage(f"the payload for topic {self.name!r} lacks {key!r}, its {what}") from None
        text = key_of(value)
        if text is None and value is not None:
            raise InvalidMessage(
                f"the {what} of topic {self.name!r} is {named(value)}, which has no short text form: give {what}= a "
                "function that returns str"
            )
        return text

    def _is_made_of(self, names: Collection[str]) -> bool:
        """Return True if a payload can be built from arguments with these names, as far as this is known."""
        return self._codec.is_made_of(names)

    def _made_of(self, arguments: Mapping[str, object], *, owner: str) -> P:
        """Return the payload built from arguments of `owner`. Raises InvalidMessage."""
        try:
            return self._codec.make(arguments)
        except ValueError as exc:
            raise InvalidMessage(
                f"the arguments of {owner} make no valid {self.payload_type.__name__} for topic {self.name!r}: {exc}"
            ) from exc

    # ---- receiving

    def payload_of(self, message: Message | ReceivedMessage) -> P:
        """Return the payload of a message of the topic. Raises InvalidMessage with the validator's text."""
        # A missing header is accepted: messages that were sent with the topic's name have none. The body decides
        # then.
        content_type = message.headers.get(CONTENT_TYPE_HEADER, self._content_type)
        if not self._codec.reads(content_type.partition(";")[0].strip().lower()):
            raise InvalidMessage(
                f"the body of this message of topic {self.name!r} is {shown(content_type)}, not {self._content_type}"
            )
        try:
            return self._codec.decode(message.body)
        except ValueError as exc:
            sent = message.headers.get(VERSION_HEADER, str(self.version))
            versions = "" if sent == str(self.version) else f" (version {self.version}; it was sent as {sent[:20]})"
            raise InvalidMessage(
                f"the body of this message of topic {self.name!r} is not a valid {self.payload_type.__name__}"
                f"{versions}: {exc}"
            ) from None

    def received(self, message: ReceivedMessage) -> ReceivedMessage[P]:
        """Return the message with its payload, as handlers of the topic get it. Raises InvalidMessage."""
        return message._replace(payload=self.payload_of(message))


def name_of(topic: str | Topic[Any]) -> str:
    """Return the name of a topic."""
    return topic.name if isinstance(topic, Topic) else topic
