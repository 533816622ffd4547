from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FromClient(_message.Message):
    __slots__ = ("hello", "answer", "piece", "progress", "goodbye")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    answer: Answer
    piece: bytes
    progress: Progress
    goodbye: Goodbye
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., piece: _Optional[bytes] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class FromServer(_message.Message):
    __slots__ = ("welcome", "wait", "refused", "task", "piece", "cancel", "finished")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    wait: Wait
    refused: Refused
    task: Task
    piece: bytes
    cancel: Cancel
    finished: Finished
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., wait: _Optional[_Union[Wait, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., task: _Optional[_Union[Task, _Mapping]] = ..., piece: _Optional[bytes] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("software", "name", "identity", "device", "held")
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    software: str
    name: str
    identity: str
    device: str
    held: Held
    def __init__(self, software: _Optional[str] = ..., name: _Optional[str] = ..., identity: _Optional[str] = ..., device: _Optional[str] = ..., held: _Optional[_Union[Held, _Mapping]] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("task", "bytes", "checksum")
    TASK_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    task: int
    bytes: int
    checksum: int
    def __init__(self, task: _Optional[int] = ..., bytes: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("run", "experiment")
    RUN_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_FIELD_NUMBER: _ClassVar[int]
    run: str
    experiment: str
    def __init__(self, run: _Optional[str] = ..., experiment: _Optional[str] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason", "final")
    REASON_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    reason: str
    final: bool
    def __init__(self, reason: _Optional[str] = ..., final: bool = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("task", "question", "payload_bytes", "offset", "held", "piece")
    TASK_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    task: int
    question: bytes
    payload_bytes: int
    offset: int
    held: Held
    piece: bytes
    def __init__(self, task: _Optional[int] = ..., question: _Optional[bytes] = ..., payload_bytes: _Optional[int] = ..., offset: _Optional[int] = ..., held: _Optional[_Union[Held, _Mapping]] = ..., piece: _Optional[bytes] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("task", "reply", "failure", "payload_bytes", "offset", "download_seconds", "piece")
    TASK_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DOWNLOAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    task: int
    reply: bytes
    failure: Failure
    payload_bytes: int
    offset: int
    download_seconds: float
    piece: bytes
    def __init__(self, task: _Optional[int] = ..., reply: _Optional[bytes] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., payload_bytes: _Optional[int] = ..., offset: _Optional[int] = ..., download_seconds: _Optional[float] = ..., piece: _Optional[bytes] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("code", "reason")
    class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        FAILED: _ClassVar[Failure.Code]
        CANNOT_NOW: _ClassVar[Failure.Code]
        FORGOT: _ClassVar[Failure.Code]
    FAILED: Failure.Code
    CANNOT_NOW: Failure.Code
    FORGOT: Failure.Code
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    code: Failure.Code
    reason: str
    def __init__(self, code: _Optional[_Union[Failure.Code, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("task", "phase", "done", "of")
    class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        DOWNLOADING: _ClassVar[Progress.Phase]
        TRAINING: _ClassVar[Progress.Phase]
    DOWNLOADING: Progress.Phase
    TRAINING: Progress.Phase
    TASK_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    task: int
    phase: Progress.Phase
    done: int
    of: int
    def __init__(self, task: _Optional[int] = ..., phase: _Optional[_Union[Progress.Phase, str]] = ..., done: _Optional[int] = ..., of: _Optional[int] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("task",)
    TASK_FIELD_NUMBER: _ClassVar[int]
    task: int
    def __init__(self, task: _Optional[int] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("summary", "counted")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    summary: str
    counted: int
    def __init__(self, summary: _Optional[str] = ..., counted: _Optional[int] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Question(_message.Message):
    __slots__ = ("introduce", "train", "evaluate", "audit", "recentre", "notice")
    INTRODUCE_FIELD_NUMBER: _ClassVar[int]
    TRAIN_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    RECENTRE_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    introduce: Introduce
    train: Order
    evaluate: Order
    audit: Order
    recentre: Recentring
    notice: Notice
    def __init__(self, introduce: _Optional[_Union[Introduce, _Mapping]] = ..., train: _Optional[_Union[Order, _Mapping]] = ..., evaluate: _Optional[_Union[Order, _Mapping]] = ..., audit: _Optional[_Union[Order, _Mapping]] = ..., recentre: _Optional[_Union[Recentring, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("introduction", "report", "evaluation", "control", "done")
    INTRODUCTION_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    introduction: Introduction
    report: Report
    evaluation: Evaluation
    control: Control
    done: Done
    def __init__(self, introduction: _Optional[_Union[Introduction, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., evaluation: _Optional[_Union[Evaluation, _Mapping]] = ..., control: _Optional[_Union[Control, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ...) -> None: ...

class Introduce(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Introduction(_message.Message):
    __slots__ = ("name", "identity", "frozen")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    identity: str
    frozen: str
    def __init__(self, name: _Optional[str] = ..., identity: _Optional[str] = ..., frozen: _Optional[str] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("plan", "history", "given")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    plan: Plan
    history: History
    given: int
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ..., history: _Optional[_Union[History, _Mapping]] = ..., given: _Optional[int] = ...) -> None: ...

class History(_message.Message):
    __slots__ = ("counted", "recentred", "digest")
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    RECENTRED_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    counted: int
    recentred: int
    digest: int
    def __init__(self, counted: _Optional[int] = ..., recentred: _Optional[int] = ..., digest: _Optional[int] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("round", "local_steps", "probability", "learning_rate", "density", "precision", "step_exponent", "seed", "cohort", "seat")
    class Precision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        FLOAT32: _ClassVar[Plan.Precision]
        BFLOAT16: _ClassVar[Plan.Precision]
        GRID: _ClassVar[Plan.Precision]
    FLOAT32: Plan.Precision
    BFLOAT16: Plan.Precision
    GRID: Plan.Precision
    ROUND_FIELD_NUMBER: _ClassVar[int]
    LOCAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    DENSITY_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    STEP_EXPONENT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    SEAT_FIELD_NUMBER: _ClassVar[int]
    round: int
    local_steps: int
    probability: float
    learning_rate: float
    density: float
    precision: Plan.Precision
    step_exponent: int
    seed: int
    cohort: int
    seat: int
    def __init__(self, round: _Optional[int] = ..., local_steps: _Optional[int] = ..., probability: _Optional[float] = ..., learning_rate: _Optional[float] = ..., density: _Optional[float] = ..., precision: _Optional[_Union[Plan.Precision, str]] = ..., step_exponent: _Optional[int] = ..., seed: _Optional[int] = ..., cohort: _Optional[int] = ..., seat: _Optional[int] = ...) -> None: ...

class Recentring(_message.Message):
    __slots__ = ("number", "history")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    number: int
    history: History
    def __init__(self, number: _Optional[int] = ..., history: _Optional[_Union[History, _Mapping]] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("client", "round", "train_seconds", "encode_seconds", "save_seconds", "memory_mb", "vram_mb", "given")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TRAIN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ENCODE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SAVE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    VRAM_MB_FIELD_NUMBER: _ClassVar[int]
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    client: str
    round: int
    train_seconds: float
    encode_seconds: float
    save_seconds: float
    memory_mb: float
    vram_mb: float
    given: int
    def __init__(self, client: _Optional[str] = ..., round: _Optional[int] = ..., train_seconds: _Optional[float] = ..., encode_seconds: _Optional[float] = ..., save_seconds: _Optional[float] = ..., memory_mb: _Optional[float] = ..., vram_mb: _Optional[float] = ..., given: _Optional[int] = ...) -> None: ...

class Evaluation(_message.Message):
    __slots__ = ("loss", "examples", "means")
    class MeansEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    LOSS_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    MEANS_FIELD_NUMBER: _ClassVar[int]
    loss: float
    examples: int
    means: _containers.ScalarMap[str, float]
    def __init__(self, loss: _Optional[float] = ..., examples: _Optional[int] = ..., means: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Control(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Done(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
