"""Structured answers: the schema the model is held to, what is accepted, and a decision that code acts on."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, RootModel, ValidationError

from toolfleet.adapters.llm.chat_render import ChatRenderer
from toolfleet.adapters.llm.messages_render import MessagesRenderer
from toolfleet.adapters.llm.profiles import ANTHROPIC, GENERIC, OPENAI, OPENAI_RESPONSES
from toolfleet.adapters.llm.responses_render import ResponsesRenderer
from toolfleet.client import RunResult
from toolfleet.definitions import tool
from toolfleet.outputs import Decision, decision_output, output_spec, parsed_as
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.conversation import UserItem
from toolfleet.schemas.errors import InputError, InvalidDefinition
from toolfleet.schemas.model import ModelReply, ModelRequest
from toolfleet.schemas.outcomes import RunStatus
from toolfleet.schemas.output import OutputSpec
from toolfleet.workers.decision.output import read_output


class Card(BaseModel):
    kind: Literal["card"]
    digits: str


class Cash(BaseModel):
    kind: Literal["cash"]
    amount: int


class Bill(BaseModel):
    """What is to be paid."""

    total: int
    paid: Card | Cash | None = None


class Node(BaseModel):
    name: str
    below: list[Node] = []


@tool
async def get_weather(city: str) -> str:
    """Current weather."""
    return city


@tool
async def get_order(order_id: str, detailed: bool = False) -> str:
    """One order."""
    return order_id


def test_a_model_gives_an_object_at_the_root_with_its_unions_inside() -> None:
    spec = output_spec(Bill)

    assert spec.name == "Bill" and spec.description == "What is to be paid." and not spec.wrapped
    assert read_output('{"total": 3, "paid": {"kind": "cash", "amount": 2}}', spec).text == (
        '{"paid":{"amount":2,"kind":"cash"},"total":3}'
    )
    assert read_output('{"total": 3, "paid": {"kind": "card", "amount": 2}}', spec).text is None


def test_a_root_that_is_no_object_is_wrapped_and_taken_out_again() -> None:
    union, several = output_spec(RootModel[Card | Cash]), output_spec(list[int])

    assert union.wrapped and several.wrapped and union.schema_["type"] == "object"
    read = read_output('{"value": {"kind": "cash", "amount": 2}}', union)
    assert read.text == '{"amount":2,"kind":"cash"}'
    assert read_output('{"value": [1, 2]}', several).text == "[1,2]"
    assert read_output("[1, 2]", several).text is None


def test_a_model_that_holds_itself_has_its_root_in_place() -> None:
    spec = output_spec(Node)

    assert not spec.wrapped and "$ref" not in spec.schema_
    assert read_output('{"name": "a", "below": [{"name": "b"}]}', spec).text is not None
    assert read_output('{"name": "a", "below": [{"nome": "b"}]}', spec).text is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("The total is 3.", "not valid JSON"),
        ('{"total": 3', "not valid JSON"),
        ("[3]", "no object"),
        ('{"total": "three"}', "total: "),
        ("{}", "total: is required"),
        ('{"total": 3, "totl": 3}', "totl"),
        ('{"total": 3, "total": 4}', "twice"),
        ('{"total": NaN}', "NaN"),
        ('{"total": 3}\n{"total": 4}', "not valid JSON"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_is_wrong(text: str, told: str) -> None:
    read = read_output(text, output_spec(Bill))

    assert read.text is None and told in read.message and "Answer again" in read.message


@pytest.mark.parametrize("fenced", ['```json\n{"total": 3}\n```', '```\n{"total": 3}\n```\n'])
def test_a_fence_around_the_whole_answer_is_taken_off_and_recorded(fenced: str) -> None:
    read = read_output(fenced, output_spec(Bill))

    assert read.text == '{"total":3}' and read.repaired
    assert read_output(f"Here it is:\n{fenced}", output_spec(Bill)).text is None


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5) | st.text()
)
def test_whatever_is_accepted_fits_the_model(value: Any) -> None:
    text = value if isinstance(value, str) else json.dumps({"total": value})

    read = read_output(text, output_spec(Bill))

    if read.text is not None:
        Bill.model_validate_json(read.text)


def test_a_decision_has_a_branch_for_each_tool_with_its_own_arguments_and_one_for_none() -> None:
    spec = decision_output(get_weather, get_order)

    def decided(name: str, arguments: dict[str, Any], summary: str = "why") -> str | None:
        answer = {"decision_summary": summary, "decision": {"tool": name, "arguments": arguments}}
        return read_output(json.dumps(answer), spec).text

    assert decided("get_weather", {"city": "Paris"}) is not None
    assert decided("none", {}) is not None
    assert decided("get_weather", {"order_id": "1"}) is None, "the arguments of another tool"
    assert decided("get_order", {}) is None
    assert decided("refund", {}) is None
    assert decided("none", {}, "x" * 501) is None, "a summary is short"


def test_code_reads_a_decision_and_the_branch_of_no_tool() -> None:
    def result(tool_name: str, **fields: Any) -> RunResult:
        output = {"decision_summary": "s", "decision": {"tool": tool_name, "arguments": {"city": "Rome"}}}
        values = {"status": RunStatus.COMPLETED, "reason": None, "output": output, **fields}
        return RunResult("r", "a", results=(), turns=1, model_calls=1, tool_calls=0, corrections=0,
                         input_tokens=0, output_tokens=0, cost_usd=0.0, **values)  # fmt: skip

    assert Decision.of(result("get_weather")) == Decision("get_weather", {"city": "Rome"}, "s")
    assert Decision.of(result("none")).tool is None
    assert parsed_as(result("x", output={"total": 2}), Bill) == Bill(total=2)
    with pytest.raises(InputError, match="decided nothing"):
        Decision.of(result("x", status=RunStatus.FAILED, reason="output_invalid"))
    with pytest.raises(InputError, match="is no decision"):
        Decision.of(result("x", output="text"))
    with pytest.raises(InputError, match="is no Bill"):
        parsed_as(result("x", output={}), Bill)


def test_a_decision_over_tools_the_agent_could_call_itself_is_an_error() -> None:
    spec = decision_output(get_weather)

    with pytest.raises(ValidationError, match="get_weather, which are its tools as well"):
        AgentSpec(name="a", model="m", tools=(get_weather.spec,), output=spec)
    assert AgentSpec(name="a", model="m", tools=(get_order.spec,), output=spec).output == spec


@pytest.mark.parametrize("declared", [{"$ref": "#/$defs/Gone"}, type("Odd", (), {})])
def test_what_has_no_schema_is_an_error_of_the_definition(declared: Any) -> None:
    with pytest.raises(InvalidDefinition):
        output_spec(declared)


def test_decisions_need_distinct_tools() -> None:
    with pytest.raises(InvalidDefinition, match="at least one"):
        decision_output()
    with pytest.raises(InvalidDefinition, match="stands twice"):
        decision_output(get_order, get_order)


def _request(spec: OutputSpec) -> ModelRequest:
    agent = AgentSpec(name="a", model="gpt-4o", instructions="Rules.", output=spec)
    return ModelRequest(agent, (UserItem("hi"),), agent.tools, output=spec, cache_key=agent.cache_key)


def test_each_api_is_told_the_shape_in_its_own_place() -> None:
    strict = decision_output(get_weather)

    chat = json.loads(ChatRenderer(OPENAI).render(_request(strict)))
    responses = json.loads(ResponsesRenderer(OPENAI_RESPONSES).render(_request(strict)))
    messages = json.loads(MessagesRenderer(ANTHROPIC).render(_request(strict)))
    generic = json.loads(ChatRenderer(GENERIC).render(_request(strict)))

    assert chat["response_format"]["type"] == responses["text"]["format"]["type"] == "json_schema"
    assert chat["response_format"]["json_schema"]["strict"] is True
    assert responses["text"]["format"]["strict"] is True
    assert messages["output_config"]["format"]["schema"]["additionalProperties"] is False
    assert "response_format" not in generic
    assert "JSON Schema" in generic["messages"][0]["content"], "who takes no schema is told in words"
    assert chat["prompt_cache_key"] == responses["prompt_cache_key"] and "prompt_cache_key" not in generic


@pytest.mark.parametrize(
    ("profile", "renderer"), [(OPENAI, ChatRenderer), (OPENAI_RESPONSES, ResponsesRenderer)]
)
def test_a_shape_goes_out_in_its_strict_form_and_comes_back_as_declared(profile: Any, renderer: Any) -> None:
    made, request = renderer(profile), _request(output_spec(Bill))
    body = json.loads(made.render(request))
    sent = body["response_format"]["json_schema"] if "response_format" in body else body["text"]["format"]
    reply = ModelReply('{"total": 3, "paid": null}', (), "stop", profile.wire, {}, "m")

    back = made.restored(reply, request)

    assert sent["strict"] is True and set(sent["schema"]["required"]) == {"total", "paid"}
    assert back.text is not None and json.loads(back.text)["total"] == 3
    assert read_output(back.text, output_spec(Bill)).text is not None
    assert made.restored(ModelReply("no JSON", (), "stop", "w", {}, "m"), request).text == "no JSON"


class Note(BaseModel):
    text: str
    about: str = "nothing"


def test_null_for_what_was_left_out_is_taken_out_on_the_way_back() -> None:
    made, request = ChatRenderer(OPENAI), _request(output_spec(Note))
    reply = ModelReply('{"text": "a", "about": null}', (), "stop", "chat_completions", {}, "m")

    text = made.restored(reply, request).text

    assert text is not None and read_output(text, output_spec(Note)).text == '{"text":"a"}'


def test_a_shape_strict_mode_cannot_say_is_sent_as_it_is_or_told_in_words() -> None:
    endless = OutputSpec(
        schema_={"type": "object", "properties": {"a": {"type": "string", "const": 1}}, "required": ["a"]}
    )

    chat = json.loads(ChatRenderer(OPENAI).render(_request(endless)))
    messages = json.loads(MessagesRenderer(ANTHROPIC).render(_request(endless)))

    assert chat["response_format"]["json_schema"]["strict"] is False
    assert "output_config" not in messages and "JSON Schema" in messages["system"][0]["text"]
