"""cases/schemas: real tool schemas. Each is read, or refused with the path and the reason."""

from __future__ import annotations

from typing import Any

from tests.corpus.cases import Case
from tests.corpus.registry import PASSED, Verdict, checker, refused
from toolfleet.schemas.dialects import SchemaRefused, plain
from toolfleet.schemas.tools import ToolSpec
from toolfleet.workers.decision.arguments import Unusable, read_arguments


def parameters_of(case: Case) -> dict[str, Any]:
    """The schema of a case as its author published it."""
    found = case["function"]["parameters"] if "function" in case else case["tool"]["inputSchema"]
    assert isinstance(found, dict)
    return found


@checker("schemas/bfcl_functions.jsonl", "schemas/mcp_tools.jsonl")
def check_schema(case: Case) -> Verdict:
    try:
        read = plain(parameters_of(case)).schema
    except SchemaRefused as refusal:
        assert refusal.reason
        return refused(refusal.rule)
    spec = ToolSpec(name="tool", description="", parameters=read)
    assert not isinstance(read_arguments("{}", spec), Unusable)
    return PASSED
