"""The exception tree. Outcomes are values; an exception is a bug, bad input or broken infrastructure.

    ToolfleetError
    ├── InputError                 what the caller handed in cannot be accepted; nothing was stored
    │   ├── UnknownAgent           ├── UnknownTool          ├── UnknownRun
    │   ├── InvalidDefinition      ├── RunNotFinished       ├── IdempotencyConflict
    │   ├── UnknownDead            ├── TooLarge
    │   ├── UnknownApproval        ├── UnknownEffect        ├── UnknownBatch
    │   ├── BatchBusy              ├── BatchRefused         ├── UnknownFile
    │   └── NotAllowed
    ├── MessageRefused             a queue message that cannot be trusted or read: to dead
    │   ├── MalformedMessage       ├── UnsignedMessage      ├── AlteredMessage
    │   ├── OversizedMessage       └── NewerMessage         held, then dead
    ├── StoreError
    │   ├── NotMigrated            ├── NewerSchema          └── StoreUnavailable
    ├── BrokerUnavailable
    ├── FilesUnavailable           where the bytes of files are cannot be reached, or is full
    ├── CacheUnavailable           what is shared through the cache is counted per process until it is back
    ├── ModelError                 carries a ModelFault
    ├── FleetBusy                  another process holds this folder's fleet
    ├── UnsafeSettings             refused at start, with the reason
    ├── KeyRefused                 the key is of nobody, expired, revoked, or not for this
    ├── QuotaExceeded              a tenant uses all that it may; later, the same is accepted
    └── ToolError                  what a tool raises to say how it failed
        ├── BusinessError          ├── PermissionDenied
        ├── InvalidArguments       ├── Retryable
        └── NotSent                └── Refused

Messages say what, which one, and what to do now. No payloads and no secrets in them.
"""

from __future__ import annotations

from typing import Any

from toolfleet.schemas.model import ModelFault


class ToolfleetError(Exception):
    """Root of all errors of ours. `hint` says what to do now; `code` is for programs."""

    code = "error"

    def __init__(self, message: str, *, hint: str = "", **fields: Any) -> None:
        super().__init__(message if not hint else f"{message}\n{hint}")
        self.message = message
        self.hint = hint
        self.fields = fields


class InputError(ToolfleetError):
    code = "invalid_input"


class UnknownAgent(InputError):
    code = "unknown_agent"


class UnknownTool(InputError):
    code = "unknown_tool"


class UnknownRun(InputError):
    code = "unknown_run"


class UnknownDead(InputError):
    code = "unknown_dead_letter"


class UnknownApproval(InputError):
    code = "unknown_approval"


class UnknownEffect(InputError):
    code = "unknown_effect"


class UnknownBatch(InputError):
    code = "unknown_batch"


class UnknownFile(InputError):
    code = "unknown_file"


class BatchBusy(InputError):
    """Not now: the batch is being uploaded, or is at work."""

    code = "batch_busy"


class BatchRefused(InputError):
    """The file cannot be accepted, and nothing of it ran. `faults`: what is wrong, each with its line."""

    code = "batch_refused"

    def __init__(self, message: str, *, hint: str = "", **fields: Any) -> None:
        super().__init__(message, hint=hint, **fields)
        self.faults = fields.get("faults", ())


class NotAllowed(InputError):
    """A decision that was refused; `reason` says why, and it was written down."""

    code = "not_allowed"

    def __init__(self, message: str, *, reason: str, hint: str = "", **fields: Any) -> None:
        super().__init__(message, hint=hint, reason=reason, **fields)
        self.reason = reason


class InvalidDefinition(InputError):
    code = "invalid_definition"


class RunNotFinished(InputError):
    code = "run_not_finished"


class IdempotencyConflict(InputError):
    code = "idempotency_conflict"


class TooLarge(InputError):
    code = "too_large"


class MessageRefused(ToolfleetError):
    """`reason` is stored with the dead letter."""

    code = "message_refused"


class MalformedMessage(MessageRefused):
    code = "malformed_message"


class UnsignedMessage(MessageRefused):
    code = "unsigned_message"


class AlteredMessage(MessageRefused):
    """The signature does not fit body and queue: altered, or moved from another queue."""

    code = "altered_message"


class OversizedMessage(MessageRefused):
    code = "oversized_message"


