"""Statements about keys, quotas and requests that may be sent again; and their rows, to dataclass and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson
from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from toolfleet.adapters.store.codec import Row, dump
from toolfleet.adapters.store.dialect import insert_new, members
from toolfleet.adapters.store.tables import keys, quotas, replays, runs, usage
from toolfleet.schemas.access import Key, Quota, Replay, Scope, TenantUse, among, stated

DAY_S: Final = 86_400.0

KEY_OF: Final = select(keys).where(keys.c.token_hash == bindparam("token_hash"))
ALL_KEYS: Final = select(keys).order_by(keys.c.created_at, keys.c.id)
KEYS_NAMED: Final = select(keys).where(members(keys.c.name, "names")).order_by(keys.c.created_at, keys.c.id)
REVOKE: Final = (
    update(keys)
    .where(keys.c.id == bindparam("key_id"), keys.c.revoked_at.is_(None))
    .values(revoked_at=bindparam("now"))
)
ONE_KEY: Final = select(keys).where(keys.c.id == bindparam("id")).with_for_update()
END_KEY: Final = (
    update(keys).where(keys.c.id == bindparam("key_id")).values(expires_at=bindparam("expires_at"))
)
QUOTA: Final = select(quotas).where(quotas.c.tenant == bindparam("tenant"))
ALL_QUOTAS: Final = select(quotas).order_by(quotas.c.tenant)
# Two submits of one tenant count its runs one after the other; tenants without a quota are never asked.
LOCKED_QUOTAS: Final = (
    select(quotas.c.tenant)
    .where(members(quotas.c.tenant, "tenants"))
    .order_by(quotas.c.tenant)
    .with_for_update()
)
IN_FLIGHT: Final = (
    select(runs.c.tenant, func.count())
    .where(members(runs.c.tenant, "tenants"), runs.c.finished_at.is_(None))
    .group_by(runs.c.tenant)
)
SPENT: Final = select(func.coalesce(func.sum(usage.c.cost_usd), 0.0)).where(
    usage.c.tenant == bindparam("tenant"), usage.c.at >= bindparam("since")
)
_is_replay = (
    (replays.c.tenant == bindparam("key_tenant"))
    & (replays.c.route == bindparam("key_route"))
    & (replays.c.key == bindparam("key_key"))
)
NEW_REPLAY: Final = insert_new(replays).returning(replays.c.key)
REPLAY: Final = select(replays).where(_is_replay)
END_REPLAY: Final = (
    update(replays).where(_is_replay).values(status=bindparam("status"), body=bindparam("body"))
)
DROP_REPLAY: Final = delete(replays).where(_is_replay, replays.c.status.is_(None))
FORGET: Final = delete(replays).where(_is_replay)
FORGET_REPLAYS: Final = delete(replays).where(replays.c.at < bindparam("before"))
FORGET_STALE: Final = delete(replays).where(
    _is_replay, replays.c.status.is_(None), replays.c.at < bindparam("stale")
)


# -- keys ----------------------------------------------------------------------------------------------------------------


def add_key(connection: Connection, key: Key, token_hash: str, now: float) -> None:
    connection.execute(insert(keys), _key_values(key, token_hash, now))


def key_of(connection: Connection, now: float, token_hash: str) -> Key | None:
    row = connection.execute(KEY_OF, {"token_hash": token_hash}).mappings().one_or_none()
    return None if row is None else _key(row, now)


def all_keys(connection: Connection, now: float, tenant: str | None) -> list[Key]:
    found = [_key(row, now) for row in connection.execute(ALL_KEYS).mappings()]
    return [one for one in found if tenant is None or among(tenant, one.tenants)]


def keys_named(connection: Connection, now: float, names: Sequence[str]) -> list[Key]:
    """All keys of these people, whatever became of them."""
    if not names:
        return []
    found = connection.execute(KEYS_NAMED, {"names": sorted(set(names))}).mappings()
    return [_key(row, now) for row in found]


def revoke_key(connection: Connection, key_id: str, now: float) -> bool:
    return connection.execute(REVOKE, {"key_id": key_id, "now": now}).rowcount == 1


def rotate_key(
    connection: Connection, key_id: str, new: Key, token_hash: str, overlap_s: float, now: float
) -> bool:
    row = connection.execute(ONE_KEY, {"id": key_id}).mappings().one_or_none()
    old = None if row is None else _key(row, now)
    if old is None or old.state != "active":
        return False
    connection.execute(END_KEY, {"key_id": key_id, "expires_at": ends_at(old, now + overlap_s)})
    add_key(connection, new, token_hash, now)
    return True


def ends_at(old: Key, overlap_ends_at: float) -> float:
    """When a key that was rotated ends: with the overlap, or when it would have ended anyway."""
    return overlap_ends_at if old.expires_at is None else min(old.expires_at, overlap_ends_at)


def _key_values(key: Key, token_hash: str, now: float) -> dict[str, Any]:
    may = {
        "scopes": key.scopes,
        "tenants": key.tenants,
        "agents": key.agents,
        "tools": key.tools,
        "tiers": key.tiers,
        "grants": key.grants,
        "permissions": key.permissions,
    }
    return {
        "id": key.id,
        "name": key.name,
        "token_hash": token_hash,
        "scopes": dump(may),
        "created_at": now,
        "revoked_at": None,
        "shown": key.shown,
        "expires_at": key.expires_at,
        "replaces": key.replaces,
    }


def _key(row: Row, now: float) -> Key:
    may = orjson.loads(row["scopes"])
    scopes = may.get("scopes", [Scope.APPROVE.value])  # rows of the first releases are approvers
    key = Key(
        id=row["id"],
        name=row["name"],
        scopes=tuple(Scope(one) for one in scopes),
        tenants=tuple(may["tenants"]),
        agents=tuple(may.get("agents", ())),
        tools=tuple(may["tools"]),
        tiers=tuple(may["tiers"]),
        grants=tuple(may.get("grants", ())),
        permissions=tuple(may.get("permissions", ())),
        shown=row["shown"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
        replaces=row["replaces"],
    )
    return stated(key, now)


# -- quotas --------------------------------------------------------------------------------------------------------------


def quota(connection: Connection, tenant: str) -> Quota | None:
    row = connection.execute(QUOTA, {"tenant": tenant}).mappings().one_or_none()
    return None if row is None else _quota(row)


def all_quotas(connection: Connection) -> list[Quota]:
    return [_quota(row) for row in connection.execute(ALL_QUOTAS).mappings()]


def set_quota(connection: Connection, given: Quota, now: float) -> None:
    values = {
        "tenant": given.tenant,
        "runs_in_flight_max": given.runs_in_flight_max,
        "requests_per_minute_max": given.requests_per_minute_max,
        "cost_usd_per_day_max": given.cost_usd_per_day_max,
        "changed_at": now,
    }
    connection.execute(insert_new(quotas), values)
    changed = {name: value for name, value in values.items() if name != "tenant"}
    connection.execute(update(quotas).where(quotas.c.tenant == given.tenant).values(**changed))


def in_flight(connection: Connection, tenants: list[str]) -> dict[str, int]:
    """Runs that have not ended, by tenant; nobody else submits for these tenants until this transaction ends."""
    asked = {"tenants": sorted(tenants)}
    connection.execute(LOCKED_QUOTAS, asked).all()
    return {tenant: int(count) for tenant, count in connection.execute(IN_FLIGHT, asked)}


def tenant_use(connection: Connection, now: float, tenant: str) -> TenantUse:
    counted = {of: int(count) for of, count in connection.execute(IN_FLIGHT, {"tenants": [tenant]})}
    today = now - now % DAY_S
    spent = connection.execute(SPENT, {"tenant": tenant, "since": today}).scalar_one()
    return TenantUse(counted.get(tenant, 0), float(spent), today + DAY_S - now)


def _quota(row: Row) -> Quota:
    return Quota(
        tenant=row["tenant"],
        runs_in_flight_max=row["runs_in_flight_max"],
        requests_per_minute_max=row["requests_per_minute_max"],
        cost_usd_per_day_max=row["cost_usd_per_day_max"],
    )


# -- requests that may be sent again -----------------------------------------------------------------------------------------


def begin_replay(
    connection: Connection,
    now: float,
    name: dict[str, str],
    replay: Replay,
    keep_s: float,
    stale_s: float,
    anew: bool,
) -> Replay | None:
    """`name`: tenant, route, key."""
    which = {f"key_{part}": value for part, value in name.items()}
    connection.execute(FORGET_REPLAYS, {"before": now - keep_s})
    if anew:
        connection.execute(FORGET, which)
    connection.execute(FORGET_STALE, {**which, "stale": now - stale_s})
    noted = {**name, "request_hash": replay.request_hash, "run_id": replay.run_id, "at": now}
    if connection.execute(NEW_REPLAY, noted).first() is not None:
        return None
    row = connection.execute(REPLAY, which).mappings().one()
    return Replay(row["request_hash"], row["status"], row["body"], row["run_id"], now - row["at"])


def end_replay(connection: Connection, name: dict[str, str], status: int, body: str) -> None:
    which = {f"key_{part}": value for part, value in name.items()}
    connection.execute(END_REPLAY, {**which, "status": status, "body": body})


def drop_replay(connection: Connection, name: dict[str, str]) -> None:
    connection.execute(DROP_REPLAY, {f"key_{part}": value for part, value in name.items()})
