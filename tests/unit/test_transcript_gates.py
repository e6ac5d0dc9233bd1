"""Calls that are refused because of what the conversation has shown: values nobody named, and calls before their time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.builtin_tools import READ_RESULT
from toolfleet.schemas.contract import Prerequisite
from toolfleet.schemas.conversation import AssistantItem, Item, ItemCall, ItemResult, MergeItem, UserItem
from toolfleet.schemas.envelopes import error, success
from toolfleet.schemas.events import ProposedCall
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.model import ModelReply, RawCall
from toolfleet.schemas.outcomes import CallOutcome, ReasonCode, Tier
from toolfleet.schemas.tools import ToolSpec
from toolfleet.workers.decision.reply import propose
from toolfleet.workers.decision.transcript import Said, Transcript, callable_tools, stage_of


def _spec(name: str, properties: dict[str, Any], **more: Any) -> ToolSpec:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return ToolSpec(name=name, description="d", parameters=parameters, **more)


TEXT = {"type": "string"}
WIDE = "ORDER 12345".translate({ord(c): ord(c) + 0xFEE0 for c in "ORDE12345"})
BOTH = ("user", "upstream")
DESK = AgentSpec(
    name="desk",
    model="m",
    tools=(
        _spec("get_order", {"order_id": TEXT}, sources={"order_id": BOTH}),
        _spec(
            "check_refund",
            {"order_id": TEXT},
            requires=[{"tool": "get_order", "same": {"order_id": "order_id"}}],
        ),
        _spec(
            "create_draft",
            {"order_id": TEXT},
            requires=[
                {
                    "tool": "check_refund",
                    "same": {"order_id": "order_id"},
                    "result": {"refund.allowed": True},
                },
            ],
            enters_stage="drafted",
        ),
        _spec(
            "submit_refund",
            {"draft_id": TEXT},
            tier=Tier.IRREVERSIBLE,
            effect=True,
            requires=[{"tool": "create_draft", "same": {"draft_id": "result.draft.id"}}],
        ),
        _spec("refund_status", {}, stages=["drafted"]),
    ),
)


def _turn(*calls: tuple[str, dict[str, Any], CallOutcome, Any]) -> list[Item]:
    """A model's turn and its merge; the last part is the data, or the message of what did not succeed."""
    asked, results = [], []
    for index, (name, arguments, outcome, data) in enumerate(calls):
        id_ = f"call_{name}_{index}"
        asked.append(ItemCall(id_, id_, name, json.dumps(arguments)))
        content = (
            success(json.dumps(data)) if outcome is CallOutcome.OK else error(outcome=outcome, message=data)
        )
        results.append(ItemResult(id_, id_, outcome, content))
    return [AssistantItem(None, tuple(asked)), MergeItem(tuple(results))]


def _ask(items: Sequence[Item], tool: str, agent: AgentSpec = DESK, **arguments: Any) -> ProposedCall:
    reply = ModelReply(None, (RawCall(None, tool, json.dumps(arguments)),), "tool_calls", "w", {}, "m")
    (call,) = propose(reply, agent, RunId("run_1"), 1, None, items)
    return call


def _said(call: ProposedCall) -> dict[str, Any]:
    assert call.answer is not None
    return dict(orjson.loads(call.answer.content))


OK = CallOutcome.OK
USER = UserItem("Please refund order A-1")
LOOKED = _turn(("get_order", {"order_id": "A-1"}, OK, {"state": "shipped"}))
CHECKED = _turn(("check_refund", {"order_id": "A-1"}, OK, {"refund": {"allowed": True}}))
DRAFTED = _turn(("create_draft", {"order_id": "A-1"}, OK, {"draft": {"id": "D-9"}}))


def test_each_step_of_the_chain_opens_the_next_one_and_no_other() -> None:
    steps = [
        ("get_order", {"order_id": "A-1"}, LOOKED),
        ("check_refund", {"order_id": "A-1"}, CHECKED),
        ("create_draft", {"order_id": "A-1"}, DRAFTED),
        ("submit_refund", {"draft_id": "D-9"}, []),
        ("refund_status", {}, []),
    ]
    items: list[Item] = [USER]

    for done, (_, _, turn) in enumerate(steps[:4]):
        admitted = [_ask(items, tool, **arguments).answer is None for tool, arguments, _ in steps]
        open_now = max(1, done + 1) + (1 if done >= 3 else 0)

        assert admitted == [index < open_now for index in range(5)], done
        items = [*items, *turn]


def test_a_call_out_of_order_is_told_what_must_come_first() -> None:
    call = _ask([USER], "check_refund", order_id="A-1")

    assert call.answer is not None and call.answer.outcome is CallOutcome.NOT_AVAILABLE
    assert call.answer.reason == ReasonCode.PREREQUISITE
    said = _said(call)
    assert "get_order with the same order_id" in said["message"]
    assert said["suggested_action"] == "call_get_order_first" and said["next_actions"] == ["get_order"]
    assert said["retryable"] and not said["retryable_by_model"]


