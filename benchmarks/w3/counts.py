"""What the servers count: transactions, rows, broker commands, messages and their bytes.

Differences of two readings; what an idle stack does in the same time is taken off where it is more than nothing.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

import psycopg
import redis

from tests import servers

if TYPE_CHECKING:
    from benchmarks.w3.stacks import Stack

# PostgreSQL's backends hand in what they counted when they go idle, ten seconds later at the latest
# (PGSTAT_IDLE_INTERVAL in its pgstat.c).
STATS_S: Final = 11.0
SEEN_MIN: Final = 0.01  # for one run; what is rarer belongs to the fleet and not to the run
_OF_DATABASE: Final = (
    "xact_commit",
    "xact_rollback",
    "tup_inserted",
    "tup_updated",
    "tup_deleted",
    "tup_returned",
)
_AMQP: Final = {
    "publishes": "messages_received_total",
    "deliveries": "messages_delivered_total",
    "acknowledged messages": "messages_acknowledged_total",
    "redeliveries": "messages_redelivered_total",
}


def read(stack: Stack) -> dict[str, float]:
    """Every counter there is for this stack, by a name that says what it counts."""
    found: dict[str, float] = {}
    if "postgresql" in stack.servers:
        found |= _postgres(stack.database)
    if "redis" in stack.servers:
        found |= _redis(stack)
    if "rabbitmq" in stack.servers:
        found |= _rabbitmq(stack)
    if stack.kind == "embedded":
        found |= _sqlite(stack.database)
        found["write transactions"] = stack.ask("commits")["commits"]
    return found


def settles(stack: Stack) -> float:
    """How long after the last run the counters are complete, seconds."""
    return STATS_S if "postgresql" in stack.servers else 0.5


def _postgres(url: str) -> dict[str, float]:
    with psycopg.connect(url, autocommit=True) as connection:
        columns = ", ".join(_OF_DATABASE)
        row = connection.execute(
            f"SELECT {columns} FROM pg_stat_database WHERE datname = current_database()"  # type: ignore[call-overload]
        ).fetchone()
        assert row is not None
        found = dict(zip(_OF_DATABASE, map(float, row), strict=True))
        asked = "SELECT txid_snapshot_xmax(txid_current_snapshot()), pg_current_wal_lsn() - '0/0'::pg_lsn"
        xids, wal = connection.execute(asked).fetchone() or (0, 0)
        told = {
            "transactions": found.pop("xact_commit") + found.pop("xact_rollback"),
            "write transactions": float(xids),  # a transaction gets its number when it writes
            "WAL bytes": float(wal),
            **{name.replace("tup_", "rows ").replace("_", " "): value for name, value in found.items()},
        }
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (name,) in tables:
            count = connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()  # type: ignore[call-overload]
            told[f"table {name}"] = float(count[0]) if count else 0.0
        scans = connection.execute("SELECT relname, seq_tup_read FROM pg_stat_user_tables").fetchall()
        told |= {f"rows scanned without an index: {name}": float(rows) for name, rows in scans}
    return told


def _sqlite(url: str) -> dict[str, float]:
    path = urlsplit(url).path.removeprefix("/")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            f"table {name}": float(connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0])
            for name in names
            if not name.startswith("sqlite_")
        }


def _redis(stack: Stack) -> dict[str, float]:
    with redis.Redis(port=stack.servers["redis"].port, decode_responses=True) as client:
        stats, memory = client.info("commandstats"), client.info("stats")
    found = {f"command {name.removeprefix('cmdstat_')}": float(row["calls"]) for name, row in stats.items()}
    found["broker commands"] = sum(found.values())
    found["broker µs"] = float(sum(row["usec"] for row in stats.values()))
    found["wire bytes to the broker"] = float(memory["total_net_input_bytes"])
    return found


def _rabbitmq(stack: Stack) -> dict[str, float]:
    server = stack.servers["rabbitmq"]
    told = servers.rabbitmq_control(server, "eval", "rabbit_global_counters:overview().")
    found = {
        what: float(sum(int(one) for one in re.findall(rf"\b{name} => (\d+)", told)))
        for what, name in _AMQP.items()
    }
    listed = servers.rabbitmq_control(server, "list_connections", "recv_oct")
    octets = [int(line) for line in listed.split() if line.isdigit()]
    return {**found, "wire bytes to the broker": float(sum(octets))}


def per_run(
    before: dict[str, float], after: dict[str, float], idle: dict[str, float], n: int
) -> dict[str, Any]:
    """Each counter's difference for one run; `idle`: the differences in as much time without runs."""
    found = {}
    for name, value in after.items():
        used = value - before.get(name, 0.0) - max(0.0, idle.get(name, 0.0))
        if used / n >= SEEN_MIN:
            found[name] = round(used / n, 3)
    return found


class Monitor:
    """Reads Redis's MONITOR while a round goes on: how many bytes of messages are written to the streams.

    Every command is sent to it as well, so a round that is watched gives no other figure.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._client = redis.Redis(port=port)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._started = threading.Event()
        self.messages = 0
        self.message_bytes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait(10.0)
        return self

    def __exit__(self, *exc: object) -> None:
        time.sleep(0.5)
        self._ending.set()
        with redis.Redis(port=self._port) as other:
            other.ping()  # wakes the reader
        self._thread.join(10.0)

    def _read(self) -> None:
        with self._client.monitor() as watch:
            self._started.set()
            for command in watch.listen():
                if self._ending.is_set():
                    return
                words = command["command"]
                if words[:4].upper() == "XADD":
                    self.messages += 1
                    self.message_bytes += _body_bytes(words)


def _body_bytes(words: str) -> int:
    """Of `XADD key * b <body>`, as MONITOR tells it; what it writes as \\xNN is one byte."""
    body = words.split(" ", 4)[4]
    return len(re.sub(r"\\x[0-9a-f]{2}|\\.", "x", body))
