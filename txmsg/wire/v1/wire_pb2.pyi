from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Greeting(_message.Message):
    __slots__ = ("versions", "release", "features", "blocking", "token")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    BLOCKING_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedScalarFieldContainer[int]
    release: str
    features: _containers.RepeatedScalarFieldContainer[str]
    blocking: bool
    token: str
    def __init__(self, versions: _Optional[_Iterable[int]] = ..., release: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., blocking: bool = ..., token: _Optional[str] = ...) -> None: ...

class CallError(_message.Message):
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
