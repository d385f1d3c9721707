"""The filter of a RocketMQ consumer: tags, by which brokers select, or SQL, which the gateway evaluates.

If brokers give a message to a member of a group and its SQL filter does not match, the message is done for the whole
group, as in RocketMQ: all members of a group must have the same filter.
"""

from __future__ import annotations

from dataclasses import dataclass

from txmsg.errors import InvalidName
from txmsg.message import ReceivedMessage
from txmsg.rocketmq.codec import keys_of, properties_of
from txmsg.rocketmq.sql92 import Filter, FilterSyntaxError, parse_filter
from txmsg.rocketmq.status import CallRefused
from txmsg.rocketmq.v2 import messaging_pb2 as pb
from txmsg.wire.tags import parse_tags


@dataclass(frozen=True, slots=True)
class Wanted:
    """The messages that a consumer wants. tags: in the syntax of brokers. sql: None for all messages with
    these tags.
    """

    tags: str = "*"
    sql: Filter | None = None

    def takes(self, message: ReceivedMessage) -> bool:
        """Return True if the SQL filter accepts a message that has one of the tags."""
        return self.sql is None or self.sql.matches(_properties_of(message))


ALL = Wanted()


def wanted_of(expression: pb.FilterExpression) -> Wanted:
    """Parse a filter expression. Raises CallRefused."""
    text = expression.expression.strip()
    if expression.type == pb.SQL:
        try:
            return Wanted(sql=parse_filter(text))
        except FilterSyntaxError as exc:
            raise CallRefused(pb.ILLEGAL_FILTER_EXPRESSION, f"SQL filter: {exc}") from None
    tags = [tag for tag in text.split("||") if tag.strip()]  # RocketMQ passes over what is empty
    try:
        return Wanted(tags=str(parse_tags(" || ".join(tags) or text)))
    except InvalidName as exc:
        raise CallRefused(pb.ILLEGAL_FILTER_EXPRESSION, str(exc)) from None


def _properties_of(message: ReceivedMessage) -> dict[str, str]:
    """Return the properties that consumers see, and TAGS and KEYS, which are properties in RocketMQ."""
    properties = properties_of(message)
    if message.tag is not None:
        properties["TAGS"] = message.tag
    if keys := keys_of(message):
        properties["KEYS"] = " ".join(keys)
    return properties
