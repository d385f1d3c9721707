from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StoredSetting(_message.Message):
    __slots__ = ("name", "value", "version", "changed_at_us", "changed_by")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CHANGED_AT_US_FIELD_NUMBER: _ClassVar[int]
    CHANGED_BY_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    version: int
    changed_at_us: int
    changed_by: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., version: _Optional[int] = ..., changed_at_us: _Optional[int] = ..., changed_by: _Optional[str] = ...) -> None: ...

class UsedSetting(_message.Message):
    __slots__ = ("name", "value", "source")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    source: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., source: _Optional[str] = ...) -> None: ...

class ShowSettingsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ShowSettingsReply(_message.Message):
    __slots__ = ("broker", "used", "stored", "version")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    broker: str
    used: _containers.RepeatedCompositeFieldContainer[UsedSetting]
    stored: _containers.RepeatedCompositeFieldContainer[StoredSetting]
    version: int
    def __init__(self, broker: _Optional[str] = ..., used: _Optional[_Iterable[_Union[UsedSetting, _Mapping]]] = ..., stored: _Optional[_Iterable[_Union[StoredSetting, _Mapping]]] = ..., version: _Optional[int] = ...) -> None: ...

class ChangeSettingRequest(_message.Message):
    __slots__ = ("name", "value", "as_of", "version", "changed_by")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CHANGED_BY_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    as_of: int
    version: int
    changed_by: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., as_of: _Optional[int] = ..., version: _Optional[int] = ..., changed_by: _Optional[str] = ...) -> None: ...

class ChangeSettingReply(_message.Message):
    __slots__ = ("setting",)
    SETTING_FIELD_NUMBER: _ClassVar[int]
    setting: StoredSetting
    def __init__(self, setting: _Optional[_Union[StoredSetting, _Mapping]] = ...) -> None: ...

class SettingHistoryRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class SettingHistoryReply(_message.Message):
    __slots__ = ("changes",)
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[StoredSetting]
    def __init__(self, changes: _Optional[_Iterable[_Union[StoredSetting, _Mapping]]] = ...) -> None: ...

class WatchSettingsRequest(_message.Message):
    __slots__ = ("prefixes", "version", "wait_ms")
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    prefixes: _containers.RepeatedScalarFieldContainer[str]
    version: int
    wait_ms: int
    def __init__(self, prefixes: _Optional[_Iterable[str]] = ..., version: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class WatchSettingsReply(_message.Message):
    __slots__ = ("version", "settings")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    version: int
    settings: _containers.RepeatedCompositeFieldContainer[StoredSetting]
    def __init__(self, version: _Optional[int] = ..., settings: _Optional[_Iterable[_Union[StoredSetting, _Mapping]]] = ...) -> None: ...
