from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AccessRule(_message.Message):
    __slots__ = ("subject", "action", "kind", "pattern")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    subject: str
    action: str
    kind: str
    pattern: str
    def __init__(self, subject: _Optional[str] = ..., action: _Optional[str] = ..., kind: _Optional[str] = ..., pattern: _Optional[str] = ...) -> None: ...

class ListRulesRequest(_message.Message):
    __slots__ = ("subject",)
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    subject: str
    def __init__(self, subject: _Optional[str] = ...) -> None: ...

class ListRulesReply(_message.Message):
    __slots__ = ("rules",)
    RULES_FIELD_NUMBER: _ClassVar[int]
    rules: _containers.RepeatedCompositeFieldContainer[AccessRule]
    def __init__(self, rules: _Optional[_Iterable[_Union[AccessRule, _Mapping]]] = ...) -> None: ...

class AllowRequest(_message.Message):
    __slots__ = ("rule",)
    RULE_FIELD_NUMBER: _ClassVar[int]
    rule: AccessRule
    def __init__(self, rule: _Optional[_Union[AccessRule, _Mapping]] = ...) -> None: ...

class AllowReply(_message.Message):
    __slots__ = ("changed",)
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    changed: bool
    def __init__(self, changed: bool = ...) -> None: ...

class DenyRequest(_message.Message):
    __slots__ = ("rule",)
    RULE_FIELD_NUMBER: _ClassVar[int]
    rule: AccessRule
    def __init__(self, rule: _Optional[_Union[AccessRule, _Mapping]] = ...) -> None: ...

class DenyReply(_message.Message):
    __slots__ = ("changed", "still")
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    STILL_FIELD_NUMBER: _ClassVar[int]
    changed: bool
    still: AccessRule
    def __init__(self, changed: bool = ..., still: _Optional[_Union[AccessRule, _Mapping]] = ...) -> None: ...

class CheckRuleRequest(_message.Message):
    __slots__ = ("subject", "action", "kind", "name")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    subject: str
    action: str
    kind: str
    name: str
    def __init__(self, subject: _Optional[str] = ..., action: _Optional[str] = ..., kind: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class CheckRuleReply(_message.Message):
    __slots__ = ("allowed", "rule", "roles")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    rule: AccessRule
    roles: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, allowed: bool = ..., rule: _Optional[_Union[AccessRule, _Mapping]] = ..., roles: _Optional[_Iterable[str]] = ...) -> None: ...