@pytest.mark.parametrize(
    ("items", "tool", "arguments"),
    [
        (LOOKED, "check_refund", {"order_id": "A-2"}),  # another order was looked at
        (
            [*LOOKED, *_turn(("check_refund", {"order_id": "A-1"}, OK, {"refund": {"allowed": False}}))],
            "create_draft",
            {"order_id": "A-1"},
        ),  # it may not be refunded
        (
            [*LOOKED, *_turn(("check_refund", {"order_id": "A-1"}, OK, {"refund": {"allowed": 1}}))],
            "create_draft",
            {"order_id": "A-1"},
        ),  # 1 is not true
        ([*LOOKED, *CHECKED, *DRAFTED], "submit_refund", {"draft_id": "D-8"}),  # nobody drafted that
        (
            _turn(("get_order", {"order_id": "A-1"}, CallOutcome.BUSINESS_ERROR, "not found")),
            "check_refund",
            {"order_id": "A-1"},
        ),  # it did not succeed
    ],
)
def test_a_prerequisite_holds_for_the_same_thing_and_its_result(
    items: list[Item], tool: str, arguments: dict[str, Any]
) -> None:
    call = _ask([USER, *items], tool, **arguments)

    assert call.answer is not None and call.answer.reason == ReasonCode.PREREQUISITE


def test_a_call_in_the_same_turn_comes_too_late_to_be_a_prerequisite() -> None:
    reply = ModelReply(
        None,
        (
            RawCall(None, "get_order", '{"order_id":"A-1"}'),
            RawCall(None, "check_refund", '{"order_id":"A-1"}'),
        ),
        "tool_calls",
        "w",
        {},
        "m",
    )

    first, second = propose(reply, DESK, RunId("run_1"), 1, None, [USER])

    assert first.answer is None
    assert second.answer is not None and second.answer.reason == ReasonCode.PREREQUISITE


def test_without_a_history_what_needs_one_is_refused() -> None:
    reply = ModelReply(
        None, (RawCall(None, "check_refund", '{"order_id":"A-1"}'),), "tool_calls", "w", {}, "m"
    )

    assert propose(reply, DESK, RunId("run_1"), 1, None)[0].answer is not None


def test_a_tool_of_a_later_stage_is_refused_with_what_leads_there() -> None:
    call = _ask([USER, *LOOKED], "refund_status")

    assert call.answer is not None and call.answer.reason == ReasonCode.STAGE
    assert "stage drafted" in _said(call)["message"] and _said(call)["next_actions"] == ["create_draft"]


def test_what_is_worth_showing_follows_from_what_was_done() -> None:
    items: list[Item] = [USER]
    shown = []
    for turn in (LOOKED, CHECKED, DRAFTED, []):
        shown.append(sorted(callable_tools(DESK, Transcript(items))))
        items = [*items, *turn]

    assert shown == [
        ["get_order"],
        ["check_refund", "get_order"],
        ["check_refund", "create_draft", "get_order"],
        ["check_refund", "create_draft", "get_order", "refund_status", "submit_refund"],
    ]
    assert stage_of(Transcript(items), DESK) == "drafted"


# -- invented arguments ----------------------------------------------------------------------------------------------


def test_a_value_nobody_named_is_refused_without_being_repeated() -> None:
    call = _ask([USER], "get_order", order_id="A-77")

    assert call.answer is not None and call.answer.outcome is CallOutcome.INVALID_ARGUMENTS
    assert call.answer.reason == ReasonCode.INVENTED_ARGUMENT
    said = _said(call)
    assert "A-77" not in call.answer.content
    assert said["field_errors"] == [{"path": "order_id", "message": "occurs nowhere in this conversation"}]
    assert said["suggested_action"] == "ask_user_for_order_id" and said["user_action_required"]


def test_a_refused_invention_does_not_become_true_by_being_said_again() -> None:
    refused = _ask([USER], "get_order", order_id="A-77")
    assert refused.answer is not None
    items: list[Item] = [
        USER,
        AssistantItem("Order A-77 it is.", (ItemCall("c", "c", "get_order", '{"order_id":"A-77"}'),)),
        MergeItem((ItemResult("c", "c", refused.answer.outcome, refused.answer.content),)),
        AssistantItem("I will look at A-77."),
    ]

    assert _ask(items, "get_order", order_id="A-77").answer is not None


def test_what_an_argument_error_of_another_tool_quotes_proves_nothing() -> None:
    items = [USER, *_turn(("x", {}, CallOutcome.INVALID_ARGUMENTS, "order_id A-77 is no date"))]
    told = [USER, *_turn(("x", {}, CallOutcome.BUSINESS_ERROR, "A-1 was replaced by A-77"))]

    assert _ask(items, "get_order", order_id="A-77").answer is not None
    assert _ask(told, "get_order", order_id="A-77").answer is None


