from txmsg.wire.v1 import dead_letters_pb2 as _dead_letters_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EraseRequest(_message.Message):
    __slots__ = ("topic", "ids")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[str] = ..., ids: _Optional[_Iterable[str]] = ...) -> None: ...

class EraseReply(_message.Message):
    __slots__ = ("results",)
    class Result(_message.Message):
        __slots__ = ("found", "erased")
        FOUND_FIELD_NUMBER: _ClassVar[int]
        ERASED_FIELD_NUMBER: _ClassVar[int]
        found: int
        erased: int
        def __init__(self, found: _Optional[int] = ..., erased: _Optional[int] = ...) -> None: ...
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[EraseReply.Result]
    def __init__(self, results: _Optional[_Iterable[_Union[EraseReply.Result, _Mapping]]] = ...) -> None: ...

class BodyKeysRequest(_message.Message):
    __slots__ = ("topic", "transaction_ids", "n")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_IDS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    topic: str
    transaction_ids: bytes
    n: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., transaction_ids: _Optional[bytes] = ..., n: _Optional[_Iterable[int]] = ...) -> None: ...

class BodyKeysReply(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("queue", "offset", "at_us")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    AT_US_FIELD_NUMBER: _ClassVar[int]
    queue: int
    offset: int
    at_us: int
    def __init__(self, queue: _Optional[int] = ..., offset: _Optional[int] = ..., at_us: _Optional[int] = ...) -> None: ...

class FindMessagesRequest(_message.Message):
    __slots__ = ("key", "id", "topic", "limit", "with_bodies", "place")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    WITH_BODIES_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    key: str
    id: str
    topic: str
    limit: int
    with_bodies: bool
    place: Place
    def __init__(self, key: _Optional[str] = ..., id: _Optional[str] = ..., topic: _Optional[str] = ..., limit: _Optional[int] = ..., with_bodies: bool = ..., place: _Optional[_Union[Place, _Mapping]] = ...) -> None: ...

class FoundMessage(_message.Message):
    __slots__ = ("transaction_id", "n", "state", "topic", "queue", "offset", "segment", "decided_by", "key", "tag", "ordering_key", "headers", "body", "size_bytes", "born_at_us", "half_stored_at_us", "stored_at_us", "deliver_at_us", "producer_group", "checks", "next_check_at_us", "parked_reason", "withheld", "retrying", "dead")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        HALF: _ClassVar[FoundMessage.State]
        DECIDED: _ClassVar[FoundMessage.State]
        SCHEDULED: _ClassVar[FoundMessage.State]
        STORED: _ClassVar[FoundMessage.State]
        DROPPED: _ClassVar[FoundMessage.State]
    HALF: FoundMessage.State
    DECIDED: FoundMessage.State
    SCHEDULED: FoundMessage.State
    STORED: FoundMessage.State
    DROPPED: FoundMessage.State
    class Decision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PLAIN: _ClassVar[FoundMessage.Decision]
        CLIENT: _ClassVar[FoundMessage.Decision]
        CHECK: _ClassVar[FoundMessage.Decision]
        PERSON: _ClassVar[FoundMessage.Decision]
        UNDECIDED: _ClassVar[FoundMessage.Decision]
    PLAIN: FoundMessage.Decision
    CLIENT: FoundMessage.Decision
    CHECK: FoundMessage.Decision
    PERSON: FoundMessage.Decision
    UNDECIDED: FoundMessage.Decision
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BY_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    ORDERING_KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BORN_AT_US_FIELD_NUMBER: _ClassVar[int]
    HALF_STORED_AT_US_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_US_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_US_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CHECK_AT_US_FIELD_NUMBER: _ClassVar[int]
    PARKED_REASON_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_FIELD_NUMBER: _ClassVar[int]
    RETRYING_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    transaction_id: bytes
    n: int
    state: FoundMessage.State
    topic: str
    queue: int
    offset: int
    segment: int
    decided_by: FoundMessage.Decision
    key: str
    tag: str
    ordering_key: str
    headers: bytes
    body: bytes
    size_bytes: int
    born_at_us: int
    half_stored_at_us: int
    stored_at_us: int
    deliver_at_us: int
    producer_group: str
    checks: int
    next_check_at_us: int
    parked_reason: str
    withheld: bool
    retrying: int
    dead: int
    def __init__(self, transaction_id: _Optional[bytes] = ..., n: _Optional[int] = ..., state: _Optional[_Union[FoundMessage.State, str]] = ..., topic: _Optional[str] = ..., queue: _Optional[int] = ..., offset: _Optional[int] = ..., segment: _Optional[int] = ..., decided_by: _Optional[_Union[FoundMessage.Decision, str]] = ..., key: _Optional[str] = ..., tag: _Optional[str] = ..., ordering_key: _Optional[str] = ..., headers: _Optional[bytes] = ..., body: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., born_at_us: _Optional[int] = ..., half_stored_at_us: _Optional[int] = ..., stored_at_us: _Optional[int] = ..., deliver_at_us: _Optional[int] = ..., producer_group: _Optional[str] = ..., checks: _Optional[int] = ..., next_check_at_us: _Optional[int] = ..., parked_reason: _Optional[str] = ..., withheld: bool = ..., retrying: _Optional[int] = ..., dead: _Optional[int] = ...) -> None: ...

class FindMessagesReply(_message.Message):
    __slots__ = ("messages", "more")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[FoundMessage]
    more: bool
    def __init__(self, messages: _Optional[_Iterable[_Union[FoundMessage, _Mapping]]] = ..., more: bool = ...) -> None: ...

class TraceRequest(_message.Message):
    __slots__ = ("id", "key", "topic", "limit")
    ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    id: str
    key: str
    topic: str
    limit: int
    def __init__(self, id: _Optional[str] = ..., key: _Optional[str] = ..., topic: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class GroupTrace(_message.Message):
    __slots__ = ("group", "state", "attempts", "next_attempt_at_us", "died_at_us", "generation", "failures")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        WAITING: _ClassVar[GroupTrace.State]
        DONE: _ClassVar[GroupTrace.State]
        RETRYING: _ClassVar[GroupTrace.State]
        DEAD: _ClassVar[GroupTrace.State]
    WAITING: GroupTrace.State
    DONE: GroupTrace.State
    RETRYING: GroupTrace.State
    DEAD: GroupTrace.State
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_ATTEMPT_AT_US_FIELD_NUMBER: _ClassVar[int]
    DIED_AT_US_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    group: str
    state: GroupTrace.State
    attempts: int
    next_attempt_at_us: int
    died_at_us: int
    generation: int
    failures: _containers.RepeatedCompositeFieldContainer[_dead_letters_pb2.Failure]
    def __init__(self, group: _Optional[str] = ..., state: _Optional[_Union[GroupTrace.State, str]] = ..., attempts: _Optional[int] = ..., next_attempt_at_us: _Optional[int] = ..., died_at_us: _Optional[int] = ..., generation: _Optional[int] = ..., failures: _Optional[_Iterable[_Union[_dead_letters_pb2.Failure, _Mapping]]] = ...) -> None: ...

class MirrorTrace(_message.Message):
    __slots__ = ("mirror", "log", "mirrored")
    MIRROR_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    MIRRORED_FIELD_NUMBER: _ClassVar[int]
    mirror: str
    log: str
    mirrored: bool
    def __init__(self, mirror: _Optional[str] = ..., log: _Optional[str] = ..., mirrored: bool = ...) -> None: ...

class JournalEntry(_message.Message):
    __slots__ = ("seq", "at_us", "event", "group", "by", "attempt", "detail", "until_us", "count")
    class Event(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        HALF: _ClassVar[JournalEntry.Event]
        CHECK: _ClassVar[JournalEntry.Event]
        PARKED: _ClassVar[JournalEntry.Event]
        RESUMED: _ClassVar[JournalEntry.Event]
        COMMIT: _ClassVar[JournalEntry.Event]
        ROLLBACK: _ClassVar[JournalEntry.Event]
        DELIVERED: _ClassVar[JournalEntry.Event]
        RETURNED: _ClassVar[JournalEntry.Event]
        ACKNOWLEDGED: _ClassVar[JournalEntry.Event]
        REFUSED: _ClassVar[JournalEntry.Event]
        EXPIRED: _ClassVar[JournalEntry.Event]
        RETRY: _ClassVar[JournalEntry.Event]
        DEAD: _ClassVar[JournalEntry.Event]
        REDRIVEN: _ClassVar[JournalEntry.Event]
        PURGED: _ClassVar[JournalEntry.Event]
        LOST: _ClassVar[JournalEntry.Event]
    HALF: JournalEntry.Event
    CHECK: JournalEntry.Event
    PARKED: JournalEntry.Event
    RESUMED: JournalEntry.Event
    COMMIT: JournalEntry.Event
    ROLLBACK: JournalEntry.Event
    DELIVERED: JournalEntry.Event
    RETURNED: JournalEntry.Event
    ACKNOWLEDGED: JournalEntry.Event
    REFUSED: JournalEntry.Event
    EXPIRED: JournalEntry.Event
    RETRY: JournalEntry.Event
    DEAD: JournalEntry.Event
    REDRIVEN: JournalEntry.Event
    PURGED: JournalEntry.Event
    LOST: JournalEntry.Event
    SEQ_FIELD_NUMBER: _ClassVar[int]
    AT_US_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    seq: int
    at_us: int
    event: JournalEntry.Event
    group: str
    by: str
    attempt: int
    detail: str
    until_us: int
    count: int
    def __init__(self, seq: _Optional[int] = ..., at_us: _Optional[int] = ..., event: _Optional[_Union[JournalEntry.Event, str]] = ..., group: _Optional[str] = ..., by: _Optional[str] = ..., attempt: _Optional[int] = ..., detail: _Optional[str] = ..., until_us: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class Journal(_message.Message):
    __slots__ = ("since_us", "entries")
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    since_us: int
    entries: _containers.RepeatedCompositeFieldContainer[JournalEntry]
    def __init__(self, since_us: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[JournalEntry, _Mapping]]] = ...) -> None: ...

class TracedMessage(_message.Message):
    __slots__ = ("message", "groups", "mirrors", "journal")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MIRRORS_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    message: FoundMessage
    groups: _containers.RepeatedCompositeFieldContainer[GroupTrace]
    mirrors: _containers.RepeatedCompositeFieldContainer[MirrorTrace]
    journal: Journal
    def __init__(self, message: _Optional[_Union[FoundMessage, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[GroupTrace, _Mapping]]] = ..., mirrors: _Optional[_Iterable[_Union[MirrorTrace, _Mapping]]] = ..., journal: _Optional[_Union[Journal, _Mapping]] = ...) -> None: ...

class EndedTransaction(_message.Message):
    __slots__ = ("at_us", "taken_back", "topic", "half_stored_at_us", "producer_group", "decided_by", "journal")
    AT_US_FIELD_NUMBER: _ClassVar[int]
    TAKEN_BACK_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    HALF_STORED_AT_US_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BY_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    at_us: int
    taken_back: bool
    topic: str
    half_stored_at_us: int
    producer_group: str
    decided_by: FoundMessage.Decision
    journal: Journal
    def __init__(self, at_us: _Optional[int] = ..., taken_back: bool = ..., topic: _Optional[str] = ..., half_stored_at_us: _Optional[int] = ..., producer_group: _Optional[str] = ..., decided_by: _Optional[_Union[FoundMessage.Decision, str]] = ..., journal: _Optional[_Union[Journal, _Mapping]] = ...) -> None: ...

class TraceReply(_message.Message):
    __slots__ = ("messages", "ended", "more")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[TracedMessage]
    ended: EndedTransaction
    more: bool
    def __init__(self, messages: _Optional[_Iterable[_Union[TracedMessage, _Mapping]]] = ..., ended: _Optional[_Union[EndedTransaction, _Mapping]] = ..., more: bool = ...) -> None: ...
