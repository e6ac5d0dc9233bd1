"""Recorded conversations: read, checked line by line, and cut into the runs a fleet makes of them.

The 100 that are carried here are gpt-4o's own turns in tau-bench's airline. Others of the same shape can be read
from a file: one JSON object a line, plain or gzipped, with `id`, `messages` (user, assistant and tool turns in the
form of Chat Completions, without the system prompt) and `db_diff_after_recorded_calls`. Other keys are not needed.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from toolfleet.examples.airline_desk.initial import DATA
from toolfleet.schemas.errors import InputError

STOP: Final = "###STOP###"  # the simulated customer has nothing more to ask
LINE_BYTES_MAX: Final = 20_000_000  # a thousand times a long conversation
RECORDINGS_MAX: Final = 100_000
_CARRIED: Final = DATA / "airline_conversations.jsonl.gz"
_OPERATIONS: Final = ("add", "remove", "replace")


class RecordingsUnreadable(InputError):
    """A file of conversations that cannot be used: file, line (0 where it is the file as a whole), and what to do."""

    code = "recordings_unreadable"

    def __init__(self, file: Path, line: int, problem: str, hint: str) -> None:
        place = f"{file}, line {line}" if line else str(file)
        super().__init__(f"{place}: {problem}", hint=hint, file=str(file), line=line)


class _Wrong(Exception):
    """What is wrong with one line, before its place is known."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One run of a conversation: what the user says, and whether the recording answers it to the end."""

    index: int
    user_text: str


@dataclass(frozen=True, slots=True)
class Recording:
    """One conversation. `messages` are as recorded; `expected_diff` is what its calls change in the database."""

    id: str
    messages: tuple[Mapping[str, Any], ...]
    expected_diff: tuple[Mapping[str, Any], ...]
    marks: Mapping[str, int] = field(default_factory=dict)
    reward: float | None = None
    source: Mapping[str, Any] = field(default_factory=dict)

    @property
    def runs(self) -> tuple[RecordedRun, ...]:
        """One run for each user message, each continuing the one before; a message that says STOP starts none."""
        texts = [message["content"] for message in self.messages if message["role"] == "user"]
        return tuple(RecordedRun(index, text) for index, text in enumerate(t for t in texts if STOP not in t))

    @property
    def call_count(self) -> int:
        return sum(len(message.get("tool_calls") or ()) for message in self.messages)


