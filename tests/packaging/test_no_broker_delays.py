"""Nothing in the product delays by the broker (trap 2): delays are rows of the database, whatever the broker can do."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

FOLDERS = ("toolfleet", "schemas", "queues", "workers", "adapters")
FORBIDDEN_KEYWORDS = {"countdown", "eta", "expires"}
FORBIDDEN_NAMES = {"chord", "gevent", "eventlet"}


def offences(source: str) -> list[str]:
    """What a module does that celery would do with messages in its memory."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            found += [word.arg for word in node.keywords if word.arg in FORBIDDEN_KEYWORDS]
            if isinstance(node.func, ast.Attribute) and node.func.attr == "retry":
                found.append(f"{ast.unparse(node.func)}()")
        if isinstance(node, ast.Import | ast.ImportFrom):
            found += [alias.name for alias in node.names if alias.name in FORBIDDEN_NAMES]
    return [one for one in found if one]


def test_no_task_is_delayed_by_a_broker(root: Path) -> None:
    found = {
        str(path.relative_to(root)): offences(path.read_text(encoding="utf-8"))
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
        if "__pycache__" not in path.parts
    }
    # Starting a finished run again, for people; and a branch of the machine.
    allowed = {"client.retry()", "self.client().retry()", "call.retry()"}
    assert {name: set(what) - allowed for name, what in found.items() if set(what) - allowed} == {}


@pytest.mark.parametrize(
    "source",
    [
        "task.apply_async(countdown=5)",
        "app.send_task('x', eta=later)",
        "self.retry()",
        "from celery import chord",
    ],
)
def test_a_delay_would_be_noticed(source: str) -> None:
    assert offences(source)
