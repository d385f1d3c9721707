from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClusterBroker(_message.Message):
    __slots__ = ("id", "address", "state", "release", "schema_revision", "started_at_us", "heartbeat_at_us", "queues")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_REVISION_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_US_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_AT_US_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    id: str
    address: str
    state: str
    release: str
    schema_revision: str
    started_at_us: int
    heartbeat_at_us: int
    queues: int
    def __init__(self, id: _Optional[str] = ..., address: _Optional[str] = ..., state: _Optional[str] = ..., release: _Optional[str] = ..., schema_revision: _Optional[str] = ..., started_at_us: _Optional[int] = ..., heartbeat_at_us: _Optional[int] = ..., queues: _Optional[int] = ...) -> None: ...

class QueueLease(_message.Message):
    __slots__ = ("topic", "queue", "broker", "epoch", "wanted_by")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WANTED_BY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    broker: str
    epoch: int
    wanted_by: str
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., broker: _Optional[str] = ..., epoch: _Optional[int] = ..., wanted_by: _Optional[str] = ...) -> None: ...

class ShowClusterRequest(_message.Message):
    __slots__ = ("with_queues",)
    WITH_QUEUES_FIELD_NUMBER: _ClassVar[int]
    with_queues: bool
    def __init__(self, with_queues: bool = ...) -> None: ...

class ShowClusterReply(_message.Message):
    __slots__ = ("shard", "schema_revision", "brokers", "queues", "queues_unassigned", "leases")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_REVISION_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    QUEUES_UNASSIGNED_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    shard: bytes
    schema_revision: str
    brokers: _containers.RepeatedCompositeFieldContainer[ClusterBroker]
    queues: int
    queues_unassigned: int
    leases: _containers.RepeatedCompositeFieldContainer[QueueLease]
    def __init__(self, shard: _Optional[bytes] = ..., schema_revision: _Optional[str] = ..., brokers: _Optional[_Iterable[_Union[ClusterBroker, _Mapping]]] = ..., queues: _Optional[int] = ..., queues_unassigned: _Optional[int] = ..., leases: _Optional[_Iterable[_Union[QueueLease, _Mapping]]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("broker",)
    BROKER_FIELD_NUMBER: _ClassVar[int]
    broker: str
    def __init__(self, broker: _Optional[str] = ...) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: int
    def __init__(self, queues: _Optional[int] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ("broker",)
    BROKER_FIELD_NUMBER: _ClassVar[int]
    broker: str
    def __init__(self, broker: _Optional[str] = ...) -> None: ...

class ResumeReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ForgetRequest(_message.Message):
    __slots__ = ("broker",)
    BROKER_FIELD_NUMBER: _ClassVar[int]
    broker: str
    def __init__(self, broker: _Optional[str] = ...) -> None: ...

class ForgetReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FiguresRequest(_message.Message):
    __slots__ = ("with_database",)
    WITH_DATABASE_FIELD_NUMBER: _ClassVar[int]
    with_database: bool
    def __init__(self, with_database: bool = ...) -> None: ...

class Figure(_message.Message):
    __slots__ = ("name", "labels", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    labels: _containers.RepeatedScalarFieldContainer[str]
    value: float
    def __init__(self, name: _Optional[str] = ..., labels: _Optional[_Iterable[str]] = ..., value: _Optional[float] = ...) -> None: ...

class FiguresReply(_message.Message):
    __slots__ = ("broker", "figures", "now_us")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    NOW_US_FIELD_NUMBER: _ClassVar[int]
    broker: str
    figures: _containers.RepeatedCompositeFieldContainer[Figure]
    now_us: int
    def __init__(self, broker: _Optional[str] = ..., figures: _Optional[_Iterable[_Union[Figure, _Mapping]]] = ..., now_us: _Optional[int] = ...) -> None: ...

class ClientsRequest(_message.Message):
    __slots__ = ("limit", "contains")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CONTAINS_FIELD_NUMBER: _ClassVar[int]
    limit: int
    contains: str
    def __init__(self, limit: _Optional[int] = ..., contains: _Optional[str] = ...) -> None: ...

class Client(_message.Message):
    __slots__ = ("id", "producer_group", "consumer_group", "host", "pid", "release", "since_us", "answers_checks", "unanswered")
    ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_CHECKS_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_FIELD_NUMBER: _ClassVar[int]
    id: str
    producer_group: str
    consumer_group: str
    host: str
    pid: int
    release: str
    since_us: int
    answers_checks: bool
    unanswered: int
    def __init__(self, id: _Optional[str] = ..., producer_group: _Optional[str] = ..., consumer_group: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., release: _Optional[str] = ..., since_us: _Optional[int] = ..., answers_checks: bool = ..., unanswered: _Optional[int] = ...) -> None: ...

class ClientsReply(_message.Message):
    __slots__ = ("clients", "more")
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    clients: _containers.RepeatedCompositeFieldContainer[Client]
    more: bool
    def __init__(self, clients: _Optional[_Iterable[_Union[Client, _Mapping]]] = ..., more: bool = ...) -> None: ...

class MirrorsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MirrorQueue(_message.Message):
    __slots__ = ("topic", "queue", "next_offset", "end", "stopped")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    next_offset: int
    end: int
    stopped: str
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., next_offset: _Optional[int] = ..., end: _Optional[int] = ..., stopped: _Optional[str] = ...) -> None: ...

class Mirror(_message.Message):
    __slots__ = ("name", "include", "exclude", "log", "seen_at_us", "tailing", "behind_s", "behind_messages", "queues", "stopped_queues", "behind", "slot_state", "kept_bytes", "behind_bytes", "safe_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    SEEN_AT_US_FIELD_NUMBER: _ClassVar[int]
    TAILING_FIELD_NUMBER: _ClassVar[int]
    BEHIND_S_FIELD_NUMBER: _ClassVar[int]
    BEHIND_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    STOPPED_QUEUES_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    SLOT_STATE_FIELD_NUMBER: _ClassVar[int]
    KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    BEHIND_BYTES_FIELD_NUMBER: _ClassVar[int]
    SAFE_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    include: _containers.RepeatedScalarFieldContainer[str]
    exclude: _containers.RepeatedScalarFieldContainer[str]
    log: str
    seen_at_us: int
    tailing: bool
    behind_s: float
    behind_messages: int
    queues: int
    stopped_queues: int
    behind: _containers.RepeatedCompositeFieldContainer[MirrorQueue]
    slot_state: str
    kept_bytes: int
    behind_bytes: int
    safe_bytes: int
    def __init__(self, name: _Optional[str] = ..., include: _Optional[_Iterable[str]] = ..., exclude: _Optional[_Iterable[str]] = ..., log: _Optional[str] = ..., seen_at_us: _Optional[int] = ..., tailing: bool = ..., behind_s: _Optional[float] = ..., behind_messages: _Optional[int] = ..., queues: _Optional[int] = ..., stopped_queues: _Optional[int] = ..., behind: _Optional[_Iterable[_Union[MirrorQueue, _Mapping]]] = ..., slot_state: _Optional[str] = ..., kept_bytes: _Optional[int] = ..., behind_bytes: _Optional[int] = ..., safe_bytes: _Optional[int] = ...) -> None: ...

class MirrorsReply(_message.Message):
    __slots__ = ("mirrors",)
    MIRRORS_FIELD_NUMBER: _ClassVar[int]
    mirrors: _containers.RepeatedCompositeFieldContainer[Mirror]
    def __init__(self, mirrors: _Optional[_Iterable[_Union[Mirror, _Mapping]]] = ...) -> None: ...
