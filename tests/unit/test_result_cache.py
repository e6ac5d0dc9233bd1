"""What a kept result is found by, and that it comes back as it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from toolfleet.schemas.ports import ToolReturned
from toolfleet.schemas.tools import ToolContext, ToolSpec
from toolfleet.schemas.views import CachedResult
from toolfleet.workers.executor.result_cache import dumped, key_of, loaded

CONTEXT = ToolContext("run_1", 1, "call_1_1_0", 1, "k", "acme", "desk", "c", 0.0)
SPEC = ToolSpec(
    name="get",
    description="d",
    parameters={"type": "object"},
    injected={"who": "principal", "key": "credential:shop"},
    cache_ttl_s=60,
)
FILLED = {"who": "u1", "key": "secret-1"}


def test_equal_calls_of_a_tenant_share_a_key_whatever_their_run_order_or_credential() -> None:
    key = key_of(SPEC, {"a": 1, "b": "ä"}, FILLED, CONTEXT)

    assert key == key_of(SPEC, {"b": "ä", "a": 1}, FILLED, replace(CONTEXT, run_id="run_2", attempt=3))
    assert key == key_of(SPEC, {"a": 1, "b": "ä"}, {**FILLED, "key": "secret-2"}, CONTEXT)


@pytest.mark.parametrize(
    ("spec", "arguments", "injected", "context"),
    [
        (SPEC, {"a": 1}, FILLED, replace(CONTEXT, tenant="other")),
        (SPEC, {"a": 1}, {**FILLED, "who": "u2"}, CONTEXT),
        (SPEC, {"a": 2}, FILLED, CONTEXT),
        (SPEC, {"a": True}, FILLED, CONTEXT),
        (SPEC.model_copy(update={"name": "got"}), {"a": 1}, FILLED, CONTEXT),
        (SPEC.model_copy(update={"returns_not": "prices"}), {"a": 1}, FILLED, CONTEXT),
    ],
)
def test_another_tenant_principal_argument_or_contract_has_another_key(
    spec: ToolSpec, arguments: dict[str, Any], injected: dict[str, Any], context: ToolContext
) -> None:
    assert key_of(spec, arguments, injected, context) != key_of(SPEC, {"a": 1}, FILLED, CONTEXT)


def test_a_kept_answer_comes_back_as_it_was_with_its_age() -> None:
    answer = ToolReturned(
        b'{"n":9007199254740993}',
        1.5,
        ("n",),
        shown_json=b'"s"',
        summarised=True,
        omitted=True,
        next_actions=("a",),
    )

    back = loaded(CachedResult(dumped(answer), 12.4))

    assert back == replace(answer, seconds=0.0, notes=("n", "kept from a call 12 s ago"))
    assert loaded(CachedResult('{"form":0}', 1.0)) is None
