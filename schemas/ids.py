"""Identifiers, and what is derived from them.

Ids of ours are UUIDv7 texts with a short prefix (`run_…`), so that they sort by the time they were made and say
what they name. A provider's tool_call id is data to be replayed, never a key: real models use one twice in a
conversation.
"""

from __future__ import annotations

from typing import NewType

import uuid_utils

RunId = NewType("RunId", str)
CallId = NewType("CallId", str)
CommandId = NewType("CommandId", str)
LeaseToken = NewType("LeaseToken", str)


def new_run_id() -> RunId:
    """A fresh run id; ids made later sort later."""
    return RunId(f"run_{uuid_utils.uuid7().hex}")


def new_batch_id() -> str:
    """A fresh batch id; ids made later sort later."""
    return f"batch_{uuid_utils.uuid7().hex}"


def new_file_id() -> str:
    """A fresh file id; ids made later sort later."""
    return f"file_{uuid_utils.uuid7().hex}"


def new_token() -> LeaseToken:
    """A lease token: names one holder of one lease, once."""
    return LeaseToken(uuid_utils.uuid7().hex)


def new_event_id() -> str:
    """An id for one accepted request, batch line or dead letter."""
    return uuid_utils.uuid7().hex


def call_id_of(run_id: RunId, turn: int, index: int) -> CallId:
    """The id of call `index` (from 0) of turn `turn` (from 1): the same in every process and at every replay."""
    return CallId(f"call_{run_id.removeprefix('run_')}_{turn}_{index}")


def decide_command_id(run_id: RunId, turn: int) -> CommandId:
    """The id of the command row of a decision: one per turn."""
    return CommandId(f"{run_id}/{turn}")


def call_command_id(call_id: CallId) -> CommandId:
    """The id of the command row of a call: one per call, through all its attempts."""
    return CommandId(call_id)


def idempotency_key_of(call_id: CallId) -> str:
    """The key an idempotent tool is given: equal for all attempts of a call, different for every other call."""
    return f"tf-{call_id}"
