from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeadLetterFilter(_message.Message):
    __slots__ = ("group", "topic", "since_us", "until_us", "error", "id", "key")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    since_us: int
    until_us: int
    error: str
    id: str
    key: str
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., since_us: _Optional[int] = ..., until_us: _Optional[int] = ..., error: _Optional[str] = ..., id: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("attempt", "at_us", "error", "expired")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    AT_US_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    at_us: int
    error: str
    expired: bool
    def __init__(self, attempt: _Optional[int] = ..., at_us: _Optional[int] = ..., error: _Optional[str] = ..., expired: bool = ...) -> None: ...

class DeadLetter(_message.Message):
    __slots__ = ("group", "topic", "queue", "offset", "transaction_id", "n", "key", "tag", "ordering_key", "headers", "body", "born_at_us", "stored_at_us", "died_at_us", "attempts", "last_error", "failures", "generation", "blocks_key", "size_bytes", "withheld")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    ORDERING_KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    BORN_AT_US_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_US_FIELD_NUMBER: _ClassVar[int]
    DIED_AT_US_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queue: int
    offset: int
    transaction_id: bytes
    n: int
    key: str
    tag: str
    ordering_key: str
    headers: bytes
    body: bytes
    born_at_us: int
    stored_at_us: int
    died_at_us: int
    attempts: int
    last_error: str
    failures: _containers.RepeatedCompositeFieldContainer[Failure]
    generation: int
    blocks_key: bool
    size_bytes: int
    withheld: bool
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queue: _Optional[int] = ..., offset: _Optional[int] = ..., transaction_id: _Optional[bytes] = ..., n: _Optional[int] = ..., key: _Optional[str] = ..., tag: _Optional[str] = ..., ordering_key: _Optional[str] = ..., headers: _Optional[bytes] = ..., body: _Optional[bytes] = ..., born_at_us: _Optional[int] = ..., stored_at_us: _Optional[int] = ..., died_at_us: _Optional[int] = ..., attempts: _Optional[int] = ..., last_error: _Optional[str] = ..., failures: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ..., generation: _Optional[int] = ..., blocks_key: bool = ..., size_bytes: _Optional[int] = ..., withheld: bool = ...) -> None: ...

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("filter", "limit", "after", "with_bodies")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    WITH_BODIES_FIELD_NUMBER: _ClassVar[int]
    filter: DeadLetterFilter
    limit: int
    after: str
    with_bodies: bool
    def __init__(self, filter: _Optional[_Union[DeadLetterFilter, _Mapping]] = ..., limit: _Optional[int] = ..., after: _Optional[str] = ..., with_bodies: bool = ...) -> None: ...

class ListDeadLettersReply(_message.Message):
    __slots__ = ("letters", "next")
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    letters: _containers.RepeatedCompositeFieldContainer[DeadLetter]
    next: str
    def __init__(self, letters: _Optional[_Iterable[_Union[DeadLetter, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class CountRequest(_message.Message):
    __slots__ = ("filter",)
    FILTER_FIELD_NUMBER: _ClassVar[int]
    filter: DeadLetterFilter
    def __init__(self, filter: _Optional[_Union[DeadLetterFilter, _Mapping]] = ...) -> None: ...

class CountReply(_message.Message):
    __slots__ = ("count", "as_of_us")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    AS_OF_US_FIELD_NUMBER: _ClassVar[int]
    count: int
    as_of_us: int
    def __init__(self, count: _Optional[int] = ..., as_of_us: _Optional[int] = ...) -> None: ...

class RedriveRequest(_message.Message):
    __slots__ = ("filter", "limit")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    filter: DeadLetterFilter
    limit: int
    def __init__(self, filter: _Optional[_Union[DeadLetterFilter, _Mapping]] = ..., limit: _Optional[int] = ...) -> None: ...

class RedriveReply(_message.Message):
    __slots__ = ("redriven",)
    REDRIVEN_FIELD_NUMBER: _ClassVar[int]
    redriven: int
    def __init__(self, redriven: _Optional[int] = ...) -> None: ...

class PurgeRequest(_message.Message):
    __slots__ = ("filter", "limit")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    filter: DeadLetterFilter
    limit: int
    def __init__(self, filter: _Optional[_Union[DeadLetterFilter, _Mapping]] = ..., limit: _Optional[int] = ...) -> None: ...

class PurgeReply(_message.Message):
    __slots__ = ("purged",)
    PURGED_FIELD_NUMBER: _ClassVar[int]
    purged: int
    def __init__(self, purged: _Optional[int] = ...) -> None: ...
