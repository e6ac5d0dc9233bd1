"""The world outside the fleet: what tools and model servers saw, kept by themselves. The oracle trusts nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation.story import Story


@dataclass(slots=True)
class Seen:
    """What the outside knows of one call."""

    call_id: str
    tool: str
    begins: list[tuple[float, int]] = field(default_factory=list)  # (when, attempt)
    acts: int = 0  # changes that took effect
    on_the_way: int = 0  # requests that may still act
    repeats: int = 0  # requests answered from the key, without a second change
    deaths: int = 0  # children that died of it
    kills: int = 0  # processes that died of it
    not_before: float = 0.0  # what the last Retry-After asked for


class Ledger:
    """Beginnings and acts of every call, and how often each decision was asked."""

    def __init__(self, story: Story, now: Callable[[], float]) -> None:
        self._story = story
        self._now = now
        self.calls: dict[str, Seen] = {}
        self.asked: Counter[str] = Counter()  # model calls by run
        self.decision_kills: Counter[str] = Counter()
        self._keys: set[str] = set()
        self.by_effect: Counter[str] = Counter()  # acts, by what they change
        self.acted: tuple[str, bool] = ("", False)
        self.doubles = 0  # second acts of one effect by a sender that slept
        self.arguments = ""  # of what begins now
        self.pending = 0  # requests on their way that may still act
        self.on_begin: Callable[[Seen, int, float], None] = lambda seen, attempt, woken_at: None
        self.on_act: Callable[[Seen], None] = lambda seen: None
        self.on_ask: Callable[[str], None] = lambda run_id: None

    def begin(
        self, who: str, call_id: str, tool: str, attempt: int, *, woken_at: float, arguments: str
    ) -> Seen:
        """`woken_at`: when the process that begins was last woken from a freeze."""
        seen = self.calls.setdefault(call_id, Seen(call_id, tool))
        seen.begins.append((self._now(), attempt))
        self._story.say(who, f"tool {tool} begins {call_id} attempt {attempt}")
        self.arguments = arguments
        self.on_begin(seen, attempt, woken_at)
        return seen

    def act(self, who: str, seen: Seen, *, key: str | None, what: str, slept: bool = False) -> None:
        """The change happens; under a key that was used before, nothing does. `what`: tool and arguments, in its run.
        `slept`: the sender was frozen between its last check and here."""
        if key is not None and key in self._keys:
            seen.repeats += 1
            self._story.say(who, f"tool {seen.tool} repeats nothing {seen.call_id}")
            return
        if key is not None:
            self._keys.add(key)
        seen.acts += 1
        self.by_effect[what] += 1
        self.acted = (what, slept)
        self._story.say(who, f"tool {seen.tool} ACTS {seen.call_id}")
        self.on_act(seen)

    def ask(self, who: str, run_id: str, turn: int) -> int:
        """`turn` is what the conversation shows; for a late asker it may be a later one than its lease is for."""
        self.asked[run_id] += 1
        self._story.say(who, f"model is asked {run_id} turn {turn}")
        self.on_ask(run_id)
        return self.asked[run_id]
