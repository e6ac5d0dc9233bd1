"""A reply's calls after the pure checks: our ids, known tools, strict arguments, and repairs that lose nothing."""

from __future__ import annotations

import json
import time
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.envelopes import error, success, with_notice
from toolfleet.schemas.events import ProposedCall
from toolfleet.schemas.ids import RunId, call_id_of
from toolfleet.schemas.limits import ARGUMENTS_BYTES_MAX
from toolfleet.schemas.model import Finish, ModelReply, RawCall
from toolfleet.schemas.outcomes import CallOutcome, Tier
from toolfleet.schemas.tools import ToolSpec
from toolfleet.workers.decision.arguments import Invalid, Unusable, Valid, closed, read_arguments
from toolfleet.workers.decision.reply import item_calls, propose

RUN = RunId("run_0")
TURN = 3
ORDER = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string"},
        "count": {"type": "integer"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "lines": {
            "type": "array",
            "items": {"type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"]},
        },
    },
    "required": ["order_id"],
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
ANYTHING: dict[str, Any] = {"type": "object", "additionalProperties": True}


def _tool(name: str, parameters: dict[str, Any], **more: Any) -> ToolSpec:
    return ToolSpec(name=name, description="d", parameters=parameters, **more)


AGENT = AgentSpec(
    name="desk",
    model="m",
    tools=(
        _tool("get_order", ORDER),
        _tool("server_info", NOTHING),
        _tool("anything", ANYTHING),
        _tool("parameterless", {"type": "object"}),
        _tool("refund", ORDER, tier=Tier.HIGH, effect=True, on_denied="tell_model"),
        _tool("reboot", NOTHING, tier=Tier.HIGH, effect=True),
        _tool("broken", {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x.json"}}}),
    ),
)


def _propose(
    *calls: RawCall, finish: Finish = "tool_calls", allowed: frozenset[str] | None = None
) -> tuple[ProposedCall, ...]:
    reply = ModelReply(None, calls, finish, "chat_completions", {}, "m")
    return propose(reply, AGENT, run_id=RUN, turn=TURN, allowed=allowed)


def _one(arguments: str | None, tool: str = "anything") -> ProposedCall:
    (call,) = _propose(RawCall("id", tool, arguments))
    return call


def _content(call: ProposedCall) -> dict[str, Any]:
    assert call.answer is not None
    content: dict[str, Any] = orjson.loads(call.answer.content)
    return content


def _refused(arguments: str | None, tool: str = "anything") -> dict[str, Any]:
    call = _one(arguments, tool)
    content = _content(call)
    assert call.answer is not None and call.answer.outcome is CallOutcome.INVALID_ARGUMENTS
    assert (content["status"], content["error_type"]) == ("error", "invalid_arguments")
    assert (
        content["reason_code"] == "validation" and content["retryable_by_model"] and not content["retryable"]
    )
    assert (call.arguments, call.repaired) == ("{}", False), "what is replayed is an object"
    return content


def test_a_clean_call_is_a_candidate_with_everything_its_tool_declares() -> None:
    (call,) = _propose(RawCall("call_x", "refund", '{"order_id": "A", "count": 2}'))

    assert call.answer is None and not call.repaired
    assert (call.index, call.tool, call.wire_id, call.tier) == (0, "refund", "call_x", Tier.HIGH)
    assert call.arguments == '{"count":2,"order_id":"A"}'
    assert (call.effect, call.tell_on_denied, call.attempts_max, call.timeout_s) == (True, True, 3, 30.0)


def test_equal_arguments_have_equal_signatures_however_they_were_written() -> None:
    first = _one('{"order_id": "A", "count": 1}', "get_order")
    same = _one('{ "count":1.0,\n"order_id":"\\u0041"}', "get_order")
    other = _one('{"order_id": "A", "count": 2}', "get_order")

    assert first.signature == same.signature and len(first.signature) == 32
    assert other.signature != first.signature
    assert _one('{"order_id": "A", "count": 1}', "anything").signature != first.signature
    assert _one("[1]").signature != _one("[2]").signature, "two mistakes are two mistakes"


@pytest.mark.parametrize("text", ["", " \n", None, "null"])
def test_nothing_at_all_is_an_empty_object_for_a_tool_that_requires_nothing(text: str | None) -> None:  # B011
    call = _one(text, "server_info")

    assert (call.answer, call.arguments, call.repaired) == (None, "{}", True)
    assert [error["path"] for error in _refused(text, "get_order")["field_errors"]] == ["order_id"]
    assert "tier high" in _refused(text, "reboot")["message"]


def test_an_object_encoded_twice_is_unpacked_once_and_recorded() -> None:  # B013
    once = '{"order_id": "A"}'
    twice = json.dumps(once)

    assert (_one(once, "get_order").arguments, _one(once, "get_order").repaired) == (
        '{"order_id":"A"}',
        False,
    )
    assert (_one(twice, "get_order").arguments, _one(twice, "get_order").repaired) == (
        '{"order_id":"A"}',
        True,
    )
    assert "tier high" in _refused(twice, "refund")["message"]
    for text in (json.dumps(twice), f"[{once}]", "7", '"text"', "true", '"[1]"', "1.5"):
        assert (
            "has to be" in _refused(text)["message"]
            or "have to be" in _refused(text)["message"]
            or ("not valid JSON" in _refused(text)["message"])
        )


def test_one_bad_call_does_not_stop_the_others_of_its_turn() -> None:  # B013
    calls = _propose(
        RawCall("a", "anything", "7"), RawCall("b", "server_info", "{}"), RawCall("c", "no_tool", "{}")
    )

    outcomes = [call.answer and call.answer.outcome for call in calls]
    assert outcomes == [CallOutcome.INVALID_ARGUMENTS, None, CallOutcome.UNKNOWN_TOOL]
    assert [call.answer.index for call in calls if call.answer] == [0, 2]
    assert [call.answer.call_id for call in calls if call.answer] == [
        call_id_of(RUN, TURN, i) for i in (0, 2)
    ]


def test_raw_control_characters_are_let_through_and_written_strictly() -> None:  # B017
    call = _one('{"order_id": "line1\nline2\tend"}', "get_order")

    assert call.arguments == '{"order_id":"line1\\nline2\\tend"}' and call.repaired
    assert json.loads(call.arguments)["order_id"] == "line1\nline2\tend"
    assert "tier high" in _refused('{"order_id": "a\nb"}', "refund")["message"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": NaN}', "NaN"),  # B015
        ('{"a": [-Infinity]}', "-Infinity"),
        ('{"a": 1e400}', "too large"),
        ('{"a": ' + "9" * 5000 + "}", "digits"),
        ('{"a": 1, "a": 2}', "twice"),
        ('{"a": {"b": 1, "b": 1}}', "twice"),
        ('{"a": "\\u0000"}', "NUL"),  # B017
        ('{"a": "b\x00"}', "NUL"),
        ('{"a": "\\ud83d"}', "surrogate"),
        ('{"a\\ud83d": 1}', "surrogate"),
        ('{"a": "\ud83d"}', "surrogate"),
        ('{"a": 1', "not valid JSON"),
        ('{"date": 1}{"date": 2}', "Extra data"),
        ("{'a': 1}", "not valid JSON"),
        ("[" * 100_000, "deeper"),
        ('{"a":' * 80 + "1" + "}" * 80, "deeper"),
        ('{"a": "' + "x" * ARGUMENTS_BYTES_MAX + '"}', "longer"),
        ('{"a": "' + "é" * (ARGUMENTS_BYTES_MAX // 2) + '"}', "longer"),
    ],
)
def test_what_is_not_strict_json_is_refused_with_the_reason(text: str, why: str) -> None:
    content = _refused(text)

    assert why in content["message"] and len(content["message"]) < 300


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ('{"a": 1.0}', '{"a":1}'),
        ('{"a": 1e2}', '{"a":100}'),
        ('{"a": 9007199254740993}', '{"a":9007199254740993}'),  # 2^53 + 1, which no float holds
        ('{"a": 9007199254740993.0}', '{"a":9007199254740993}'),
        ('{"a": 123456789012345678901234567890}', '{"a":123456789012345678901234567890}'),
        ('{"a": 0.1}', '{"a":0.1}'),
        ('{"b": 1, "a": {"d": 1, "c": "é"}}', '{"a":{"c":"é","d":1},"b":1}'),
    ],
)
def test_numbers_stay_exact_and_keys_are_sorted(text: str, canonical: str) -> None:
    assert _one(text).arguments == canonical


def test_the_schema_decides_and_names_the_field() -> None:
    content = _refused('{"count": 1.5, "note": 3, "lines": [{"sku": "a"}, {"x": 1}], "y": 1}', "get_order")

    found = {error["path"]: error["message"] for error in content["field_errors"]}
    assert found["order_id"] == "is required" and found["lines[1].sku"] == "is required"
    assert '"integer"' in found["count"]
    assert '"string"' in found["note"] and '"null"' in found["note"]
    assert "'y' was unexpected" in found[""]


def test_the_answer_to_a_huge_mistake_is_small_and_quotes_nothing() -> None:
    wrong = {"order_id": ["secret" * 1000], **{f"key{n}" * 20: n for n in range(200)}, "lines": [1] * 50}

    content = _refused(json.dumps(wrong), "get_order")

    assert len(content["field_errors"]) == 10 and "secret" not in str(content)
    assert all(len(error["message"]) <= 300 for error in content["field_errors"])


def test_an_argument_the_tool_does_not_have_is_refused_unless_its_schema_is_open() -> None:
    part: dict[str, Any] = {"properties": {"a": {}}}

    assert _refused('{"x": 1}', "server_info")["field_errors"]
    assert _refused('{"x": 1}', "parameterless")["field_errors"], "no properties are no free-form object"
    assert _one('{"x": 1}', "anything").answer is None
    assert closed(part)["additionalProperties"] is False
    assert closed({**part, "additionalProperties": True})["additionalProperties"] is True
    assert closed({**part, "patternProperties": {"^x": {}}}).keys() == {"properties", "patternProperties"}


def test_an_object_inside_the_arguments_is_as_open_as_its_schema_says() -> None:
    inner = '{"order_id": "A", "lines": [{"sku": "s", "colour": "red"}]}'

    assert _one(inner, "get_order").answer is None


def test_a_schema_put_together_of_parts_is_closed_over_all_of_them() -> None:
    parts = {"properties": {"a": {"type": "integer"}}, "allOf": [{"properties": {"b": {"type": "string"}}}]}
    agent = AgentSpec(name="x", model="m", tools=(_tool("parts", {"type": "object", **parts}),))

    def answer(arguments: str) -> Any:
        reply = ModelReply(None, (RawCall("i", "parts", arguments),), "tool_calls", "w", {}, "m")
        return propose(reply, agent, run_id=RUN, turn=1, allowed=None)[0].answer

    assert answer('{"a": 1, "b": "x"}') is None
    assert "'c' was unexpected" in answer('{"a": 1, "b": "x", "c": 1}').content


def test_a_tool_whose_schema_is_broken_is_not_available_and_nothing_is_fetched() -> None:
    content = _content(_one('{"a": 1}', "broken"))

    assert (content["error_type"], content["retryable_by_model"]) == ("not_available", False)


def test_an_unknown_tool_is_answered_with_the_names_there_are() -> None:
    call = _one("{}", "multi_tool_use.parallel")
    content = _content(call)

    assert call.tool == "multi_tool_use.parallel" and content["error_type"] == "unknown_tool"
    assert "get_order" in content["message"] and content["retryable_by_model"]


@pytest.mark.parametrize("name", ["", "x" * 100_000, "a\nb\x00", "\ud800"])
def test_an_unusable_name_is_cut_to_something_that_can_be_stored(name: str) -> None:
    call = _one("{}", name)

    assert 0 < len(call.tool) <= 64 and call.tool.isprintable()
    call.tool.encode()


def test_a_tool_that_is_not_allowed_now_is_not_run_and_the_others_are_named() -> None:
    first, second = _propose(
        RawCall("a", "get_order", '{"order_id":"A"}'),
        RawCall("b", "server_info", "{}"),
        allowed=frozenset({"server_info"}),
    )

    assert first.answer is not None and first.answer.outcome is CallOutcome.NOT_AVAILABLE
    assert "server_info" in _content(first)["message"] and "refund" not in _content(first)["message"]
    assert second.answer is None
    (none,) = _propose(RawCall("a", "get_order", "{}"), allowed=frozenset())
    assert "answer without one" in _content(none)["message"]


def test_a_reply_cut_off_by_the_output_limit_runs_nothing_and_says_why() -> None:  # B009
    whole, cut = _propose(
        RawCall("a", "server_info", "{}"),
        RawCall("b", "get_order", '{"order_id": "weekly rep'),
        finish="length",
    )

    for call in (whole, cut):
        content = _content(call)
        assert (content["error_type"], content["reason_code"]) == ("invalid_arguments", "truncated_output")
        assert "limit of output tokens" in content["message"] and content["retryable_by_model"]
        assert call.answer is not None and call.answer.reason == "truncated_output"
        assert json.loads(call.arguments) == {}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([None, "", "b"], ["call_3_0", "call_3_1", "b"]),
        (["same", "same", "same"], ["same", "call_3_1", "call_3_2"]),
        (
            ["x" * 64, "x" * 65, "a b", "é", "\x00"],
            ["x" * 64, "call_3_1", "call_3_2", "call_3_3", "call_3_4"],
        ),
        ([None, "call_3_0"], ["call_3_0_", "call_3_0"]),
        (["call_3_1", "call_3_1"], ["call_3_1", "call_3_1_"]),
    ],
)
def test_wire_ids_are_the_provider_s_where_usable_and_unique_in_the_turn(
    given: list[str | None], kept: list[str]
) -> None:
    calls = _propose(*(RawCall(one, "server_info", "{}") for one in given))

    assert [call.wire_id for call in calls] == kept


