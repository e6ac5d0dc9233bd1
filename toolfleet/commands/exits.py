"""What the command line ends with: the exit codes, and which error gets which. docs/cli.md has the same table."""

from __future__ import annotations

from typing import Final

OK: Final = 0
NOT_COMPLETED: Final = 1  # the run ended, and not as completed
USAGE: Final = 2  # usage, or input that cannot be accepted
NEEDS_APPROVAL: Final = 3  # reserved: a run that waits for somebody
TIMED_OUT: Final = 4  # the run goes on
CANNOT_WORK: Final = 5  # not here, not now: database, lock, settings
BUG: Final = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED: Final = 130  # 128 + SIGINT, as shells count
PIPE_CLOSED: Final = 141  # 128 + SIGPIPE: the reader of our output has gone


class TimedOut(Exception):
    """A wait of the command line is over; what was waited for goes on. `message` and `hint` as for our errors."""

    code = "timed_out"

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def exit_code_of(error: BaseException) -> int:
    """The exit code an error of ours ends the command line with."""
    from toolfleet.schemas.errors import InputError, ToolfleetError

    match error:
        case TimedOut():
            return TIMED_OUT
        case InputError():
            return USAGE
        case ToolfleetError():
            return CANNOT_WORK
        case _:
            return BUG
