"""From tickets.csv to enriched.csv: submit, wait, join the answers to the rows by their id.

    python -m toolfleet.examples.batch_enrichment.enrich tickets.csv enriched.csv

Killed at any moment and started again it goes on where it was: the file's name is the batch's idempotency key.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from toolfleet import Fleet
from toolfleet.examples.batch_enrichment.fleet_app import fleet

TEMPLATE = "{ticket_id}|{customer_id}|{text}"


def enrich(fleet: Fleet, tickets: Path, enriched: Path) -> int:
    """Writes `enriched`: the rows of `tickets` with the columns topic and error. Returns how many have no topic."""
    batch = fleet.batches.submit(
        tickets,
        format="csv",
        agent="triage",
        template=TEMPLATE,
        id_field="ticket_id",
        idempotency_key=f"enrich:{tickets.name}",
    )
    report = fleet.batches.wait(batch.batch_id)
    answers = dict(_answers(fleet, batch.batch_id))
    with tickets.open(newline="", encoding="utf-8-sig") as source, enriched.open("w", newline="") as out:
        rows = csv.DictReader(source)
        writer = csv.DictWriter(out, [*(rows.fieldnames or ()), "topic", "error"])
        writer.writeheader()
        for row in rows:
            topic, error = answers[row["ticket_id"]]
            writer.writerow({**row, "topic": topic, "error": error})
    return report.view.counts.not_completed


def _answers(fleet: Fleet, batch_id: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Of each ticket its topic, or why there is none."""
    for text in fleet.batches.lines(batch_id, "all"):
        line = json.loads(text)
        if line["error"] is not None:
            yield line["custom_id"], ("", line["error"]["code"])
        else:
            yield line["custom_id"], (line["response"]["body"]["output"].rpartition(": ")[2], "")


def main(arguments: Sequence[str]) -> int:
    tickets, enriched = (Path(one) for one in arguments)
    with fleet:
        return 1 if enrich(fleet, tickets, enriched) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
