"""Which tools may be called at one step: the declared rules, in every combination a run can meet them in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.contract import Prerequisite
from toolfleet.schemas.control import CHOICES, Control, ControlPolicy, Narrowing, Unsatisfiable
from toolfleet.schemas.conversation import AssistantItem, ItemCall, ItemResult, MergeItem
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.limits import DEFAULT_LIMITS, Counters
from toolfleet.schemas.outcomes import CallOutcome, Lane, RunStatus, Tier
from toolfleet.schemas.run import RunState
from toolfleet.schemas.tools import ToolSpec
from toolfleet.workers.decision.policy import Given, candidates, control
from toolfleet.workers.decision.transcript import Transcript, early_tools

NAMES = ("get_order", "get_weather", "cancel_order", "search")


def _tool(name: str, **fields: Any) -> ToolSpec:
    return ToolSpec(
        name=name, description=f"Does {name}.", parameters={"type": "object", "properties": {}}, **fields
    )


def _agent(policy: ControlPolicy | None = None, **fields: Any) -> AgentSpec:
    tools = fields.pop("tools", tuple(_tool(name) for name in NAMES))
    return AgentSpec(name="desk", model="m", tools=tools, control=policy or ControlPolicy(), **fields)


def _state(*, succeeded: tuple[str, ...] = (), back: tuple[str, ...] = (), **fields: Any) -> RunState:
    state = RunState(RunId("r"), RunStatus.DECIDING, Lane.INTERACTIVE, DEFAULT_LIMITS)
    came_back = tuple(sorted({*back, *succeeded}))
    used = Counters(tool_calls=len(came_back))
    return replace(state, succeeded=succeeded, came_back=came_back, counters=used, **fields)


def _control(
    agent: AgentSpec, state: RunState, asked: Given | None = None, narrow: Narrowing | None = None
) -> Control:
    decided = control(agent, state, candidates(agent, state, asked or Given()), narrow)
    assert isinstance(decided, Control), decided
    return decided


def _stuck(
    agent: AgentSpec, state: RunState, asked: Given | None = None, narrow: Narrowing | None = None
) -> str:
    decided = control(agent, state, candidates(agent, state, asked or Given()), narrow)
    assert isinstance(decided, Unsatisfiable), decided
    return decided.message


def test_without_rules_everything_may_be_called_and_nothing_has_to_be() -> None:
    assert _control(_agent(), _state()) == Control()


@pytest.mark.parametrize("choice", ["required", "get_order"])
def test_a_demanded_call_is_demanded_until_one_is_made(choice: str) -> None:
    agent = _agent(tool_choice=choice)

    before, after = _control(agent, _state()), _control(agent, _state(succeeded=("get_order",)))

    assert before.choice == choice and before.must_call and before.rules == ("tool_choice",)
    assert after.choice == "auto" and not after.must_call


def test_no_tool_may_be_called_where_the_choice_is_none() -> None:
    decided = _control(_agent(tool_choice="none"), _state())

    assert decided.choice == "none" and decided.allowed == () and decided.callable == frozenset()


def test_the_first_call_of_a_run_is_the_declared_one() -> None:
    agent = _agent(ControlPolicy(first="search"))

    assert _control(agent, _state()).callable == {"search"}
    assert _control(agent, _state(succeeded=("search",))).callable is None


def test_an_answer_waits_for_the_tools_that_have_to_come_back() -> None:
    agent = _agent(ControlPolicy(answer_only_after=("get_order", "search")))

    none, one = _control(agent, _state()), _control(agent, _state(back=("search",)))
    both = _control(agent, _state(back=("search", "get_order")))

    assert none.missing == ("get_order", "search") and none.choice == "required"
    assert one.missing == ("get_order",) and one.choice == "required"
    assert both.missing == () and both.choice == "auto"


def test_once_the_last_tool_succeeded_only_the_answer_is_left() -> None:
    agent = _agent(ControlPolicy(finish_after=("get_order",)))

    decided = _control(agent, _state(succeeded=("get_order",)))

    assert decided.choice == "none" and decided.callable == frozenset()
    assert dict(decided.excluded) == dict.fromkeys(NAMES, "finish_after")
    assert _control(agent, _state(back=("get_order",))).choice == "auto", (
        "a refusal of the tool is no success"
    )


def test_a_tool_whose_contract_wants_something_first_is_no_candidate() -> None:
    decided = _control(_agent(), _state(), Given(early={"cancel_order": "prerequisite"}))

    assert decided.allowed == ("get_order", "get_weather", "search")
    assert decided.excluded == (("cancel_order", "prerequisite"),)


@pytest.mark.parametrize(
    ("items", "early"),
    [
        ((), {"cancel_order": "prerequisite", "refund": "stage"}),
        (("get_order",), {"refund": "stage"}),
        (("get_order", "cancel_order"), {}),
    ],
)
def test_the_contracts_of_tools_say_which_are_early(items: tuple[str, ...], early: dict[str, str]) -> None:
    tools = (
        _tool("get_order"),
        _tool("cancel_order", requires=(Prerequisite(tool="get_order"),), enters_stage="over"),
        _tool("refund", stages=("over",)),
    )
    calls = tuple(ItemCall(f"c{at}", f"w{at}", name, "{}") for at, name in enumerate(items))
    results = tuple(
        ItemResult(c.call_id, c.wire_id, CallOutcome.OK, '{"status":"success","data":1}') for c in calls
    )
    made = (AssistantItem(None, calls), MergeItem(results)) if calls else ()

    assert early_tools(_agent(tools=tools), Transcript(made)) == early


def test_a_tenant_is_offered_what_is_for_it() -> None:
    agent = _agent(ControlPolicy(tenants={"cancel_order": ("gold",)}))

    assert "cancel_order" not in (_control(agent, _state(), Given(tenant="iron")).allowed or ())
    assert _control(agent, _state(), Given(tenant="gold")).allowed is None


@pytest.mark.parametrize(
    ("fields", "given_", "excluded"),
    [
        ({}, Given(), True),
        ({}, Given(permissions=("orders:read",)), True),
        ({}, Given(permissions=("orders:write", "orders:read", "eu")), False),
        ({"grantable": True}, Given(), False),
        ({"grantable": True}, Given(grants=False), True),
    ],
    ids=["none", "one of two", "both", "grantable", "grantable, and nobody is asked here"],
)
def test_what_a_principal_may_do_decides_what_is_offered(
    fields: dict[str, Any], given_: Given, excluded: bool
) -> None:
    guarded = _tool("cancel_order", permissions=("orders:read", "orders:write"), **fields)
    agent = _agent(tools=(_tool("get_order"), guarded))

    decided = _control(agent, _state(), given_)

    assert decided.excluded == ((("cancel_order", "permission"),) if excluded else ())
    assert decided.allowed == (("get_order",) if excluded else None)


def test_a_missing_permission_is_the_reason_before_what_may_pass() -> None:
    guarded = _tool("cancel_order", permissions=("orders:write",))
    agent = _agent(tools=(_tool("get_order"), guarded))
    both = Given(early={"cancel_order": "prerequisite"}, breakers_open=frozenset({"cancel_order"}))

    decided = _control(agent, _state(withdrawn=("cancel_order",)), both)

    assert decided.excluded == (("cancel_order", "permission"),)


def test_an_effect_nobody_may_cause_does_not_keep_reads_from_running_side_by_side() -> None:
    paid = _tool("cancel_order", tier=Tier.MEDIUM, effect=True, permissions=("orders:write",))
    agent = _agent(tools=(_tool("get_order"), paid))

    assert _control(agent, _state()).parallel
    assert not _control(agent, _state(), Given(permissions=("orders:write",))).parallel


@pytest.mark.parametrize(
    "fields",
    [
        {"policy": ControlPolicy(first="cancel_order")},
        {"policy": ControlPolicy(answer_only_after=("cancel_order",))},
        {"tool_choice": "cancel_order"},
    ],
    ids=["first", "answer_only_after", "tool_choice"],
)
def test_a_demand_for_what_the_principal_may_not_do_ends_the_run_unasked(fields: dict[str, Any]) -> None:
    guarded = _tool("cancel_order", permissions=("orders:write",))
    agent = _agent(tools=(_tool("get_order"), guarded), **fields)

    assert "cancel_order" in (told := _stuck(agent, _state())) and "permission" in told
    assert _control(agent, _state(), Given(permissions=("orders:write",))).must_call


def test_the_intent_of_the_run_picks_its_tools() -> None:
    agent = _agent(ControlPolicy(intents={"weather": ("get_weather",), "order": ("get_order", "search")}))

    assert _control(agent, _state(), Given(metadata={"intent": "weather"})).allowed == ("get_weather",)
    assert _control(agent, _state(), Given(metadata={"intent": "odd"})).allowed == ()
    assert _control(agent, _state()).allowed is None


def test_an_open_breaker_takes_its_tool_out_and_says_so() -> None:
    decided = _control(_agent(), _state(), Given(breakers_open=frozenset({"search"})))

    assert decided.excluded == (("search", "breaker_open"),)


@pytest.mark.parametrize(
    ("policy", "asked"),
    [
        (ControlPolicy(first="search"), Given(breakers_open=frozenset({"search"}))),
        (ControlPolicy(answer_only_after=("search",)), Given(breakers_open=frozenset({"search"}))),
        (ControlPolicy(answer_only_after=("search",), tenants={"search": ("gold",)}), Given()),
        (
            ControlPolicy(answer_only_after=("search",), intents={"x": ("get_order",)}),
            Given(metadata={"intent": "x"}),
        ),
    ],
)
def test_a_demand_that_cannot_be_met_is_found_before_the_model_is_asked(
    policy: ControlPolicy, asked: Given
) -> None:
    assert "search" in _stuck(_agent(policy), _state(), asked)


def test_a_tool_that_can_still_be_reached_is_no_dead_end() -> None:
    policy = ControlPolicy(answer_only_after=("cancel_order",))

    decided = _control(_agent(policy), _state(), Given(early={"cancel_order": "prerequisite"}))

    assert decided.choice == "required" and "cancel_order" not in (decided.allowed or NAMES)


def test_calls_run_side_by_side_unless_one_has_an_effect_or_depends_on_another() -> None:
    reads = _agent()
    effects = _agent(tools=(_tool("get_order"), _tool("cancel_order", tier=Tier.MEDIUM, effect=True)))
    needs = (Prerequisite(tool="get_order"),)
    depends = _agent(tools=(_tool("get_order"), _tool("cancel_order", requires=needs)))
    early = Given(early={"cancel_order": "prerequisite"})

    assert _control(reads, _state()).parallel
    assert not _control(effects, _state()).parallel
    assert _control(effects, _state(withdrawn=("cancel_order",))).parallel, "the effect is no candidate"
    assert _control(depends, _state(), early).parallel, "what depends is no candidate yet"
    assert not _control(depends, _state(succeeded=("get_order",))).parallel
    assert not _control(_agent(parallel_tool_calls="off"), _state()).parallel
    assert _control(_agent(tools=effects.tools, parallel_tool_calls="on"), _state()).parallel, (
        "said on purpose"
    )


@pytest.mark.parametrize(("count", "band"), [(10, "fine"), (11, "noted"), (20, "noted"), (21, "too_many")])
def test_large_toolsets_are_noted(count: int, band: str) -> None:
    agent = _agent(tools=tuple(_tool(f"tool_{number}") for number in range(count)))

    assert _control(agent, _state()).band == band


def test_top_k_offers_what_fits_the_words_of_the_user() -> None:
    many = tuple(_tool(f"unrelated_{number}") for number in range(30))
    agent = _agent(ControlPolicy(top_k=3, always=("search",)), tools=(*many, *(_tool(n) for n in NAMES)))

    decided = _control(agent, _state(), Given(said=("Please cancel my order",)))

    assert decided.band == "retrieved"
    assert decided.allowed == ("get_order", "cancel_order", "search")
    assert dict(decided.excluded)["get_weather"] == "not_retrieved"


def test_top_k_keeps_what_a_rule_names_and_what_was_used() -> None:
    many = tuple(_tool(f"unrelated_{number}") for number in range(30))
    policy = ControlPolicy(top_k=2, answer_only_after=("get_weather",))
    agent = _agent(policy, tools=(*many, *(_tool(name) for name in NAMES)))

    decided = _control(agent, _state(succeeded=("unrelated_7",)), Given(said=("cancel my order",)))

    assert decided.allowed == ("unrelated_7", "get_weather")


def test_a_hook_narrows_and_never_widens() -> None:
    early = Given(early={"cancel_order": "prerequisite"})
    narrow = Narrowing(allowed=frozenset({"cancel_order", "search", "made_up"}), reason="night")

    decided = _control(_agent(), _state(), early, narrow)

    assert decided.allowed == ("search",)
    assert dict(decided.excluded)["get_weather"] == "hook" and decided.rules == ("hook: night",)


@pytest.mark.parametrize(
    ("declared", "asked", "decided"),
    [
        ("auto", "required", "required"),
        ("auto", "search", "search"),
        ("auto", "none", "none"),
        ("required", "search", "search"),
        ("required", "auto", "required"),
        ("required", "none", "required"),
        ("search", "auto", "search"),
        ("search", "get_order", "search"),
        ("none", "required", "none"),
    ],
)
def test_a_hook_may_demand_more_and_never_less(declared: str, asked: str, decided: str) -> None:
    agent = _agent(tool_choice=declared)

    assert _control(agent, _state(), narrow=Narrowing(tool_choice=asked)).choice == decided


def test_a_hook_may_ask_for_one_call_at_a_time() -> None:
    assert not _control(_agent(), _state(), narrow=Narrowing(one_at_a_time=True)).parallel


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"policy": ControlPolicy(first="gone")}, "control speaks of gone"),
        ({"policy": ControlPolicy(intents={"x": ("gone",)})}, "control speaks of gone"),
        ({"tool_choice": "gone"}, "tool_choice 'gone'"),
        ({"tool_choice": "none", "policy": ControlPolicy(first="search")}, "one of them has to go"),
        (
            {
                "tools": (
                    _tool("search", requires=(Prerequisite(tool="get_order"),)),
                    _tool("get_order", requires=(Prerequisite(tool="search"),)),
                )
            },
            "round in a circle: get_order, search",
        ),
        (
            {
                "policy": ControlPolicy(first="search"),
                "tools": (_tool("get_order"), _tool("search", requires=(Prerequisite(tool="get_order"),))),
            },
            "requires another call before it",
        ),
        ({"tool_choice": "required", "tools": ()}, "has no tools"),
    ],
)
def test_rules_that_cannot_hold_are_errors_of_the_definition(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        _agent(**fields)


_some = st.lists(st.sampled_from(NAMES), unique=True, max_size=4).map(tuple)
_policies = st.builds(
    ControlPolicy,
    answer_only_after=_some,
    finish_after=_some,
    tenants=st.dictionaries(st.sampled_from(NAMES), st.sampled_from([("gold",), ("default",), ()])),
    top_k=st.none() | st.integers(1, 4),
    always=_some,
)
_narrows = st.none() | st.builds(
    Narrowing,
    allowed=st.none() | st.frozensets(st.sampled_from((*NAMES, "made_up"))),
    tool_choice=st.none() | st.sampled_from((*CHOICES, *NAMES)),
    one_at_a_time=st.booleans(),
)


@given(
    policy=_policies,
    narrow=_narrows,
    succeeded=_some,
    withdrawn=_some,
    broken=st.frozensets(st.sampled_from(NAMES)),
    early=st.frozensets(st.sampled_from(NAMES)),
    choice=st.sampled_from(("auto", "required", *NAMES)),
    lacking=_some,
)
def test_whatever_the_rules_no_step_allows_what_one_of_them_forbids(
    policy: ControlPolicy,
    narrow: Narrowing | None,
    succeeded: tuple[str, ...],
    withdrawn: tuple[str, ...],
    broken: frozenset[str],
    early: frozenset[str],
    choice: str,
    lacking: tuple[str, ...],
) -> None:
    tools = tuple(_tool(name, permissions=("p", "q") if name in lacking else ("p",)) for name in NAMES)
    agent = _agent(policy, tool_choice=choice, tools=tools)
    state = _state(succeeded=succeeded, withdrawn=withdrawn)
    asked = Given(breakers_open=broken, early=dict.fromkeys(early, "stage"), permissions=("p",))
    free = candidates(agent, state, asked)

    decided = control(agent, state, free, narrow)

    if isinstance(decided, Unsatisfiable):
        return
    may = decided.callable if decided.callable is not None else frozenset(NAMES)
    assert may <= set(free.allowed), "a hook lets nothing in"
    assert not may & (broken | early | set(withdrawn) | set(lacking))
    assert all("default" in policy.tenants.get(name, ("default",)) for name in may)
    assert not decided.must_call or may, "what is demanded can be done"
    listed = NAMES if decided.allowed is None else decided.allowed
    assert {*listed, *dict(decided.excluded)} == set(NAMES), "every tool is allowed or has its reason"
    assert control(agent, state, candidates(agent, state, asked), narrow) == decided, "equal in, equal out"


def test_limits_beyond_what_a_float_holds_do_not_keep_an_agent_from_having_a_version() -> None:
    def version(most: int) -> str:
        parameters = {"type": "object", "properties": {"n": {"type": "integer", "maximum": most}}}
        tool = ToolSpec(name="count", description="", parameters=parameters)
        return _agent(tools=(tool,)).version

    assert version(2**63 - 1) != version(2**63 - 2)
