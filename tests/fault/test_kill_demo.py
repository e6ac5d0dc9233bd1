"""The demo killed with -9 at random moments and started again: same results, and no effect twice."""

from __future__ import annotations

import gzip
import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from toolfleet.examples.airline_desk.database import effects
from toolfleet.examples.airline_desk.initial import DATA

FINISH_S = 600.0


def some_conversations(folder: Path, count: int) -> Path:
    """Every n-th of the carried recordings, so that the test ends soon and still has every kind in it."""
    lines = gzip.decompress((DATA / "airline_conversations.jsonl.gz").read_bytes()).splitlines()
    chosen = lines[:: max(1, len(lines) // count)][:count]
    path = folder / "conversations.jsonl"
    path.write_bytes(b"\n".join(chosen) + b"\n")
    return path


def _start(out: Path, conversations: Path | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "toolfleet", "demo", "--out", str(out), "--seed", "7"]
    if conversations is not None:
        command += ["--conversations", str(conversations)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def _finish(process: subprocess.Popen[bytes]) -> None:
    _, stderr = process.communicate(timeout=FINISH_S)
    assert process.returncode == 0, stderr.decode()[-3000:]


def _open_runs(out: Path) -> int:
    """Runs that are accepted and not terminal, as a dead process left them."""
    path = out / "fleet.db"
    if not path.exists():
        return 0
    with sqlite3.connect(path) as connection:
        try:
            query = (
                "SELECT count(*) FROM runs WHERE status IN ('queued', 'deciding', 'waiting', 'cancelling')"
            )
            return int(connection.execute(query).fetchone()[0])
        except sqlite3.OperationalError:  # killed before the tables were there
            return 0
        finally:
            connection.commit()


def _kill_while_working(process: subprocess.Popen[bytes], out: Path, moment: random.Random) -> int:
    """Wait until runs are open, let it work for a random while, kill it; how many runs were open then."""
    deadline = time.monotonic() + 60
    while _open_runs(out) == 0 and process.poll() is None and time.monotonic() < deadline:
        process_gone = _wait_for_exit(process, 0.02)
        if process_gone:
            return 0
    _wait_for_exit(process, moment.uniform(0.0, 1.5))
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    if process.returncode != -signal.SIGKILL:
        return 0  # it was done before it could be killed
    return _open_runs(out)


def _wait_for_exit(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _compare(tmp_path: Path, conversations: Path | None, kills: int) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    moment = random.Random(20)

    process = _start(undisturbed, conversations)
    _finish(process)
    open_at_kill = []
    for _ in range(kills):
        open_at_kill.append(_kill_while_working(_start(disturbed, conversations), disturbed, moment))
    _finish(_start(disturbed, conversations))

    assert sum(1 for count in open_at_kill if count > 0) >= kills * 0.7, open_at_kill
    assert (disturbed / "results.jsonl").read_bytes() == (undisturbed / "results.jsonl").read_bytes()
    same = ("conversations", "completed", "runs", "model_calls", "tool_calls", "merges", "fanout")
    calm, shaken = (json.loads((out / "summary.json").read_text()) for out in (undisturbed, disturbed))
    assert {name: calm[name] for name in same} == {name: shaken[name] for name in same}
    assert shaken["result_mismatches"] == shaken["state_mismatches"] == 0
    made = Counter((effect.conversation, effect.idempotency_key) for effect in effects(disturbed / "desk.db"))
    assert made and set(made.values()) == {1}
    assert len(made) == len(effects(undisturbed / "desk.db"))


@pytest.mark.timeout(900)
def test_a_demo_that_is_killed_again_and_again_ends_with_the_same_results(tmp_path: Path) -> None:
    _compare(tmp_path, some_conversations(tmp_path, 24), kills=6)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_demo_survives_twenty_kills(tmp_path: Path) -> None:
    _compare(tmp_path, None, kills=20)
