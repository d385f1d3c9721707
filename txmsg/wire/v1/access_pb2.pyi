from txmsg.wire.v1 import rules_pb2 as _rules_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AccessToken(_message.Message):
    __slots__ = ("id", "created_at_us", "expires_at_us")
    ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_US_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_US_FIELD_NUMBER: _ClassVar[int]
    id: str
    created_at_us: int
    expires_at_us: int
    def __init__(self, id: _Optional[str] = ..., created_at_us: _Optional[int] = ..., expires_at_us: _Optional[int] = ...) -> None: ...

class AccessKey(_message.Message):
    __slots__ = ("id", "created_at_us")
    ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_US_FIELD_NUMBER: _ClassVar[int]
    id: str
    created_at_us: int
    def __init__(self, id: _Optional[str] = ..., created_at_us: _Optional[int] = ...) -> None: ...

class AccessUser(_message.Message):
    __slots__ = ("name", "roles", "certificate", "created_at_us", "limits", "tokens", "access_keys")
    class LimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_US_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCESS_KEYS_FIELD_NUMBER: _ClassVar[int]
    name: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    certificate: str
    created_at_us: int
    limits: _containers.ScalarMap[str, float]
    tokens: _containers.RepeatedCompositeFieldContainer[AccessToken]
    access_keys: _containers.RepeatedCompositeFieldContainer[AccessKey]
    def __init__(self, name: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., certificate: _Optional[str] = ..., created_at_us: _Optional[int] = ..., limits: _Optional[_Mapping[str, float]] = ..., tokens: _Optional[_Iterable[_Union[AccessToken, _Mapping]]] = ..., access_keys: _Optional[_Iterable[_Union[AccessKey, _Mapping]]] = ...) -> None: ...

class WhoAmIRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WhoAmIReply(_message.Message):
    __slots__ = ("name", "roles", "authentication", "credential", "expires_at_us", "rules")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    AUTHENTICATION_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_US_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    name: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    authentication: bool
    credential: str
    expires_at_us: int
    rules: _containers.RepeatedCompositeFieldContainer[_rules_pb2.AccessRule]
    def __init__(self, name: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., authentication: bool = ..., credential: _Optional[str] = ..., expires_at_us: _Optional[int] = ..., rules: _Optional[_Iterable[_Union[_rules_pb2.AccessRule, _Mapping]]] = ...) -> None: ...

