"""The effect ledger and approvals as data: what an effect may be in, who holds a key, who was asked and what they said.

An effect is the change a call makes in the outside world. It is held by its key from the moment it may have begun until
it is known that nothing happened.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Literal

from toolfleet.schemas.ids import CallId, RunId
from toolfleet.schemas.outcomes import Tier
from toolfleet.schemas.results import CallResult


class EffectState(StrEnum):
    """What is known of an effect."""

    DISPATCHED = "dispatched"  # claimed; its request may be out
    RECONCILING = "reconciling"  # its outcome is unknown, and is being asked for
    HAPPENED = "happened"
    BUSINESS_ERROR = "business_error"
    REFUSED = "refused"  # by the other side, before anything was done
    NOT_SENT = "not_sent"
    DID_NOT_HAPPEN = "did_not_happen"  # asked for, and believed
    NEEDS_HUMAN = "needs_human"


HOLDING: Final = frozenset(
    {EffectState.DISPATCHED, EffectState.RECONCILING, EffectState.HAPPENED, EffectState.NEEDS_HUMAN}
)
BEGUN: Final = frozenset({EffectState.DISPATCHED, EffectState.RECONCILING})


@dataclass(frozen=True, slots=True)
class Entry:
    """The ledger's row of one effect. `send_by`: the first byte leaves before it, or never. `asked_at`: when the last
    question what became of it was begun; `tries`: how many of them had no answer. `doubt`: an earlier attempt under the
    same key may have acted."""

    key: str
    state: EffectState
    attempt: int
    send_by: float
    asked_at: float = 0.0
    tries: int = 0
    doubt: bool = False
    approval_id: str | None = None

    @property
    def begun(self) -> bool:
        return self.state in BEGUN


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a key. `answer`: JSON text of what an operator said that it came to."""

    run_id: RunId
    call_id: CallId
    state: EffectState
    result: CallResult | None = None
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """What the declaration of a tool says of its effects and of who is asked; fixed when the call was admitted."""

    reconciles: bool = False
    reconcile_is_final: bool = False
    asks: bool = False  # somebody has to approve it
    two_person: bool = False
    double_confirm: bool = False
    grantable: bool = False  # a permission its principal lacks may be granted for one call

    def unasked(self) -> Terms:
        """Of a fleet that asks nobody."""
        return replace(self, asks=False, grantable=False)


NO_TERMS: Final = Terms()


class ApprovalStatus(StrEnum):
    PENDING = "pending"
    GRANTED = "granted"
    REJECTED = "rejected"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"  # its call was settled without it, or what granted it holds no more


@dataclass(frozen=True, slots=True)
class Approval:
    """A question to a human about one call: bound to the call and to the hash of its canonical arguments.

    `steps`: confirmations it takes; `distinct`: each by another person; `by_another`: none of them by whom the run acts
    for. `granted_by`: who has confirmed so far. `summary`: the tool's own words, never the model's. `permissions`: what
    whom the run acts for lacks, and is granted with it, for this call alone.
    """

    id: str
    status: ApprovalStatus
    tier: Tier
    arguments_hash: str
    requested_at: float
    expires_at: float
    requested_by: str = ""
    summary: str = ""
    steps: int = 1
    distinct: bool = False
    by_another: bool = False
    granted_by: tuple[str, ...] = ()
    decided_at: float | None = None
    reason: str = ""
    standing: str | None = None  # the standing approval that granted it
    permissions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StandingApproval:
    """Calls that need not be asked for: this tool, with arguments like these, of this tenant, until then.

    `arguments`: JSON object; a call fits if its arguments have each of these values. Only what is named is compared.
    """

    id: str
    tenant: str
    tool: str
    arguments: dict[str, Any]
    expires_at: float
    created_by: str
    created_at: float = 0.0
    tier_max: Tier = Tier.HIGH


@dataclass(frozen=True, slots=True)
class Audit:
    """One decision about an approval, or one that was refused: by whom, about what, why; and (`call`) what a call above
    low came to that nobody was asked about."""

    action: str  # call | ask | claim | approve | reject | edit | resolve | standing | standing_add | standing_end | result
    accepted: bool
    reason: str
    by: str = ""
    tenant: str = ""
    run_id: str | None = None
    call_id: str | None = None
    approval_id: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Happened:
    """What `reconcile` returns where the effect happened; `result` is what the tool would have returned."""

    result: Any = None
    answer: Literal["happened"] = "happened"


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """What `reconcile` returns where the other side has never heard of the key."""

    answer: Literal["did_not_happen"] = "did_not_happen"


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """What `reconcile` returns where it cannot tell now."""

    answer: Literal["no_answer"] = "no_answer"


def arguments_hash(arguments: str) -> str:
    """Of canonical arguments (RFC 8785): what an approval is bound to."""
    return hashlib.sha256(arguments.encode()).hexdigest()


def effect_key(
    *, scope: str, tenant: str, tool: str, arguments: str, business: str | None, unique: str
) -> str:
    """The key that holds an effect: the tool's own business key, or scope, tool and canonical arguments.

    `unique` is the call of a repeatable tool, else empty: two such calls are two effects.
    """
    if business is not None:
        text = f"{tenant}/{business}"
        return text if len(text) <= 200 else f"{text[:120]}#{arguments_hash(text)}"
    return f"{tenant}/{scope}/{tool}/{arguments_hash(arguments)[:32]}{'/' + unique if unique else ''}"
