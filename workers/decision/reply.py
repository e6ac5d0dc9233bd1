"""A model's reply -> proposed calls: our ids, known tools, strict arguments. Pure; the first of the gates.

Everything here is decided by the reply alone, so that the same reply gives the same calls in every process.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import orjson

from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.conversation import Item, ItemCall
from toolfleet.schemas.effects import Terms
from toolfleet.schemas.envelopes import error, not_permitted
from toolfleet.schemas.events import ProposedCall
from toolfleet.schemas.ids import RunId, call_id_of
from toolfleet.schemas.model import ModelReply, RawCall
from toolfleet.schemas.outcomes import ASKED_TIERS, CallOutcome, ReasonCode, Tier
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.tools import ToolSpec
from toolfleet.workers.decision.arguments import FIELD_ERRORS_MAX, Invalid, Unusable, Valid, read_arguments
from toolfleet.workers.decision.policy.evaluate import BREAKER, OUT_OF_ORDER, PERMISSION
from toolfleet.workers.decision.transcript import Transcript, invented, out_of_order

NO_ARGUMENTS: Final = "{}"
_WIRE_ID: Final = re.compile(r"[\x21-\x7e]{1,64}")  # what is longer or not plain comes from no provider's own
_NAME_CHARS_MAX: Final = 64  # OpenAI's limit of a function name
_NAMES_CHARS_MAX: Final = 2_000  # of the list of names in an answer

TRUNCATED_MESSAGE: Final = (
    "Not run: the limit of output tokens was reached while your reply was being written, so its calls are incomplete "
    "and none of them was carried out. Write less in one reply: fewer calls, or shorter arguments."
)


def propose(
    reply: ModelReply,
    agent: AgentSpec,
    run_id: RunId,
    turn: int,
    allowed: frozenset[str] | None,
    items: Sequence[Item] = (),
    excluded: Mapping[str, str] | None = None,
    permissions: Collection[str] = (),
) -> tuple[ProposedCall, ...]:
    """The calls of the reply, in its order; `answer` is set where nothing has to run to know what comes of it.

    `allowed` are the tools that may be called in this turn (None: all), `excluded` why the others may not. `items` are
    all of the conversation before the reply: what must come first is looked for there, and values that must not be
    invented. `permissions` are those of whom the run acts for. A reply that was cut off by the output limit runs
    nothing: which of its calls are whole cannot be told (B009).
    """
    transcript = Transcript(items)
    available = [tool.name for tool in agent.tools if allowed is None or tool.name in allowed]
    wire_ids = _wire_ids(reply.calls, turn)
    proposed = []
    for index, (raw, wire_id) in enumerate(zip(reply.calls, wire_ids, strict=True)):
        gate = _Gate(run_id, turn, index, wire_id)
        spec = agent.tool(raw.name)
        if reply.finish == "length":
            proposed.append(gate.truncated(raw, spec))
        elif spec is None:
            proposed.append(gate.unknown_tool(raw, available))
        elif (excluded or {}).get(spec.name) == PERMISSION:
            proposed.append(gate.not_permitted(raw, spec, spec.lacking(permissions)))
        elif spec.name not in available and (why := (excluded or {}).get(spec.name)) not in OUT_OF_ORDER:
            proposed.append(gate.not_available(raw, spec, available, why))
        else:
            proposed.append(gate.checked(raw, spec, agent, transcript))
    return tuple(proposed)


def item_calls(calls: Sequence[ProposedCall], run_id: RunId, turn: int) -> tuple[ItemCall, ...]:
    """The calls as they stand in the conversation; their arguments are always the text of a JSON object."""
    return tuple(
        ItemCall(call_id_of(run_id, turn, call.index), call.wire_id, call.tool, call.arguments)
        for call in calls
    )


def signature_of(tool: str, arguments: str) -> str:
    """What the repeat gate compares: equal calls have equal signatures. 32 hex digits."""
    return hashlib.sha256(f"{tool}\0{arguments}".encode(errors="replace")).hexdigest()[:32]


class _Gate:
    """Makes the proposed call of one place in the reply."""

    def __init__(self, run_id: RunId, turn: int, index: int, wire_id: str) -> None:
        self._call_id = call_id_of(run_id, turn, index)
        self._index = index
        self._wire_id = wire_id

    def checked(self, raw: RawCall, spec: ToolSpec, agent: AgentSpec, transcript: Transcript) -> ProposedCall:
        read = read_arguments(raw.arguments, spec)
        match read:
            case Valid(text, repaired):
                answer = self._refused(spec, text, agent, transcript)
                return self._proposed(raw, spec, arguments=text, repaired=repaired, answer=answer)
            case Invalid(message, field_errors):
                content = error(
                    outcome=CallOutcome.INVALID_ARGUMENTS,
                    reason=ReasonCode.VALIDATION,
                    message=message,
                    field_errors=field_errors,
                    retryable_by_model=True,
                )
                return self._answered(
                    raw, spec, CallOutcome.INVALID_ARGUMENTS, ReasonCode.VALIDATION, content
                )
            case Unusable(message):
                return self._answered(
                    raw,
                    spec,
                    CallOutcome.NOT_AVAILABLE,
                    ReasonCode.TOOL_NOT_LOADED,
                    error(
                        outcome=CallOutcome.NOT_AVAILABLE, reason=ReasonCode.TOOL_NOT_LOADED, message=message
                    ),
                )

    def _refused(
        self, spec: ToolSpec, arguments: str, agent: AgentSpec, transcript: Transcript
    ) -> CallResult | None:
        """The answer to valid arguments that may not be used: invented ones, or ones before their time."""
        if not (spec.sources or spec.requires or spec.stages):
            return None
        given = orjson.loads(arguments)
        if paths := invented(spec, given, transcript):
            return self._result(
                CallOutcome.INVALID_ARGUMENTS, ReasonCode.INVENTED_ARGUMENT, _invented(spec, paths)
            )
        early = out_of_order(spec, given, transcript, agent)
        if early is None:
            return None
        reason = ReasonCode.STAGE if early.stage else ReasonCode.PREREQUISITE
        content = error(
            outcome=CallOutcome.NOT_AVAILABLE,
            reason=reason,
            message=early.message,
            retryable=bool(early.first),
            suggested_action=f"call_{early.first[0]}_first" if early.first else "",
            next_actions=early.first,
        )
        return self._result(CallOutcome.NOT_AVAILABLE, reason, content)

    def _result(self, outcome: CallOutcome, reason: str | None, content: str) -> CallResult:
        return CallResult(self._call_id, self._index, outcome, content, reason=reason)

    def truncated(self, raw: RawCall, spec: ToolSpec | None) -> ProposedCall:
        outcome, reason = CallOutcome.INVALID_ARGUMENTS, ReasonCode.TRUNCATED_OUTPUT
        content = error(outcome=outcome, reason=reason, message=TRUNCATED_MESSAGE, retryable_by_model=True)
        return self._answered(raw, spec, outcome, reason, content)

    def unknown_tool(self, raw: RawCall, available: Sequence[str]) -> ProposedCall:
        message = f"There is no tool {_shown(raw.name)!r}. {_names(available)}"
        content = error(outcome=CallOutcome.UNKNOWN_TOOL, message=message, retryable_by_model=bool(available))
        return self._answered(raw, None, CallOutcome.UNKNOWN_TOOL, None, content)

    def not_permitted(self, raw: RawCall, spec: ToolSpec, missing: Sequence[str]) -> ProposedCall:
        """What the executor would say, whose gate looks again at the calls that are let through here."""
        outcome, reason = CallOutcome.DENIED, ReasonCode.PERMISSION_DENIED
        content = error(outcome=outcome, reason=reason, message=not_permitted(spec.name, missing))
        return self._answered(raw, spec, outcome, reason, content)

    def not_available(
        self, raw: RawCall, spec: ToolSpec, available: Sequence[str], why: str | None
    ) -> ProposedCall:
        message = f"{spec.name} cannot be called {_when(why)}. {_names(available)}"
        content = error(
            outcome=CallOutcome.NOT_AVAILABLE,
            reason=why,
            message=message,
            retryable_by_model=bool(available),
        )
        return self._answered(raw, spec, CallOutcome.NOT_AVAILABLE, why, content)

    def _answered(
        self,
        raw: RawCall,
        spec: ToolSpec | None,
        outcome: CallOutcome,
        reason: str | None,
        content: str,
    ) -> ProposedCall:
        return self._proposed(raw, spec, answer=self._result(outcome, reason, content))

    def _proposed(
        self,
        raw: RawCall,
        spec: ToolSpec | None,
        *,
        arguments: str | None = None,
        repaired: bool = False,
        answer: CallResult | None = None,
    ) -> ProposedCall:
        tool = spec.name if spec is not None else _shown(raw.name)
        # Of a call without usable arguments the raw text counts, so that only the very same mistake is a repeat.
        signature = signature_of(tool, arguments if arguments is not None else f"\0{raw.arguments}")
        if spec is None:
            return ProposedCall(
                self._index, tool, Tier.LOW, NO_ARGUMENTS, signature, self._wire_id, answer=answer
            )
        return ProposedCall(
            index=self._index,
            tool=tool,
            tier=spec.tier,
            arguments=NO_ARGUMENTS if arguments is None else arguments,
            signature=signature,
            wire_id=self._wire_id,
            answer=answer,
            effect=spec.effect,
            idempotent=spec.idempotent,
            repeatable=spec.repeatable,
            tell_on_denied=spec.on_denied == "tell_model",
            attempts_max=spec.attempts_max,
            timeout_s=spec.timeout_s,
            call_timeout_s=spec.call_timeout_s,
            repaired=repaired,
            terms=Terms(
                reconciles=spec.reconciles,
                reconcile_is_final=spec.reconcile_is_final,
                asks=spec.tier in ASKED_TIERS,
                two_person=spec.two_person,
                double_confirm=spec.double_confirm,
                grantable=spec.grantable,
            ),
        )


def _invented(spec: ToolSpec, paths: Sequence[str]) -> str:
    """The answer that names the places and never the values: repeated here, they would stand in the transcript."""
    asked = ", ".join(paths[:FIELD_ERRORS_MAX])
    return error(
        outcome=CallOutcome.INVALID_ARGUMENTS,
        reason=ReasonCode.INVENTED_ARGUMENT,
        message=f"{spec.name} was not called: the value of {asked} is neither in what the user said nor in any result. "
        "Look it up, or ask the user for it; never make it up.",
        field_errors=[
            {"path": path, "message": "occurs nowhere in this conversation"}
            for path in paths[:FIELD_ERRORS_MAX]
        ],
        retryable_by_model=True,
        suggested_action=f"ask_user_for_{re.split(r'[.[]', paths[0])[0]}",
        user_action_required=True,
    )


def _when(why: str | None) -> str:
    """What the model can do about it, where it can."""
    if why == BREAKER:
        return "just now: it is out of order. Go on without it, or say so"
    return "at this point"


def _wire_ids(calls: Sequence[RawCall], turn: int) -> list[str]:
    """What results are paired by: the provider's id where it is usable and not used yet in this turn, else ours.

    Ours must not meet one of the provider's further down the same reply.
    """
    given = {call.provider_id for call in calls}
    taken: set[str] = set()
    wire_ids = []
    for index, call in enumerate(calls):
        wire_id = call.provider_id
        if wire_id is None or wire_id in taken or not _WIRE_ID.fullmatch(wire_id):
            wire_id = f"call_{turn}_{index}"
            while wire_id in given or wire_id in taken:
                wire_id += "_"
        taken.add(wire_id)
        wire_ids.append(wire_id)
    return wire_ids


def _shown(name: str) -> str:
    """A name no tool has, fit to be stored and read."""
    printable = "".join(c if c.isprintable() else "?" for c in name[:_NAME_CHARS_MAX])
    return printable.encode(errors="replace").decode() or "(no name)"


def _names(available: Sequence[str]) -> str:
    if not available:
        return "No tool can be called now: answer without one."
    text = ", ".join(available)
    if len(text) > _NAMES_CHARS_MAX:
        text = text[:_NAMES_CHARS_MAX].rpartition(", ")[0] + ", ..."
    return f"The tools that can be called now: {text}."
