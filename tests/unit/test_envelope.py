"""Only what this fleet wrote, for this queue, unchanged, is read; everything else is refused by its right name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfleet.queues.envelope import Codec, KeyRing
from toolfleet.queues.routing import message_for
from toolfleet.queues.topology import QUEUES
from toolfleet.schemas.commands import CommandRow
from toolfleet.schemas.errors import (
    AlteredMessage,
    MalformedMessage,
    MessageRefused,
    NewerMessage,
    OversizedMessage,
    ToolfleetError,
    UnsafeSettings,
    UnsignedMessage,
)
from toolfleet.schemas.ids import call_command_id, call_id_of, decide_command_id, new_run_id
from toolfleet.schemas.limits import HOLD_NEWER_S, MESSAGE_BYTES_MAX
from toolfleet.schemas.messages import (
    MESSAGE_VERSION,
    DecideMessage,
    DeliverMessage,
    ExecMessage,
    InlineResult,
    Message,
    ResultMessage,
)
from toolfleet.schemas.outcomes import CallOutcome
from toolfleet.schemas.views import DueRow

NOW = 1_800_000_000.0
OLD, NEW = "11" * 32, "22" * 32
RING = KeyRing.parse(f"k1:{OLD}")
CODEC = Codec(RING, lambda: NOW)
NAMES = [queue.name for queue in QUEUES]
HEADER = len(b"tf1.k1.") + 64 + 1  # what comes before the JSON

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
common: dict[str, Any] = {
    "run_id": texts,
    "turn": st.integers(1, 2**53),
    "trace": st.dictionaries(texts, texts, max_size=3),
    "published_at": st.floats(0.001, 1e11),
    "command_id": texts,
    "sends": st.integers(0, 1000),
}
seconds = st.floats(0, 1e6)
inline = st.builds(
    InlineResult,
    index=st.integers(0, 255),
    outcome=st.sampled_from(CallOutcome),
    content=texts,
    reason=st.none() | texts,
    attempt=st.integers(0, 10),
    full=st.none() | texts,
    tool_s=seconds,
    queue_s=seconds,
)
messages: dict[type[Message], st.SearchStrategy[Message]] = {
    DecideMessage: st.builds(DecideMessage, **common),
    ExecMessage: st.builds(ExecMessage, call_id=texts, **common),
    ResultMessage: st.builds(ResultMessage, call_id=texts, result=st.none() | inline, **common),
    DeliverMessage: st.builds(DeliverMessage, **common),
}


@st.composite
def sent(draw: st.DrawFn) -> tuple[str, Message]:
    """A queue, and a message that belongs in it."""
    queue = draw(st.sampled_from(QUEUES))
    return queue.name, draw(messages[queue.message])


def a_decide(**fields: Any) -> DecideMessage:
    return DecideMessage(run_id="run_1", turn=1, command_id="run_1/1", published_at=NOW, **fields)


def sealed(fields: object, queue: str = "decide.batch") -> bytes:
    """Signed by us, whatever is in it."""
    return RING.seal(queue, fields if isinstance(fields, bytes) else orjson.dumps(fields))


def refused(body: bytes, kind: type[ToolfleetError], queue: str = "decide.batch") -> ToolfleetError:
    with pytest.raises(MessageRefused) as caught:
        CODEC.decode(queue, body)
    assert type(caught.value) is kind, caught.value
    assert queue in caught.value.message and caught.value.fields["queue"] == queue
    assert caught.value.hint, "it does not say what to do"
    return caught.value


@given(sent())
def test_what_is_written_is_read(one: tuple[str, Message]) -> None:
    queue, message = one

    assert CODEC.decode(queue, CODEC.encode(queue, message)) == message


def test_the_wire_form_is_as_documented() -> None:
    body = CODEC.encode("decide.batch", a_decide())

    head, key_id, signature, text = body.split(b".", 3)
    assert (head, key_id, len(signature)) == (b"tf1", b"k1", 64)
    assert orjson.loads(text) == {
        "v": 1,
        "type": "decide",
        "run_id": "run_1",
        "turn": 1,
        "command_id": "run_1/1",
        "sends": 0,
        "trace": {},
        "published_at": NOW,
    }


def test_a_message_without_a_time_gets_the_present_one() -> None:
    message = DecideMessage(run_id="run_1", turn=1, command_id="run_1/1")

    assert CODEC.decode("decide.batch", CODEC.encode("decide.batch", message)).published_at == NOW


@given(sent(), st.data())
def test_any_flipped_bit_is_refused_by_its_right_name(one: tuple[str, Message], data: st.DataObject) -> None:
    queue, message = one
    body = bytearray(CODEC.encode(queue, message))
    place = data.draw(st.integers(0, len(body) - 1))

    body[place] ^= 1 << data.draw(st.integers(0, 7))

    refused(bytes(body), expected_at(place), queue)


def expected_at(place: int) -> type[MessageRefused]:
    """tf1. | k1. | 64 hex | . | JSON"""
    if place < 4:
        return MalformedMessage
    if place < 7 or place == HEADER - 1:
        return UnsignedMessage
    return AlteredMessage


def test_every_single_bit_of_one_message_counts() -> None:
    body = CODEC.encode("decide.batch", a_decide())

    for place in range(len(body)):
        for bit in range(8):
            flipped = bytearray(body)
            flipped[place] ^= 1 << bit
            refused(bytes(flipped), expected_at(place))


@given(sent(), st.data())
def test_any_truncation_is_refused_by_its_right_name(one: tuple[str, Message], data: st.DataObject) -> None:
    queue, message = one
    body = CODEC.encode(queue, message)
    length = data.draw(st.integers(0, len(body) - 1))

    kind = MalformedMessage if length < 4 else UnsignedMessage if length < HEADER else AlteredMessage

    refused(body[:length], kind, queue)


@given(sent(), st.binary(min_size=1, max_size=20))
def test_anything_added_is_refused(one: tuple[str, Message], added: bytes) -> None:
    queue, message = one

    refused(CODEC.encode(queue, message) + added, AlteredMessage, queue)


@given(sent(), st.sampled_from(NAMES))
def test_a_message_moved_to_another_queue_is_refused(one: tuple[str, Message], other: str) -> None:
    queue, message = one
    body = CODEC.encode(queue, message)

    if other != queue:
        refused(body, AlteredMessage, other)


@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda rest: b"tf1." + rest))
def test_arbitrary_bytes_are_refused_and_never_raise_anything_else(body: bytes) -> None:
    with pytest.raises((MalformedMessage, UnsignedMessage, AlteredMessage)):
        CODEC.decode("results", body)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", MalformedMessage),
        (b'{"v":1,"type":"decide","run_id":"r","turn":1,"command_id":"c"}', MalformedMessage),
        (b"tf2.k1." + b"0" * 64 + b".{}", MalformedMessage),
        (b"tf1.", UnsignedMessage),
        (b'tf1.{"v":1,"published_at":1.5}', UnsignedMessage),
        (b"tf1.k1..{}", UnsignedMessage),
        (b"tf1.." + b"0" * 64 + b".{}", UnsignedMessage),
        (b"tf1.k9." + b"0" * 64 + b".{}", UnsignedMessage),
        (b"tf1.\x1b[31m\n." + b"0" * 64 + b".{}", UnsignedMessage),
        (b"tf1.k1." + b"0" * 64 + b".{}", AlteredMessage),
        (b"tf1.k1." + b"\xff" * 64 + b".{}", AlteredMessage),
    ],
)
def test_what_is_not_ours_is_refused(body: bytes, kind: type[MessageRefused]) -> None:
    error = refused(body, kind)

    assert str(error).isprintable() or str(error).replace("\n", " ").isprintable()


def test_a_signature_in_capitals_is_not_the_signature() -> None:
    body = CODEC.encode("decide.batch", a_decide())

    shouted = body[:7] + body[7:71].upper() + body[71:]

    refused(shouted, AlteredMessage)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff",
        b"[" * 5000 + b"]" * 5000,
        b'{"v":NaN}',
        b'{"v":1}',
        b'{"type":"decide","run_id":"r","turn":1,"command_id":"c"}',
    ],
)
def test_what_is_signed_but_no_message_is_malformed(text: bytes) -> None:
    refused(sealed(text), MalformedMessage)


@pytest.mark.parametrize(
    "wrong",
    [
        {"v": "1"},
        {"v": 1.0},
        {"v": True},
        {"v": 0},
        {"v": -1},
        {"v": None},
        {"v": 2**70},
        {"type": "exec"},
        {"type": "unheard of"},
        {"type": ["decide"]},
        {"type": None},
        {"run_id": None},
        {"run_id": 7},
        {"run_id": "r" * 65},
        {"command_id": "c" * 161},
        {"turn": 0},
        {"turn": "1"},
        {"turn": 1.5},
        {"trace": []},
        {"trace": {"traceparent": 1}},
        {"published_at": "now"},
        {"sends": None},
    ],
)
def test_wrong_fields_are_malformed_and_their_values_are_not_shown(wrong: dict[str, Any]) -> None:
    fields = orjson.loads(orjson.dumps(a_decide().model_dump()))
    text = orjson.dumps({**fields, "run_id": "SECRET", **{k: v for k, v in wrong.items() if v != 2**70}})
    if wrong == {"v": 2**70}:  # orjson reads it as a float, and would not write it
        text = text.replace(b'"v":1', b'"v":%d' % 2**70)

    assert "SECRET" not in str(refused(sealed(text), MalformedMessage))


def test_the_wrong_fields_are_named() -> None:
    fields = {**a_decide().model_dump(), "turn": 0, "run_id": 5}

    error = refused(sealed(fields), MalformedMessage)

    assert "run_id (string_type)" in error.message and "turn (greater_than_equal)" in error.message


def test_too_deep_is_malformed_even_in_a_field_that_is_ignored() -> None:
    deep = b'{"x":' + b"[" * 900 + b"]" * 900 + b","
    text = orjson.dumps(a_decide().model_dump()).replace(b"{", deep, 1)
    assert len(text) < sys.getrecursionlimit() * 10

    refused(sealed(text), MalformedMessage)


@given(st.dictionaries(texts.map(lambda name: "x_" + name), st.integers() | texts, max_size=5))
def test_unknown_extra_fields_are_ignored(extra: dict[str, Any]) -> None:  # B105
    small = {name: value for name, value in extra.items() if isinstance(value, str) or abs(value) < 2**63}
    fields = {**a_decide().model_dump(), **small}

    assert CODEC.decode("decide.batch", sealed(fields)) == a_decide()


def test_unknown_extra_fields_of_a_result_that_rides_along_are_ignored() -> None:  # B105
    result = InlineResult(index=0, outcome=CallOutcome.OK, content="{}")
    message = ResultMessage(
        run_id="run_1", turn=1, command_id="c", call_id="c", result=result, published_at=NOW
    )
    fields = message.model_dump()
    fields["result"]["colour"] = "green"

    assert CODEC.decode("results", sealed(fields, "results")) == message


@given(
    st.integers(MESSAGE_VERSION + 1, 2**60),
    st.floats(0, NOW) | st.integers(0, int(NOW)),
    st.dictionaries(st.sampled_from(["type", "run_id", "turn", "steps"]), st.none() | texts, max_size=4),
)
def test_a_newer_version_says_when_it_was_published_whatever_else_is_in_it(  # B105
    version: int, published_at: float, others: dict[str, Any]
) -> None:
    error = refused(sealed({**others, "v": version, "published_at": published_at}), NewerMessage)

    assert isinstance(error, NewerMessage)
    assert error.published_at == published_at
    assert error.fields["version"] == version


@pytest.mark.parametrize("published_at", [None, "now", True, [1], NOW + HOLD_NEWER_S + 1, 1e300])
def test_a_newer_version_of_no_credible_age_counts_as_held_long_enough(published_at: object) -> None:  # B105
    error = refused(sealed({"v": 2, "published_at": published_at}), NewerMessage)

    assert isinstance(error, NewerMessage) and error.published_at == 0.0


def test_a_newer_version_that_is_not_ours_is_not_held() -> None:  # B105
    body = Codec(KeyRing.parse(f"k1:{NEW}"), lambda: NOW)._keys.seal("decide.batch", b'{"v":2}')

    refused(body, AlteredMessage)


def test_a_process_with_the_new_key_reads_what_the_old_one_signed_and_the_other_way_round() -> None:
    before = Codec(KeyRing.parse(f"k1:{OLD}"), lambda: NOW)
    between = Codec(
        KeyRing.parse(f"k1:{OLD},k2:{NEW}"), lambda: NOW
    )  # knows the new key, still signs with the old
    rotated = Codec(KeyRing.parse(f" k2:{NEW}, k1:{OLD} "), lambda: NOW)
    after = Codec(KeyRing.parse(f"k2:{NEW}"), lambda: NOW)
    old, new = (codec.encode("results", a_result()) for codec in (before, rotated))

    assert between.encode("results", a_result()) == old
    assert after.encode("results", a_result()) == new
    for codec, body in ((between, new), (rotated, old), (rotated, new), (before, old), (after, new)):
        assert codec.decode("results", body) == a_result()
    with pytest.raises(UnsignedMessage, match=r"'k1'.*\n.*TOOLFLEET_SIGNING_KEYS"):
        after.decode("results", old)


def a_result(content: str = "{}", full: str | None = None) -> ResultMessage:
    result = InlineResult(index=0, outcome=CallOutcome.OK, content=content, full=full)
    return ResultMessage(run_id="r", turn=1, command_id="c", call_id="c", result=result, published_at=NOW)


def test_an_oversized_message_is_refused_before_anything_in_it_is_read() -> None:
    fits = b"x" * MESSAGE_BYTES_MAX

    refused(fits, MalformedMessage)
    refused(fits + b"x", OversizedMessage)
    refused(sealed(b"{" + b" " * MESSAGE_BYTES_MAX), OversizedMessage)


def test_an_oversized_message_is_not_written() -> None:
    empty = len(CODEC.encode("results", a_result("")))
    room = MESSAGE_BYTES_MAX - empty

    assert len(CODEC.encode("results", a_result("x" * room))) == MESSAGE_BYTES_MAX
    with pytest.raises(OversizedMessage, match=r"64001 bytes, 64000 are allowed(.|\n)*not sent"):
        CODEC.encode("results", a_result("x" * (room + 1)))


def test_text_that_is_no_unicode_is_not_written() -> None:
    with pytest.raises(MalformedMessage, match="cannot be written as JSON"):
        CODEC.encode("results", a_result("\ud800"))


def test_a_message_in_the_wrong_queue_is_a_bug_of_the_writer_and_refused_by_the_reader() -> None:
    with pytest.raises(AssertionError):
        CODEC.encode("results", a_decide())

    refused(sealed(a_decide().model_dump(), "results"), MalformedMessage, "results")


@pytest.mark.parametrize("queue", NAMES)
def test_the_size_of_a_message_does_not_grow_with_the_conversation(queue: str) -> None:
    run_id = new_run_id()
    trace = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}

    def size(turn: int, index: int) -> int:
        call_id = call_id_of(run_id, turn, index)
        calls = queue.startswith(("exec.", "results"))
        command_id = call_command_id(call_id) if calls else decide_command_id(run_id, turn)
        row = CommandRow(command_id, queue, turn, NOW, call_id=call_id if calls else None)
        return len(CODEC.encode(queue, message_for(DueRow(run_id, row, trace), NOW)))

    assert size(100, 63) <= 1.05 * size(1, 0)
    assert size(100, 63) < 600


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "entry 1 is not of the form"),
        (f"k1:{OLD},", "entry 2 is not of the form"),
        (f"{OLD}", "entry 1 is not of the form"),
        (f"k1:{OLD},k1:{NEW}", "the id of entry 2 is used twice"),
        (f"k.1:{OLD}", "a key id may have"),
        (f":{OLD}", "a key id may have"),
        (f"{'k' * 33}:{OLD}", "a key id may have"),
        (f"k1:{OLD[:-1]}", "the key of entry 1 is not hexadecimal"),
        (f"k1:{OLD}zz", "the key of entry 1 is not hexadecimal"),
        ("k1:", "has 0 bytes, at least 16"),
        (f"k1:{OLD[:30]}", "has 15 bytes, at least 16"),
    ],
)
def test_keys_that_cannot_be_used_are_refused_without_showing_them(text: str, found: str) -> None:
    with pytest.raises(UnsafeSettings, match=found) as caught:
        KeyRing.parse(text)

    assert OLD[:8] not in str(caught.value) and "TOOLFLEET_SIGNING_KEYS" in caught.value.hint


def test_a_ring_without_a_key_is_refused() -> None:
    with pytest.raises(UnsafeSettings, match="there is no key"):
        KeyRing({})


@pytest.mark.parametrize("show", [repr, str, lambda ring: f"{ring}", lambda ring: f"{[ring]!r}"])
def test_keys_are_never_shown(show: Callable[[KeyRing], str]) -> None:
    ring = KeyRing.parse(f"k2:{NEW},k1:{OLD}")

    assert show(ring).strip("[]") == "KeyRing(signs with k2, also accepts k1)"


def test_ephemeral_keys_are_of_one_process() -> None:
    mine, other = (Codec(KeyRing.ephemeral(), lambda: NOW) for _ in range(2))
    body = mine.encode("decide.batch", a_decide())

    assert mine.decode("decide.batch", body) == a_decide()
    with pytest.raises(UnsignedMessage):
        other.decode("decide.batch", body)
