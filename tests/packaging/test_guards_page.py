"""The table of removed guards in docs/guarantees.md lists every guard there is, each with a test that exists."""

from __future__ import annotations

import json
from pathlib import Path

from tests.guards import known


def test_every_guard_is_in_the_table_with_a_test_that_exists(root: Path) -> None:
    rows = json.loads((root / "docs" / "guards.json").read_text())

    listed = [(row["kind"], row["guard"]) for row in rows]
    assert sorted(listed) == sorted(known()), "run: make guards"
    for row in rows:
        path, _, test = row["test"].partition("::")
        assert f"def {test.partition('[')[0]}(" in (root / path).read_text(), row


def test_the_table_names_the_guards_that_were_promised(root: Path) -> None:
    guards = {row["guard"] for row in json.loads((root / "docs" / "guards.json").read_text())}

    assert guards >= {
        "the effect key",
        "keys nobody holds",
        "the fence by attempt",
        "reply without its token",
        "last outcome wins",
        "one person is enough",
        "nobody is asked",
        "edits keep their confirmations",
        "the collector's lock",
    }
