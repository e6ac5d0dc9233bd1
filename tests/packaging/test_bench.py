"""The benchmark of W3 works, and its page is made of its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.w3 import model_server, report, safety
from benchmarks.w3.shape import FINAL_TEXT, Shape, result


@pytest.fixture(scope="module")
def smoke(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Figures of ten embedded runs: worth nothing but that they are there."""
    out = tmp_path_factory.mktemp("bench") / "bench.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.w3.run",
        "--smoke",
        "--stacks",
        "embedded",
        "--out",
        str(out),
    ]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def test_ten_embedded_runs_are_measured_from_outside(smoke: Path) -> None:
    bench = json.loads(smoke.read_text())

    (busy,) = bench["overhead"]["embedded"]
    assert (busy["n"], busy["model_calls"]) == (10, 30)
    assert busy["cpu_ms"] > 0 and busy["runs_per_s"] > 0
    failed = [found for found in bench.values() if "failed" in json.dumps(found)]
    assert failed == []


def test_the_page_is_made_of_the_figures(smoke: Path) -> None:
    page = report.page(json.loads(smoke.read_text()))

    assert page.startswith(f"# Performance\n\n{report.GENERATED}\n")
    assert "| embedded (SQLite) |" in page
    assert "| T1 |" in page


def test_the_committed_page_is_that_of_the_committed_figures(root: Path) -> None:
    if not report.BENCH.exists():
        pytest.skip("no figures are committed")

    page = report.page(json.loads(report.BENCH.read_text()))

    assert (root / "docs" / "performance.md").read_text() == page, "run: python -m benchmarks.w3.report"


def test_the_model_refuses_a_conversation_without_each_result_once() -> None:
    shape = Shape(fan=2)
    user = {"role": "user", "content": shape.text(1)}
    told, _ = model_server.completion(json.dumps({"model": "m", "messages": [user]}).encode())
    asked = told["choices"][0]["message"]
    results = [
        {
            "role": "tool",
            "tool_call_id": one["id"],
            "content": result(json.loads(one["function"]["arguments"])["key"]),
        }
        for one in asked["tool_calls"]
    ]
    swapped = [{**results[0], "tool_call_id": "call_0_1"}, {**results[1], "tool_call_id": "call_0_0"}]

    for wrong in (results[:1], [*results, results[0]], swapped):
        body = json.dumps({"model": "m", "messages": [user, asked, *wrong]}).encode()
        with pytest.raises(model_server.Refused):
            model_server.completion(body)


def test_the_model_says_its_last_word_after_two_turns() -> None:
    shape = Shape(fan=1)
    messages = [{"role": "user", "content": shape.text(1)}]
    for _ in range(2):
        told, _ = model_server.completion(json.dumps({"model": "m", "messages": messages}).encode())
        (asked,) = told["choices"][0]["message"]["tool_calls"]
        content = result(json.loads(asked["function"]["arguments"])["key"])
        messages += [
            told["choices"][0]["message"],
            {"role": "tool", "tool_call_id": asked["id"], "content": content},
        ]

    told, _ = model_server.completion(json.dumps({"model": "m", "messages": messages}).encode())

    assert told["choices"][0]["message"]["content"] == FINAL_TEXT


def test_a_setting_that_is_not_at_its_default_is_named() -> None:
    default = {"lease_s": 30.0, "claim_s": None, "database": "sqlite:///toolfleet.db"}

    assert safety.changed(default | {"database": "postgresql://x/y"}, default) == []
    assert safety.changed(default | {"lease_s": 300.0}, default) == ["lease_s is 300.0 instead of 30.0"]