class NewerMessage(MessageRefused):
    """Signed by us, of a version this process cannot read. `published_at` tells how long it has been held."""

    code = "newer_message"

    def __init__(self, message: str, *, published_at: float, hint: str = "", **fields: Any) -> None:
        super().__init__(message, hint=hint, **fields)
        self.published_at = published_at


class StoreError(ToolfleetError):
    code = "store_error"


class NotMigrated(StoreError):
    code = "not_migrated"


class NewerSchema(StoreError):
    code = "newer_schema"


class StoreUnavailable(StoreError):
    code = "store_unavailable"


class BrokerUnavailable(ToolfleetError):
    code = "broker_unavailable"


class CacheUnavailable(ToolfleetError):
    code = "cache_unavailable"


class FilesUnavailable(ToolfleetError):
    code = "files_unavailable"


class FleetBusy(ToolfleetError):
    code = "fleet_busy"


class UnsafeSettings(ToolfleetError):
    code = "unsafe_settings"


class KeyRefused(ToolfleetError):
    """`reason`: no_key, unknown_key, expired_key, revoked_key, wrong_scope, wrong_tenant, agent_not_allowed, …"""

    code = "key_refused"

    def __init__(self, message: str, *, reason: str, hint: str = "", **fields: Any) -> None:
        super().__init__(message, hint=hint, reason=reason, **fields)
        self.reason = reason


class QuotaExceeded(ToolfleetError):
    """`quota`: which of them; `retry_after_s`: when the same may be accepted."""

    code = "quota_exceeded"

    def __init__(self, message: str, *, quota: str, retry_after_s: float, hint: str = "") -> None:
        super().__init__(message, hint=hint, quota=quota, retry_after_s=retry_after_s)
        self.quota = quota
        self.retry_after_s = retry_after_s


class ModelError(ToolfleetError):
    code = "model_error"

    def __init__(self, fault: ModelFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class ToolError(ToolfleetError):
    """Raised by tools. Its message is shown to the model as it stands."""

    code = "tool_error"

    def to_fields(self) -> dict[str, Any]:
        """What travels from a child process with the exception (JSON)."""
        return dict(self.fields)


class BusinessError(ToolError):
    """A rule, a missing thing or a conflict: final for this call, and the model may tell the user.

    `reason_code` is for programs, `suggested_action` and `user_action_required` guide the model. `no_effect`: the tool
    knows that nothing was done under this idempotency key, in an earlier attempt that was lost neither; without it a
    refusal after a lost attempt of an effect cannot be believed ("already refunded" may be about that attempt), and
    the call ends `needs_human`.
    """

    code = "business_error"

    def __init__(
        self,
        message: str,
        *,
        reason_code: str = "business_error",
        suggested_action: str = "",
        user_action_required: bool = False,
        no_effect: bool = False,
    ) -> None:
        super().__init__(
            message,
            reason_code=reason_code,
            suggested_action=suggested_action,
            user_action_required=user_action_required,
            no_effect=no_effect,
        )


class InvalidArguments(ToolError):
    """The arguments fit the schema and not the types of the function; no line of it ran."""

    code = "invalid_arguments"


class PermissionDenied(ToolError):
    """The run's principal may not do this; ends the run unless the tool says `on_denied="tell_model"`."""

    code = "denied"

    def __init__(self, message: str = "not permitted", *, reason_code: str = "permission_denied") -> None:
        super().__init__(message, reason_code=reason_code)


class Retryable(ToolError):
    """A passing failure (429, 5xx, connection) of a read-only tool; `retry_after_s` is a floor for the next try."""

    code = "retryable"

    def __init__(
        self, message: str, *, retry_after_s: float | None = None, reason_code: str = "unavailable"
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s, reason_code=reason_code)


class NotSent(ToolError):
    """An effect whose request never left: the other side cannot know of it. Tried again, as a read-only call is."""

    code = "not_sent"

    def __init__(self, message: str = "the request was not sent", *, reason_code: str = "not_sent") -> None:
        super().__init__(message, reason_code=reason_code)


class Refused(ToolError):
    """An effect the other side refused before it did anything (429, no such service now): tried again after
    `retry_after_s`."""

    code = "refused"

    def __init__(
        self, message: str, *, retry_after_s: float | None = None, reason_code: str = "refused"
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s, reason_code=reason_code)
