from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class QueueSet(_message.Message):
    __slots__ = ("topic", "queue")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[_Iterable[int]] = ...) -> None: ...

class QueueOffsets(_message.Message):
    __slots__ = ("topic", "queue", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: _containers.RepeatedScalarFieldContainer[int]
    offset: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[_Iterable[int]] = ..., offset: _Optional[_Iterable[int]] = ...) -> None: ...

class DescribeLogRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeLogReply(_message.Message):
    __slots__ = ("log_id", "generation", "release", "failure", "waiting", "sessions", "appending_bytes", "size_bytes", "retention_s", "follows", "copies", "disk_free_ratio", "certificate_remaining_s")
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    APPENDING_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RETENTION_S_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_RATIO_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_REMAINING_S_FIELD_NUMBER: _ClassVar[int]
    log_id: int
    generation: int
    release: str
    failure: str
    waiting: int
    sessions: int
    appending_bytes: int
    size_bytes: int
    retention_s: float
    follows: str
    copies: _containers.RepeatedCompositeFieldContainer[LogCopy]
    disk_free_ratio: float
    certificate_remaining_s: float
    def __init__(self, log_id: _Optional[int] = ..., generation: _Optional[int] = ..., release: _Optional[str] = ..., failure: _Optional[str] = ..., waiting: _Optional[int] = ..., sessions: _Optional[int] = ..., appending_bytes: _Optional[int] = ..., size_bytes: _Optional[int] = ..., retention_s: _Optional[float] = ..., follows: _Optional[str] = ..., copies: _Optional[_Iterable[_Union[LogCopy, _Mapping]]] = ..., disk_free_ratio: _Optional[float] = ..., certificate_remaining_s: _Optional[float] = ...) -> None: ...

class LogCopy(_message.Message):
    __slots__ = ("name", "position", "behind_bytes", "silent_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BEHIND_BYTES_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    position: int
    behind_bytes: int
    silent_s: float
    def __init__(self, name: _Optional[str] = ..., position: _Optional[int] = ..., behind_bytes: _Optional[int] = ..., silent_s: _Optional[float] = ...) -> None: ...

class ListLogTopicsRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class ListLogTopicsReply(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[QueueSet]
    def __init__(self, topics: _Optional[_Iterable[_Union[QueueSet, _Mapping]]] = ...) -> None: ...

class LogTopicSettings(_message.Message):
    __slots__ = ("flush", "compression", "retention_s", "write_queues", "read_queues", "permission")
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    RETENTION_S_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUES_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    flush: str
    compression: str
    retention_s: float
    write_queues: int
    read_queues: int
    permission: str
    def __init__(self, flush: _Optional[str] = ..., compression: _Optional[str] = ..., retention_s: _Optional[float] = ..., write_queues: _Optional[int] = ..., read_queues: _Optional[int] = ..., permission: _Optional[str] = ...) -> None: ...

class LogTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class SetLogTopicRequest(_message.Message):
    __slots__ = ("topic", "settings")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    settings: LogTopicSettings
    def __init__(self, topic: _Optional[str] = ..., settings: _Optional[_Union[LogTopicSettings, _Mapping]] = ...) -> None: ...

class SetLogTopicReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FlushLogRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FlushLogReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RangesRequest(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueSet]
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueSet, _Mapping]]] = ...) -> None: ...

class RangesReply(_message.Message):
    __slots__ = ("begin", "end")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    begin: _containers.RepeatedScalarFieldContainer[int]
    end: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, begin: _Optional[_Iterable[int]] = ..., end: _Optional[_Iterable[int]] = ...) -> None: ...

class OffsetsAtRequest(_message.Message):
    __slots__ = ("queues", "at_us")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    AT_US_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueSet]
    at_us: int
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueSet, _Mapping]]] = ..., at_us: _Optional[int] = ...) -> None: ...

class OffsetsAtReply(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, offset: _Optional[_Iterable[int]] = ...) -> None: ...

