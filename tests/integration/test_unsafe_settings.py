"""What would lose or repeat work is refused at start, with the reason; asked of real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import servers
from tests.conftest import require
from toolfleet import Fleet, ScriptedModel, say
from toolfleet.adapters.broker.rabbitmq_checks import refuse_unsafe as refuse_unsafe_rabbitmq
from toolfleet.adapters.broker.redis_checks import problems, refuse_unsafe
from toolfleet.adapters.clock import SystemClock
from toolfleet.brokers import open_codec, open_layer, refuse_unsafe_numbers, scheme_of
from toolfleet.brokers import refuse_unsafe as refuse_unsafe_fleet
from toolfleet.fault_points import armed
from toolfleet.schemas.errors import BrokerUnavailable, InputError, UnsafeSettings
from toolfleet.settings import Settings, load_settings
from toolfleet.worker import Worker

KEYS = "k1:" + "ab" * 32
SHARED: dict[str, Any] = {"broker": "redis://127.0.0.1:1/0", "database": "postgresql://127.0.0.1:1/x"}


class Late:
    """A database whose clock is wrong by that much."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def now(self) -> float:
        return SystemClock().now_s() + self._seconds


class At:
    """A database at that moment."""

    def __init__(self, at_s: float) -> None:
        self._at_s = at_s

    async def now(self) -> float:
        return self._at_s


@pytest.fixture(scope="module")
def unsafe_redis() -> Iterator[Any]:
    require("redis")
    with ExitStack() as opened:
        yield lambda *options: servers.redis_url(opened.enter_context(servers.redis_server(*options)))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--maxmemory-policy", "allkeys-lru"), "throws queues away"),
        (("--appendonly", "no"), "keeps nothing on disk"),
        (("--cluster-enabled", "yes"), "Redis Cluster"),
    ],
)
def test_a_redis_that_would_lose_queues_is_refused(
    options: tuple[str, ...], reason: str, unsafe_redis: Any
) -> None:
    url = unsafe_redis(*options)

    with pytest.raises(UnsafeSettings, match=reason) as caught:
        asyncio.run(refuse_unsafe(url))

    assert caught.value.hint


def test_a_sound_redis_is_taken_and_one_that_is_away_is_said_to_be(redis: servers.Server) -> None:
    asyncio.run(refuse_unsafe(servers.redis_url(redis)))

    with pytest.raises(BrokerUnavailable):
        asyncio.run(refuse_unsafe(f"redis://127.0.0.1:{servers.free_port()}/0"))


def test_a_rabbitmq_that_lets_us_in_is_taken_and_a_wrong_login_is_named(rabbitmq: servers.Server) -> None:
    url = servers.rabbitmq_url(rabbitmq)
    address = url.rpartition("@")[2].partition("/")[0]
    asyncio.run(refuse_unsafe_rabbitmq(url))

    for wrong in (f"amqp://guest:wrong@{address}//", url.replace(address, f"{address}/nosuch").rstrip("/")):
        with pytest.raises(UnsafeSettings, match="does not let us in") as caught:
            asyncio.run(refuse_unsafe_rabbitmq(wrong))
        assert caught.value.hint
    with pytest.raises(BrokerUnavailable):
        asyncio.run(refuse_unsafe_rabbitmq(f"amqp://guest:guest@127.0.0.1:{servers.free_port()}//"))
    asyncio.run(refuse_unsafe_rabbitmq(f"amqp://guest:guest@127.0.0.1:{servers.free_port()}//;{url}"))


def test_an_old_redis_is_named_with_its_version() -> None:
    (found,) = problems({"redis_version": "6.0.16", "aof_enabled": 1}, "")

    assert "6.0.16" in found[0] and "6.2" in found[0]
    assert problems({"redis_version": "7.2.4", "aof_enabled": 0}, "3600 1") == [], "snapshots are something"
    assert problems({"redis_version": "7.2.4", "aof_enabled": 0}, None) == [], "may not be asked: not refused"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({**SHARED, "lease_s": 2.0, "keeper_period_s": 1.0}, "three keeper periods"),
        ({**SHARED, "lease_s": 30.0, "claim_s": 30.0}, "away for longer than a lease"),
        ({**SHARED, "lease_s": 100.0}, "would count as lost"),
        ({**SHARED, "keeper_period_s": 9.9, "lease_s": 20.0}, "three keeper periods"),
    ],
)
def test_times_that_do_not_fit_are_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsafeSettings, match=reason):
        refuse_unsafe_numbers(Settings(**fields))


