"""The front door of batches, for every other door: Python, the command line and HTTP stand on it.

A file goes in (`submit`), a batch comes out at once, its lines stored and none of them queued; the keeper of the fleet
runs them a window at a time. All that a door needs is the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Final, Literal

import orjson

from toolfleet.batching.answers import answer_line
from toolfleet.batching.bodies import ENDPOINTS, RUNS
from toolfleet.batching.lines import CHUNK_BYTES
from toolfleet.batching.progress import BatchProgress, Pace
from toolfleet.batching.reading import BatchReader, Format, ReadingRules
from toolfleet.client import POLL_MAX_S, Client, RunRequest
from toolfleet.request_checks import METADATA_BYTES_MAX
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.batch_port import BatchStore
from toolfleet.schemas.batches import (
    WINDOW_S,
    WINDOW_S_MAX,
    WINDOW_S_MIN,
    BatchFault,
    BatchLimits,
    BatchReport,
    BatchStatus,
    BatchView,
    NewBatch,
    NewItem,
)
from toolfleet.schemas.errors import BatchRefused, InputError, UnknownBatch
from toolfleet.schemas.ids import new_batch_id, new_token
from toolfleet.schemas.run import NewRun

Kind = Literal["output", "errors", "all"]
PART_ITEMS_MAX: Final = 500  # lines of one transaction, and at most PART_BYTES_MAX of their inputs
PART_BYTES_MAX: Final = 1_000_000
PAGE_ITEMS: Final = 200
FAULTS_SAID: Final = 5
WATCH_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """What is asked of a batch beside its lines.

    `endpoint`: the url its lines have to name (None: that of the first). Plain JSONL or CSV: `agent`, `template` with
    `{field}` of the row, and `id_field`. `window_s`: completion window, from the end of the upload on; what is not done
    by then expires. `principal` and `permissions` are whom its runs act for.
    """

    format: Format = "openai"
    endpoint: str | None = None
    agent: str | None = None
    template: str = "{input}"
    id_field: str = "custom_id"
    window_s: float = WINDOW_S
    limits: BatchLimits = field(default_factory=BatchLimits)
    metadata: Mapping[str, str] | None = None
    idempotency_key: str | None = None
    tenant: str = "default"
    file_name: str = ""
    principal: str = ""
    permissions: tuple[str, ...] = ()


class Batches:
    """Async operations on batches. `client` is an open one; nothing here needs a worker in this process.

    Where a `tenant` is given, batches of others are unknown ones.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def store(self) -> BatchStore:
        found = self._client.store.batches
        assert found is not None, "a database has batches"
        return found

    async def submit(
        self,
        source: str | Path | BinaryIO,
        options: BatchOptions | None = None,
        *,
        permitted: Callable[[str], bool] = lambda agent: True,
    ) -> BatchView:
        """Read, check and store a file; returns when all of it is stored, before any of it is queued.

        `source`: a path, or a file opened for bytes (seekable where there is an idempotency key). `permitted`: whether
        the caller may use that agent. Raises BatchRefused with all `faults` (the batch is kept as `failed`, its id in
        `fields["batch_id"]`), InputError for options, IdempotencyConflict, BatchBusy. The same key and file give the
        same batch; after a crash half-way they begin the upload again.
        """
        asked = options or BatchOptions()
        _check(asked)
        if isinstance(source, str | Path) and not asked.file_name:
            asked = replace(asked, file_name=Path(source).name)
        with _opened(source) as file:
            content = (
                "" if asked.idempotency_key is None else await asyncio.to_thread(_content_hash, file, asked)
            )
            token = new_token()
            view, mine = await self.store.open(_new(asked, content), token)
            if not mine:
                return view
            await self.store.drop(view.batch_id, token)  # what an upload that was cut off left
            reader = self._reader(file, asked, await self._client.agents(), permitted)
            return await self._stored(view.batch_id, token, reader)

    async def check(
        self, source: str | Path | BinaryIO, options: BatchOptions | None = None
    ) -> list[BatchFault]:
        """What `submit` would refuse the file for; nothing is stored."""
        asked = options or BatchOptions()
        _check(asked)
        agents = await self._client.agents()
        with _opened(source) as file:
            reader = self._reader(file, asked, agents, lambda agent: True)
            return await asyncio.to_thread(lambda: [one for one in reader if isinstance(one, BatchFault)])

    def _reader(
        self,
        file: BinaryIO,
        asked: BatchOptions,
        agents: Mapping[str, AgentSpec],
        permitted: Callable[[str], bool],
    ) -> BatchReader:
        rules = ReadingRules(
            format=asked.format,
            endpoint=asked.endpoint,
            agent=asked.agent,
            template=asked.template,
            id_field=asked.id_field,
        )

        def new_run(request: RunRequest, agent: AgentSpec) -> NewRun:
            of_whom = replace(
                request, tenant=asked.tenant, principal=asked.principal, permissions=asked.permissions
            )
            return self._client.new_run(of_whom, agent)

        return BatchReader(file, rules, agents, new_run, permitted)

    async def _stored(self, batch_id: str, token: str, reader: BatchReader) -> BatchView:
        """Read on until the end even where something is wrong: all faults of a file are told at once."""
        faults: list[BatchFault] = []
        reading = iter(reader)
        while part := await asyncio.to_thread(_part, reading):
            faults += [one for one in part if isinstance(one, BatchFault)]
            if not faults:
                await self.store.add(batch_id, token, [one for one in part if isinstance(one, NewItem)])
        if faults:
            await self.store.refuse(batch_id, token, faults)
            raise _refused(batch_id, faults)
        return await self.store.release(
            batch_id, token, endpoint=reader.endpoint or RUNS, ignored=reader.ignored
        )

    # -- look ------------------------------------------------------------------------------------------------------

    async def get(self, batch_id: str, *, tenant: str | None = None) -> BatchView:
        """The batch as it is now. Raises UnknownBatch."""
        found = await self.store.batch(batch_id, tenant=tenant)
        if found is None:
            raise UnknownBatch(f"no batch is called {batch_id!r}", hint="List them: toolfleet batch ls")
        return found

    async def list(
        self,
        *,
        limit: int = 20,
        before: str | None = None,
        tenant: str | None = None,
        status: str | None = None,
    ) -> Sequence[BatchView]:
        """Newest first; `before` is the id of the last one of the page before. Raises InputError, UnknownBatch."""
        if status is not None and status not in list(BatchStatus):
            raise InputError(
                f"no batch status is called {status!r}", hint=f"Statuses: {', '.join(BatchStatus)}."
            )
        if before is not None:
            await self.get(before, tenant=tenant)  # a cursor nobody knows would look like the end
        return await self.store.batches(limit=limit, before=before, tenant=tenant, status=status)

    async def report(self, batch_id: str, *, tenant: str | None = None) -> BatchReport:
        """What it came to so far: outcomes by reason, tokens, cost, seconds. Raises UnknownBatch."""
        await self.get(batch_id, tenant=tenant)
        found = await self.store.report(batch_id)
        assert found is not None, "it was read before"
        return found

    async def lines(
        self, batch_id: str, kind: Kind = "output", *, tenant: str | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The lines of the output file, of the error file, or of both: what has ended so far, in the order of the
        input, a page at a time. Of a batch that has ended, each custom_id is in exactly one of the two files."""
        view = await self.get(batch_id, tenant=tenant)
        completed = {"output": True, "errors": False, "all": None}[kind]
        after = 0
        while page := await self.store.items(
            batch_id, after_line=after, limit=PAGE_ITEMS, completed=completed
        ):
            for item in page:
                yield answer_line(item, view.endpoint)
            after = page[-1].line

    async def watch(
        self, batch_id: str, *, tenant: str | None = None, every_s: float = WATCH_S
    ) -> AsyncGenerator[BatchProgress, None]:
        """How far it is, again and again until it has ended; also while it is paused. Raises UnknownBatch."""
        pace = Pace()
        while True:
            progress = pace.seen(await self.report(batch_id, tenant=tenant))
            yield progress
            if progress.view.ended:
                return
            await asyncio.sleep(every_s)

    async def wait(
        self, batch_id: str, *, tenant: str | None = None, timeout_s: float | None = None
    ) -> BatchReport:
        """The report once it has ended. Raises TimeoutError after timeout_s; the batch goes on."""
        async with asyncio.timeout(timeout_s):
            async for progress in self.watch(batch_id, tenant=tenant, every_s=POLL_MAX_S):
                last = progress
        return last.report

    # -- stop and go on --------------------------------------------------------------------------------------------

    async def cancel(self, batch_id: str, *, tenant: str | None = None) -> BatchView:
        """What has finished is kept, nothing more begins, what is at work is stopped. Idempotent. Raises UnknownBatch."""
        await self.get(batch_id, tenant=tenant)
        return await self.store.cancel(batch_id)

    async def resume(
        self,
        batch_id: str,
        *,
        tenant: str | None = None,
        window_s: float | None = None,
        limits: BatchLimits | None = None,
    ) -> tuple[BatchView, int]:
        """Run what ended and did not complete once more, each item under its effect scope: an effect that happened is
        not done again. Returns how many items that are. `limits` replace those it had. Raises UnknownBatch, BatchBusy."""
        await self.get(batch_id, tenant=tenant)
        _check_window(window_s)
        _check_limits(limits)
        return await self.store.resume(batch_id, window_s=window_s, limits=limits)


def _part(reading: Iterator[NewItem | BatchFault]) -> list[NewItem | BatchFault]:
    """The next lines, as many as one transaction stores. Empty: the file was read."""
    part: list[NewItem | BatchFault] = []
    size = 0
    for one in reading:
        part.append(one)
        size += len(one.run.input) if isinstance(one, NewItem) else 0
        if len(part) >= PART_ITEMS_MAX or size >= PART_BYTES_MAX:
            break
    return part


def _refused(batch_id: str, faults: Sequence[BatchFault]) -> BatchRefused:
    said = [f"line {one.line}: {one.message}" if one.line else one.message for one in faults[:FAULTS_SAID]]
    more = f" (and {len(faults) - FAULTS_SAID} more)" if len(faults) > FAULTS_SAID else ""
    return BatchRefused(
        f"the file was refused, and nothing of it ran: {'; '.join(said)}{more}",
        hint=f"All of it: toolfleet batch status {batch_id}. Mend the file and submit it again.",
        faults=tuple(faults),
        batch_id=batch_id,
    )


def _new(asked: BatchOptions, content_hash: str) -> NewBatch:
    return NewBatch(
        batch_id=new_batch_id(),
        tenant=asked.tenant,
        endpoint=asked.endpoint or RUNS,
        window_s=asked.window_s,
        limits=asked.limits,
        metadata=dict(asked.metadata or {}),
        idempotency_key=asked.idempotency_key,
        content_hash=content_hash,
        file_name=asked.file_name,
        created_by=asked.principal,
    )


def _content_hash(file: BinaryIO, asked: BatchOptions) -> str:
    """Of the file and of all that decides what its lines become. The file is at its beginning again."""
    if not file.seekable():
        raise InputError(
            "a batch with an idempotency key is read twice, and this source can be read only once",
            hint="Save it to a file first, or leave the key out.",
        )
    told = [asked.format, asked.endpoint, asked.agent, asked.template, asked.id_field, asked.window_s]
    limits = [asked.limits.cost_usd_max, asked.limits.concurrency_max]
    digest = hashlib.sha256(
        orjson.dumps([told, limits, dict(asked.metadata or {})], option=orjson.OPT_SORT_KEYS)
    )
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
    file.seek(0)
    return digest.hexdigest()


@contextlib.contextmanager
def _opened(source: str | Path | BinaryIO) -> Iterator[BinaryIO]:
    if not isinstance(source, str | Path):
        yield source
        return
    try:
        file = Path(source).open("rb")  # noqa: SIM115 - closed below; here only its opening is judged
    except OSError as exc:
        raise InputError(
            f"{source} cannot be read: {exc.strerror}", hint="Name a file that is there."
        ) from exc
    with file:
        yield file


def _check(asked: BatchOptions) -> None:
    """Raises InputError."""
    if asked.format != "openai" and not asked.agent:
        raise InputError(f"a {asked.format} file needs an agent for its rows", hint="Name one: --agent NAME")
    if asked.format == "openai" and asked.agent:
        raise InputError(
            "in the format of the OpenAI Batch API every line names its agent",
            hint='Leave the agent out, or say the format: format="jsonl" or "csv".',
        )
    if asked.endpoint is not None and asked.endpoint not in ENDPOINTS:
        raise InputError(f"no endpoint is called {asked.endpoint!r}", hint=f"One of: {', '.join(ENDPOINTS)}.")
    _check_window(asked.window_s)
    _check_limits(asked.limits)
    for name, value, most in (("idempotency_key", asked.idempotency_key, 256), ("tenant", asked.tenant, 128)):
        if value is not None and not 0 < len(value) <= most:
            raise InputError(f"{name} has 1 to {most} characters", hint="Shorten it, or leave it out.")
    metadata = dict(asked.metadata or {})
    if not all(isinstance(one, str) and "\x00" not in one for pair in metadata.items() for one in pair):
        raise InputError("metadata of a batch holds texts", hint='metadata={"night": "2026-11-30"}')
    if len(orjson.dumps(metadata)) > METADATA_BYTES_MAX:
        raise InputError(f"metadata has at most {METADATA_BYTES_MAX} bytes", hint="Put less there.")


def _check_window(window_s: float | None) -> None:
    if window_s is not None and not WINDOW_S_MIN <= window_s <= WINDOW_S_MAX:
        raise InputError(
            f"the completion window has {WINDOW_S_MIN:g} to {WINDOW_S_MAX:g} seconds, not {window_s:g}",
            hint="86400 is a day.",
        )


def _check_limits(limits: BatchLimits | None) -> None:
    if limits is None:
        return
    cost, most = limits.cost_usd_max, limits.concurrency_max
    if cost is not None and not (math.isfinite(cost) and cost > 0):
        raise InputError("cost_usd_max of a batch is above 0", hint="Leave it out for no limit of its own.")
    if most is not None and most < 1:
        raise InputError(
            "concurrency_max of a batch is at least 1", hint="Leave it out for no limit of its own."
        )
