"""What `toolfleet doctor` looks at. Reads only: makes no database, takes no lock, calls no model."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
import re
import shutil
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import SecretStr

import toolfleet
from toolfleet.adapters.clock import SystemClock
from toolfleet.adapters.store.inspection import inspect
from toolfleet.app import asked_tools, open_store
from toolfleet.brokers import is_embedded, open_codec, refuse_unsafe
from toolfleet.cache import cache_url, probe_cache
from toolfleet.commands.place import Place, database_file, holder, locate, require_migrated, shown
from toolfleet.models import model_servers
from toolfleet.roles import ALL_ROLES
from toolfleet.schemas.errors import CacheUnavailable, ToolfleetError, UnsafeSettings
from toolfleet.schemas.limits import WORKER_SILENT_S
from toolfleet.schemas.views import WorkerView
from toolfleet.settings import Settings, load_settings
from toolfleet.tiers import raise_tiers

PYTHON_MIN = (3, 11)
DISK_FAIL_BYTES = 100_000_000  # an SQLite database that cannot grow stops every run
DISK_WARN_BYTES = 1_000_000_000
LATE_S = 60.0  # the keeper publishes what is due every second
DATABASE_TIMEOUT_S = 10.0

Status = Literal["OK", "WARN", "FAIL"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, how it is, and what to do about it."""

    name: str
    status: Status
    detail: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting in force and where its value came from."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Report:
    findings: tuple[Finding, ...]
    settings: tuple[Setting, ...]
    counts: dict[str, Any]

    @property
    def ok(self) -> bool:
        return all(finding.status != "FAIL" for finding in self.findings)

    def document(self) -> dict[str, Any]:
        """The JSON shape of `doctor`."""
        return {
            "ok": self.ok,
            "version": toolfleet.__version__,
            "checks": [asdict(finding) for finding in self.findings],
            "settings": [asdict(setting) for setting in self.settings],
            "counts": self.counts,
            "packages": _packages(),
        }


async def examine(app: str | None, database: str | None) -> Report:
    """Everything that can be looked at; what fails hides only what depends on it."""
    findings = [_python(), _package_versions()]
    try:
        place = locate(app, database, needs_fleet=True)
    except ToolfleetError as exc:
        findings.append(Finding("settings" if app is None else "app", "FAIL", exc.message, exc.hint))
        return Report(tuple(findings), (), {})
    schema = _schema(place.settings)
    findings += [_app(place), schema]
    counts: dict[str, Any] = {}
    if schema.status == "OK":
        counts = await _counts(place.settings)
        findings += _pragmas(place.settings)
        workers = await _workers(place.settings)
        running = _holder(place.settings) is not None or any(
            view.silent_s < WORKER_SILENT_S for view in workers
        )
        findings += _of_counts(counts, running=running)
        findings += await _shared(place.settings, workers)
    findings += await _cache(place.settings)
    findings += [*_file(place.settings), *_fleet(place.settings), _model(place)]
    return Report(tuple(findings), tuple(_settings(place, database)), counts)


def _python() -> Finding:
    version = platform.python_version()
    if tuple(map(int, platform.python_version_tuple()[:2])) < PYTHON_MIN:
        return Finding("python", "FAIL", version, "Install Python 3.11 or newer.")
    return Finding("python", "OK", f"{version} ({platform.system()} {platform.machine()})")