class FindInLogRequest(_message.Message):
    __slots__ = ("topic", "key", "count_max", "id", "following")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    COUNT_MAX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    FOLLOWING_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: str
    count_max: int
    id: str
    following: _containers.RepeatedCompositeFieldContainer[QueueOffsets]
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[str] = ..., count_max: _Optional[int] = ..., id: _Optional[str] = ..., following: _Optional[_Iterable[_Union[QueueOffsets, _Mapping]]] = ...) -> None: ...

class FoundInLog(_message.Message):
    __slots__ = ("queue", "offset", "transaction_id", "n", "tag", "ordering_key", "headers", "body", "born_at_us", "stored_at_us", "key")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    ORDERING_KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    BORN_AT_US_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_US_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    queue: int
    offset: int
    transaction_id: bytes
    n: int
    tag: str
    ordering_key: str
    headers: _containers.ScalarMap[str, str]
    body: bytes
    born_at_us: int
    stored_at_us: int
    key: str
    def __init__(self, queue: _Optional[int] = ..., offset: _Optional[int] = ..., transaction_id: _Optional[bytes] = ..., n: _Optional[int] = ..., tag: _Optional[str] = ..., ordering_key: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., body: _Optional[bytes] = ..., born_at_us: _Optional[int] = ..., stored_at_us: _Optional[int] = ..., key: _Optional[str] = ...) -> None: ...

class FindInLogReply(_message.Message):
    __slots__ = ("found", "more", "following")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    FOLLOWING_FIELD_NUMBER: _ClassVar[int]
    found: _containers.RepeatedCompositeFieldContainer[FoundInLog]
    more: bool
    following: _containers.RepeatedCompositeFieldContainer[QueueOffsets]
    def __init__(self, found: _Optional[_Iterable[_Union[FoundInLog, _Mapping]]] = ..., more: bool = ..., following: _Optional[_Iterable[_Union[QueueOffsets, _Mapping]]] = ...) -> None: ...

class DelayedInLogRequest(_message.Message):
    __slots__ = ("limit", "following")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    FOLLOWING_FIELD_NUMBER: _ClassVar[int]
    limit: int
    following: int
    def __init__(self, limit: _Optional[int] = ..., following: _Optional[int] = ...) -> None: ...

class WaitingInLog(_message.Message):
    __slots__ = ("due_at_us", "number", "topic", "queue", "messages")
    DUE_AT_US_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    due_at_us: int
    number: int
    topic: str
    queue: int
    messages: int
    def __init__(self, due_at_us: _Optional[int] = ..., number: _Optional[int] = ..., topic: _Optional[str] = ..., queue: _Optional[int] = ..., messages: _Optional[int] = ...) -> None: ...

class DelayedInLogReply(_message.Message):
    __slots__ = ("messages", "first", "following")
    class MessagesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    FOLLOWING_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.ScalarMap[str, int]
    first: _containers.RepeatedCompositeFieldContainer[WaitingInLog]
    following: int
    def __init__(self, messages: _Optional[_Mapping[str, int]] = ..., first: _Optional[_Iterable[_Union[WaitingInLog, _Mapping]]] = ..., following: _Optional[int] = ...) -> None: ...

