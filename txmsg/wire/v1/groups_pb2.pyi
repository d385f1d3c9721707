from txmsg.wire.v1 import dead_letters_pb2 as _dead_letters_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CheckSettings(_message.Message):
    __slots__ = ("group", "first_check_s", "check_interval_s", "checks_max", "no_client_park_s", "own")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FIRST_CHECK_S_FIELD_NUMBER: _ClassVar[int]
    CHECK_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    CHECKS_MAX_FIELD_NUMBER: _ClassVar[int]
    NO_CLIENT_PARK_S_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    group: str
    first_check_s: float
    check_interval_s: float
    checks_max: int
    no_client_park_s: float
    own: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[str] = ..., first_check_s: _Optional[float] = ..., check_interval_s: _Optional[float] = ..., checks_max: _Optional[int] = ..., no_client_park_s: _Optional[float] = ..., own: _Optional[_Iterable[str]] = ...) -> None: ...

class ShowChecksRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class ShowChecksReply(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: CheckSettings
    def __init__(self, settings: _Optional[_Union[CheckSettings, _Mapping]] = ...) -> None: ...

class AlterChecksRequest(_message.Message):
    __slots__ = ("group", "default_checks", "first_check_s", "check_interval_s", "checks_max", "no_client_park_s")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_CHECKS_FIELD_NUMBER: _ClassVar[int]
    FIRST_CHECK_S_FIELD_NUMBER: _ClassVar[int]
    CHECK_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    CHECKS_MAX_FIELD_NUMBER: _ClassVar[int]
    NO_CLIENT_PARK_S_FIELD_NUMBER: _ClassVar[int]
    group: str
    default_checks: bool
    first_check_s: float
    check_interval_s: float
    checks_max: int
    no_client_park_s: float
    def __init__(self, group: _Optional[str] = ..., default_checks: bool = ..., first_check_s: _Optional[float] = ..., check_interval_s: _Optional[float] = ..., checks_max: _Optional[int] = ..., no_client_park_s: _Optional[float] = ...) -> None: ...

class AlterChecksReply(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: CheckSettings
    def __init__(self, settings: _Optional[_Union[CheckSettings, _Mapping]] = ...) -> None: ...

class TopicLag(_message.Message):
    __slots__ = ("topic", "waiting", "retrying", "dead")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RETRYING_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    topic: str
    waiting: int
    retrying: int
    dead: int
    def __init__(self, topic: _Optional[str] = ..., waiting: _Optional[int] = ..., retrying: _Optional[int] = ..., dead: _Optional[int] = ...) -> None: ...

class GroupSummary(_message.Message):
    __slots__ = ("group", "topics", "created_at_us")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_US_FIELD_NUMBER: _ClassVar[int]
    group: str
    topics: _containers.RepeatedCompositeFieldContainer[TopicLag]
    created_at_us: int
    def __init__(self, group: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[TopicLag, _Mapping]]] = ..., created_at_us: _Optional[int] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("limit", "after", "contains")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    CONTAINS_FIELD_NUMBER: _ClassVar[int]
    limit: int
    after: str
    contains: str
    def __init__(self, limit: _Optional[int] = ..., after: _Optional[str] = ..., contains: _Optional[str] = ...) -> None: ...

class ListGroupsReply(_message.Message):
    __slots__ = ("groups", "next", "producer_groups")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupSummary]
    next: str
    producer_groups: _containers.RepeatedCompositeFieldContainer[CheckSettings]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupSummary, _Mapping]]] = ..., next: _Optional[str] = ..., producer_groups: _Optional[_Iterable[_Union[CheckSettings, _Mapping]]] = ...) -> None: ...

class GroupSettings(_message.Message):
    __slots__ = ("group", "retry_delays_s", "retries_max", "poisoned_key", "deliver_rate_max", "version", "stopped", "orderly")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAYS_S_FIELD_NUMBER: _ClassVar[int]
    RETRIES_MAX_FIELD_NUMBER: _ClassVar[int]
    POISONED_KEY_FIELD_NUMBER: _ClassVar[int]
    DELIVER_RATE_MAX_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    ORDERLY_FIELD_NUMBER: _ClassVar[int]
    group: str
    retry_delays_s: _containers.RepeatedScalarFieldContainer[float]
    retries_max: int
    poisoned_key: str
    deliver_rate_max: float
    version: int
    stopped: bool
    orderly: bool
    def __init__(self, group: _Optional[str] = ..., retry_delays_s: _Optional[_Iterable[float]] = ..., retries_max: _Optional[int] = ..., poisoned_key: _Optional[str] = ..., deliver_rate_max: _Optional[float] = ..., version: _Optional[int] = ..., stopped: bool = ..., orderly: bool = ...) -> None: ...

class GroupQueue(_message.Message):
    __slots__ = ("topic", "queue", "next_offset", "begin", "end", "waiting", "retrying", "dead", "seeking")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RETRYING_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    SEEKING_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    next_offset: int
    begin: int
    end: int
    waiting: int
    retrying: int
    dead: int
    seeking: bool
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., next_offset: _Optional[int] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., waiting: _Optional[int] = ..., retrying: _Optional[int] = ..., dead: _Optional[int] = ..., seeking: bool = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("client_id", "silent_s", "host", "pid", "release", "since_us")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    silent_s: float
    host: str
    pid: int
    release: str
    since_us: int
    def __init__(self, client_id: _Optional[str] = ..., silent_s: _Optional[float] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., release: _Optional[str] = ..., since_us: _Optional[int] = ...) -> None: ...

