"""cases/llm/sequences.jsonl: the golden replay. A case passes where every difference is an allowed one."""

from __future__ import annotations

from tests.corpus import golden
from tests.corpus.cases import Case
from tests.corpus.registry import PASSED, Verdict, checker, failed, refused


@checker("llm/sequences.jsonl")
def check_sequence(case: Case) -> Verdict:
    if not any(True for _ in golden.replayed(case)):
        return refused("no-answer-goes-back")
    file, allowed = golden.file_of(case), golden.rows()
    return _verdict(
        [
            f"step {found.step} {found.path}: ours {found.ours!r:.120}, recorded {found.recorded!r:.120}"
            for found in golden.differences(case)
            if not any(row.allows(file, found) for row in allowed)
        ]
    )


def _verdict(reasons: list[str]) -> Verdict:
    return failed(*reasons) if reasons else PASSED
