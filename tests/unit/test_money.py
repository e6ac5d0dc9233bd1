"""What model calls cost, and that a limit in money holds or is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.machine_builders import lease_decision, ok, proposed, replied, submitted, with_calls
from toolfleet import Fleet, Price, ScriptedModel, say
from toolfleet.adapters.llm.openai_chat import OpenAIChatClient
from toolfleet.prices import price_table
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.errors import InputError, UnsafeSettings
from toolfleet.schemas.events import CallsSettled, LeaseExpired, ModelReplied
from toolfleet.schemas.ids import LeaseToken
from toolfleet.schemas.limits import Limits
from toolfleet.schemas.model import Usage
from toolfleet.schemas.outcomes import ReasonCode, RunStatus
from toolfleet.schemas.records import AppendItem, CloseUsage, OpenUsage
from toolfleet.schemas.run import RunState
from toolfleet.settings import load_settings
from toolfleet.workers.machine import reduce

MILLION = Usage(input_tokens=1_000_000, output_tokens=1_000_000)


@pytest.fixture(autouse=True)
def no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLFLEET_UNPRICED", raising=False)
    monkeypatch.delenv("TOOLFLEET_PRICES", raising=False)


def agent(model: str, **fields: Any) -> AgentSpec:
    return AgentSpec(name="a", model=model, **fields)


def test_the_agent_s_price_goes_before_the_operator_s_and_that_before_the_table(tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    file.write_text(
        json.dumps({"gpt-4o": {"input_usd": 1, "output_usd": 2}, "own": {"input_usd": 3, "output_usd": 0}})
    )
    table = price_table(load_settings(prices=str(file)))

    assert table.cost_usd(agent("gpt-4o"), MILLION) == pytest.approx(3.0)
    assert table.cost_usd(agent("own"), MILLION) == pytest.approx(3.0)
    assert table.cost_usd(agent("own", price=Price(input_usd=7, output_usd=0)), MILLION) == pytest.approx(7.0)
    assert price_table(load_settings()).cost_usd(agent("gpt-4o"), MILLION) > 3.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "Invalid JSON"),
        ('{"m": {"input_usd": -1, "output_usd": 0}}', "m.input_usd"),
        ('{"m": {"input": 1}}', "m.input"),
        (None, "No such file"),
    ],
)
def test_a_file_of_prices_that_cannot_be_used_is_refused(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "prices.json"
    if text is not None:
        file.write_text(text)

    with pytest.raises(UnsafeSettings, match=said):
        price_table(load_settings(prices=str(file)))


def declared(tmp_path: Path, model: str, *, unpriced: str | None = None, **fields: Any) -> Fleet:
    fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=OpenAIChatClient("http://127.0.0.1:1/v1"))
    fleet.configure(unpriced=unpriced)
    fleet.agent("a", model=model, **fields)
    return fleet


def test_a_model_nobody_knows_the_price_of_is_refused_at_start_and_at_submit(tmp_path: Path) -> None:
    with pytest.raises(
        UnsafeSettings, match="'a' may spend 1 US dollars a run, and nobody knows what mine-7b costs"
    ):
        declared(tmp_path, "mine-7b").start()

    with declared(tmp_path, "gpt-4o") as fleet:
        fleet.registry.agents.clear()
        fleet.agent("b", model="gpt-4o", fallback_models=["mine-7b"])
        with pytest.raises(InputError, match="mine-7b"):
            fleet.client().know(list(fleet.registry.agents.values()))
            fleet.submit("b", "hello")


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("gpt-4o", {}),
        ("mine-7b", {"price": Price(input_usd=0, output_usd=0)}),  # said to be free
        ("mine-7b", {"unpriced": "ok"}),
    ],
)
def test_a_price_or_an_explicit_word_lets_it_start(
    tmp_path: Path, model: str, fields: dict[str, Any]
) -> None:
    with declared(tmp_path, model, **fields):
        pass


def test_a_fallback_model_without_a_price_is_refused_too(tmp_path: Path) -> None:
    with pytest.raises(UnsafeSettings, match="mine-7b"):
        declared(tmp_path, "gpt-4o", fallback_models=["mine-7b"]).start()


def test_a_client_of_the_user_s_own_has_prices_of_its_own(tmp_path: Path) -> None:
    fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=ScriptedModel([say("hi")]))
    fleet.agent("a", model="scripted")

    with fleet:
        assert fleet.wait(fleet.submit("a", "hello"), timeout_s=60).output == "hi"


def test_a_budget_is_reserved_before_and_settled_after_each_call() -> None:
    # B073: budget 0.45, estimates 0.15 each, real costs 0.10, 0.15, 0.12: three are admitted, the fourth is refused
    # before any request; then 0.37 is spent and nothing reserved. Five workers that ask at once for one decision: one.
    state = submitted(Limits(cost_usd_max=0.45, turns_max=10), reserve_usd=0.15)
    for number, cost in enumerate((0.10, 0.15, 0.12)):
        now = 10.0 * number + 10.0
        state = reduce(state, lease_decision(state, f"d{number}"), now).state
        others = [reduce(state, lease_decision(state, f"x{worker}"), now).missed for worker in range(4)]
        assert others == ["leased"] * 4
        assert state.counters.reserved_usd == 0.15
        made = replied(state, [proposed(0, signature=f"s{number}")], cost_usd=cost, next_reserve_usd=0.15)
        state = reduce(state, made, now).state
        state = reduce(state, CallsSettled(tuple(ok(one) for one in state.open_calls)), now).state

    last = reduce(state, lease_decision(state, "last"), 50.0)

    assert last.state.status is RunStatus.LIMIT_REACHED and last.state.reason == ReasonCode.COST_USD_MAX
    assert not any(isinstance(record, OpenUsage) for record in last.records)
    assert last.state.counters.cost_usd == pytest.approx(0.37)
    assert last.state.counters.reserved_usd == 0.0


def test_what_a_crashed_worker_had_reserved_stands_as_spent() -> None:
    # B073: a crashed worker's reservation is released or settled: settled, for its call may have been made.
    state = submitted(reserve_usd=0.15)
    leased = reduce(state, lease_decision(state), 1.0).state
    row = leased.commands[0]

    after = reduce(leased, LeaseExpired(row.id, LeaseToken("d")), 1000.0).state

    assert (after.counters.cost_usd, after.counters.reserved_usd) == (pytest.approx(0.15), 0.0)
    late = reduce(after, replace(replied(leased, text="late", cost_usd=0.1), token=LeaseToken("d")), 1001.0)
    assert late.missed is not None and [type(record) for record in late.records] == [CloseUsage]


def test_a_run_that_ends_by_its_turns_gives_what_it_had_and_says_which_limit() -> None:
    # B071: turns_max 5, the model needs 8; three results and a draft exist by then.
    limits = Limits(turns_max=5)
    state, step = with_calls([proposed(0)], limits)
    now = 3.0
    for number in range(1, 5):
        state = reduce(state, CallsSettled(tuple(ok(one) for one in state.open_calls)), now).state
        leased = reduce(state, lease_decision(state, f"d{number}"), now + 1).state
        made: ModelReplied = replied(
            leased, [proposed(0, signature=f"s{number}")], text=f"Draft {number}: Paris is likely."
        )
        step = reduce(leased, made, now + 2)
        state, now = step.state, now + 3
    step = reduce(state, CallsSettled(tuple(ok(one) for one in state.open_calls)), now)

    ended: RunState = step.state
    assert (ended.status, ended.reason) == (RunStatus.LIMIT_REACHED, ReasonCode.TURNS_MAX)
    assert ended.output is not None
    assert "the limit of 5 model turns was reached" in ended.output
    assert "5 of 5 recent tool calls succeeded" in ended.output
    assert ended.output.endswith("What I had so far: Draft 4: Paris is likely.")
    assert not ended.open_calls and not ended.commands
    assert isinstance(step.records[-2], AppendItem) or any(isinstance(r, AppendItem) for r in step.records)
