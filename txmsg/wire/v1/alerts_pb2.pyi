from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Alert(_message.Message):
    __slots__ = ("id", "rule", "severity", "state", "labels", "value", "summary", "action", "since_us", "fired_at_us", "resolved_at_us", "notified_at_us", "silences")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    FIRED_AT_US_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_AT_US_FIELD_NUMBER: _ClassVar[int]
    NOTIFIED_AT_US_FIELD_NUMBER: _ClassVar[int]
    SILENCES_FIELD_NUMBER: _ClassVar[int]
    id: int
    rule: str
    severity: str
    state: str
    labels: _containers.ScalarMap[str, str]
    value: float
    summary: str
    action: str
    since_us: int
    fired_at_us: int
    resolved_at_us: int
    notified_at_us: int
    silences: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[int] = ..., rule: _Optional[str] = ..., severity: _Optional[str] = ..., state: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., value: _Optional[float] = ..., summary: _Optional[str] = ..., action: _Optional[str] = ..., since_us: _Optional[int] = ..., fired_at_us: _Optional[int] = ..., resolved_at_us: _Optional[int] = ..., notified_at_us: _Optional[int] = ..., silences: _Optional[_Iterable[int]] = ...) -> None: ...

class Silence(_message.Message):
    __slots__ = ("id", "matchers", "reason", "created_by", "created_at_us", "until_us")
    ID_FIELD_NUMBER: _ClassVar[int]
    MATCHERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_US_FIELD_NUMBER: _ClassVar[int]
    UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    id: int
    matchers: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    created_by: str
    created_at_us: int
    until_us: int
    def __init__(self, id: _Optional[int] = ..., matchers: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., created_by: _Optional[str] = ..., created_at_us: _Optional[int] = ..., until_us: _Optional[int] = ...) -> None: ...

class AlertReceiver(_message.Message):
    __slots__ = ("name", "kind", "waiting", "attempts", "last_error")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    waiting: int
    attempts: int
    last_error: str
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., waiting: _Optional[int] = ..., attempts: _Optional[int] = ..., last_error: _Optional[str] = ...) -> None: ...

class ListAlertsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAlertsReply(_message.Message):
    __slots__ = ("alerts", "silences", "receivers")
    ALERTS_FIELD_NUMBER: _ClassVar[int]
    SILENCES_FIELD_NUMBER: _ClassVar[int]
    RECEIVERS_FIELD_NUMBER: _ClassVar[int]
    alerts: _containers.RepeatedCompositeFieldContainer[Alert]
    silences: _containers.RepeatedCompositeFieldContainer[Silence]
    receivers: _containers.RepeatedCompositeFieldContainer[AlertReceiver]
    def __init__(self, alerts: _Optional[_Iterable[_Union[Alert, _Mapping]]] = ..., silences: _Optional[_Iterable[_Union[Silence, _Mapping]]] = ..., receivers: _Optional[_Iterable[_Union[AlertReceiver, _Mapping]]] = ...) -> None: ...

class AlertHistoryRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class AlertHistoryReply(_message.Message):
    __slots__ = ("alerts",)
    ALERTS_FIELD_NUMBER: _ClassVar[int]
    alerts: _containers.RepeatedCompositeFieldContainer[Alert]
    def __init__(self, alerts: _Optional[_Iterable[_Union[Alert, _Mapping]]] = ...) -> None: ...

class SilenceRequest(_message.Message):
    __slots__ = ("matchers", "for_s", "reason", "created_by")
    MATCHERS_FIELD_NUMBER: _ClassVar[int]
    FOR_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    matchers: _containers.RepeatedScalarFieldContainer[str]
    for_s: float
    reason: str
    created_by: str
    def __init__(self, matchers: _Optional[_Iterable[str]] = ..., for_s: _Optional[float] = ..., reason: _Optional[str] = ..., created_by: _Optional[str] = ...) -> None: ...

class SilenceReply(_message.Message):
    __slots__ = ("silence",)
    SILENCE_FIELD_NUMBER: _ClassVar[int]
    silence: Silence
    def __init__(self, silence: _Optional[_Union[Silence, _Mapping]] = ...) -> None: ...

class UnsilenceRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class UnsilenceReply(_message.Message):
    __slots__ = ("held",)
    HELD_FIELD_NUMBER: _ClassVar[int]
    held: bool
    def __init__(self, held: bool = ...) -> None: ...

class TestAlertsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AlertTest(_message.Message):
    __slots__ = ("receiver", "error")
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    receiver: str
    error: str
    def __init__(self, receiver: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class TestAlertsReply(_message.Message):
    __slots__ = ("receivers",)
    RECEIVERS_FIELD_NUMBER: _ClassVar[int]
    receivers: _containers.RepeatedCompositeFieldContainer[AlertTest]
    def __init__(self, receivers: _Optional[_Iterable[_Union[AlertTest, _Mapping]]] = ...) -> None: ...