def test_the_conversation_holds_all_calls_with_objects_as_arguments() -> None:
    calls = _propose(
        RawCall("a", "anything", '{"b":1}'), RawCall("b", "anything", "oops"), RawCall(None, "?", None)
    )

    items = item_calls(calls, RUN, TURN)

    assert [item.arguments for item in items] == ['{"b":1}', "{}", "{}"]
    assert [item.wire_id for item in items] == ["a", "b", "call_3_2"]
    assert [item.call_id for item in items] == [call_id_of(RUN, TURN, index) for index in range(3)]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.text(max_size=60)
    | json_values.map(json.dumps)
    | st.dictionaries(st.text(), json_values).map(json.dumps)
)
def test_whatever_a_model_writes_is_an_object_afterwards_or_an_answer(text: str) -> None:
    call = _one(text)

    assert isinstance(json.loads(call.arguments), dict)
    call.arguments.encode()
    assert "\x00" not in call.arguments
    if call.answer is None and not call.repaired:
        exact = json.loads(call.arguments, parse_float=Decimal)
        assert exact == json.loads(text, parse_float=Decimal), "as written, not as the nearest float"
    else:
        assert call.repaired or _content(call)["status"] == "error"


def test_an_envelope_says_what_it_has_to_say_in_a_fixed_order_and_no_more() -> None:
    plain = error(outcome=CallOutcome.FAILED, message="m")
    full = error(
        outcome=CallOutcome.NEEDS_HUMAN,
        message="m",
        reason="outcome_unknown",
        field_errors=[{"path": "a", "message": "b"}],
        retryable=True,
        retryable_by_model=True,
        retry_after_s=1.5,
        suggested_action="wait",
        user_action_required=True,
        status="pending",
        operation_id="op",
        notice="n",
    )

    assert (
        plain
        == '{"status":"error","error_type":"failed","message":"m","retryable":false,"retryable_by_model":false}'
    )
    assert list(json.loads(full)) == [
        "status",
        "error_type",
        "reason_code",
        "message",
        "field_errors",
        "retryable",
        "retryable_by_model",
        "retry_after_s",
        "suggested_action",
        "user_action_required",
        "operation_id",
        "notice",
    ]
    assert success("null") == '{"status":"success","data":null}'