class ListUsersRequest(_message.Message):
    __slots__ = ("limit", "after", "contains", "name")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    CONTAINS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    limit: int
    after: str
    contains: str
    name: str
    def __init__(self, limit: _Optional[int] = ..., after: _Optional[str] = ..., contains: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ListUsersReply(_message.Message):
    __slots__ = ("users", "next")
    USERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[AccessUser]
    next: str
    def __init__(self, users: _Optional[_Iterable[_Union[AccessUser, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class CreateUserRequest(_message.Message):
    __slots__ = ("name", "roles", "certificate", "expires_at_us")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_US_FIELD_NUMBER: _ClassVar[int]
    name: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    certificate: str
    expires_at_us: int
    def __init__(self, name: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., certificate: _Optional[str] = ..., expires_at_us: _Optional[int] = ...) -> None: ...

class CreateUserReply(_message.Message):
    __slots__ = ("user", "token")
    USER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    user: AccessUser
    token: str
    def __init__(self, user: _Optional[_Union[AccessUser, _Mapping]] = ..., token: _Optional[str] = ...) -> None: ...

class AlterUserRequest(_message.Message):
    __slots__ = ("name", "add_roles", "remove_roles", "certificate")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADD_ROLES_FIELD_NUMBER: _ClassVar[int]
    REMOVE_ROLES_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    add_roles: _containers.RepeatedScalarFieldContainer[str]
    remove_roles: _containers.RepeatedScalarFieldContainer[str]
    certificate: str
    def __init__(self, name: _Optional[str] = ..., add_roles: _Optional[_Iterable[str]] = ..., remove_roles: _Optional[_Iterable[str]] = ..., certificate: _Optional[str] = ...) -> None: ...

class AlterUserReply(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: AccessUser
    def __init__(self, user: _Optional[_Union[AccessUser, _Mapping]] = ...) -> None: ...

class RotateTokenRequest(_message.Message):
    __slots__ = ("name", "expires_at_us")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_US_FIELD_NUMBER: _ClassVar[int]
    name: str
    expires_at_us: int
    def __init__(self, name: _Optional[str] = ..., expires_at_us: _Optional[int] = ...) -> None: ...

class RotateTokenReply(_message.Message):
    __slots__ = ("user", "token")
    USER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    user: AccessUser
    token: str
    def __init__(self, user: _Optional[_Union[AccessUser, _Mapping]] = ..., token: _Optional[str] = ...) -> None: ...

class CreateAccessKeyRequest(_message.Message):
    __slots__ = ("name", "id", "sealed_secret")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    SEALED_SECRET_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: str
    sealed_secret: bytes
    def __init__(self, name: _Optional[str] = ..., id: _Optional[str] = ..., sealed_secret: _Optional[bytes] = ...) -> None: ...

class CreateAccessKeyReply(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: AccessUser
    def __init__(self, user: _Optional[_Union[AccessUser, _Mapping]] = ...) -> None: ...

class RevokeRequest(_message.Message):
    __slots__ = ("name", "token", "access_key")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ACCESS_KEY_FIELD_NUMBER: _ClassVar[int]
    name: str
    token: str
    access_key: str
    def __init__(self, name: _Optional[str] = ..., token: _Optional[str] = ..., access_key: _Optional[str] = ...) -> None: ...

class RevokeReply(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: AccessUser
    def __init__(self, user: _Optional[_Union[AccessUser, _Mapping]] = ...) -> None: ...

class LimitUserRequest(_message.Message):
    __slots__ = ("name", "limits", "others_default")
    class LimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    OTHERS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    name: str
    limits: _containers.ScalarMap[str, float]
    others_default: bool
    def __init__(self, name: _Optional[str] = ..., limits: _Optional[_Mapping[str, float]] = ..., others_default: bool = ...) -> None: ...

class LimitUserReply(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: AccessUser
    def __init__(self, user: _Optional[_Union[AccessUser, _Mapping]] = ...) -> None: ...

class DeleteUserRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteUserReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchAccessRequest(_message.Message):
    __slots__ = ("version", "wait_ms", "access_keys")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    ACCESS_KEYS_FIELD_NUMBER: _ClassVar[int]
    version: int
    wait_ms: int
    access_keys: bool
    def __init__(self, version: _Optional[int] = ..., wait_ms: _Optional[int] = ..., access_keys: bool = ...) -> None: ...

class WatchedToken(_message.Message):
    __slots__ = ("id", "user", "secret_sha256", "expires_at_us")
    ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    SECRET_SHA256_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_US_FIELD_NUMBER: _ClassVar[int]
    id: str
    user: str
    secret_sha256: bytes
    expires_at_us: int
    def __init__(self, id: _Optional[str] = ..., user: _Optional[str] = ..., secret_sha256: _Optional[bytes] = ..., expires_at_us: _Optional[int] = ...) -> None: ...

class WatchedAccessKey(_message.Message):
    __slots__ = ("id", "user", "sealed_secret")
    ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    SEALED_SECRET_FIELD_NUMBER: _ClassVar[int]
    id: str
    user: str
    sealed_secret: bytes
    def __init__(self, id: _Optional[str] = ..., user: _Optional[str] = ..., sealed_secret: _Optional[bytes] = ...) -> None: ...

class WatchAccessReply(_message.Message):
    __slots__ = ("version", "users", "tokens", "rules", "access_keys")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    ACCESS_KEYS_FIELD_NUMBER: _ClassVar[int]
    version: int
    users: _containers.RepeatedCompositeFieldContainer[AccessUser]
    tokens: _containers.RepeatedCompositeFieldContainer[WatchedToken]
    rules: _containers.RepeatedCompositeFieldContainer[_rules_pb2.AccessRule]
    access_keys: _containers.RepeatedCompositeFieldContainer[WatchedAccessKey]
    def __init__(self, version: _Optional[int] = ..., users: _Optional[_Iterable[_Union[AccessUser, _Mapping]]] = ..., tokens: _Optional[_Iterable[_Union[WatchedToken, _Mapping]]] = ..., rules: _Optional[_Iterable[_Union[_rules_pb2.AccessRule, _Mapping]]] = ..., access_keys: _Optional[_Iterable[_Union[WatchedAccessKey, _Mapping]]] = ...) -> None: ...