def _packages() -> dict[str, str | None]:
    """Installed versions of what toolfleet depends on; None where one is missing."""
    versions: dict[str, str | None] = {}
    for requirement in importlib.metadata.requires("toolfleet") or ():
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        if "extra ==" not in requirement:
            try:
                versions[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                versions[name] = None
    return versions


def _package_versions() -> Finding:
    try:
        versions = _packages()
    except importlib.metadata.PackageNotFoundError:
        return Finding("packages", "WARN", "toolfleet is not installed, only on the path", "pip install -e .")
    missing = sorted(name for name, version in versions.items() if version is None)
    if missing:
        return Finding("packages", "FAIL", f"missing: {', '.join(missing)}", "pip install toolfleet")
    named = ", ".join(f"{name} {versions[name]}" for name in ("sqlalchemy", "openai", "pydantic", "typer"))
    return Finding("packages", "OK", f"toolfleet {toolfleet.__version__}, {named}")


def _app(place: Place) -> Finding:
    if place.fleet is None:
        return Finding("app", "OK", "none given (-A or TOOLFLEET_APP)")
    registry = place.fleet.registry
    try:
        raise_tiers(registry, place.settings)
    except UnsafeSettings as exc:
        return Finding("app", "FAIL", exc.message, exc.hint)
    detail = f"{len(registry.agents)} agent(s), {len(registry.tools)} tool(s)"
    asked = asked_tools(registry)
    if asked and place.settings.approvals == "off":
        return Finding(
            "app",
            "WARN",
            f"{detail}; approvals are off: {', '.join(asked)} run without asking anybody",
            'Fine for a test; else leave these tools out, or approvals="required".',
        )
    return Finding("app", "OK", detail)


def _schema(settings: Settings) -> Finding:
    try:
        require_migrated(settings)
    except ToolfleetError as exc:
        return Finding("database", "FAIL", exc.message, exc.hint)
    return Finding("database", "OK", f"{shown(settings.database)} is reachable and migrated")


async def _counts(settings: Settings) -> dict[str, Any]:
    """What the store counts (`runs.<status>`, `commands`, `leases`, `dead` …), and `oldest_due_s`."""
    store = open_store(settings)
    try:
        counts: dict[str, Any] = dict(await store.counts())
    finally:
        await store.aclose()
    inspected = await asyncio.to_thread(inspect, settings.database)
    counts["oldest_due_s"] = inspected.oldest_due_s
    return counts


def _of_counts(counts: dict[str, Any], *, running: bool) -> list[Finding]:
    statuses = [f"{n} {name.partition('.')[2]}" for name, n in counts.items() if name.startswith("runs.")]
    runs = Finding("runs", "OK", ", ".join(statuses) or "none")
    outstanding = f"{counts['commands']} step(s), {counts['leases']} being worked on"
    late_s = counts["oldest_due_s"]
    if late_s is not None:
        outstanding += f", the oldest due {'for' if late_s > 0 else 'in'} {abs(late_s):.0f} s"
    if counts["commands"] and not running:
        waiting = Finding(
            "outstanding", "WARN", outstanding, "Nobody works on them: toolfleet up -A myapp:fleet"
        )
    elif late_s is not None and late_s > LATE_S:
        waiting = Finding(
            "outstanding", "WARN", outstanding, "The fleet does not keep up, or hangs: see its log lines."
        )
    else:
        waiting = Finding("outstanding", "OK", outstanding)
    dead = Finding("dead letters", "OK", "none")
    if counts["dead"]:
        dead = Finding("dead letters", "WARN", str(counts["dead"]), "Look at them: toolfleet dead ls")
    return [runs, waiting, dead]


def _pragmas(settings: Settings) -> list[Finding]:
    """SQLite loses no commit to a power cut with WAL and FULL only."""
    inspected = inspect(settings.database)
    if inspected.journal_mode is None:
        return []
    detail = f"journal_mode {inspected.journal_mode}, synchronous {inspected.synchronous}"
    if inspected.journal_mode == "WAL" and inspected.synchronous in ("FULL", "EXTRA"):
        return [Finding("durability", "OK", detail)]
    return [Finding("durability", "FAIL", detail, "Put the file on a local disk, where SQLite can use WAL.")]


def _file(settings: Settings) -> list[Finding]:
    """The file of an SQLite database and the disk it is on."""
    path = database_file(settings.database)
    if path is None:
        return []
    folder = next(one for one in path.resolve().parents if one.exists())
    free = shutil.disk_usage(folder).free
    detail = f"{free / 1e9:.1f} GB free in {folder}"
    fix = "Make room: a database that cannot grow stops every run."
    if free < DISK_FAIL_BYTES:
        disk = Finding("disk", "FAIL", detail, fix)
    elif free < DISK_WARN_BYTES:
        disk = Finding("disk", "WARN", detail, fix)
    elif not os.access(folder, os.W_OK):
        disk = Finding("disk", "FAIL", f"{folder} cannot be written to", "Run as a user who may, or move it.")
    else:
        disk = Finding("disk", "OK", detail)
    return [disk]


def _holder(settings: Settings) -> str | None:
    try:
        return holder(settings)
    except ToolfleetError:
        return None  # no SQLite file, so no embedded fleet


def _fleet(settings: Settings) -> list[Finding]:
    """Of an embedded fleet: who runs it."""
    try:
        if not is_embedded(settings):
            return []
        process = holder(settings)
    except ToolfleetError as exc:
        return [Finding("fleet", "WARN", exc.message, exc.hint)]
    if process is None:
        return [Finding("fleet", "OK", "none is running on this database")]
    return [Finding("fleet", "OK", f"running in process {process}")]


async def _workers(settings: Settings) -> list[WorkerView]:
    store = open_store(settings)
    try:
        return await store.workers()
    finally:
        await store.aclose()


async def _shared(settings: Settings, workers: list[WorkerView]) -> list[Finding]:
    """Of a fleet of processes: its broker, its keys and clocks, and which of its processes get on."""
    if is_embedded(settings):
        return []
    store = open_store(settings)
    try:
        open_codec(settings, SystemClock())
        await refuse_unsafe(settings, store)
        broker = Finding("broker", "OK", f"{_value('broker', settings.broker)} is reachable and safe to use")
    except ToolfleetError as exc:
        broker = Finding("broker", "FAIL", exc.message, exc.hint)
    finally:
        await store.aclose()
    bad = [
        f"{view.beat.host}:{view.beat.pid} {view.beat.state.get('stuck') or f'silent for {view.silent_s:.0f} s'}"
        for view in workers
        if view.beat.state.get("stuck") or view.silent_s > WORKER_SILENT_S
    ]
    served = {role for view in workers if view.silent_s < WORKER_SILENT_S for role in view.beat.roles}
    missing = [role for role in ALL_ROLES if role not in served]
    if not served:
        silent = f" ({len(workers)} that was there is silent or stuck)" if workers else ""
        fix = "Start them: toolfleet up --broker …, or toolfleet worker ROLE."
        found = Finding("workers", "WARN", f"no worker process is alive{silent}", fix)
    elif bad:
        found = Finding(
            "workers", "WARN", "; ".join(bad), "Look at their logs; a dead one disappears after a day."
        )
    elif missing:
        fix = "Start them: toolfleet up --broker …, or toolfleet worker ROLE."
        found = Finding("workers", "WARN", f"nobody serves {', '.join(missing)}", fix)
    else:
        found = Finding("workers", "OK", f"{len(workers)} process(es), every role is served")
    return [broker, found]


async def _cache(settings: Settings) -> list[Finding]:
    """Where breakers, rates and quotas are counted."""
    fix = "Nothing stops; until it answers each process counts for itself, and calls with a serial_key wait."
    try:
        url = cache_url(settings)
        problem = None if url is None else await probe_cache(url)
    except CacheUnavailable as exc:
        return [Finding("cache", "WARN", f"it is away: {exc.message}", fix)]
    except ToolfleetError as exc:
        return [Finding("cache", "FAIL", exc.message, exc.hint)]
    if problem is not None:
        return [Finding("cache", "FAIL", f"it cannot be used: {problem[0]}", problem[1])]
    if url is not None:
        return [Finding("cache", "OK", f"{_value('cache', url)} is reachable; all processes count together")]
    if is_embedded(settings):
        return [Finding("cache", "OK", "in the memory of the fleet's one process")]
    detail = (
        "none: each process counts breakers for itself, rates and quotas are divided among the known ones"
    )
    return [Finding("cache", "WARN", detail, "Give them one: --cache redis://127.0.0.1:6379/0")]


def _model(place: Place) -> Finding:
    settings = place.settings
    if place.fleet is not None and place.fleet.brings_model:
        return Finding("model", "OK", "the app brings its own model client")
    models = _models_of(place)
    try:
        servers = model_servers(settings)
        servers.open(models or [""])
    except UnsafeSettings as exc:
        return Finding("model", "FAIL" if models else "WARN", exc.message, exc.hint)
    asked = dict.fromkeys(servers.client(model).host for model in models or [""])
    return Finding("model", "OK", f"{', '.join(asked)}: no key is missing (not called)")


def _models_of(place: Place) -> list[str]:
    if place.fleet is None:
        return []
    agents = place.fleet.registry.agents.values()
    return [name for agent in agents for name in (agent.model, *agent.fallback_models)]


def _settings(place: Place, database: str | None) -> list[Setting]:
    """Every setting with its source: the option, the app, the environment variable, or the default."""
    environment = {name.upper(): name for name in os.environ}
    try:
        without_app = load_settings()
    except ToolfleetError:
        without_app = None
    found = []
    for name in Settings.model_fields:
        value = getattr(place.settings, name)
        variable = name.upper() if name.startswith("openai_") else f"TOOLFLEET_{name.upper()}"
        if name == "database" and database is not None:
            source = "--database"
        elif without_app is None or value != getattr(without_app, name):
            source = "app"
        elif variable in environment:
            source = environment[variable]
        else:
            source = "default"
        found.append(Setting(name, _value(name, value), source))
    return found


def _value(name: str, value: object) -> str:
    """Never a secret: not a key, and no password of a URL."""
    if isinstance(value, SecretStr):
        return "(hidden)"
    if value is None:
        return ""
    if name in ("database", "broker", "cache", "celery_broker", "openai_base_url"):
        return re.sub(r"(?<=://)[^/@]*@", "***@", str(value))
    return str(value)
