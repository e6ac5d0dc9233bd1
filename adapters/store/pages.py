"""Pages of what a run has many of, for people: bounded by a count and by their bytes, and read from where the last one ended.

The sum of sizes is counted in the database, so that what does not fit into a page is not read to find that out.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, Select, and_, bindparam, func, null, or_, select

from toolfleet.adapters.store import codec
from toolfleet.adapters.store.tables import items, results
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.views import PAGE_CHARS_MAX, StoredItem

_SHOWN: Final = (
    *(column for column in results.c if column.name != "full_text"),
    null().label("full_text"),  # up to 1 MB of each, and not shown
)


def _page(wanted: Select[Any], size: str, *order: str) -> Select[Any]:
    """Of `wanted`, as many rows as a page holds; one at least. `before`: characters of `size` of those before it; `found`:
    how many rows there are, up to as many as were asked for."""
    some = wanted.order_by(*order).limit(bindparam("limit")).subquery()
    chars = func.length(some.c[size])
    ordered = [some.c[name] for name in order]
    before = (func.sum(chars).over(order_by=ordered, rows=(None, 0)) - chars).label("before")
    counted = select(some, before, func.count().over().label("found")).subquery()
    return (
        select(counted)
        .where(counted.c.before < bindparam("chars_max"))
        .order_by(*(counted.c[name] for name in order))
    )


ITEMS: Final = _page(
    select(items.c.seq, items.c.turn, items.c.body).where(
        items.c.run_id == bindparam("run_id"), items.c.seq > bindparam("after")
    ),
    "body",
    "seq",
)
RESULTS: Final = _page(
    select(*_SHOWN).where(
        results.c.run_id == bindparam("run_id"),
        results.c.turn >= bindparam("turn"),
        or_(
            results.c.turn > bindparam("turn"),
            and_(results.c.turn == bindparam("turn"), results.c.position > bindparam("position")),
        ),
    ),
    "content",
    "turn",
    "position",
)


def items_page(
    connection: Connection, run_id: RunId, after: int, limit: int
) -> tuple[list[StoredItem], bool]:
    asked = {"run_id": run_id, "after": after, "limit": limit + 1, "chars_max": PAGE_CHARS_MAX}
    rows = connection.execute(ITEMS, asked).mappings().all()
    found = [StoredItem(row["seq"], row["turn"], codec.item_of(row["body"])) for row in rows[:limit]]
    return found, bool(rows) and rows[0]["found"] > len(found)


def results_page(
    connection: Connection, run_id: RunId, after: tuple[int, int], limit: int
) -> tuple[list[tuple[int, CallResult]], bool]:
    turn, position = after
    asked = {"run_id": run_id, "turn": turn, "position": position, "limit": limit + 1}
    rows = connection.execute(RESULTS, {**asked, "chars_max": PAGE_CHARS_MAX}).mappings().all()
    found = [(row["turn"], codec.call_result(row)) for row in rows[:limit]]
    return found, bool(rows) and rows[0]["found"] > len(found)