def test_the_defaults_and_a_short_lease_fit() -> None:
    refuse_unsafe_numbers(Settings(**SHARED))
    refuse_unsafe_numbers(Settings(**SHARED, lease_s=3.0, keeper_period_s=0.5))
    refuse_unsafe_numbers(Settings(lease_s=5.0))


@pytest.mark.parametrize("skew_s", [-3600.0, 3600.0])
def test_a_clock_that_is_far_from_the_databases_is_refused(skew_s: float) -> None:
    with pytest.raises(UnsafeSettings, match=r"3600 s (behind|before)"):
        asyncio.run(refuse_unsafe_fleet(Settings(database="sqlite:///x.db"), Late(skew_s)))  # type: ignore[arg-type]
    asyncio.run(refuse_unsafe_fleet(Settings(database="sqlite:///x.db"), Late(1.0)))  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_an_answer_that_takes_long_is_no_wrong_clock(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """`share`: of the minute that passes, how much had passed when the database read its clock."""
    asked_at = 1_000_000.0
    ours = iter((asked_at, asked_at + 60.0))
    monkeypatch.setattr("toolfleet.brokers.time", SimpleNamespace(time=lambda: next(ours)))

    asyncio.run(refuse_unsafe_fleet(Settings(database="sqlite:///x.db"), At(asked_at + 60.0 * share)))  # type: ignore[arg-type]


def test_processes_cannot_share_sqlite() -> None:
    settings = Settings(broker="redis://127.0.0.1:1/0", database="sqlite:///x.db")

    with pytest.raises(UnsafeSettings, match="SQLite cannot be shared"):
        asyncio.run(refuse_unsafe_fleet(settings, Late(0.0)))  # type: ignore[arg-type]


def test_without_a_signing_key_only_the_embedded_fleet_starts() -> None:
    open_codec(Settings(), SystemClock())

    with pytest.raises(UnsafeSettings, match="no key for signing"):
        open_codec(Settings(**SHARED), SystemClock())


@pytest.mark.parametrize("broker", ["", "kafka://host", "http://host", "redis:/", "amqps:"])
def test_a_broker_nobody_speaks_is_named(broker: str) -> None:
    settings = Settings(broker=broker)
    if broker.startswith(("redis", "amqps")):
        with pytest.raises((UnsafeSettings, BrokerUnavailable)):
            asyncio.run(_depths(settings))
    else:
        with pytest.raises(UnsafeSettings, match="no message layer"):
            scheme_of(settings)


async def _depths(settings: Settings) -> None:
    layer = open_layer(settings)
    try:
        await layer.depths()
    finally:
        await layer.aclose()


def test_worker_processes_cannot_use_the_embedded_broker(tmp_path: Path) -> None:
    fleet = Fleet(f"sqlite:///{tmp_path / 'x.db'}", model=ScriptedModel(lambda *_: say("x")))

    with pytest.raises(UnsafeSettings, match="cannot be shared"):
        _ = fleet.celery


def test_a_worker_is_told_which_roles_there_are() -> None:
    fleet = Fleet(settings=Settings(**SHARED, signing_keys=KEYS), model=ScriptedModel([]))

    with pytest.raises(InputError, match=r"exec\.tiny"):
        Worker(fleet.registry, fleet.settings, fleet.new_model, queues=["exec.tiny"])
    with pytest.raises(InputError, match="none given"):
        Worker(fleet.registry, fleet.settings, fleet.new_model, queues=[])


def test_a_fault_point_has_to_be_one() -> None:
    for wrong in ("decide.nowhere", "decide.after_lease:x"):
        with pytest.raises(UnsafeSettings, match="fault point"):
            armed(wrong)
    armed(None)
    armed("decide.after_lease:2")


def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLFLEET_BROKER_PREFIX", "with spaces")

    with pytest.raises(UnsafeSettings, match="broker_prefix"):
        load_settings()
