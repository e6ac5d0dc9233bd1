"""The example of batches, end to end: as a process, and killed on the way."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

TOPICS = {"t-1": "billing", "t-2": "bug", "t-3": "billing", "t-4": "question", "t-5": "bug"}
WAIT_S = 100.0


def _start(root: Path, folder: Path, tickets: Path, in_flight_max: int = 500) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "toolfleet.examples.batch_enrichment.enrich",
        str(tickets),
        "enriched.csv",
    ]
    environment = {**os.environ, "PYTHONPATH": str(root), "TOOLFLEET_KEEPER_PERIOD_S": "0.1"}
    environment["TOOLFLEET_BATCH_IN_FLIGHT_MAX"] = str(in_flight_max)
    environment["TOOLFLEET_DATABASE"] = f"sqlite:///{folder / 'fleet.db'}"
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE)


def test_every_ticket_gets_its_topic_and_is_filed_once(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    root = pytestconfig.rootpath

    done = _start(root, tmp_path, root / "examples" / "batch_enrichment" / "tickets.csv")
    _, told = done.communicate(timeout=WAIT_S)

    assert done.returncode == 0, told.decode()
    rows = _rows(tmp_path / "enriched.csv")
    assert {row["ticket_id"]: row["topic"] for row in rows} == TOPICS
    assert [row["error"] for row in rows] == [""] * 5
    filed = [line.split()[0] for line in (tmp_path / "filed.txt").read_text().splitlines()]
    assert sorted(filed) == sorted(TOPICS)


@pytest.mark.timeout(400)  # five starts of a fleet, on a machine that may be busy
def test_a_batch_that_was_killed_again_and_again_has_one_line_for_each_ticket(
    pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    """Effects that were cut off end as `pending`, never twice: their tickets are filed once or not at all."""
    count, kills = 150, 3
    tickets = tmp_path / "tickets.csv"
    lines = [f"t-{number},c-1,an error\n" for number in range(count)]
    tickets.write_text("ticket_id,customer_id,text\n" + "".join(lines))
    filed = tmp_path / "filed.txt"

    for _ in range(kills):
        running = _start(pytestconfig.rootpath, tmp_path, tickets, in_flight_max=10)
        want = _lines(filed) + count // 8
        while running.poll() is None and _lines(filed) < want:
            with suppress(subprocess.TimeoutExpired):
                running.wait(0.05)
        assert running.poll() is None, "it was killed while it worked"
        os.kill(running.pid, signal.SIGKILL)
        running.communicate()
    last = _start(pytestconfig.rootpath, tmp_path, tickets)
    last.communicate()

    rows = _rows(tmp_path / "enriched.csv")
    assert [row["ticket_id"] for row in rows] == [f"t-{number}" for number in range(count)]
    assert all(bool(row["topic"]) != bool(row["error"]) for row in rows)
    times = Counter(line.split()[0] for line in filed.read_text().splitlines())
    assert max(times.values()) == 1, "no ticket is filed twice"
    assert set(times) <= {row["ticket_id"] for row in rows}


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines(keepends=True)))


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0
