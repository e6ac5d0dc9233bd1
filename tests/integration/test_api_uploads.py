"""Large files over HTTP, at replicas that are processes: what it costs them, and what is left when one dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.integration.api_processes import DEADLINE_S, Replica, replicas
from toolfleet.access import Access
from toolfleet.adapters.store.migrate import upgrade
from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.batches import REQUESTS_MAX
from toolfleet.workers.machine import MACHINE

MB = 1_000_000
GROWTH_BYTES_MAX = 10 * MB  # measured: 1 to 3 MB, for 32 MB as for 200
SAMPLE_S = 0.02
BOUNDARY = "0123456789abcdef"
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


@pytest.fixture
def database(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'fleet.db'}"
    upgrade(url)
    return url


async def _prepared(database: str) -> str:
    store = SqlStore(database, MACHINE)
    try:
        await store.register_agents([AgentSpec(name="desk", model="scripted")])
        return (await Access(store).create("nightly", tenants=["acme"])).token
    finally:
        await store.aclose()


def _form(size: int) -> Iterator[bytes]:
    yield f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'.encode()
    piece = b"\r\n--x" * 16_384  # looks like the beginning of a boundary again and again
    for start in range(0, size, len(piece)):
        yield piece[: size - start]
    yield f"\r\n--{BOUNDARY}--\r\n".encode()


class Memory:
    """The highest proportional share of memory of a process, looked at while something happens."""

    def __init__(self, replica: Replica) -> None:
        self._file = Path(f"/proc/{replica.process.pid}/smaps_rollup")
        self.before = self.now()
        self.peak = self.before

    def now(self) -> int:
        line = next(one for one in self._file.read_text().splitlines() if one.startswith("Pss:"))
        return int(line.split()[1]) * 1024

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(SAMPLE_S):
                self.peak = max(self.peak, self.now())

        looking = threading.Thread(target=look)
        looking.start()
        try:
            yield
        finally:
            ended.set()
            looking.join()

    @property
    def growth(self) -> int:
        return self.peak - self.before


@pytest.mark.timeout(240)
@pytest.mark.parametrize("size", [32 * MB, pytest.param(200 * MB, marks=pytest.mark.slow)])
def test_a_replica_holds_nothing_of_a_file_that_comes_in(tmp_path: Path, database: str, size: int) -> None:
    token = asyncio.run(_prepared(database))
    headers = {**FORM, "Authorization": f"Bearer {token}"}
    with replicas(tmp_path, database, 1) as (replica,):
        url = f"{replica.url}/api/v1/files"
        assert httpx2.post(url, content=_form(MB), headers=headers, timeout=DEADLINE_S).status_code == 201
        memory = Memory(replica)

        with memory.watched():
            answer = httpx2.post(url, content=_form(size), headers=headers, timeout=2 * DEADLINE_S)

        assert answer.status_code == 201, answer.text
        assert answer.json()["size_bytes"] == size
        assert memory.growth < GROWTH_BYTES_MAX, f"{memory.growth / MB:.1f} MB more for {size / MB:g} MB"
        print(f"PSS {memory.before / MB:.1f} MB, and {memory.growth / MB:.1f} MB more for {size / MB:g} MB")


def test_a_file_is_handed_in_at_one_replica_and_becomes_a_batch_at_another(
    tmp_path: Path, database: str
) -> None:
    token = asyncio.run(_prepared(database))
    headers = {"Authorization": f"Bearer {token}"}
    line = {
        "custom_id": "1",
        "method": "POST",
        "url": "/v1/runs",
        "body": {"agent": "desk", "input": "hi"},
    }
    with replicas(tmp_path, database, 2) as (one, other):
        urls = [f"{each.url}/api/v1" for each in (one, other)]
        data = json.dumps(line).encode()
        form = {"file": ("in.jsonl", data)}
        file = httpx2.post(f"{urls[0]}/files", files=form, headers=headers, timeout=DEADLINE_S).json()
        head = f"POST /api/v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\nAuthorization: Bearer {token}\r\n"
        host, port = one.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as connection:
            connection.sendall(
                f"{head}Content-Type: {FORM['Content-Type']}\r\n\r\n".encode() + next(_form(1))
            )
            _until_there_is(tmp_path / "fleet.db.files", "*.part")
            one.process.kill()
            one.process.wait()

        batch = httpx2.post(
            f"{urls[1]}/batches", json={"input_file_id": file["id"]}, headers=headers, timeout=DEADLINE_S
        )
        listed = httpx2.get(f"{urls[1]}/files", headers=headers, timeout=DEADLINE_S).json()["data"]

    assert batch.status_code == 201 and batch.json()["counts"]["pending"] == 1
    assert [each["id"] for each in listed] == [file["id"]], "half a file is none"


def _until_there_is(folder: Path, pattern: str) -> None:
    ends = time.monotonic() + DEADLINE_S
    while not list(folder.glob(pattern)):
        assert time.monotonic() < ends, f"no {pattern} in {folder}"
        time.sleep(0.02)  # between two looks at what another process has made


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_batch_of_as_many_requests_as_may_be_is_created_and_one_more_is_too_many(
    tmp_path: Path, database: str
) -> None:
    token = asyncio.run(_prepared(database))
    headers = {"Authorization": f"Bearer {token}"}

    def lines(count: int) -> bytes:
        return b"".join(
            b'{"custom_id":"%d","method":"POST","url":"/v1/runs","body":{"agent":"desk","input":"%d"}}\n'
            % (n, n)
            for n in range(count)
        )

    with replicas(tmp_path, database, 1) as (replica,):
        url = f"{replica.url}/api/v1"

        def created(count: int) -> httpx2.Response:
            form = {"file": ("in.jsonl", lines(count))}
            file = httpx2.post(f"{url}/files", files=form, headers=headers, timeout=DEADLINE_S).json()
            body = {"input_file_id": file["id"]}
            return httpx2.post(f"{url}/batches", json=body, headers=headers, timeout=3 * DEADLINE_S)

        assert created(5000).status_code == 201
        memory = Memory(replica)
        began = time.monotonic()
        with memory.watched():
            most = created(REQUESTS_MAX)
        took_s = time.monotonic() - began
        one_more = created(REQUESTS_MAX + 1)

    assert most.status_code == 201 and most.json()["counts"]["pending"] == REQUESTS_MAX
    assert one_more.status_code == 422
    (told,) = one_more.json()["errors"]
    assert (told["line"], told["code"]) == (REQUESTS_MAX + 1, "too_many_requests")
    assert memory.peak < 1.2 * memory.before, f"{memory.before / MB:.1f} MB, then {memory.peak / MB:.1f} MB"
    print(
        f"{REQUESTS_MAX} lines in {took_s:.1f} s; PSS {memory.before / MB:.1f} to {memory.peak / MB:.1f} MB"
    )
