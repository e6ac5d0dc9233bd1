"""The rules of an agent through the whole fleet: what is asked of the server, and what is held although it says yes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from pydantic import BaseModel

from tests.integration.test_fleet_model_server import WAIT_S, _completion, _served
from toolfleet import (
    ContextPolicy,
    ControlPolicy,
    Decision,
    Fleet,
    Limits,
    Narrowing,
    OpenAIChatClient,
    PolicyStep,
    RunStatus,
    decision_output,
)
from toolfleet.client import RunResult
from toolfleet.schemas.errors import InputError, InvalidDefinition

Script = Callable[[dict[str, Any], int], dict[str, Any]]  # (request, how many before and with it) -> message


class Bill(BaseModel):
    total: int


def _calls(*names: str) -> dict[str, Any]:
    made = [
        {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": json.dumps({"n": at})}}
        for at, name in enumerate(names)
    ]
    return {"content": None, "tool_calls": made}


def _fleet(tmp_path: Path, url: str) -> Fleet:
    fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=OpenAIChatClient(base_url=url, api_key="k"))

    @fleet.tool
    async def look(n: int) -> str:
        """Look something up."""
        return f"seen {n}"

    @fleet.tool
    async def weigh(n: int) -> str:
        """Weigh something."""
        return f"{n} kg"

    return fleet


def _play(
    tmp_path: Path,
    script: Script,
    declare: Callable[[Fleet], object],
    inputs: tuple[str, ...] = ("hello",),
    **options: Any,
) -> tuple[list[RunResult], list[dict[str, Any]], list[dict[str, Any]]]:
    """The results of runs of one conversation, the requests the server got, and the decide steps of the last run."""

    async def answer(request: web.Request, count: int) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        message = script(body, count)
        if "error" in message:
            return web.json_response({"error": message["error"]}, status=400)
        return web.json_response(_completion(message))

    with _served(answer) as (url, received):
        fleet = _fleet(tmp_path, url)
        declare(fleet)
        results: list[RunResult] = []
        with fleet:
            for one in inputs:
                previous = results[-1].run_id if results else None
                run = fleet.submit("desk", one, previous_run_id=previous, **options)
                results.append(run.wait(timeout_s=WAIT_S))
            steps = fleet._run(fleet.client().store.steps(results[-1].run_id))  # type: ignore[arg-type]
    return results, received, [step.fields for step in steps if step.kind == "decide"]


def _desk(**fields: Any) -> Callable[[Fleet], object]:
    return lambda fleet: fleet.agent("desk", model="m", tools=["look", "weigh"], **fields)


def test_required_is_asked_for_and_held(tmp_path: Path) -> None:
    def script(body: dict[str, Any], count: int) -> dict[str, Any]:
        return (
            {"content": "No need."} if count == 1 else _calls("look") if count == 2 else {"content": "Seen."}
        )

    (result,), received, steps = _play(tmp_path, script, _desk(tool_choice="required"))

    assert result.ok and result.output == "Seen." and result.corrections == 1 and result.tool_calls == 1
    assert [body["tool_choice"] for body in received] == ["required", "required", "auto"]
    assert "has to be called" in received[1]["messages"][-1]["content"]
    assert steps[0]["rules"] == ["tool_choice"] and steps[0]["tool_choice"] == "required"


def test_a_model_that_never_calls_what_it_has_to_fails_the_run(tmp_path: Path) -> None:
    def script(body: dict[str, Any], count: int) -> dict[str, Any]:
        return {"content": "No."}

    (result,), received, _ = _play(tmp_path, script, _desk(control=ControlPolicy(first="look")))

    assert result.status is RunStatus.FAILED and result.reason == "tool_required"
    assert len(received) == 2 and "No." not in (result.output or "")
    assert received[0]["tool_choice"] == {"type": "function", "function": {"name": "look"}}


def test_an_answer_waits_for_its_tools(tmp_path: Path) -> None:
    def script(body: dict[str, Any], count: int) -> dict[str, Any]:
        return (_calls("look"), {"content": "Too early."}, _calls("weigh"), {"content": "Now."})[count - 1]

    rules = ControlPolicy(answer_only_after=("look", "weigh"))
    (result,), received, steps = _play(tmp_path, script, _desk(control=rules))

    assert result.ok and result.output == "Now." and result.corrections == 1
    assert [step.get("answer_needs") for step in steps] == [["look", "weigh"], ["weigh"], ["weigh"], None]
    assert "only be given after weigh" in received[2]["messages"][-1]["content"]


def test_a_call_outside_the_candidates_does_not_run_and_says_what_may(tmp_path: Path) -> None:
    def script(body: dict[str, Any], count: int) -> dict[str, Any]:
        return _calls("weigh", "look") if count == 1 else {"content": "Done."}

    rules = ControlPolicy(tenants={"weigh": ("gold",)})
    (result,), received, steps = _play(tmp_path, script, _desk(control=rules))

    assert [r.outcome for r in result.results] == ["not_available", "ok"]
    assert result.results[0].reason == "tenant" and "look" in result.results[0].content
    assert len(received[0]["tools"]) == 2, "definitions stay as they are"
    assert steps[0]["excluded_tools"] == {"weigh": "tenant"} and steps[0]["allowed_tools"] == ["look"]


@pytest.mark.parametrize(
    ("permissions", "outcomes", "status"),
    [
        (("pay:eu",), ["denied", "ok"], RunStatus.DENIED),
        (("pay:eu", "pay"), ["ok", "ok"], RunStatus.COMPLETED),
    ],
    ids=["lacks one", "has both"],
)
def test_what_the_principal_may_not_do_is_not_offered_and_denied_where_it_is_called(
    tmp_path: Path, permissions: tuple[str, ...], outcomes: list[str], status: RunStatus
) -> None:
    paid: list[int] = []

    def declare(fleet: Fleet) -> None:
        @fleet.tool(permissions=["pay", "pay:eu"])
        async def pay(n: int) -> str:
            """Pay."""
            paid.append(n)
            return "paid"

        fleet.agent("desk", model="m", tools=["look", "pay"])

    def script(body: dict[str, Any], count: int) -> dict[str, Any]:
        return _calls("pay", "look") if count == 1 else {"content": "Done."}

    may = {"principal": "ann", "permissions": permissions}
    (result,), received, steps = _play(tmp_path, script, declare, **may)

    assert [r.outcome for r in result.results] == outcomes and result.status is status
    assert len(received[0]["tools"]) == 2, "definitions stay as they are"
    if status is RunStatus.DENIED:
        assert (
            result.results[0].reason == "permission_denied" and "missing: pay)" in result.results[0].content
        )
        assert steps[0]["excluded_tools"] == {"pay": "permission"} and steps[0]["allowed_tools"] == ["look"]
        assert len(received) == 1 and result.reason == "permission_denied" and paid == []
    else:
        assert "excluded_tools" not in steps[0] and paid == [0]


def test_one_at_a_time_holds_for_a_model_that_sends_several(tmp_path: Path) -> None:
    def script(body: dict[str, Any], count: int) -> dict[str, Any]:
        return _calls("look", "weigh", "look") if count == 1 else {"content": "Done."}

    (result,), received, _ = _play(tmp_path, script, _desk(parallel_tool_calls="off"))

    assert [r.outcome for r in result.results] == ["ok", "not_run", "not_run"]
    assert received[0]["parallel_tool_calls"] is False


def test_a_hook_narrows_each_step(tmp_path: Path) -> None:
    seen: list[PolicyStep] = []

    def script(body: dict[str, Any], count: int) -> dict[str, Any]:
        return _calls("weigh") if count == 1 else {"content": "Done."}

    def declare(fleet: Fleet) -> None:
        @fleet.hook
        def only_looking(step: PolicyStep) -> Narrowing:
            seen.append(step)
            return Narrowing(allowed=frozenset({"look"}), reason=f"tenant {step.tenant}")

        fleet.agent("desk", model="m", tools=["look", "weigh"], control=ControlPolicy(hook="only_looking"))

    (result,), _, steps = _play(tmp_path, script, declare)

    assert result.results[0].outcome == "not_available" and result.results[0].reason == "hook"
    assert seen[0].candidates == ("look", "weigh") and seen[0].turn == 1
    assert steps[0]["rules"] == ["hook: tenant default"]


def test_a_hook_that_raises_ends_the_run_before_the_model_is_asked(tmp_path: Path) -> None:
    def declare(fleet: Fleet) -> None:
        @fleet.hook
        async def broken(step: PolicyStep) -> None:
            raise KeyError("a secret")

        fleet.agent("desk", model="m", tools=["look"], control=ControlPolicy(hook="broken"))

    (result,), received, _ = _play(tmp_path, lambda body, count: {"content": "x"}, declare)

    assert result.status is RunStatus.FAILED and result.reason == "policy_error" and received == []


def test_hooks_nobody_declared_are_errors_of_the_definition(tmp_path: Path) -> None:
    fleet = _fleet(tmp_path, "http://127.0.0.1:9/v1")

    with pytest.raises(InvalidDefinition, match="'gone' is no hook"):
        fleet.agent("desk", model="m", tools=["look"], control=ControlPolicy(hook="gone"))
    with pytest.raises(InvalidDefinition, match="not as a lambda"):
        fleet.hook(lambda step: None)


def test_the_intent_of_a_run_narrows_and_a_wrong_one_is_refused_at_once(tmp_path: Path) -> None:
    rules = ControlPolicy(intents={"weight": ("weigh",)})

    def script(body: dict[str, Any], count: int) -> dict[str, Any]:
        return _calls("look", "weigh") if count == 1 else {"content": "Done."}

    (result,), _, _ = _play(tmp_path, script, _desk(control=rules), metadata={"intent": "weight"})

    assert [r.outcome for r in result.results] == ["not_available", "ok"]
    with pytest.raises(InputError, match="knows no intent 'odd'"):
        _play(tmp_path, script, _desk(control=rules), metadata={"intent": "odd"})


def test_an_answer_with_a_schema_is_validated_corrected_and_given_as_a_value(tmp_path: Path) -> None:
    def script(body: dict[str, Any], count: int) -> dict[str, Any]:
        return {"content": '{"total": "3"}' if count == 1 else '```json\n{"total": 3}\n```'}

    (result,), received, _ = _play(tmp_path, script, _desk(output=Bill))

    assert result.output == {"total": 3} and result.output_text == '{"total":3}' and result.corrections == 1
    assert "total:" in received[1]["messages"][-1]["content"]
    assert "JSON Schema" in received[0]["messages"][0]["content"], "this server takes no schema of an answer"


def test_an_answer_that_never_fits_fails_the_run(tmp_path: Path) -> None:
    (result,), received, _ = _play(tmp_path, lambda body, count: {"content": "3 euros"}, _desk(output=Bill))

    assert result.status is RunStatus.FAILED and result.reason == "output_invalid" and len(received) == 2


def test_a_router_decides_and_code_acts(tmp_path: Path) -> None:
    def script(body: dict[str, Any], count: int) -> dict[str, Any]:
        decision = (
            {"tool": "look", "arguments": {"n": 4}} if count == 1 else {"tool": "none", "arguments": {}}
        )
        return {"content": json.dumps({"decision_summary": "They want a look.", "decision": decision})}

    def declare(fleet: Fleet) -> None:
        output = decision_output(fleet.registry.tools["look"], fleet.registry.tools["weigh"])
        fleet.agent("desk", model="m", output=output)

    results, _, _ = _play(tmp_path, script, declare, ("look at 4", "hm"))

    assert Decision.of(results[0]) == Decision("look", {"n": 4}, "They want a look.")
    assert Decision.of(results[1]).tool is None


def _sizes(received: list[dict[str, Any]]) -> list[int]:
    return [len(json.dumps(body["messages"])) for body in received]


def test_a_long_conversation_is_cut_to_its_budget_and_the_step_says_how(tmp_path: Path) -> None:
    def script(body: dict[str, Any], count: int) -> dict[str, Any]:
        return {"content": "word " * 150}

    inputs = tuple(f"question {number}" for number in range(6))
    results, received, steps = _play(tmp_path, script, _desk(context=ContextPolicy(tokens_max=700)), inputs)

    assert all(result.ok for result in results)
    assert steps[-1]["context"]["dropped_items"] > 0
    assert steps[-1]["context"]["tokens"] <= steps[-1]["context"]["budget_tokens"] == 700
    last = received[-1]["messages"]
    assert last[-1]["content"] == "question 5" and "left out" in last[0]["content"]


def test_a_summariser_says_what_was_left_out(tmp_path: Path) -> None:
    def declare(fleet: Fleet) -> None:
        @fleet.hook
        def sum_up(items: Any) -> str:
            return f"{len(items)} items about questions"

        context = ContextPolicy(tokens_max=700, summariser="sum_up")
        fleet.agent("desk", model="m", tools=["look"], context=context)

    inputs = tuple(f"question {number}" for number in range(6))
    _, received, steps = _play(tmp_path, lambda body, count: {"content": "word " * 150}, declare, inputs)

    assert "items about questions" in received[-1]["messages"][0]["content"]
    assert steps[-1]["context"]["summarised"] is True


def test_a_request_the_server_finds_too_long_is_tried_once_with_less(tmp_path: Path) -> None:
    limit = 3_500

    def script(body: dict[str, Any], count: int) -> dict[str, Any]:
        if len(json.dumps(body["messages"])) > limit:
            return {"error": {"message": "too long", "code": "context_length_exceeded", "type": "x"}}
        return {"content": "word " * 150}

    inputs = tuple(f"question {number}" for number in range(6))
    results, received, _ = _play(tmp_path, script, _desk(), inputs)

    assert [result.status for result in results] == [RunStatus.COMPLETED] * 6
    refused = [size for size in _sizes(received) if size > limit]
    assert 1 <= len(refused) <= 2, "each run is refused once at most, and only where it is too long"


def test_a_request_that_stays_too_long_ends_with_its_reason(tmp_path: Path) -> None:
    error = {"error": {"message": "too long", "code": "context_length_exceeded", "type": "x"}}

    (result,), received, _ = _play(tmp_path, lambda body, count: error, _desk(), ("x" * 20_000,))

    assert result.status is RunStatus.FAILED and result.reason == "context_length" and len(received) == 1


def test_the_beginning_of_a_request_is_the_same_bytes_in_every_turn_and_run(tmp_path: Path) -> None:
    def script(body: dict[str, Any], count: int) -> dict[str, Any]:
        return _calls("look") if count % 2 else {"content": "Done."}

    rules = ControlPolicy(tenants={"weigh": ("gold",)})
    _, received, _ = _play(
        tmp_path,
        script,
        _desk(instructions="Be brief.", selection_rules="Look first.", control=rules),
        ("a", "b"),
    )

    heads = {json.dumps({key: body[key] for key in ("model", "tools")}) for body in received}
    systems = {json.dumps(body["messages"][0]) for body in received}
    assert len(received) == 4 and len(heads) == len(systems) == 1
    assert received[0]["messages"][0]["content"] == "Be brief.\n\nLook first."


def test_runs_in_flight_keep_the_version_they_were_accepted_under(tmp_path: Path) -> None:
    def script(body: dict[str, Any], count: int) -> dict[str, Any]:
        return {"content": body["messages"][0]["content"]}

    async def answer(request: web.Request, count: int) -> web.StreamResponse:
        return web.json_response(_completion(script(orjson.loads(await request.read()), count)))

    with _served(answer) as (url, _):
        old, new = _fleet(tmp_path, url), _fleet(tmp_path, url)
        old.agent("desk", model="m", instructions="The old rules.", limits=Limits(turns_max=2))
        new.agent("desk", model="m", instructions="The new rules.")
        with old:
            old.submit("desk", "warm up").wait(timeout_s=WAIT_S)
        waiting = old.submit("desk", "from before the deploy")  # accepted, and nobody works
        old.stop()
        with new:
            before = new.wait(waiting.id, timeout_s=WAIT_S)
            after = new.submit("desk", "from after it").wait(timeout_s=WAIT_S)

    assert before.output == "The old rules." and after.output == "The new rules."


def test_a_tool_that_was_changed_under_a_run_in_flight_is_not_run_for_it(tmp_path: Path) -> None:
    ran: list[str] = []

    async def answer(request: web.Request, count: int) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        said = body["messages"][-1]["content"]
        return web.json_response(_completion(_calls("look") if said == "go" else {"content": said}))

    def declare(url: str, *, tier: str, description: str) -> Fleet:
        fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=OpenAIChatClient(base_url=url, api_key="k"))

        @fleet.tool(tier=tier, description=description)
        async def look(n: int) -> str:
            ran.append(description)
            return f"seen {n}"

        fleet.agent("desk", model="m", tools=[look])
        return fleet

    with _served(answer) as (url, _):
        old = declare(url, tier="low", description="old")
        with old:
            old.submit("desk", "warm up").wait(timeout_s=WAIT_S)
        waiting = old.submit("desk", "go")
        old.stop()
        with declare(url, tier="low", description="other words") as new:
            fine = new.wait(waiting.id, timeout_s=WAIT_S)
            again = new.submit("desk", "go")
            again.wait(timeout_s=WAIT_S)
        late = new.submit("desk", "go")
        new.stop()
        with declare(url, tier="medium", description="raised") as raised:
            refused = raised.wait(late.id, timeout_s=WAIT_S)

    assert [r.outcome for r in fine.results] == ["ok"], "other words are no other tool"
    assert [(r.outcome, r.reason) for r in refused.results] == [("failed", "tool_changed")]
    assert ran == ["other words", "other words"]