class RecallInLogRequest(_message.Message):
    __slots__ = ("topic", "number")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    number: int
    def __init__(self, topic: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class RecallInLogReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("wanted", "size_bytes_max", "wait_ms")
    WANTED_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    wanted: _containers.RepeatedCompositeFieldContainer[QueueOffsets]
    size_bytes_max: int
    wait_ms: int
    def __init__(self, wanted: _Optional[_Iterable[_Union[QueueOffsets, _Mapping]]] = ..., size_bytes_max: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class LogError(_message.Message):
    __slots__ = ("code", "text", "begin", "end")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    code: str
    text: str
    begin: int
    end: int
    def __init__(self, code: _Optional[str] = ..., text: _Optional[str] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class FetchedFrames(_message.Message):
    __slots__ = ("at", "size", "goes_on", "error")
    AT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    GOES_ON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    at: int
    size: int
    goes_on: bool
    error: LogError
    def __init__(self, at: _Optional[int] = ..., size: _Optional[int] = ..., goes_on: bool = ..., error: _Optional[_Union[LogError, _Mapping]] = ...) -> None: ...

class FetchHead(_message.Message):
    __slots__ = ("fetched",)
    FETCHED_FIELD_NUMBER: _ClassVar[int]
    fetched: _containers.RepeatedCompositeFieldContainer[FetchedFrames]
    def __init__(self, fetched: _Optional[_Iterable[_Union[FetchedFrames, _Mapping]]] = ...) -> None: ...

class FetchReply(_message.Message):
    __slots__ = ("head", "data")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    head: FetchHead
    data: bytes
    def __init__(self, head: _Optional[_Union[FetchHead, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class AppendBatch(_message.Message):
    __slots__ = ("topic", "queue", "base_offset", "size", "payload_crc", "raw_size", "compression", "kind", "columns", "count", "first_stored_at_us", "last_stored_at_us", "is_mirrored", "due_at_us")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_CRC_FIELD_NUMBER: _ClassVar[int]
    RAW_SIZE_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FIRST_STORED_AT_US_FIELD_NUMBER: _ClassVar[int]
    LAST_STORED_AT_US_FIELD_NUMBER: _ClassVar[int]
    IS_MIRRORED_FIELD_NUMBER: _ClassVar[int]
    DUE_AT_US_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    base_offset: int
    size: int
    payload_crc: int
    raw_size: int
    compression: int
    kind: int
    columns: int
    count: int
    first_stored_at_us: int
    last_stored_at_us: int
    is_mirrored: bool
    due_at_us: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., base_offset: _Optional[int] = ..., size: _Optional[int] = ..., payload_crc: _Optional[int] = ..., raw_size: _Optional[int] = ..., compression: _Optional[int] = ..., kind: _Optional[int] = ..., columns: _Optional[int] = ..., count: _Optional[int] = ..., first_stored_at_us: _Optional[int] = ..., last_stored_at_us: _Optional[int] = ..., is_mirrored: bool = ..., due_at_us: _Optional[int] = ...) -> None: ...

class AppendHead(_message.Message):
    __slots__ = ("producer_id", "sequence", "settled", "is_repeat", "batches", "acks", "generation")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    IS_REPEAT_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    producer_id: bytes
    sequence: int
    settled: int
    is_repeat: bool
    batches: _containers.RepeatedCompositeFieldContainer[AppendBatch]
    acks: str
    generation: int
    def __init__(self, producer_id: _Optional[bytes] = ..., sequence: _Optional[int] = ..., settled: _Optional[int] = ..., is_repeat: bool = ..., batches: _Optional[_Iterable[_Union[AppendBatch, _Mapping]]] = ..., acks: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("head", "data")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    head: AppendHead
    data: bytes
    def __init__(self, head: _Optional[_Union[AppendHead, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class AppendReply(_message.Message):
    __slots__ = ("base_offset", "generation")
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    base_offset: _containers.RepeatedScalarFieldContainer[int]
    generation: int
    def __init__(self, base_offset: _Optional[_Iterable[int]] = ..., generation: _Optional[int] = ...) -> None: ...

class LogMember(_message.Message):
    __slots__ = ("id", "topics", "strategy", "zone")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    id: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    strategy: str
    zone: str
    def __init__(self, id: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., strategy: _Optional[str] = ..., zone: _Optional[str] = ...) -> None: ...

class JoinGroupRequest(_message.Message):
    __slots__ = ("session", "group", "topics", "strategy", "session_ms", "start", "zone")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    SESSION_MS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    group: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    strategy: str
    session_ms: int
    start: str
    zone: str
    def __init__(self, session: _Optional[bytes] = ..., group: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., strategy: _Optional[str] = ..., session_ms: _Optional[int] = ..., start: _Optional[str] = ..., zone: _Optional[str] = ...) -> None: ...

class JoinGroupReply(_message.Message):
    __slots__ = ("member_id",)
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    def __init__(self, member_id: _Optional[str] = ...) -> None: ...

class MemberRequest(_message.Message):
    __slots__ = ("session", "call", "queues", "offsets")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    call: int
    queues: _containers.RepeatedCompositeFieldContainer[QueueSet]
    offsets: _containers.RepeatedCompositeFieldContainer[QueueOffsets]
    def __init__(self, session: _Optional[bytes] = ..., call: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[QueueSet, _Mapping]]] = ..., offsets: _Optional[_Iterable[_Union[QueueOffsets, _Mapping]]] = ...) -> None: ...

class MemberReply(_message.Message):
    __slots__ = ("taken",)
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    taken: _containers.RepeatedCompositeFieldContainer[QueueOffsets]
    def __init__(self, taken: _Optional[_Iterable[_Union[QueueOffsets, _Mapping]]] = ...) -> None: ...

class MemberView(_message.Message):
    __slots__ = ("members", "queues", "sought", "zone", "settings")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    SOUGHT_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[LogMember]
    queues: _containers.RepeatedCompositeFieldContainer[QueueSet]
    sought: _containers.RepeatedCompositeFieldContainer[QueueOffsets]
    zone: str
    settings: LogGroupSettings
    def __init__(self, members: _Optional[_Iterable[_Union[LogMember, _Mapping]]] = ..., queues: _Optional[_Iterable[_Union[QueueSet, _Mapping]]] = ..., sought: _Optional[_Iterable[_Union[QueueOffsets, _Mapping]]] = ..., zone: _Optional[str] = ..., settings: _Optional[_Union[LogGroupSettings, _Mapping]] = ...) -> None: ...

class LogGroupSettings(_message.Message):
    __slots__ = ("stopped", "concurrency", "rate_per_s")
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    RATE_PER_S_FIELD_NUMBER: _ClassVar[int]
    stopped: bool
    concurrency: int
    rate_per_s: float
    def __init__(self, stopped: bool = ..., concurrency: _Optional[int] = ..., rate_per_s: _Optional[float] = ...) -> None: ...

class ListLogGroupsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListLogGroupsReply(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, groups: _Optional[_Iterable[str]] = ...) -> None: ...

class ShowLogGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class ShownLogQueue(_message.Message):
    __slots__ = ("topic", "queue", "owner", "offset", "begin", "end")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    owner: str
    offset: int
    begin: int
    end: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., owner: _Optional[str] = ..., offset: _Optional[int] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class ShowLogGroupReply(_message.Message):
    __slots__ = ("members", "queues", "settings")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[LogMember]
    queues: _containers.RepeatedCompositeFieldContainer[ShownLogQueue]
    settings: LogGroupSettings
    def __init__(self, members: _Optional[_Iterable[_Union[LogMember, _Mapping]]] = ..., queues: _Optional[_Iterable[_Union[ShownLogQueue, _Mapping]]] = ..., settings: _Optional[_Union[LogGroupSettings, _Mapping]] = ...) -> None: ...

class SeekLogGroupRequest(_message.Message):
    __slots__ = ("group", "offsets")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    group: str
    offsets: _containers.RepeatedCompositeFieldContainer[QueueOffsets]
    def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[QueueOffsets, _Mapping]]] = ...) -> None: ...

class SeekLogGroupReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AlterLogGroupRequest(_message.Message):
    __slots__ = ("group", "stopped", "concurrency", "rate_per_s")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    RATE_PER_S_FIELD_NUMBER: _ClassVar[int]
    group: str
    stopped: bool
    concurrency: int
    rate_per_s: float
    def __init__(self, group: _Optional[str] = ..., stopped: bool = ..., concurrency: _Optional[int] = ..., rate_per_s: _Optional[float] = ...) -> None: ...

class DeleteLogGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class DeleteLogGroupReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CopyLogRequest(_message.Message):
    __slots__ = ("copy_id", "name", "topic", "log_id", "generation", "position", "last_position", "last_crc", "size_bytes_max", "wait_ms")
    COPY_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LAST_POSITION_FIELD_NUMBER: _ClassVar[int]
    LAST_CRC_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    copy_id: bytes
    name: str
    topic: str
    log_id: int
    generation: int
    position: int
    last_position: int
    last_crc: int
    size_bytes_max: int
    wait_ms: int
    def __init__(self, copy_id: _Optional[bytes] = ..., name: _Optional[str] = ..., topic: _Optional[str] = ..., log_id: _Optional[int] = ..., generation: _Optional[int] = ..., position: _Optional[int] = ..., last_position: _Optional[int] = ..., last_crc: _Optional[int] = ..., size_bytes_max: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class CopyLogHead(_message.Message):
    __slots__ = ("log_id", "generation", "begin", "end", "first", "position", "ends")
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    log_id: int
    generation: int
    begin: int
    end: int
    first: int
    position: int
    ends: _containers.RepeatedCompositeFieldContainer[QueueOffsets]
    def __init__(self, log_id: _Optional[int] = ..., generation: _Optional[int] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., first: _Optional[int] = ..., position: _Optional[int] = ..., ends: _Optional[_Iterable[_Union[QueueOffsets, _Mapping]]] = ...) -> None: ...

class CopyLogReply(_message.Message):
    __slots__ = ("head", "data")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    head: CopyLogHead
    data: bytes
    def __init__(self, head: _Optional[_Union[CopyLogHead, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class LogStateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StoredLogTopic(_message.Message):
    __slots__ = ("topic", "settings")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    settings: LogTopicSettings
    def __init__(self, topic: _Optional[str] = ..., settings: _Optional[_Union[LogTopicSettings, _Mapping]] = ...) -> None: ...

class GroupLog(_message.Message):
    __slots__ = ("topic", "log_id", "end")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    topic: str
    log_id: int
    end: int
    def __init__(self, topic: _Optional[str] = ..., log_id: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class StoredLogGroup(_message.Message):
    __slots__ = ("group", "begins", "topics", "offsets", "sought", "logs", "settings")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    SOUGHT_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    group: str
    begins: _containers.RepeatedCompositeFieldContainer[QueueOffsets]
    topics: _containers.RepeatedScalarFieldContainer[str]
    offsets: _containers.RepeatedCompositeFieldContainer[QueueOffsets]
    sought: _containers.RepeatedCompositeFieldContainer[QueueOffsets]
    logs: _containers.RepeatedCompositeFieldContainer[GroupLog]
    settings: bytes
    def __init__(self, group: _Optional[str] = ..., begins: _Optional[_Iterable[_Union[QueueOffsets, _Mapping]]] = ..., topics: _Optional[_Iterable[str]] = ..., offsets: _Optional[_Iterable[_Union[QueueOffsets, _Mapping]]] = ..., sought: _Optional[_Iterable[_Union[QueueOffsets, _Mapping]]] = ..., logs: _Optional[_Iterable[_Union[GroupLog, _Mapping]]] = ..., settings: _Optional[bytes] = ...) -> None: ...

class LogStateReply(_message.Message):
    __slots__ = ("topics", "groups", "own")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[StoredLogTopic]
    groups: _containers.RepeatedCompositeFieldContainer[StoredLogGroup]
    own: _containers.RepeatedCompositeFieldContainer[QueueSet]
    def __init__(self, topics: _Optional[_Iterable[_Union[StoredLogTopic, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[StoredLogGroup, _Mapping]]] = ..., own: _Optional[_Iterable[_Union[QueueSet, _Mapping]]] = ...) -> None: ...

class FenceLogRequest(_message.Message):
    __slots__ = ("log_id", "generation", "copy_id")
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    COPY_ID_FIELD_NUMBER: _ClassVar[int]
    log_id: int
    generation: int
    copy_id: bytes
    def __init__(self, log_id: _Optional[int] = ..., generation: _Optional[int] = ..., copy_id: _Optional[bytes] = ...) -> None: ...

class FenceLogReply(_message.Message):
    __slots__ = ("end",)
    END_FIELD_NUMBER: _ClassVar[int]
    end: int
    def __init__(self, end: _Optional[int] = ...) -> None: ...
