"""Every error that Longspan shows to a person.

An error says what was wrong, what was expected and what to do. The command line prints `str(error)` and ends
with `exit_code`; the server answers with `status`. Anything that is not a `LongspanError` is a bug.

    LongspanError                exit 1, status 500
    ├── UsageError               exit 2, status 400   a value given by the user cannot be used
    │   ├── ModelError           a model file or reference cannot be read
    │   │   ├── ArchitectureError    the model cannot be split, and why
    │   │   └── PackageError         a layer package is damaged, incomplete or of another model
    │   ├── PlacementError       layers cannot be placed on the nodes, and why
    │   ├── LockError            a topology lock cannot be read
    │   ├── UnknownStageError    status 404           no stage of that name has joined
    │   └── RequestError         a request cannot be honoured (carries `param` and `code`)
    │       ├── ContextLengthError   prompt and answer do not fit the context
    │       └── UnknownModelError    status 404
    ├── QueueFullError           status 429, carries `retry_after` seconds
    ├── RequestTimeoutError      status 504           a request waited longer than it may
    ├── RuntimeUnavailableError  the llama.cpp library is missing or of another build
    └── RingError                exit 3, status 503   a stage is missing, refused or lost
        ├── RingIncompleteError      layers are missing for longer than requests wait; carries `retry_after`
        ├── TopologyMismatchError    the ring is not the one of its lock
        └── ProtocolError            bytes on a link that are not of our protocol
"""

from __future__ import annotations

__all__ = [
    "ArchitectureError",
    "ContextLengthError",
    "LockError",
    "LongspanError",
    "ModelError",
    "PackageError",
    "PlacementError",
    "ProtocolError",
    "QueueFullError",
    "RequestError",
    "RequestTimeoutError",
    "RingError",
    "RingIncompleteError",
    "RuntimeUnavailableError",
    "TopologyMismatchError",
    "UnknownModelError",
    "UnknownStageError",
    "UsageError",
]


class LongspanError(Exception):
    """Base of all errors that are shown to a person."""

    exit_code: int = 1
    status: int = 500


class UsageError(LongspanError):
    """A value that the user gave cannot be used."""

    exit_code = 2
    status = 400


class ModelError(UsageError):
    """A model file or model reference cannot be read."""


class ArchitectureError(ModelError):
    """The model's architecture is unknown or cannot be split; the message says why."""


class PackageError(ModelError):
    """A layer package is damaged, incomplete or belongs to another model."""


class PlacementError(UsageError):
    """Layers cannot be placed on the given nodes; the message says which node lacks what."""


class LockError(UsageError):
    """A topology lock is damaged, or of another version."""


class UnknownStageError(UsageError):
    """No stage of this name has joined the ring."""

    status = 404


class RequestError(UsageError):
    """A request that cannot be honoured. `param` names the field, `code` is the OpenAI error code."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ContextLengthError(RequestError):
    """Prompt and answer do not fit the context; the message carries both numbers."""

    def __init__(self, message: str, *, param: str = "messages") -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class UnknownModelError(RequestError):
    """The request names a model that is not served here."""

    status = 404

    def __init__(self, message: str) -> None:
        super().__init__(message, param="model", code="model_not_found")


class QueueFullError(LongspanError):
    """The waiting queue is full. `retry_after` is in seconds."""

    status = 429

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestTimeoutError(LongspanError):
    """A request waited in the queue longer than its deadline or the queue's time-out."""

    status = 504


class RuntimeUnavailableError(LongspanError):
    """The llama.cpp library cannot be used: missing, another build, or another struct layout."""


class RingError(LongspanError):
    """A stage is missing, refused the connection, or was lost."""

    exit_code = 3
    status = 503


class RingIncompleteError(RingError):
    """Layers are missing, and requests do not wait for them any more. `retry_after` is in seconds."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TopologyMismatchError(RingError):
    """The ring that would form is not the one of its lock; the message names the difference."""


class ProtocolError(RingError):
    """Bytes on a link that do not follow the protocol, or a peer of another version."""