def test_a_notice_changes_no_other_byte() -> None:
    data = '{"n":123456789012345678901234567890.10,"notice":"mine"}'
    content = success(data, provenance="tool", notes=["a"], next_actions=["b"], untrusted_text_omitted=True)

    noticed = with_notice(with_notice(content, 'first "one"'), "second")

    assert noticed == content[:-1] + ',"notice":"second"}'
    assert with_notice(content, "") == content


def test_a_message_no_json_can_hold_is_made_readable() -> None:
    assert json.loads(error(outcome=CallOutcome.FAILED, message="a\ud800b"))["message"] == "a?b"


def _doubling(levels: int) -> dict[str, Any]:
    """Definitions of two references each: written out, 2^levels schemas."""
    definitions: dict[str, Any] = {
        f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]}
        for n in range(levels)
    }
    definitions[f"a{levels}"] = {"type": "string"}
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/a0"}}, "$defs": definitions}


def test_a_schema_that_unfolds_without_measure_is_not_used() -> None:
    assert isinstance(read_arguments('{"x": 5}', _tool("t", _doubling(30))), Unusable)
    assert isinstance(read_arguments('{"x": "a"}', _tool("t", _doubling(8))), Valid)


@pytest.mark.parametrize("levels", [3, 60])
def test_a_value_that_is_wrong_in_countless_ways_is_refused_at_once(levels: int) -> None:
    """A union that leads to itself twice doubles what there is to say at each level of the value."""
    inner = {"type": "array", "items": {"$ref": "#/$defs/a"}}
    nested = {"anyOf": [{**inner, "minItems": 1}, {**inner, "maxItems": 5}]}
    spec = _tool("t", {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": nested}})

    started = time.process_time()
    read = read_arguments('{"x": ' + "[" * levels + "5" + "]" * levels + "}", spec)

    assert time.process_time() - started < 1.0
    assert isinstance(read, Invalid)
    assert bool(read.field_errors) is (levels == 3)
    assert ("Correct the fields named" in read.message) is (levels == 3)
