"""Which message layer a broker URL means, and what of it is refused at start. The only place that knows the schemes."""

from __future__ import annotations

import dataclasses
import time
from typing import Final
from urllib.parse import urlsplit

from toolfleet.queues.envelope import Codec, KeyRing
from toolfleet.queues.policy import POLICIES, broken_rules
from toolfleet.schemas.errors import UnsafeSettings
from toolfleet.schemas.ports import Clock, MessageLayer, RunStore
from toolfleet.settings import Settings

EMBEDDED: Final = "memory"
REDIS: Final = frozenset({"redis", "rediss", "valkey", "valkeys", "unix"})
RABBITMQ: Final = frozenset({"amqp", "amqps"})
SKEW_S_MAX: Final = (
    5.0  # between this machine's clock and the database's; ages of messages are compared with it
)


def scheme_of(settings: Settings) -> str:
    """The scheme of the broker URL. Raises UnsafeSettings for one that no message layer has."""
    scheme = urlsplit(settings.broker).scheme
    if scheme == EMBEDDED or scheme in REDIS or scheme in RABBITMQ:
        return scheme
    raise UnsafeSettings(
        f"there is no message layer for a broker URL that starts with {scheme or settings.broker[:20]!r}",
        hint="Use memory:// (embedded), redis://host:6379/0, rediss://…, valkey://…, amqp://user:password@host//.",
    )


def is_embedded(settings: Settings) -> bool:
    """Whether the fleet is one process with queues of its own."""
    return scheme_of(settings) == EMBEDDED


def open_layer(settings: Settings) -> MessageLayer:
    """The layer of a broker that several processes share; it connects when it is used first."""
    scheme = scheme_of(settings)
    if scheme in REDIS:
        from toolfleet.adapters.broker.streams import StreamsLayer

        return StreamsLayer(settings.broker, prefix=settings.broker_prefix, claim_s=settings.broker_claim_s)
    if scheme in RABBITMQ:
        from toolfleet.adapters.broker.rabbitmq import RabbitLayer

        return RabbitLayer(settings.broker, prefix=settings.broker_prefix)
    refuse_embedded(settings)
    raise AssertionError("unreachable")


def refuse_embedded(settings: Settings) -> None:
    """Raises UnsafeSettings where no broker is given: worker processes have nothing to share."""
    if is_embedded(settings):
        raise UnsafeSettings(
            "the embedded message layer cannot be shared by several processes",
            hint="Give a broker: --broker redis://127.0.0.1:6379/0 (TOOLFLEET_BROKER), or run the embedded fleet.",
        )


def open_codec(settings: Settings, clock: Clock) -> Codec:
    """Signs and reads messages. Outside the embedded fleet the key has to be given: all processes share it."""
    if settings.signing_keys is not None:
        return Codec(KeyRing.parse(settings.signing_keys.get_secret_value()), clock.now_s)
    if is_embedded(settings):
        return Codec(KeyRing.ephemeral(), clock.now_s)
    raise UnsafeSettings(
        "no key for signing messages is set, so whoever can write to the broker could give orders to the workers",
        hint="Set TOOLFLEET_SIGNING_KEYS=k1:$(openssl rand -hex 32), the same for every process of the fleet.",
    )


async def refuse_unsafe(settings: Settings, store: RunStore) -> None:
    """Settings and servers that would lose or repeat work, each with its reason. Raises UnsafeSettings,
    StoreUnavailable, BrokerUnavailable."""
    refuse_unsafe_numbers(settings)
    scheme = scheme_of(settings)
    if scheme != EMBEDDED and settings.database.startswith("sqlite"):
        raise UnsafeSettings(
            "SQLite cannot be shared by the processes of a fleet: one process writes at a time",
            hint="Use PostgreSQL (--database postgresql://host/name), or the embedded broker memory://.",
        )
    skew = await _skew_s(store)
    if abs(skew) > SKEW_S_MAX:
        raise UnsafeSettings(
            f"the clock of this machine is {abs(skew):.0f} s {'behind' if skew > 0 else 'before'} the database's",
            hint="Set both by NTP: due times, expiry and the age of messages are compared with each other.",
        )
    await refuse_unsafe_broker(settings)


async def refuse_unsafe_broker(settings: Settings) -> None:
    """What `refuse_unsafe` asks the broker. Raises UnsafeSettings, BrokerUnavailable."""
    scheme = scheme_of(settings)
    if scheme in REDIS:
        from toolfleet.adapters.broker.redis_checks import refuse_unsafe as refuse_unsafe_redis

        await refuse_unsafe_redis(settings.broker)
    if scheme in RABBITMQ:
        from toolfleet.adapters.broker.rabbitmq_checks import refuse_unsafe as refuse_unsafe_rabbitmq

        await refuse_unsafe_rabbitmq(settings.broker)


async def _skew_s(store: RunStore) -> float:
    """Seconds by which the database's clock is before ours (below zero: behind) for certain: an answer that takes long,
    from a server that is just starting or very busy, says no more than that its time lies between asking and getting."""
    asked_at = time.time()
    theirs = await store.now()
    return max(theirs - time.time(), 0.0) + min(theirs - asked_at, 0.0)


def refuse_unsafe_numbers(settings: Settings) -> None:
    """The inequalities of queues/policy.py with the lease that is set. Raises UnsafeSettings with what would break."""
    policies = {
        name: dataclasses.replace(policy, lease_s=settings.lease_s) if policy.lease_s is not None else policy
        for name, policy in POLICIES.items()
    }
    heartbeat_s = settings.lease_s / 3
    if heartbeat_s < settings.keeper_period_s:
        raise UnsafeSettings(
            f"lease_s={settings.lease_s:g} is shorter than three keeper periods ({settings.keeper_period_s:g} s each)",
            hint="A lease is renewed every third of it; make lease_s larger.",
        )
    claim_s = (
        0.0 if is_embedded(settings) else settings.broker_claim_s
    )  # one process has nobody to take over from
    broken = broken_rules(
        policies, heartbeat_s=heartbeat_s, keeper_period_s=settings.keeper_period_s, claim_s=claim_s
    )
    if broken:
        raise UnsafeSettings(
            f"lease_s={settings.lease_s:g}, claim_s={claim_s:g}: {broken[0]}",
            hint="The defaults are 30 s and 20 s; whoever shortens one shortens the other.",
        )
