"""The garbage collector of a process that is ours alone."""

from __future__ import annotations

import gc
from typing import Final

# Allocations of containers that are still there between two looks at the youngest, and looks between those at older
# ones. Python's own 700 and 10 suit a script; a loop with hundreds of steps in flight would look all the time.
THRESHOLDS: Final = (10_000, 20, 20)


def spare_what_is_loaded() -> None:
    """Once all is imported and started: never look at it again for garbage.

    A process of ours holds some 150,000 objects that live as long as it does (modules, models, compiled statements).
    Walking them took up to half a second on a busy machine, with the loop standing still, each time the collector
    looked at old objects.
    Not for a process of somebody else's: what is garbage at this moment stays. It is not collected first: that takes
    as long as what is spared here, in a worker that already holds messages and has to say so.
    """
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
