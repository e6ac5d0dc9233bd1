"""What a strict reviewer says of tools: each rule found once by what breaks it, and silent where it is mended."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from pydantic import ValidationError

from tests.unit.contract_tools import get_order
from toolfleet.cli import run_command
from toolfleet.examples.airline_desk import desk
from toolfleet.lint import RULES, Finding, lint, lint_tool
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.builtin_tools import READ_RESULT
from toolfleet.schemas.tools import ToolSpec

TEXT = {"type": "string", "description": "A text."}


def _spec(name: str = "get_order", properties: dict[str, Any] | None = None, **more: Any) -> ToolSpec:
    """A tool nobody objects to, but for what the test changes."""
    fields: dict[str, Any] = {
        "description": "Looks up state, lines and delivery date of one order.",
        "parameters": {"type": "object", "properties": properties or {}, **more.pop("root", {})},
        "use_when": ("the user asks about an order",),
        "not_when": ("the user wants to change it",),
        "edge_cases": ("unknown orders are answered with order_not_found",),
        "sources": {one: ("user",) for one in properties or {}},
        **more,
    }
    return ToolSpec(name=name, **fields)


def _ids(spec: ToolSpec) -> list[str]:
    return sorted({one.id for one in lint_tool(spec)})


def test_a_tool_with_a_whole_contract_has_no_finding() -> None:
    assert _ids(_spec()) == []
    assert _ids(get_order.spec) == []
    assert _ids(READ_RESULT) == []


@pytest.mark.parametrize(
    ("spec", "id_"),
    [
        (_spec(description=""), "no-description"),
        (_spec("query"), "vague-name"),
        (_spec("getData"), "vague-name"),
        (_spec("search"), "vague-name"),
        (_spec(description="Query information."), "vague-description"),
        (_spec(description="查询信息"), "vague-description"),
        (_spec(use_when=()), "no-use-when"),
        (_spec(not_when=()), "no-not-when"),
        (_spec(edge_cases=()), "no-edge-cases"),
        (_spec(returns="x" * 1000), "long-description"),
        (_spec(properties={"order_id": {"type": "string"}}), "no-argument-description"),
        (_spec(properties={"filter": {"type": "object", "description": "d"}}), "free-form-object"),
        (_spec(properties={"anything": {"description": "d"}}), "free-form-object"),
        (
            _spec(
                properties={"rows": {"type": "array", "description": "d", "items": {"type": "object"}}},
                examples=[{"arguments": {"rows": [{}]}}],
            ),
            "free-form-object",
        ),
        (_spec(root={"additionalProperties": True}), "open-arguments"),
        (
            _spec(properties={"fast": {"type": "boolean", "enum": ["yes", "no"], "description": "d"}}),
            "no-strict-form",
        ),
        (
            _spec("manage_order", {"action": {"enum": ["get", "cancel", "refund"], "description": "d"}}),
            "merged-actions",
        ),
        (
            _spec("order_desk", {"what": {"enum": ["view_order", "delete_order"], "description": "d"}}),
            "merged-actions",
        ),
        (_spec("order_desk", {"operation": TEXT}), "free-action"),
        (_spec("return_result", {"answer": TEXT}), "pretend-tool"),
        (_spec("final_answer", {"text": TEXT}), "pretend-tool"),
        (_spec("delete_order"), "undeclared-effect"),
        (_spec("sendEmailReceipt"), "undeclared-effect"),
        (_spec("cancel_order"), "undeclared-effect"),
        (_spec("refund_order", effect=True, tier="high"), "low-tier"),
        (_spec("send_receipt", effect=True, tier="medium"), "low-tier"),
        (_spec("get_receipt", effect=True, tier="medium"), "effect-named-as-read"),
        (_spec(properties={"api_key": TEXT}), "secret-argument"),
        (_spec(properties={"tenant_id": TEXT}), "system-argument"),
        (_spec(properties={"order_id": TEXT}, sources={}), "no-source"),
        (
            _spec(properties={f"a{n}": TEXT for n in range(11)}, examples=[{"arguments": {}}]),
            "many-arguments",
        ),
        (_spec(properties={f"a{n}": TEXT for n in range(5)}), "no-example"),
        (_spec("read_ticket"), "outside-text"),
        (_spec(timeout_s=200.0), "no-call-deadline"),
        (_spec(attempts_max=40, timeout_s=5.0), "no-call-deadline"),
    ],
)
def test_each_rule_finds_what_breaks_it_and_says_what_mends_it(spec: ToolSpec, id_: str) -> None:
    found = [one for one in lint_tool(spec) if one.id == id_]

    assert found and all(one.reason and one.mend and one.tool == spec.name for one in found)
    assert _ids(spec) == [id_]


@pytest.mark.parametrize(
    "spec",
    [
        _spec("save_draft_reply", effect=True, tier="medium"),  # drafts are what medium is for
        _spec("cancel_order", effect=True, tier="high"),
        _spec(timeout_s=200.0, call_timeout_s=600.0),
        _spec(timeout_s=900.0, attempts_max=1),
        _spec("read_ticket", result_fields=[{"path": "body", "mark": "untrusted"}]),
        _spec("list_orders", {"sort": {"enum": ["date", "total"], "description": "d"}}),
        _spec("search_orders", {"status": {"enum": ["open", "closed", "cancelled"], "description": "d"}}),
        _spec(
            use_when=(),
            not_when=(),
            description="Use when the user asks for an order's state. Not for refunds.",
        ),
        _spec(
            use_when=(),
            not_when=(),
            description="查询指定订单的当前状态和物流节点。适用于用户询问物流。不适用于退款。",
        ),
    ],
)
def test_what_is_as_it_should_be_is_left_alone(spec: ToolSpec) -> None:
    assert _ids(spec) == []


def _of_agent(*specs: ToolSpec) -> list[Finding]:
    agent = AgentSpec(name="desk", model="m", tools=specs)
    return [one for one in lint([], [agent]) if one.agent]


def test_tools_that_do_nearly_the_same_are_named_together_unless_one_says_how_they_differ() -> None:
    query = _spec("query_order", description="Tells state and lines of an order.")

    assert [one.id for one in _of_agent(_spec(), query)] == ["overlapping"]
    assert _of_agent(_spec(not_when=("only a customer is known: use query_order",)), query) == []
    assert _of_agent(_spec(), _spec("get_customer", description="Tells name and mail of a customer.")) == []


@pytest.mark.parametrize(
    ("specs", "why"),
    [
        ([_spec(requires=[{"tool": "login"}])], "login is no tool of desk"),
        (
            [_spec("get_a", requires=[{"tool": "get_b"}]), _spec("get_b", stages=["never"])],
            "or can never be called",
        ),
        ([_spec(stages=["checked"])], "nothing leads to stage checked"),
    ],
)
def test_a_tool_that_can_never_be_called_is_an_error(specs: list[ToolSpec], why: str) -> None:
    found = _of_agent(*specs)

    assert {one.id for one in found} - {"overlapping"} == {"unreachable"}
    assert why in found[0].reason


def test_many_tools_are_noted_and_more_are_warned_of() -> None:
    numbered = [
        _spec(f"get_thing{n}", description=f"Tells the {n}th of many things, whole.") for n in range(21)
    ]

    assert [one.id for one in _of_agent(*numbered[:11])] == ["some-tools"]
    assert [one.id for one in _of_agent(*numbered)] == ["many-tools"]


def test_every_rule_is_found_by_a_test_above() -> None:
    tried = {argument for one in _parameters() for argument in one if isinstance(argument, str)}

    assert set(RULES) - tried == {"overlapping", "unreachable", "many-tools", "some-tools"}


def _parameters() -> list[tuple[Any, ...]]:
    marks = test_each_rule_finds_what_breaks_it_and_says_what_mends_it.pytestmark  # type: ignore[attr-defined]
    return list(marks[0].args[1])


def test_the_recorded_desk_is_judged_as_it_was_recorded() -> None:
    specs = [declared.spec for declared in desk.TOOLS]
    found = lint(specs, [AgentSpec(name="desk", model="m", tools=tuple(specs))])

    assert [one.tool for one in found if one.id == "undeclared-effect"] == ["transfer_to_human_agents"]
    assert [one.reason.partition(":")[0] for one in found if one.id == "overlapping"] == [
        "search_direct_flight and search_onestop_flight"
    ]
    assert [one.severity for one in found] == sorted(
        (one.severity for one in found), key=["error", "warning", "note"].index
    )


APP = '''
from toolfleet import Fleet

fleet = Fleet()

@fleet.tool(runner="loop")
def delete_order(order_id: str) -> str:
    """Removes an order and everything that belongs to it."""
    return ""

@fleet.tool(runner="loop", use_when="the user asks for an order", not_when="it is to be changed", edge_cases="none found")
def get_order(order_id: str) -> str:
    """Looks up state, lines and delivery date of one order."""
    return ""

fleet.agent("desk", model="m", tools=[get_order])
'''


def test_tools_that_require_each_other_make_no_agent() -> None:
    with pytest.raises(ValidationError, match="goes round in a circle: a, b"):
        _of_agent(_spec("a", requires=[{"tool": "b"}]), _spec("b", requires=[{"tool": "a"}]))


@pytest.fixture
def app(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / f"lint_app_{uuid4().hex}.py"  # one process has one module of a name
    path.write_text(APP)
    monkeypatch.chdir(tmp_path)
    return f"{path}:fleet"


def test_lint_ends_with_1_where_something_is_found_and_says_all_of_it(
    app: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["tools", "lint", "-A", app]) == 1
    told = capsys.readouterr()
    assert "error: delete_order: 'delete_order': its name says that it changes something" in told.out
    assert "[undeclared-effect]" in told.out and "declare effect=True and a tier" in told.out

    assert run_command(["tools", "lint", "-A", app, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["errors"] == 1 and not document["ok"]
    assert {"id", "severity", "tool", "place", "agent", "reason", "mend"} == document["findings"][0].keys()

    assert run_command(["tools", "lint", "-A", app, "--agent", "desk", "--fail-on", "error"]) == 0


def test_tools_are_listed_shown_and_printed_as_a_model_gets_them(
    app: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["tools", "ls", "-A", app, "--json"]) == 0
    assert [
        (one["name"], one["kind"], one["agents"]) for one in json.loads(capsys.readouterr().out)["tools"]
    ] == [
        ("delete_order", "read", []),
        ("get_order", "read", ["desk"]),
    ]

    assert run_command(["tools", "show", "get_order", "-A", app]) == 0
    assert "use_when" in capsys.readouterr().out

    assert run_command(["tools", "schema", "get_order", "-A", app]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["description"].splitlines()[1] == "Use it when: the user asks for an order"
    assert schema["parameters"]["required"] == ["order_id"]

    assert run_command(["tools", "schema", "-A", app]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["tools"]] == [
        "delete_order",
        "get_order",
    ]

    assert run_command(["tools", "schema", "read_result", "-A", app]) == 0  # the runtime brings it
    assert json.loads(capsys.readouterr().out)["name"] == "read_result"

    assert run_command(["tools", "ls", "-A", app]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == [
        *("TOOL", "TIER", "KIND", "ARGUMENTS", "AGENTS", "DESCRIPTION"),
    ]


@pytest.mark.parametrize(
    "line", [["tools", "ls"], ["tools", "show", "nothing"], ["tools", "lint", "--agent", "x"]]
)
def test_what_is_not_there_is_said(app: str, line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    given = line if line == ["tools", "ls"] else [*line, "-A", app]

    assert run_command(given) == 2
    assert "error:" in capsys.readouterr().err
