"""Bytes <-> message: size, signature, version and fields are checked here and nowhere else.

    tf1.<key id>.<hex HMAC-SHA256 over queue name, NUL, JSON>.<JSON>

The signature covers the queue's name, so that a message moved to another queue is refused like an altered one. What
is inside is parsed only after the signature fits. Refusals are written for people and carry no payload and no key.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import orjson
from pydantic import ValidationError

from toolfleet.queues.topology import QUEUE_BY_NAME
from toolfleet.schemas.errors import (
    AlteredMessage,
    MalformedMessage,
    MessageRefused,
    NewerMessage,
    OversizedMessage,
    UnsafeSettings,
    UnsignedMessage,
)
from toolfleet.schemas.limits import HOLD_NEWER_S, MESSAGE_BYTES_MAX
from toolfleet.schemas.messages import (
    MESSAGE_VERSION,
    DecideMessage,
    DeliverMessage,
    ExecMessage,
    Message,
    ResultMessage,
)

_PREFIX: Final = b"tf1."
_SIGNATURE_LENGTH: Final = 64  # hex of SHA-256
_KEY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")  # no dot and no colon: they separate
_SECRET_BYTES_MIN: Final = 16  # 128 bits; openssl rand -hex 32 gives what RFC 2104 section 3 asks for
_TYPES: Final[Mapping[str, type[Message]]] = {
    "decide": DecideMessage,
    "exec": ExecMessage,
    "result": ResultMessage,
    "deliver": DeliverMessage,
}

R = TypeVar("R", bound=MessageRefused)


class Codec:
    """Writes and reads the messages of all processes that have these keys. `now` is the wall clock."""

    def __init__(self, keys: KeyRing, now: Callable[[], float]) -> None:
        self._keys = keys
        self._now = now

    def encode(self, queue: str, message: Message) -> bytes:
        """The signed bytes for that queue; a message without a time gets the present one.

        Raises OversizedMessage (MESSAGE_BYTES_MAX), and MalformedMessage for text that is not Unicode.
        """
        assert "\0" not in queue, "the queue's name would run into the body under the signature"
        assert _fits(queue, type(message)), f"a {message.type} message does not belong in {queue}"
        if not message.published_at:
            message = message.model_copy(update={"published_at": self._now()})
        try:
            text = orjson.dumps(message.model_dump(exclude_none=True))
        except TypeError as exc:
            raise _refusal(
                MalformedMessage,
                queue,
                f"a {message.type} message of run {message.run_id} cannot be written as JSON",
                hint=f"It was not sent ({exc}). Results have to be made strict JSON before they ride along.",
            ) from exc
        body = self._keys.seal(queue, text)
        if len(body) > MESSAGE_BYTES_MAX:
            raise _refusal(
                OversizedMessage,
                queue,
                f"a {message.type} message of run {message.run_id} would have {len(body)} bytes, "
                f"{MESSAGE_BYTES_MAX} are allowed",
                hint="It was not sent. Store what it carries and send ids only.",
                run_id=message.run_id,
            )
        return body

    def decode(self, queue: str, body: bytes) -> Message:
        """The message, if this fleet wrote it, for this queue, unchanged. Unknown extra fields are ignored.

        Raises OversizedMessage before it looks inside; MalformedMessage: no envelope of ours, not JSON, wrong fields;
        UnsignedMessage: no signature, or of a key that is not ours; AlteredMessage: changed, or moved from another
        queue; NewerMessage: of a version this process cannot read, to be held.
        """
        if len(body) > MESSAGE_BYTES_MAX:
            raise _refusal(
                OversizedMessage,
                queue,
                f"the message has {len(body)} bytes, {MESSAGE_BYTES_MAX} are allowed",
                hint="It was not read. No message of the fleet is that large: find out what else writes here.",
            )
        return self._parse(queue, self._open(queue, body))

    def _open(self, queue: str, body: bytes) -> bytes:
        """The JSON inside, once the signature fits."""
        if not body.startswith(_PREFIX):
            raise _refusal(
                MalformedMessage,
                queue,
                "the message has no tf1 envelope",
                hint="It was not read. Only processes of the fleet may write to its queues; others submit runs.",
            )
        parts = body[len(_PREFIX) :].split(b".", 2)
        if len(parts) != 3 or len(parts[1]) != _SIGNATURE_LENGTH:
            raise _refusal(
                UnsignedMessage,
                queue,
                "the message has no signature",
                hint="It was not read. Only processes of the fleet may write to its queues; others submit runs.",
            )
        key_id, signature, text = parts
        expected = self._keys.signature(key_id, queue, text)
        if expected is None:
            raise _refusal(
                UnsignedMessage,
                queue,
                f"the message is signed with key {_shown(key_id)}, which this process does not have "
                f"({self._keys!r})",
                hint="Give all processes the same TOOLFLEET_SIGNING_KEYS; a key that is replaced stays in the list, "
                "after the new one, until its messages are gone.",
            )
        if not hmac.compare_digest(expected, signature):
            raise _refusal(
                AlteredMessage,
                queue,
                f"the signature by key {_shown(key_id)} does not fit this message in this queue: it was altered, or "
                "moved here from another queue",
                hint="It was not read. The step it named goes on by its row; look for who else can write to the "
                "broker. Where two processes have different keys under one id, give the new key a new id.",
            )
        return text

    def _parse(self, queue: str, text: bytes) -> Message:
        try:
            fields = orjson.loads(text)
        except orjson.JSONDecodeError as exc:
            raise _malformed(queue, f"it is not JSON ({exc.msg})") from None
        if not isinstance(fields, dict):
            raise _malformed(queue, "it is no JSON object")
        version = fields.get("v")
        if type(version) is not int or version < 1:
            raise _malformed(queue, "it has no version")
        if version > MESSAGE_VERSION:
            raise NewerMessage(
                f"queue {queue}: the message is of version {version}, this process reads up to {MESSAGE_VERSION}",
                published_at=self._published_at(fields),
                hint="It is held for processes of the newer release and becomes a dead letter after "
                f"{HOLD_NEWER_S:g} s: finish the deploy.",
                queue=queue,
                version=version,
            )
        kind = _TYPES.get(fields["type"]) if isinstance(fields.get("type"), str) else None
        if kind is None or not _fits(queue, kind):
            raise _malformed(queue, "its type does not belong in this queue")
        try:
            return kind.model_validate_json(text, strict=True)
        except ValidationError as exc:
            wrong = exc.errors(include_url=False, include_context=False, include_input=False)
            named = ", ".join(
                f"{'.'.join(map(str, one['loc'])) or 'all'} ({one['type']})" for one in wrong[:5]
            )
            raise _malformed(queue, f"these fields are wrong: {named}") from None

    def _published_at(self, fields: dict[str, Any]) -> float:
        """0.0, that is, held for too long already, where it cannot be told: what is held has to end."""
        value = fields.get("published_at")
        if isinstance(value, bool) or not isinstance(value, int | float):
            return 0.0
        if value > self._now() + HOLD_NEWER_S:
            return 0.0
        return float(value)


class KeyRing:
    """The key that signs, and older ones that are still accepted. Secrets never leave it and are not in its repr."""

    __slots__ = ("_secrets", "_signs_with")

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        """The first key signs. Raises UnsafeSettings for no key, an id of other characters, or a short secret."""
        if not keys:
            raise _unsafe("there is no key")
        for key_id, secret in keys.items():
            if not _KEY_ID.fullmatch(key_id):
                raise _unsafe("a key id may have 1 to 32 letters, digits, _ and -")
            if len(secret) < _SECRET_BYTES_MIN:
                raise _unsafe(
                    f"key {key_id!r} has {len(secret)} bytes, at least {_SECRET_BYTES_MIN} are needed"
                )
        self._secrets = {key_id.encode(): secret for key_id, secret in keys.items()}
        self._signs_with = next(iter(self._secrets))

    @classmethod
    def parse(cls, text: str) -> KeyRing:
        """From a setting of the form `k2:hex,k1:hex`: the first signs, all are accepted. Raises UnsafeSettings."""
        keys: dict[str, bytes] = {}
        for number, entry in enumerate(text.split(","), start=1):
            key_id, colon, digits = entry.strip().partition(":")
            if not colon:
                raise _unsafe(f"entry {number} is not of the form id:hex")
            if key_id in keys:
                raise _unsafe(f"the id of entry {number} is used twice")
            try:
                keys[key_id] = bytes.fromhex(digits)
            except ValueError:
                raise _unsafe(f"the key of entry {number} is not hexadecimal") from None
        return cls(keys)

    @classmethod
    def ephemeral(cls) -> KeyRing:
        """A random key of this process: for a fleet whose messages end with it."""
        return cls({f"e{secrets.token_hex(4)}": secrets.token_bytes(32)})

    @property
    def signs_with(self) -> str:
        return self._signs_with.decode()

    def seal(self, queue: str, text: bytes) -> bytes:
        """The envelope around that JSON, for that queue."""
        signature = self.signature(self._signs_with, queue, text)
        assert signature is not None
        return _PREFIX + b".".join((self._signs_with, signature, text))

    def signature(self, key_id: bytes, queue: str, text: bytes) -> bytes | None:
        """What that key signs this with, in lower-case hex; None: no such key."""
        secret = self._secrets.get(key_id)
        if secret is None:
            return None
        return hmac.digest(secret, queue.encode() + b"\0" + text, "sha256").hex().encode()

    def __repr__(self) -> str:
        older = [key_id.decode() for key_id in self._secrets if key_id != self._signs_with]
        return f"KeyRing(signs with {self.signs_with}, also accepts {', '.join(older) or 'none'})"


def _fits(queue: str, kind: type[Message]) -> bool:
    declared = QUEUE_BY_NAME.get(queue)
    return declared is None or declared.message is kind


def _shown(key_id: bytes) -> str:
    """A key id that a stranger may have written, fit to be printed."""
    text = key_id.decode("ascii", "replace")
    return repr(text) if _KEY_ID.fullmatch(text) else "of no valid id"


def _refusal(kind: type[R], queue: str, what: str, *, hint: str, **fields: Any) -> R:
    return kind(f"queue {queue}: {what}", hint=hint, queue=queue, **fields)


def _malformed(queue: str, what: str) -> MalformedMessage:
    return _refusal(
        MalformedMessage,
        queue,
        f"the message is signed by this fleet but cannot be read: {what}",
        hint="The step it named goes on by its row. Some process of the fleet writes what this one does not expect: "
        "compare their releases.",
    )


def _unsafe(what: str) -> UnsafeSettings:
    return UnsafeSettings(
        f"signing keys: {what}",
        hint="Set TOOLFLEET_SIGNING_KEYS to id:hex[,older id:hex]; openssl rand -hex 32 makes a key.",
    )