@pytest.mark.parametrize(
    ("transcript", "value"),
    [
        ("Order W-2378156, please", "w-2378156"),  # case
        ("order #W2378156.", "W2378156"),  # quotes, signs, the end of a sentence
        ("order\n  No.   77 b", "No. 77 B"),  # spaces
        (WIDE, "12345"),  # full-width letters and digits: NFKC
        ("查询订单10001的物流", "10001"),  # no spaces around it
        ("收货人是张三丰", "张三丰"),
        ("that was $1,250.50", "1250.5"),
        ("1250.5 dollars", "1,250.50"),
        ("on May 20th, 2024", "2024-05-20"),
        ("on 20 May", "2024-05-20"),  # the year was left out
        ("20.5.2024", "2024-05-20"),
        ("5/20/2024", "2024-05-20"),
        ("2024年5月20日出发", "2024-05-20"),
        ("from 2024-05-20", "May 20"),
        ("first_name Mia\nlast_name Li", "Mia Li"),  # put together of what was said
        ("A long one: 90071992547409931", "90071992547409931"),
    ],
)
def test_a_value_is_found_in_any_form_it_may_have_been_said_in(transcript: str, value: str) -> None:
    assert Said([transcript]).has(value)


@pytest.mark.parametrize(
    ("transcript", "value"),
    [
        ("order W-23781567", "W-2378156"),  # part of a longer one
        ("order 123456", "2345"),
        ("on May 20th, 2023", "2024-05-20"),
        ("on May 21", "2024-05-20"),
        ("1250", "1250.5"),
        ("Mia Wong", "Mia Li"),
        ("90071992547409931", "90071992547409932"),  # no float may stand between them
        ("", "anything"),
        ("user", "root@example.com"),
    ],
)
def test_another_value_is_not_found(transcript: str, value: str) -> None:
    assert not Said([transcript]).has(value)


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_whatever_was_said_is_found_and_nothing_raises(before: str, value: str, after: str) -> None:
    assert Said([f"{before}\n{value}\n{after}"]).has(value)


def test_values_inside_are_judged_by_the_schema_they_stand_under() -> None:
    properties = {
        "payment": {
            "type": "object",
            "properties": {
                "method": {"enum": ["gift_card", "credit_card"]},
                "id": TEXT,
                "currency": {"type": "string", "default": "USD"},
                "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
                "urgent": {"type": "boolean"},
                "count": {"type": "integer"},
            },
        }
    }
    spec = ToolSpec(
        name="pay",
        description="d",
        parameters={
            "type": "object",
            "properties": properties,
            "$defs": {"line": {"type": "object", "properties": {"kind": {"const": "seat"}, "sku": TEXT}}},
        },
        sources={"payment": ("user",)},
    )
    agent = DESK.model_copy(update={"tools": (spec,)})
    given = {
        "method": "credit_card",
        "id": "card_4421",
        "currency": "USD",
        "lines": [{"kind": "seat", "sku": "SK-100"}, {"kind": "seat", "sku": "SK-200"}],
        "urgent": True,
        "count": 12,
    }

    call = _ask([UserItem("use card_4421 for SK-100")], "pay", agent, payment=given)

    assert [one["path"] for one in _said(call)["field_errors"]] == ["payment.lines[1].sku"]


def test_an_argument_that_may_come_from_the_context_is_not_judged() -> None:
    spec = _spec("get", {"order_id": TEXT}, sources={"order_id": ("user", "context")})

    assert (
        _ask([USER], "get", DESK.model_copy(update={"tools": (spec,)}), order_id="selected-77").answer is None
    )


def test_values_in_results_count_whatever_their_json_looks_like() -> None:
    items = [USER, *_turn(("list", {}, OK, {"größe": [{"W-1\n2": 5}], "n": 123456.0}))]

    for value in ("größe", "W-1\n2", "123456"):
        assert _ask(items, "get_order", order_id=value).answer is None, value


def test_equal_prerequisites_are_said_in_words_a_model_can_follow() -> None:
    one = Prerequisite(tool="create_draft", same={"draft_id": "result.draft.id"}, result={"state": "open"})

    assert str(one) == (
        'create_draft with the same draft_id equal to its result.draft.id, whose result has state = "open"'
    )


def test_a_result_may_be_read_on_in_by_the_reference_it_was_left_out_under() -> None:
    agent = DESK.model_copy(update={"tools": (READ_RESULT,)})

    assert _ask([USER, *LOOKED], "read_result", agent, reference="call_get_order_0").answer is None
    assert _ask([USER, *LOOKED], "read_result", agent, reference="call_get_order_1").answer is not None
