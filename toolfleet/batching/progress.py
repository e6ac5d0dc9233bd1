"""How fast a batch gets on, and when it will be done. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from toolfleet.schemas.batches import BatchReport, BatchView

LOOKED_BACK_S: Final = 60.0  # a rate is that of the last minute: the beginning says little about the end


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """`rate_per_s`: items that end per second; `eta_s`: until all have at that rate. None: nothing can be said yet."""

    view: BatchView
    report: BatchReport
    rate_per_s: float | None
    eta_s: float | None
    cost_usd: float


@dataclass(slots=True)
class Pace:
    """Remembers what it was shown of one batch, for a minute."""

    _seen: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=1000))

    def seen(self, report: BatchReport) -> BatchProgress:
        """What can be said now. The first look takes the whole time since the batch began."""
        view = report.view
        now, ended = view.now_s, view.counts.ended
        if not self._seen and view.released_at is not None and view.resumes == 0:
            self._seen.append((view.released_at, 0))
        self._seen.append((now, ended))
        while len(self._seen) > 2 and self._seen[1][0] <= now - LOOKED_BACK_S:
            self._seen.popleft()
        since, before = self._seen[0]
        rate = (ended - before) / (now - since) if now > since and ended > before else None
        left = view.counts.total - ended
        eta = None if view.ended or rate is None or view.paused else left / rate
        cost = report.use.cost_usd + report.use.running_cost_usd
        return BatchProgress(view, report, rate, eta, cost)
