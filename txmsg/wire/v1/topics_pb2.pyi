from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TopicSettings(_message.Message):
    __slots__ = ("name", "queues", "write_queues", "read_queues", "ordered_queues", "permission", "durability", "unread", "send_rate_max", "created_at_us", "version", "journal_since_us", "erasable_s", "message_type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUES_FIELD_NUMBER: _ClassVar[int]
    ORDERED_QUEUES_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    SEND_RATE_MAX_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_US_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_SINCE_US_FIELD_NUMBER: _ClassVar[int]
    ERASABLE_S_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    queues: int
    write_queues: int
    read_queues: int
    ordered_queues: int
    permission: int
    durability: str
    unread: str
    send_rate_max: float
    created_at_us: int
    version: int
    journal_since_us: int
    erasable_s: float
    message_type: str
    def __init__(self, name: _Optional[str] = ..., queues: _Optional[int] = ..., write_queues: _Optional[int] = ..., read_queues: _Optional[int] = ..., ordered_queues: _Optional[int] = ..., permission: _Optional[int] = ..., durability: _Optional[str] = ..., unread: _Optional[str] = ..., send_rate_max: _Optional[float] = ..., created_at_us: _Optional[int] = ..., version: _Optional[int] = ..., journal_since_us: _Optional[int] = ..., erasable_s: _Optional[float] = ..., message_type: _Optional[str] = ...) -> None: ...

class ListTopicSettingsRequest(_message.Message):
    __slots__ = ("limit", "after", "contains")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    CONTAINS_FIELD_NUMBER: _ClassVar[int]
    limit: int
    after: str
    contains: str
    def __init__(self, limit: _Optional[int] = ..., after: _Optional[str] = ..., contains: _Optional[str] = ...) -> None: ...

class TopicSummary(_message.Message):
    __slots__ = ("settings", "kept", "entered")
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    ENTERED_FIELD_NUMBER: _ClassVar[int]
    settings: TopicSettings
    kept: int
    entered: int
    def __init__(self, settings: _Optional[_Union[TopicSettings, _Mapping]] = ..., kept: _Optional[int] = ..., entered: _Optional[int] = ...) -> None: ...

class ListTopicSettingsReply(_message.Message):
    __slots__ = ("topics", "next")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicSummary]
    next: str
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicSummary, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class TopicQueue(_message.Message):
    __slots__ = ("number", "begin", "end")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    number: int
    begin: int
    end: int
    def __init__(self, number: _Optional[int] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class TopicSegment(_message.Message):
    __slots__ = ("id", "opened_at_us", "closed_at_us", "messages")
    ID_FIELD_NUMBER: _ClassVar[int]
    OPENED_AT_US_FIELD_NUMBER: _ClassVar[int]
    CLOSED_AT_US_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    id: int
    opened_at_us: int
    closed_at_us: int
    messages: int
    def __init__(self, id: _Optional[int] = ..., opened_at_us: _Optional[int] = ..., closed_at_us: _Optional[int] = ..., messages: _Optional[int] = ...) -> None: ...

class TopicGroup(_message.Message):
    __slots__ = ("group", "waiting", "retrying", "dead")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RETRYING_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    group: str
    waiting: int
    retrying: int
    dead: int
    def __init__(self, group: _Optional[str] = ..., waiting: _Optional[int] = ..., retrying: _Optional[int] = ..., dead: _Optional[int] = ...) -> None: ...

class ShowTopicRequest(_message.Message):
    __slots__ = ("name", "settings_only")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_ONLY_FIELD_NUMBER: _ClassVar[int]
    name: str
    settings_only: bool
    def __init__(self, name: _Optional[str] = ..., settings_only: bool = ...) -> None: ...

class ShowTopicReply(_message.Message):
    __slots__ = ("topic", "queues", "groups", "halves", "scheduled", "segments", "retention_s")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    HALVES_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_S_FIELD_NUMBER: _ClassVar[int]
    topic: TopicSettings
    queues: _containers.RepeatedCompositeFieldContainer[TopicQueue]
    groups: _containers.RepeatedCompositeFieldContainer[TopicGroup]
    halves: int
    scheduled: int
    segments: _containers.RepeatedCompositeFieldContainer[TopicSegment]
    retention_s: float
    def __init__(self, topic: _Optional[_Union[TopicSettings, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[TopicQueue, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[TopicGroup, _Mapping]]] = ..., halves: _Optional[int] = ..., scheduled: _Optional[int] = ..., segments: _Optional[_Iterable[_Union[TopicSegment, _Mapping]]] = ..., retention_s: _Optional[float] = ...) -> None: ...

class AlterTopicRequest(_message.Message):
    __slots__ = ("name", "queues", "write_queues", "read_queues", "ordered_queues", "permission", "durability", "unread", "send_rate_max", "journal", "erasable_s", "message_type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUES_FIELD_NUMBER: _ClassVar[int]
    ORDERED_QUEUES_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    SEND_RATE_MAX_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    ERASABLE_S_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    queues: int
    write_queues: int
    read_queues: int
    ordered_queues: int
    permission: int
    durability: str
    unread: str
    send_rate_max: float
    journal: bool
    erasable_s: float
    message_type: str
    def __init__(self, name: _Optional[str] = ..., queues: _Optional[int] = ..., write_queues: _Optional[int] = ..., read_queues: _Optional[int] = ..., ordered_queues: _Optional[int] = ..., permission: _Optional[int] = ..., durability: _Optional[str] = ..., unread: _Optional[str] = ..., send_rate_max: _Optional[float] = ..., journal: bool = ..., erasable_s: _Optional[float] = ..., message_type: _Optional[str] = ...) -> None: ...

class AlterTopicReply(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: TopicSettings
    def __init__(self, topic: _Optional[_Union[TopicSettings, _Mapping]] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("name", "force", "dry_run")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    name: str
    force: bool
    dry_run: bool
    def __init__(self, name: _Optional[str] = ..., force: bool = ..., dry_run: bool = ...) -> None: ...

class DeleteTopicReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
