"""The pure heart: what follows from an event, and what a merge looks like. See `reduce`."""

from toolfleet.workers.collector.merge import merge
from toolfleet.workers.machine.reduce import reduce


class _Machine:
    """The heart as the store needs it (schemas.ports.Machine)."""

    reduce = staticmethod(reduce)
    merge = staticmethod(merge)


MACHINE = _Machine()

__all__ = ["MACHINE", "merge", "reduce"]