class ShowGroupRequest(_message.Message):
    __slots__ = ("group", "settings_only")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_ONLY_FIELD_NUMBER: _ClassVar[int]
    group: str
    settings_only: bool
    def __init__(self, group: _Optional[str] = ..., settings_only: bool = ...) -> None: ...

class ShowGroupReply(_message.Message):
    __slots__ = ("settings", "created_at_us", "queues", "members", "paused", "paused_s", "last_error")
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_US_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    PAUSED_S_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    settings: GroupSettings
    created_at_us: int
    queues: _containers.RepeatedCompositeFieldContainer[GroupQueue]
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    paused: bool
    paused_s: float
    last_error: str
    def __init__(self, settings: _Optional[_Union[GroupSettings, _Mapping]] = ..., created_at_us: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[GroupQueue, _Mapping]]] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., paused: bool = ..., paused_s: _Optional[float] = ..., last_error: _Optional[str] = ...) -> None: ...

class AlterGroupRequest(_message.Message):
    __slots__ = ("group", "retry_delays_s", "default_retries", "retries_max", "poisoned_key", "deliver_rate_max", "stopped", "orderly", "create")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAYS_S_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_RETRIES_FIELD_NUMBER: _ClassVar[int]
    RETRIES_MAX_FIELD_NUMBER: _ClassVar[int]
    POISONED_KEY_FIELD_NUMBER: _ClassVar[int]
    DELIVER_RATE_MAX_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    ORDERLY_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    group: str
    retry_delays_s: _containers.RepeatedScalarFieldContainer[float]
    default_retries: bool
    retries_max: int
    poisoned_key: str
    deliver_rate_max: float
    stopped: bool
    orderly: bool
    create: bool
    def __init__(self, group: _Optional[str] = ..., retry_delays_s: _Optional[_Iterable[float]] = ..., default_retries: bool = ..., retries_max: _Optional[int] = ..., poisoned_key: _Optional[str] = ..., deliver_rate_max: _Optional[float] = ..., stopped: bool = ..., orderly: bool = ..., create: bool = ...) -> None: ...

class AlterGroupReply(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: GroupSettings
    def __init__(self, settings: _Optional[_Union[GroupSettings, _Mapping]] = ...) -> None: ...

class SeekRequest(_message.Message):
    __slots__ = ("group", "topic", "queue", "earliest", "latest", "at_us", "offset", "again", "dry_run")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    AT_US_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queue: int
    earliest: bool
    latest: bool
    at_us: int
    offset: int
    again: bool
    dry_run: bool
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queue: _Optional[int] = ..., earliest: bool = ..., latest: bool = ..., at_us: _Optional[int] = ..., offset: _Optional[int] = ..., again: bool = ..., dry_run: bool = ...) -> None: ...

class SeekReply(_message.Message):
    __slots__ = ("queues", "to")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[GroupQueue]
    to: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, queues: _Optional[_Iterable[_Union[GroupQueue, _Mapping]]] = ..., to: _Optional[_Iterable[int]] = ...) -> None: ...

class Retry(_message.Message):
    __slots__ = ("topic", "queue", "offset", "transaction_id", "n", "key", "tag", "ordering_key", "stored_at_us", "attempts", "due_at_us", "last_error", "failures", "generation", "size_bytes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    ORDERING_KEY_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_US_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    DUE_AT_US_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    offset: int
    transaction_id: bytes
    n: int
    key: str
    tag: str
    ordering_key: str
    stored_at_us: int
    attempts: int
    due_at_us: int
    last_error: str
    failures: _containers.RepeatedCompositeFieldContainer[_dead_letters_pb2.Failure]
    generation: int
    size_bytes: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., offset: _Optional[int] = ..., transaction_id: _Optional[bytes] = ..., n: _Optional[int] = ..., key: _Optional[str] = ..., tag: _Optional[str] = ..., ordering_key: _Optional[str] = ..., stored_at_us: _Optional[int] = ..., attempts: _Optional[int] = ..., due_at_us: _Optional[int] = ..., last_error: _Optional[str] = ..., failures: _Optional[_Iterable[_Union[_dead_letters_pb2.Failure, _Mapping]]] = ..., generation: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class ListRetriesRequest(_message.Message):
    __slots__ = ("group", "limit", "after")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    group: str
    limit: int
    after: str
    def __init__(self, group: _Optional[str] = ..., limit: _Optional[int] = ..., after: _Optional[str] = ...) -> None: ...

class ListRetriesReply(_message.Message):
    __slots__ = ("retries", "next")
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    retries: _containers.RepeatedCompositeFieldContainer[Retry]
    next: str
    def __init__(self, retries: _Optional[_Iterable[_Union[Retry, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class RetryNowRequest(_message.Message):
    __slots__ = ("group", "id", "after")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    group: str
    id: str
    after: str
    def __init__(self, group: _Optional[str] = ..., id: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class RetryNowReply(_message.Message):
    __slots__ = ("retries", "next")
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    retries: int
    next: str
    def __init__(self, retries: _Optional[int] = ..., next: _Optional[str] = ...) -> None: ...

class SkipRetryRequest(_message.Message):
    __slots__ = ("group", "id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    id: str
    def __init__(self, group: _Optional[str] = ..., id: _Optional[str] = ...) -> None: ...

class SkipRetryReply(_message.Message):
    __slots__ = ("skipped",)
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    skipped: int
    def __init__(self, skipped: _Optional[int] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("group", "force", "dry_run")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    group: str
    force: bool
    dry_run: bool
    def __init__(self, group: _Optional[str] = ..., force: bool = ..., dry_run: bool = ...) -> None: ...

class DeleteGroupReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
