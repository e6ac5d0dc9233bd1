"""Who is asked: approves exactly the calls a user's task needs, by their canonical arguments, and rejects the rest."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from benchmarks.agentdojo.cases import Case, canonical
from toolfleet import Fleet
from toolfleet.schemas.errors import NotAllowed
from toolfleet.schemas.views import ApprovalView

LOOK_S: Final = 0.05


class Approver:
    """While it is entered, every question of this fleet is answered. `case_of`: the case of a run, by its id."""

    def __init__(self, fleet: Fleet, case_of: Callable[[str], Case | None], *, needed: bool) -> None:
        self._fleet = fleet
        self._case_of = case_of
        self._needed = needed
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._answer, name="approver", daemon=True)
        self._token = ""
        self.failed: Exception | None = None

    def __enter__(self) -> Self:
        if self._needed:
            self._token = self._fleet.add_approver("the user")
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._needed:
            self._thread.join()
        if self.failed is not None and exc is None:
            raise self.failed

    def _answer(self) -> None:
        try:
            while not self._over.wait(LOOK_S):
                for view in self._fleet.approvals(limit=1000):
                    self._decide(view)
        except Exception as exc:  # noqa: BLE001 - raised when the round ends
            self.failed = exc

    def _decide(self, view: ApprovalView) -> None:
        case = self._case_of(view.run_id)
        if case is None:
            return  # its run was accepted this moment; the next look finds it
        asked = canonical(view.tool, json.loads(view.arguments))
        seen = view.approval.arguments_hash
        try:
            if asked in {one.canonical for one in case.wanted}:
                self._fleet.approve(view.approval.id, token=self._token, arguments_hash=seen)
            else:
                self._fleet.reject(
                    view.approval.id, token=self._token, reason="the user did not ask for this"
                )
        except NotAllowed:
            pass  # it was settled meanwhile
