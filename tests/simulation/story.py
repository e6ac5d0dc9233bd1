"""What happened, in order: the lines a failing seed prints, and the hash that proves a replay."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable


class Story:
    """Append-only. `fault` also counts, by kind: what a seed reports as injected."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._hash = hashlib.sha256()
        self.lines: list[str] = []
        self.faults: Counter[str] = Counter()
        self.violations: list[str] = []

    def say(self, who: str, what: str) -> None:
        line = f"{self._now():10.3f}  {who:<14} {what}"
        self.lines.append(line)
        self._hash.update(line.encode())

    def fault(self, kind: str, what: str = "") -> None:
        self.faults[kind] += 1
        self.say("** fault", f"{kind} {what}")

    def violation(self, rule: str, what: str) -> None:
        self.violations.append(f"[{rule}] {what}")
        self.say("!! VIOLATION", f"[{rule}] {what}")

    def digest(self) -> str:
        return self._hash.hexdigest()[:16]
