"""What is asked of the report of a night (`big_batch.py`), of a short one as of one of 50,000 lines. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

STACKS: Final = ("streams", "embedded")  # one on each database
SMALL, LARGE = "small", "large"  # the phases
GROWTH_MAX: Final = 1.2  # memory of any process at ten times the lines
KILLS_MIN: Final = 20
SHARE_MIN: Final = (
    0.45  # of the places that were given while two tenants wanted some; it comes later and holds none
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Lines of the three batches (no small one: 0), and kills of processes: early in the large batch, and near its end.
    `looks` at the whole state, over a batch; `cuts`: a submitting and a downloading command are killed as well; a decision
    takes the model `model_s`. `left_min`: share of the large batch that is still to be done when the other one has ended.
    `gate_from`: from this share on the lines of the large one wait until all early kills are done and the other batch is
    there, so that a short night has them however slow the test itself is."""

    small: int
    large: int
    other: int
    early: int
    late: int
    in_flight_max: int
    lease_s: float
    looks: int = 10
    cuts: bool = True
    model_s: float = 0.0
    left_min: float = 0.5
    gate_from: float = 1.0


WHOLE: Final = Sizes(small=5_000, large=50_000, other=500, early=24, late=4, in_flight_max=500, lease_s=10.0)


def grown(report: dict[str, Any]) -> dict[str, float]:
    """By role: its highest memory in the large batch over that in the small one."""
    return {role: round(mb[LARGE] / mb[SMALL], 3) for role, mb in report["peak_pss_mb"].items()}


def broken(report: dict[str, Any], sizes: Sizes) -> list[str]:
    """The rules that do not hold, with their figures. Which line was answered how was judged when the report was made."""
    acts, share = report["acts"], report["share"]
    answered = sum(counts["completed"] for counts in report["counts"].values())
    failed = sum(count for what, count in acts.items() if what.startswith("line failed"))
    lines = {"small": sizes.small, "large": sizes.large, "other": sizes.other}
    rules = {
        "it has the size it should have": report["lines"] == {name: n for name, n in lines.items() if n},
        "every line has one answer": answered + failed == sum(lines.values()),
        "every act that is said to have happened did, none twice": acts["most_of_one"] == 1
        and acts.get("done", 0) <= acts["made"] <= acts["asked"],
        "kills": sum(report["kills"].values()) >= sizes.early + sizes.late,
        "no more is out than the window holds": 0 < report["outstanding_max"] <= sizes.in_flight_max,
        "its share of what began": share["begun"] >= SHARE_MIN,
        "it did not wait for the large one": share["large_left"] > sizes.large * sizes.left_min,
    }
    if sizes.small:
        rules["kills of a whole night"] = sum(report["kills"].values()) >= KILLS_MIN
        rules["memory"] = all(by <= GROWTH_MAX for by in grown(report).values())
        rules["most of it is one life of its processes"] = report["undisturbed_lines"] > sizes.large / 2
    told = {name: report[name] for name in ("lines", "counts", "acts", "kills", "outstanding_max", "share")}
    return [f"{rule}: {told}, {report['peak_pss_mb']}" for rule, holds in rules.items() if not holds]
