"""RocketMQ's limits of a message: characters, sizes, and reserved names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from txmsg.errors import shown
from txmsg.message import KEY_SIZE_BYTES_MAX
from txmsg.rocketmq.status import CallRefused
from txmsg.rocketmq.v2 import messaging_pb2 as pb

BODY_SIZE_BYTES_MAX: Final = 4 * 1024 * 1024
"""The maximum that clients are told; a broker may accept less."""
PROPERTIES_MAX: Final = 128
PROPERTIES_SIZE_BYTES_MAX: Final = 16 * 1024
"""Maximum bytes of names and values of properties, the tag and the keys, in UTF-8."""
GROUP_SIZE_BYTES_MAX: Final = 64
FIRST_CHECK_S_MAX: Final = 3600
"""Maximum seconds that a half message can postpone its first check."""
OWN_HEADERS: Final = "rocketmq."
"""The prefix of the gateway's own headers."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SYSTEM_WORDS = """
    1ST_POP_TIME ARRIVE_TIME BORN_TIMESTAMP BUYER_ID CLUSTER CONSUME_START_TIME CORRECTION_FLAG CORRELATION_ID DELAY
    DLQ_ORIGIN_MESSAGE_ID DLQ_ORIGIN_TOPIC DUP_INFO EXTEND_UNIQ_INFO INNER_MULTI_QUEUE_OFFSET INSTANCE_ID KEYS
    MAX_OFFSET MAX_RECONSUME_TIMES MIN_OFFSET MQ2_FLAG MSG_REGION MSG_TYPE ORIGIN_MESSAGE_ID PGROUP POP_CK
    POP_CK_OFFSET PUSH_REPLY_TIME REAL_QID REAL_TOPIC RECONSUME_TIME REPLY_TO_CLIENT RETRY_TOPIC TAGS
    TIMER_DELAY_LEVEL TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_DEL_UNIQKEY TIMER_DEQUEUE_MS
    TIMER_ENQUEUE_MS TIMER_OUT_MS TIMER_ROLL_TIMES TRACE_ON TRANSFER_FLAG TRAN_MSG TRAN_PREPARED_QUEUE_OFFSET TTL
    UNIQ_KEY WAIT __BORNHOST __CRC32#
"""
_SYSTEM_NAMES = frozenset(_SYSTEM_WORDS.split())
"""Properties that RocketMQ sets itself, and refuses from senders."""


def has_control(text: str) -> bool:
    """Return True if a text contains a control character, which RocketMQ allows in no name and no value."""
    return _CONTROL.search(text) is not None


def check_properties(properties: Mapping[str, str], tag: str, keys: Iterable[str]) -> None:
    """Raise CallRefused for properties that RocketMQ would not accept, alone or together with tag and keys."""
    if len(properties) > PROPERTIES_MAX:
        raise CallRefused(
            pb.MESSAGE_PROPERTIES_TOO_LARGE, f"{len(properties)} properties: at most {PROPERTIES_MAX} are allowed"
        )
    for name, value in properties.items():
        if name in _SYSTEM_NAMES or name.startswith(OWN_HEADERS):
            raise CallRefused(
                pb.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {shown(name)} has a name of the system's own: use another"
            )
        if has_control(name) or has_control(value):
            raise CallRefused(
                pb.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"property {shown(name)} has a control character in its name or value {shown(value)}: encode it",
            )
    texts = [tag, *keys, *properties, *properties.values()]
    size_bytes = sum(len(text.encode()) for text in texts)
    if size_bytes > PROPERTIES_SIZE_BYTES_MAX:
        raise CallRefused(
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties, tag and keys have {size_bytes} bytes in all: at most {PROPERTIES_SIZE_BYTES_MAX} are "
            "allowed; put more into the body",
        )


def words_of_keys(keys: Sequence[str]) -> list[str]:
    """Return the keys of a message. A key with blanks counts as several, as in RocketMQ. Raises CallRefused."""
    for key in keys:
        if has_control(key) or (key and not key.strip()):
            raise CallRefused(
                pb.ILLEGAL_MESSAGE_KEY, f"key {shown(key)} is blank or has a control character: use other characters"
            )
    words = " ".join(keys).split(" ")
    words = [word for word in words if word]
    if words and len(words[0].encode()) > KEY_SIZE_BYTES_MAX:
        raise CallRefused(
            pb.ILLEGAL_MESSAGE_KEY,
            f"the first key {shown(words[0])} has {len(words[0].encode())} bytes: at most {KEY_SIZE_BYTES_MAX} are "
            "allowed, since messages are found by it",
        )
    return words


def check_group(group: str) -> None:
    """Raise CallRefused for a message group that RocketMQ would not accept."""
    size_bytes = len(group.encode())
    if not group.strip() or has_control(group) or size_bytes >= GROUP_SIZE_BYTES_MAX:
        raise CallRefused(
            pb.ILLEGAL_MESSAGE_GROUP,
            f"message group {shown(group)} of {size_bytes} bytes: use 1 to {GROUP_SIZE_BYTES_MAX - 1}, not all of them "
            "blanks, and no control character",
        )
