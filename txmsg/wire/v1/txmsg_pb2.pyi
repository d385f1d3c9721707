from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MessageColumns(_message.Message):
    __slots__ = ("topic", "transaction_id", "n", "body", "key", "tag", "headers", "born_at_us", "ordering_key", "deliver_at_us", "first_check_ms", "deliver_after_us")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    BORN_AT_US_FIELD_NUMBER: _ClassVar[int]
    ORDERING_KEY_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_US_FIELD_NUMBER: _ClassVar[int]
    FIRST_CHECK_MS_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AFTER_US_FIELD_NUMBER: _ClassVar[int]
    topic: str
    transaction_id: bytes
    n: _containers.RepeatedScalarFieldContainer[int]
    body: _containers.RepeatedScalarFieldContainer[bytes]
    key: _containers.RepeatedScalarFieldContainer[str]
    tag: _containers.RepeatedScalarFieldContainer[str]
    headers: _containers.RepeatedScalarFieldContainer[bytes]
    born_at_us: _containers.RepeatedScalarFieldContainer[int]
    ordering_key: _containers.RepeatedScalarFieldContainer[str]
    deliver_at_us: _containers.RepeatedScalarFieldContainer[int]
    first_check_ms: _containers.RepeatedScalarFieldContainer[int]
    deliver_after_us: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., transaction_id: _Optional[bytes] = ..., n: _Optional[_Iterable[int]] = ..., body: _Optional[_Iterable[bytes]] = ..., key: _Optional[_Iterable[str]] = ..., tag: _Optional[_Iterable[str]] = ..., headers: _Optional[_Iterable[bytes]] = ..., born_at_us: _Optional[_Iterable[int]] = ..., ordering_key: _Optional[_Iterable[str]] = ..., deliver_at_us: _Optional[_Iterable[int]] = ..., first_check_ms: _Optional[_Iterable[int]] = ..., deliver_after_us: _Optional[_Iterable[int]] = ...) -> None: ...

