"""A commit whose answer is lost on its way: unavailable to the caller, and nothing of it is lost when it is repeated.

A port stands between the store and PostgreSQL, and swallows the answer of one commit.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Final

import pytest

from tests import servers
from tests.contract.store_bench import (
    accepted,
    lease,
    new_run,
    opened,
    proposed,
    replied,
    settled,
    state_of,
)
from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.schemas.errors import StoreUnavailable
from toolfleet.schemas.events import Event
from toolfleet.schemas.ids import CommandId, RunId, new_token
from toolfleet.schemas.limits import UNSENT_AFTER_S
from toolfleet.schemas.outcomes import RunStatus
from toolfleet.schemas.ports import Applied, Transition
from toolfleet.workers.leases import commit


@pytest.fixture
def url(postgresql: servers.Server) -> str:
    return servers.new_database(postgresql)


COMMIT: Final = b"COMMIT\x00"  # the request, and the answer that it was done; READ COMMITTED is another word


class Relay:
    """A port in front of the server. `lose_next_commit`: the server commits, and its answer never arrives."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.lose_next_commit = threading.Event()
        self.lost = 0
        self._threads = [threading.Thread(target=self._accept)]
        self._sockets: list[socket.socket] = []
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._sockets += [client, server]
            losing = threading.Event()
            for pump in (
                threading.Thread(target=self._requests, args=(client, server, losing)),
                threading.Thread(target=self._answers, args=(client, server, losing)),
            ):
                self._threads.append(pump)
                pump.start()

    def _requests(self, client: socket.socket, server: socket.socket, losing: threading.Event) -> None:
        while data := _receive(client):
            if COMMIT in data and self.lose_next_commit.is_set():
                self.lose_next_commit.clear()
                losing.set()
            server.sendall(data)
        _shut(server)

    def _answers(self, client: socket.socket, server: socket.socket, losing: threading.Event) -> None:
        while data := _receive(server):
            if losing.is_set():
                self.lost += COMMIT in data
                break
            client.sendall(data)
        _shut(client)
        _shut(server)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        for each in (self._listening, *self._sockets):
            _shut(each)
        for thread in self._threads:
            thread.join()
        for each in (self._listening, *self._sockets):
            each.close()


def _receive(from_: socket.socket) -> bytes:
    try:
        return from_.recv(65536)
    except OSError:
        return b""


def _shut(which: socket.socket) -> None:
    try:
        which.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


@pytest.fixture
def relay(postgresql: servers.Server) -> Iterator[Relay]:
    made = Relay(postgresql.port)
    yield made
    made.close()


class Impatient:
    """A clock whose waits take no time."""

    def now_s(self) -> float:
        return 0.0

    def monotonic_s(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


CLOCK: Final = Impatient()


def through(relay: Relay, url: str) -> str:
    return f"postgresql://toolfleet@127.0.0.1:{relay.port}/{url.rpartition('/')[2]}"


async def committed(store: SqlStore, relay: Relay, run_id: RunId, what: Event) -> Applied:
    """As a worker commits, when the answer of its first try is lost."""
    relay.lose_next_commit.set()
    (applied,) = await commit(store, CLOCK, [Transition(run_id, what)])
    assert not relay.lose_next_commit.is_set()
    return applied


def test_a_lost_answer_is_unavailable_although_it_is_stored(url: str, relay: Relay) -> None:
    async def story() -> None:
        async with opened(through(relay, url)) as store:
            new = await accepted(store)
            relay.lose_next_commit.set()

            with pytest.raises(StoreUnavailable):
                await store.transact([Transition(new.run_id, lease(new.run_id, 1, new_token()))])

            assert relay.lost == 1
            view = await store.run(new.run_id)
            assert view is not None and view.state.status is RunStatus.DECIDING

    asyncio.run(story())


def test_a_lease_whose_answer_was_lost_is_the_workers_when_it_asks_again(url: str, relay: Relay) -> None:
    async def story() -> None:
        async with opened(through(relay, url)) as store:
            new, token = await accepted(store), new_token()

            applied = await committed(store, relay, new.run_id, lease(new.run_id, 1, token))

            assert relay.lost == 1
            assert applied.missed is None, "else it would wait for the lease to expire, and count a death"
            assert state_of(applied).commands[0].token == token
            assert len(await store.usage(new.run_id)) == 1

    asyncio.run(story())


def test_calls_of_a_reply_whose_answer_was_lost_go_out_all_the_same(url: str, relay: Relay) -> None:
    moved = 0.0

    async def story() -> None:
        nonlocal moved
        async with opened(through(relay, url), time_source=lambda: 1000.0 + moved) as store:
            new, token = await accepted(store), new_token()
            await store.transact([Transition(new.run_id, lease(new.run_id, 1, token))])

            applied = await committed(store, relay, new.run_id, replied(new.run_id, 1, token, proposed(2)))

            assert relay.lost == 1
            assert (applied.missed, applied.publish) == ("lease lost", ()), (
                "the worker has nothing to publish"
            )
            view = await store.run(new.run_id)
            assert view is not None
            state = view.state
            assert (state.status, len(state.open_calls), state.item_count) == (RunStatus.WAITING, 2, 2)
            (usage,) = await store.usage(new.run_id)
            assert (usage["status"], usage["input_tokens"]) == ("replied", 100)
            moved = UNSENT_AFTER_S
            due = await store.due_rows(limit=10, broker="b")
            assert [one.row.id for one in due] == [row.id for row in state.commands], "so the keeper does"

    asyncio.run(story())


def test_a_merge_whose_answer_was_lost_is_made_once_and_its_decision_goes_out(url: str, relay: Relay) -> None:
    moved = 0.0

    async def story() -> None:
        nonlocal moved
        async with opened(through(relay, url), time_source=lambda: 1000.0 + moved) as store:
            new, token = await accepted(store), new_token()
            await store.transact([Transition(new.run_id, lease(new.run_id, 1, token))])
            (out,) = await store.transact(
                [Transition(new.run_id, replied(new.run_id, 1, token, proposed(2)))]
            )

            applied = await committed(store, relay, new.run_id, settled(state_of(out).calls))

            assert (relay.lost, applied.missed) == (1, "nothing left to count")
            assert len(await store.items(new.run_id)) == 3
            moved = UNSENT_AFTER_S
            due = await store.due_rows(limit=10, broker="b")
            assert [one.row.id for one in due] == [CommandId(f"{new.run_id}/2")]

    asyncio.run(story())


def test_a_submit_whose_answer_was_lost_finds_its_run_when_it_is_repeated(url: str, relay: Relay) -> None:
    async def story() -> None:
        async with opened(through(relay, url)) as store:
            await store.now()
            new = new_run(idempotency_key="k", request_hash="h")
            relay.lose_next_commit.set()
            with pytest.raises(StoreUnavailable):
                await store.submit([new])

            (again,) = await store.submit([new])

            assert (relay.lost, again.run_id, again.created) == (1, new.run_id, False)

    asyncio.run(story())
