"""Made-up requests against `toolfleet up`, from the document of the API: no 5xx, and no answer that it does not name."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from toolfleet.access import Access
from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.workers.machine import MACHINE

START_S = 90.0
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "ignored_auth",
)
APP = '''
import json

from toolfleet import Fleet, ScriptedModel, call, say


async def script(messages, tools):
    if messages[-1]["role"] == "tool":
        return say("done")
    said = [m["content"] for m in messages if m["role"] == "user"][-1]
    return call("pay", amount=len(said)) if "order" in said else say("hello")


fleet = Fleet(model=ScriptedModel(script))


@fleet.tool(tier="high", effect=True)
async def pay(amount: int) -> int:
    """Pay."""
    return amount


fleet.agent("desk", model="scripted", tools=[pay])
'''


@dataclass(frozen=True)
class Up:
    url: str
    token: str
    folder: Path
    process: subprocess.Popen[bytes]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    (tmp_path / "app.py").write_text(APP)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOOLFLEET")}
    environment = {
        **kept,
        "TOOLFLEET_HTTP_AUTH": "required",
        "TOOLFLEET_UNPRICED": "ok",
        "TOOLFLEET_DRAIN_S": "1",
    }
    out = tmp_path / "up.txt"
    with out.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "toolfleet", "up", "-A", "app:fleet", "--http-port", "0"],
            cwd=tmp_path,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
    try:
        ends = time.monotonic() + START_S
        while "ready\n" not in (text := out.read_text()):
            assert process.poll() is None and time.monotonic() < ends, text
            time.sleep(0.05)  # between two looks at what another process has written
        found = re.search(r"HTTP API at (http://[^/\s]+)", text)
        assert found is not None and "with a key" in text, text
        token = asyncio.run(_key(f"sqlite:///{tmp_path / 'toolfleet.db'}"))
        yield Up(found[1], token, tmp_path, process)
    finally:
        process.kill()
        process.wait()


async def _key(database: str) -> str:
    store = SqlStore(database, MACHINE)
    try:
        scopes = ("submit", "read", "approve", "admin")
        return (await Access(store).create("fuzz", tenants=["*"], scopes=scopes)).token
    finally:
        await store.aclose()


def _fuzz(up: Up, *, examples: int, phases: str, limit_s: float) -> None:
    command = [
        *(str(Path(sys.executable).parent / "schemathesis"), "run", f"{up.url}/api/v1/openapi.json"),
        *("--checks", ",".join(CHECKS), "--phases", phases, "--max-examples", str(examples)),
        *("--header", f"Authorization: Bearer {up.token}", "--request-timeout", "90", "--no-color"),
        *("--suppress-health-check", "all", "--wait-for-schema", "60"),
    ]
    done = subprocess.run(
        command, cwd=up.folder, capture_output=True, text=True, timeout=limit_s, check=False
    )

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "passed" in done.stdout, done.stdout[-2000:]
    assert up.process.poll() is None, "it is still there"
    assert "request_failed" not in (up.folder / "up.txt").read_text()


@pytest.mark.timeout(240)
def test_a_few_made_up_requests_and_chains_of_them_get_the_answers_of_the_document(up: Up) -> None:
    _fuzz(up, examples=2, phases="examples,fuzzing,stateful", limit_s=200)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_made_up_requests_and_chains_of_them_get_the_answers_of_the_document(up: Up) -> None:
    _fuzz(up, examples=60, phases="examples,coverage,fuzzing,stateful", limit_s=1700)