class Headers(_message.Message):
    __slots__ = ("values",)
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.ScalarMap[str, str]
    def __init__(self, values: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ItemError(_message.Message):
    __slots__ = ("transaction_id", "code", "text")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    transaction_id: bytes
    code: str
    text: str
    def __init__(self, transaction_id: _Optional[bytes] = ..., code: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class SendRequest(_message.Message):
    __slots__ = ("group", "fence_id", "half", "batches")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FENCE_ID_FIELD_NUMBER: _ClassVar[int]
    HALF_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    group: str
    fence_id: bytes
    half: bool
    batches: _containers.RepeatedCompositeFieldContainer[MessageColumns]
    def __init__(self, group: _Optional[str] = ..., fence_id: _Optional[bytes] = ..., half: bool = ..., batches: _Optional[_Iterable[_Union[MessageColumns, _Mapping]]] = ...) -> None: ...

class SendReply(_message.Message):
    __slots__ = ("shard", "errors")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    shard: bytes
    errors: _containers.RepeatedCompositeFieldContainer[ItemError]
    def __init__(self, shard: _Optional[bytes] = ..., errors: _Optional[_Iterable[_Union[ItemError, _Mapping]]] = ...) -> None: ...

class EndTransactionsRequest(_message.Message):
    __slots__ = ("shard", "commit", "rollback", "unknown", "group")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    shard: bytes
    commit: bytes
    rollback: bytes
    unknown: bytes
    group: str
    def __init__(self, shard: _Optional[bytes] = ..., commit: _Optional[bytes] = ..., rollback: _Optional[bytes] = ..., unknown: _Optional[bytes] = ..., group: _Optional[str] = ...) -> None: ...

class EndTransactionsReply(_message.Message):
    __slots__ = ("errors",)
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    errors: _containers.RepeatedCompositeFieldContainer[ItemError]
    def __init__(self, errors: _Optional[_Iterable[_Union[ItemError, _Mapping]]] = ...) -> None: ...

class RecallRequest(_message.Message):
    __slots__ = ("transaction_ids", "n", "topic")
    TRANSACTION_IDS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    transaction_ids: bytes
    n: _containers.RepeatedScalarFieldContainer[int]
    topic: str
    def __init__(self, transaction_ids: _Optional[bytes] = ..., n: _Optional[_Iterable[int]] = ..., topic: _Optional[str] = ...) -> None: ...

class RecallReply(_message.Message):
    __slots__ = ("results",)
    class Result(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[RecallReply.Result]
        RECALLED: _ClassVar[RecallReply.Result]
        ENTERED: _ClassVar[RecallReply.Result]
        UNDECIDED: _ClassVar[RecallReply.Result]
    UNKNOWN: RecallReply.Result
    RECALLED: RecallReply.Result
    ENTERED: RecallReply.Result
    UNDECIDED: RecallReply.Result
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedScalarFieldContainer[RecallReply.Result]
    def __init__(self, results: _Optional[_Iterable[_Union[RecallReply.Result, str]]] = ...) -> None: ...

class Subscription(_message.Message):
    __slots__ = ("topic", "tags")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    tags: str
    def __init__(self, topic: _Optional[str] = ..., tags: _Optional[str] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("queue_id", "token", "epoch", "offset")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    token: int
    epoch: int
    offset: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, queue_id: _Optional[int] = ..., token: _Optional[int] = ..., epoch: _Optional[int] = ..., offset: _Optional[_Iterable[int]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("receipt", "error", "delay_ms", "dead", "rejected", "least")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    receipt: Receipt
    error: str
    delay_ms: int
    dead: bool
    rejected: bool
    least: bool
    def __init__(self, receipt: _Optional[_Union[Receipt, _Mapping]] = ..., error: _Optional[str] = ..., delay_ms: _Optional[int] = ..., dead: bool = ..., rejected: bool = ..., least: bool = ...) -> None: ...

class ReceiveRequest(_message.Message):
    __slots__ = ("group", "client_id", "subscriptions", "max_messages", "wait_ms", "visibility_timeout_ms", "acks", "refusals", "start", "held", "line", "received", "call", "max_bytes", "exact", "runs", "free", "isolates", "alone", "joined")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    ISOLATES_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    group: str
    client_id: str
    subscriptions: _containers.RepeatedCompositeFieldContainer[Subscription]
    max_messages: int
    wait_ms: int
    visibility_timeout_ms: int
    acks: _containers.RepeatedCompositeFieldContainer[Receipt]
    refusals: _containers.RepeatedCompositeFieldContainer[Refusal]
    start: str
    held: _containers.RepeatedCompositeFieldContainer[Receipt]
    line: int
    received: int
    call: int
    max_bytes: int
    exact: bool
    runs: bool
    free: _containers.RepeatedCompositeFieldContainer[Receipt]
    isolates: bool
    alone: _containers.RepeatedCompositeFieldContainer[Receipt]
    joined: _containers.RepeatedCompositeFieldContainer[Receipt]
    def __init__(self, group: _Optional[str] = ..., client_id: _Optional[str] = ..., subscriptions: _Optional[_Iterable[_Union[Subscription, _Mapping]]] = ..., max_messages: _Optional[int] = ..., wait_ms: _Optional[int] = ..., visibility_timeout_ms: _Optional[int] = ..., acks: _Optional[_Iterable[_Union[Receipt, _Mapping]]] = ..., refusals: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ..., start: _Optional[str] = ..., held: _Optional[_Iterable[_Union[Receipt, _Mapping]]] = ..., line: _Optional[int] = ..., received: _Optional[int] = ..., call: _Optional[int] = ..., max_bytes: _Optional[int] = ..., exact: bool = ..., runs: bool = ..., free: _Optional[_Iterable[_Union[Receipt, _Mapping]]] = ..., isolates: bool = ..., alone: _Optional[_Iterable[_Union[Receipt, _Mapping]]] = ..., joined: _Optional[_Iterable[_Union[Receipt, _Mapping]]] = ...) -> None: ...

class DeliveredColumns(_message.Message):
    __slots__ = ("topic", "queue", "receipt", "transaction_id", "n", "body", "key", "tag", "headers", "born_at_us", "stored_at_us", "attempt", "ordering_key", "generation", "losses")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    BORN_AT_US_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_US_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ORDERING_KEY_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    receipt: Receipt
    transaction_id: bytes
    n: _containers.RepeatedScalarFieldContainer[int]
    body: _containers.RepeatedScalarFieldContainer[bytes]
    key: _containers.RepeatedScalarFieldContainer[str]
    tag: _containers.RepeatedScalarFieldContainer[str]
    headers: _containers.RepeatedScalarFieldContainer[bytes]
    born_at_us: _containers.RepeatedScalarFieldContainer[int]
    stored_at_us: _containers.RepeatedScalarFieldContainer[int]
    attempt: _containers.RepeatedScalarFieldContainer[int]
    ordering_key: _containers.RepeatedScalarFieldContainer[str]
    generation: _containers.RepeatedScalarFieldContainer[int]
    losses: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ..., transaction_id: _Optional[bytes] = ..., n: _Optional[_Iterable[int]] = ..., body: _Optional[_Iterable[bytes]] = ..., key: _Optional[_Iterable[str]] = ..., tag: _Optional[_Iterable[str]] = ..., headers: _Optional[_Iterable[bytes]] = ..., born_at_us: _Optional[_Iterable[int]] = ..., stored_at_us: _Optional[_Iterable[int]] = ..., attempt: _Optional[_Iterable[int]] = ..., ordering_key: _Optional[_Iterable[str]] = ..., generation: _Optional[_Iterable[int]] = ..., losses: _Optional[_Iterable[int]] = ...) -> None: ...

class ReceiveReply(_message.Message):
    __slots__ = ("batches", "expired", "pause", "awaited")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[DeliveredColumns]
    expired: _containers.RepeatedCompositeFieldContainer[Receipt]
    pause: str
    awaited: _containers.RepeatedCompositeFieldContainer[Receipt]
    def __init__(self, batches: _Optional[_Iterable[_Union[DeliveredColumns, _Mapping]]] = ..., expired: _Optional[_Iterable[_Union[Receipt, _Mapping]]] = ..., pause: _Optional[str] = ..., awaited: _Optional[_Iterable[_Union[Receipt, _Mapping]]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("client_id", "producer_group", "fence_ids", "checks_unfenced", "consumer_group", "host", "pid", "release")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    FENCE_IDS_FIELD_NUMBER: _ClassVar[int]
    CHECKS_UNFENCED_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    producer_group: str
    fence_ids: _containers.RepeatedScalarFieldContainer[bytes]
    checks_unfenced: bool
    consumer_group: str
    host: str
    pid: int
    release: str
    def __init__(self, client_id: _Optional[str] = ..., producer_group: _Optional[str] = ..., fence_ids: _Optional[_Iterable[bytes]] = ..., checks_unfenced: bool = ..., consumer_group: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., release: _Optional[str] = ...) -> None: ...

class CheckAnswer(_message.Message):
    __slots__ = ("transaction_id", "state")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[CheckAnswer.State]
        COMMIT: _ClassVar[CheckAnswer.State]
        ROLLBACK: _ClassVar[CheckAnswer.State]
    UNKNOWN: CheckAnswer.State
    COMMIT: CheckAnswer.State
    ROLLBACK: CheckAnswer.State
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    transaction_id: bytes
    state: CheckAnswer.State
    def __init__(self, transaction_id: _Optional[bytes] = ..., state: _Optional[_Union[CheckAnswer.State, str]] = ...) -> None: ...

class ClientFrame(_message.Message):
    __slots__ = ("hello", "check_answer")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    CHECK_ANSWER_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    check_answer: CheckAnswer
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., check_answer: _Optional[_Union[CheckAnswer, _Mapping]] = ...) -> None: ...

class Check(_message.Message):
    __slots__ = ("shard", "attempt", "transaction_id", "topic", "body", "key", "tag", "headers", "born_at_us", "stored_at_us", "trace")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    BORN_AT_US_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_US_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    shard: bytes
    attempt: int
    transaction_id: bytes
    topic: str
    body: bytes
    key: str
    tag: str
    headers: bytes
    born_at_us: int
    stored_at_us: int
    trace: str
    def __init__(self, shard: _Optional[bytes] = ..., attempt: _Optional[int] = ..., transaction_id: _Optional[bytes] = ..., topic: _Optional[str] = ..., body: _Optional[bytes] = ..., key: _Optional[str] = ..., tag: _Optional[str] = ..., headers: _Optional[bytes] = ..., born_at_us: _Optional[int] = ..., stored_at_us: _Optional[int] = ..., trace: _Optional[str] = ...) -> None: ...

class RouteChanged(_message.Message):
    __slots__ = ("brokers", "this", "draining", "shard", "is_cut_off")
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    THIS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    IS_CUT_OFF_FIELD_NUMBER: _ClassVar[int]
    brokers: _containers.RepeatedScalarFieldContainer[str]
    this: str
    draining: _containers.RepeatedScalarFieldContainer[str]
    shard: bytes
    is_cut_off: bool
    def __init__(self, brokers: _Optional[_Iterable[str]] = ..., this: _Optional[str] = ..., draining: _Optional[_Iterable[str]] = ..., shard: _Optional[bytes] = ..., is_cut_off: bool = ...) -> None: ...

class BrokerFrame(_message.Message):
    __slots__ = ("check", "route_changed")
    CHECK_FIELD_NUMBER: _ClassVar[int]
    ROUTE_CHANGED_FIELD_NUMBER: _ClassVar[int]
    check: Check
    route_changed: RouteChanged
    def __init__(self, check: _Optional[_Union[Check, _Mapping]] = ..., route_changed: _Optional[_Union[RouteChanged, _Mapping]] = ...) -> None: ...

class RouteRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RouteReply(_message.Message):
    __slots__ = ("shard", "brokers", "this", "draining", "is_cut_off")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    THIS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    IS_CUT_OFF_FIELD_NUMBER: _ClassVar[int]
    shard: bytes
    brokers: _containers.RepeatedScalarFieldContainer[str]
    this: str
    draining: _containers.RepeatedScalarFieldContainer[str]
    is_cut_off: bool
    def __init__(self, shard: _Optional[bytes] = ..., brokers: _Optional[_Iterable[str]] = ..., this: _Optional[str] = ..., draining: _Optional[_Iterable[str]] = ..., is_cut_off: bool = ...) -> None: ...

class HeldRequest(_message.Message):
    __slots__ = ("transaction_ids",)
    TRANSACTION_IDS_FIELD_NUMBER: _ClassVar[int]
    transaction_ids: bytes
    def __init__(self, transaction_ids: _Optional[bytes] = ...) -> None: ...

class HeldReply(_message.Message):
    __slots__ = ("held",)
    HELD_FIELD_NUMBER: _ClassVar[int]
    held: bytes
    def __init__(self, held: _Optional[bytes] = ...) -> None: ...
