"""Results of reads that serve other runs for a time: found by a key, and gone when their time is over.

Nothing depends on a row being here; a lost one costs a call.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, bindparam, delete, select

from toolfleet.adapters.store.dialect import insert_new, members
from toolfleet.adapters.store.tables import cached_results
from toolfleet.schemas.views import CachedResult

CLEANED_MAX: Final = 500  # rows deleted at a time
_GET: Final = select(cached_results.c.body, cached_results.c.stored_at).where(
    cached_results.c.key == bindparam("key"), cached_results.c.expires_at > bindparam("now")
)
_NEW: Final = insert_new(cached_results)
_DROP: Final = delete(cached_results).where(cached_results.c.key == bindparam("dropped"))
_EXPIRED: Final = (
    select(cached_results.c.key)
    .where(cached_results.c.expires_at <= bindparam("now"))
    .order_by(cached_results.c.key)
    .limit(CLEANED_MAX)
    .with_for_update(skip_locked=True)  # who cleans beside us takes others
)
_CLEAN: Final = delete(cached_results).where(members(cached_results.c.key, "keys"))


def get(connection: Connection, now: float, key: str) -> CachedResult | None:
    row = connection.execute(_GET, {"key": key, "now": now}).one_or_none()
    return None if row is None else CachedResult(row.body, max(0.0, now - row.stored_at))


def put(
    connection: Connection, key: str, tenant: str, tool: str, body: str, ttl_s: float, now: float
) -> None:
    """In place of what is there. Of two at the same moment one stays."""
    row = {
        "key": key,
        "tenant": tenant,
        "tool": tool,
        "body": body,
        "stored_at": now,
        "expires_at": now + ttl_s,
    }
    connection.execute(_DROP, {"dropped": key})
    connection.execute(_NEW, row)


def clean(connection: Connection, now: float) -> int:
    """Delete expired rows, CLEANED_MAX at most; how many."""
    keys = [key for (key,) in connection.execute(_EXPIRED, {"now": now})]
    if keys:
        connection.execute(_CLEAN, {"keys": keys})
    return len(keys)
