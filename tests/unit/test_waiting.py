"""Who waits for a run goes on waiting while the database is away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from toolfleet import client
from toolfleet.client import _Finished, _patiently
from toolfleet.schemas.errors import StoreUnavailable
from toolfleet.schemas.ids import RunId, new_run_id


class Away:
    """A store that is away for so many questions."""

    def __init__(self, times: int) -> None:
        self.left = times

    async def finished(self, run_ids: Sequence[RunId]) -> set[RunId]:
        self.left -= 1
        if self.left >= 0:
            raise StoreUnavailable("the database cannot be used", hint="")
        return set(run_ids)


def test_a_database_that_comes_back_is_waited_for() -> None:
    async def story() -> None:
        store = Away(3)
        await asyncio.wait_for(_Finished(store).wait(new_run_id()), 20)  # type: ignore[arg-type]
        assert store.left == -1

        again = Away(2)
        assert await _patiently(lambda: again.finished(["run"])) == {"run"}  # type: ignore[list-item]

    asyncio.run(story())


def test_one_that_stays_away_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "AWAY_S", 0.0)

    async def story() -> None:
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(_Finished(Away(1000)).wait(new_run_id()), 20)  # type: ignore[arg-type]
        with pytest.raises(StoreUnavailable):
            await _patiently(lambda: Away(1000).finished([]))

    asyncio.run(story())
