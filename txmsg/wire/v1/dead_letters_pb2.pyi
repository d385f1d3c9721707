from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

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