def load_recordings(file: str | Path | None = None) -> tuple[Recording, ...]:
    """The conversations of `file` in its order, or the 100 carried here. Raises RecordingsUnreadable."""
    path = _CARRIED if file is None else Path(file)
    recordings: list[Recording] = []
    lines_by_id: dict[str, int] = {}
    for number, raw in _lines(path):
        try:
            recording = _recording(_object(raw))
            if recording.id in lines_by_id:
                raise _Wrong(
                    f"the id {recording.id!r} stands in line {lines_by_id[recording.id]} already",
                    "Give every conversation an id of its own.",
                )
        except _Wrong as wrong:
            raise RecordingsUnreadable(path, number, wrong.problem, wrong.hint) from wrong
        lines_by_id[recording.id] = number
        recordings.append(recording)
    if not recordings:
        raise RecordingsUnreadable(
            path, 0, "holds no conversation", "Give a file with one JSON object a line."
        )
    return tuple(recordings)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines that are not blank."""
    try:
        with path.open("rb") as plain:
            packed = plain.read(2) == b"\x1f\x8b"  # gzip: RFC 1952 section 2.3.1
        with gzip.open(path) if packed else path.open("rb") as stream:
            number = 0
            while raw := stream.readline(LINE_BYTES_MAX + 1):
                number += 1
                if len(raw) > LINE_BYTES_MAX or number > RECORDINGS_MAX:
                    raise RecordingsUnreadable(
                        path, number, "is larger than any recording", "Cut the file into smaller ones."
                    )
                if raw.strip():
                    yield number, raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as exc:
        raise RecordingsUnreadable(path, 0, f"is cut or damaged ({exc})", "Copy the .gz file again.") from exc
    except OSError as exc:
        raise RecordingsUnreadable(
            path, 0, f"cannot be read ({exc.strerror or exc})", "Check the path given as --conversations."
        ) from exc


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as exc:
        raise _Wrong(f"is not UTF-8 ({exc.reason} at byte {exc.start})", "Save the file as UTF-8.") from exc
    except ValueError as exc:
        raise _Wrong(f"is not JSON ({exc})", "Write one JSON object a line (JSON Lines).") from exc
    except RecursionError as exc:
        raise _Wrong("is nested too deeply", "Write one conversation a line.") from exc
    if not isinstance(value, dict):
        raise _Wrong(
            f"is {_kind(value)}, not an object",
            "Write one JSON object a line, not one list for the whole file.",
        )
    return value


def _recording(line: Mapping[str, Any]) -> Recording:
    recording_id = _needed(line, "id", str)
    if not recording_id:
        raise _Wrong("has an empty id", "Give every conversation an id of its own.")
    messages = _needed(line, "messages", list)
    _check_messages(messages)
    changes = _needed(line, "db_diff_after_recorded_calls", list)
    for index, change in enumerate(changes):
        _check_change(change, f"db_diff_after_recorded_calls[{index}]")
    return Recording(
        id=recording_id,
        messages=tuple(messages),
        expected_diff=tuple(changes),
        marks=line["marks"] if isinstance(line.get("marks"), dict) else {},
        reward=line["reward"] if isinstance(line.get("reward"), (int, float)) else None,
        source=line["source"] if isinstance(line.get("source"), dict) else {},
    )


def _check_messages(messages: list[Any]) -> None:
    open_ids: list[str] = []  # calls of the last assistant turn that have no result yet
    previous = ""
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        if not isinstance(message, dict):
            raise _Wrong(f"{place} is {_kind(message)}, not an object", "Keep the messages as recorded.")
        role = message.get("role")
        if role != "tool" and open_ids:
            raise _Wrong(
                f"{place}: the call {open_ids[0]!r} before it has no tool message",
                "Keep each assistant turn together with the results of all its calls.",
            )
        match role:
            case "user":
                _text(message, place)
            case "assistant" if previous in ("user", "tool"):
                open_ids = _calls(message, place)
            case "tool":
                _text(message, place)
                if message.get("tool_call_id") not in open_ids:
                    raise _Wrong(
                        f"{place}: its tool_call_id {message.get('tool_call_id')!r} is no open call",
                        "Keep each tool message behind the assistant turn that asked for it.",
                    )
                open_ids.remove(message["tool_call_id"])
            case "assistant":
                raise _Wrong(f"{place}: an assistant turn answers nothing", "Begin with what the user says.")
            case _:
                raise _Wrong(
                    f"{place} has the role {role!r}",
                    "Use user, assistant and tool; the system prompt is the agent's, not the recording's.",
                )
        previous = role
    if not any(message["role"] == "user" for message in messages):
        raise _Wrong("messages hold nothing a user said", "Begin with what the user says.")
    if open_ids:
        raise _Wrong(
            f"the last call {open_ids[0]!r} has no tool message", "Add its result, or cut the turn off."
        )


def _calls(message: Mapping[str, Any], place: str) -> list[str]:
    """The ids of the calls of an assistant turn; none where it is text."""
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise _Wrong(f"{place}.tool_calls is {_kind(calls)}, not a list", "Keep the calls as recorded.")
    if not calls or message.get("content") is not None:
        _text(message, place)
    ids: list[str] = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not (
            isinstance(function, dict)
            and all(isinstance(text, str) for text in (call.get("id"), function.get("name")))
            and isinstance(function.get("arguments"), str)
        ):
            raise _Wrong(
                f"{place}.tool_calls[{index}] lacks id, function.name or function.arguments (all text)",
                "Keep the calls as recorded: the arguments are the model's raw JSON text.",
            )
        if call["id"] in ids:
            raise _Wrong(
                f"{place} uses the call id {call['id']!r} twice", "Give the calls of a turn different ids."
            )
        ids.append(call["id"])
    return ids


def _text(message: Mapping[str, Any], place: str) -> None:
    if not isinstance(message.get("content"), str):
        raise _Wrong(
            f"{place}.content is {_kind(message.get('content'))}, not text", "Write the content as one text."
        )


def _check_change(change: object, place: str) -> None:
    if (
        not isinstance(change, dict)
        or change.get("op") not in _OPERATIONS
        or not isinstance(change.get("path"), str)
    ):
        raise _Wrong(
            f"{place} is no add, remove or replace with a path",
            'Write {"op": ..., "path": ..., "value": ...}.',
        )
    if change["op"] != "remove" and "value" not in change:
        raise _Wrong(f"{place} has no value", "An add or a replace needs one.")


def _needed(line: Mapping[str, Any], key: str, kind: type) -> Any:
    if key not in line:
        raise _Wrong(f"has no {key!r}", "Each line needs id, messages and db_diff_after_recorded_calls.")
    if not isinstance(line[key], kind):
        wanted = "a text" if kind is str else "a list"
        raise _Wrong(
            f"{key!r} is {_kind(line[key])}, not {wanted}", "Keep the form of the carried recordings."
        )
    return line[key]


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
        case _:
            return "an object"
