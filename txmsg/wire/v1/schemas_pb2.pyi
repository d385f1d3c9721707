from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TopicSchema(_message.Message):
    __slots__ = ("topic", "version", "content_type", "schema", "registered_at_us", "registered_by")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_AT_US_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_BY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    version: int
    content_type: str
    schema: str
    registered_at_us: int
    registered_by: str
    def __init__(self, topic: _Optional[str] = ..., version: _Optional[int] = ..., content_type: _Optional[str] = ..., schema: _Optional[str] = ..., registered_at_us: _Optional[int] = ..., registered_by: _Optional[str] = ...) -> None: ...

class ListSchemasRequest(_message.Message):
    __slots__ = ("topic", "after_topic", "after_version", "limit")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    AFTER_TOPIC_FIELD_NUMBER: _ClassVar[int]
    AFTER_VERSION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    after_topic: str
    after_version: int
    limit: int
    def __init__(self, topic: _Optional[str] = ..., after_topic: _Optional[str] = ..., after_version: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ListSchemasReply(_message.Message):
    __slots__ = ("schemas", "more")
    SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    schemas: _containers.RepeatedCompositeFieldContainer[TopicSchema]
    more: bool
    def __init__(self, schemas: _Optional[_Iterable[_Union[TopicSchema, _Mapping]]] = ..., more: bool = ...) -> None: ...

class RegisterSchemaRequest(_message.Message):
    __slots__ = ("topic", "version", "content_type", "schema", "after")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    version: int
    content_type: str
    schema: str
    after: int
    def __init__(self, topic: _Optional[str] = ..., version: _Optional[int] = ..., content_type: _Optional[str] = ..., schema: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class RegisterSchemaReply(_message.Message):
    __slots__ = ("registered", "schemas")
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    registered: bool
    schemas: _containers.RepeatedCompositeFieldContainer[TopicSchema]
    def __init__(self, registered: bool = ..., schemas: _Optional[_Iterable[_Union[TopicSchema, _Mapping]]] = ...) -> None: ...

class DeleteSchemaRequest(_message.Message):
    __slots__ = ("topic", "version", "latest", "dry_run")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    topic: str
    version: int
    latest: bool
    dry_run: bool
    def __init__(self, topic: _Optional[str] = ..., version: _Optional[int] = ..., latest: bool = ..., dry_run: bool = ...) -> None: ...

class DeleteSchemaReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
