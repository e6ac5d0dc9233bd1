"""The bodies of requests: nothing in them is guessed, and nothing unknown is overlooked."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

NAME_CHARS_MAX: Final = 128
REASON_CHARS_MAX: Final = 2000


def _no_nul(value: str) -> str:
    if "\x00" in value or any("\ud800" <= c <= "\udfff" for c in value):
        raise ValueError("holds a NUL or half a surrogate pair")
    return value


Text = Annotated[str, AfterValidator(_no_nul)]
Name = Annotated[Text, Field(min_length=1, max_length=NAME_CHARS_MAX)]
Reason = Annotated[Text, Field(max_length=REASON_CHARS_MAX)]


class Body(BaseModel):
    """A body that is sent to us: nothing in it is guessed, and nothing unknown overlooked."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class LimitsBody(Body):
    """Limits of one run; those of the agent count where they are tighter."""

    turns_max: int | None = Field(default=None, ge=1, le=1000)
    calls_max: int | None = Field(default=None, ge=0, le=10_000)
    calls_per_turn_max: int | None = Field(default=None, ge=1, le=256)
    corrections_max: int | None = Field(default=None, ge=0, le=20)
    active_seconds_max: float | None = Field(default=None, gt=0)
    cost_usd_max: float | None = Field(default=None, ge=0)
    model_attempts_max: int | None = Field(default=None, ge=1, le=100)
    model_timeout_s: float | None = Field(default=None, gt=0)
    output_tokens_max: int | None = Field(default=None, ge=1, le=10_000_000)


class SubmitRun(Body):
    """One request to an agent. Tenant, principal and permissions are those of the key."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"agent": "desk", "input": "Where is order 1017?"},
                {
                    "agent": "desk",
                    "input": "And send it to my new address.",
                    "previous_run_id": "run_019abc",
                    "context": {"customer": "c-17"},
                    "metadata": {"ticket": "T-9"},
                    "limits": {"turns_max": 4, "cost_usd_max": 0.2},
                },
            ]
        }
    )

    agent: Name
    input: Annotated[Text, Field(min_length=1)]
    previous_run_id: Annotated[Text, Field(min_length=1, max_length=64)] | None = Field(
        default=None, description="goes on with the conversation of that run, which has ended"
    )
    context: dict[str, Any] = Field(default_factory=dict, description="for tools; the model never sees it")
    metadata: dict[str, str] = Field(default_factory=dict, description="for you")
    limits: LimitsBody | None = None
    deadline_s: float | None = Field(default=None, gt=0, description="stopped this long from now, seconds")
    lane: Literal["interactive", "batch"] | None = None


class Decision(Body):
    """A yes. `arguments_hash`: of what was seen, so that nothing else is approved."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "checked with the customer"}]})

    reason: Reason = ""
    arguments_hash: Annotated[Text, Field(max_length=64)] | None = None


class Rejection(Body):
    """A no. The model is told the reason."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "the amount is wrong"}]})

    reason: Annotated[Reason, Field(min_length=1)]


class Edit(Decision):
    """A yes with other arguments: all of them, as one object."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"arguments": {"order_id": "o1", "amount": 5}, "reason": "5, not 50"}]
        }
    )

    arguments: dict[str, Any]


class Resolution(Body):
    """What somebody found out about an effect nobody could tell of."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"outcome": "happened", "note": "their reference is 4711"}]}
    )

    outcome: Literal["happened", "did_not_happen"]
    note: Annotated[Reason, Field(min_length=1)]
    answer: Any = Field(default=None, description="what the tool would have returned")
    confirmed: bool = Field(
        default=False, description="with `did_not_happen`: although the tool cannot be asked once more here"
    )


class Replay(Body):
    """Start the run of a step that was given up again."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"repeat_effects": False}]})

    repeat_effects: bool = Field(default=False, description="although effects of the old run happened")


class Empty(Body):
    """Nothing."""
