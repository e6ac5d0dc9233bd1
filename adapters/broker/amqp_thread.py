"""The thread that owns the connections to RabbitMQ, and how an event loop talks to it.

The loop puts notes into a deque and one byte into a socket pair; the thread answers with call_soon_threadsafe, once a
turn. It connects, runs a session until that ends, and connects again, for ever. While there is no connection every
command is answered with BrokerUnavailable as soon as that is known.
"""

from __future__ import annotations

import asyncio
import random
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from toolfleet.adapters.broker.amqp_link import ConnectionEnded
from toolfleet.adapters.broker.amqp_session import Command, Note, PutBack, Session, Take, Wishes
from toolfleet.schemas.errors import BrokerUnavailable, ToolfleetError, UnsafeSettings

log = structlog.get_logger("toolfleet.broker.rabbitmq")

BACKOFF_S_MIN: Final = 0.1
BACKOFF_S_MAX: Final = 5.0
STEADY_S: Final = 5.0  # a session that lived this long has nothing to do with the next one's end


@dataclass(frozen=True, slots=True)
class _Answer:
    command: Command
    result: object
    error: ToolfleetError | None


class AmqpThread:
    """Started at once. `over`: it has ended, by itself or by `close`, and takes no more notes.

    `refusal`: the settings cannot work, and nobody tries again.
    """

    def __init__(
        self, name: str, wishes: Wishes, loop: asyncio.AbstractEventLoop, generations: Iterator[int]
    ) -> None:
        self._name = name
        self._wishes = wishes
        self._loop = loop
        self._generations = generations
        self._notes: deque[Note] = deque()
        self._lock = threading.Lock()  # over `over` and the deque's end: no note is put where nobody looks
        self.wake, self._waker = socket.socketpair()
        self.wake.setblocking(False)
        self._waker.setblocking(False)
        self._woken = False
        self._answers: list[_Answer] = []
        self.closing = False
        self.over = False
        self.refusal: UnsafeSettings | None = None
        self._failures = 0
        self._best_node = 0
        self.ended: asyncio.Future[None] = loop.create_future()
        self._thread = threading.Thread(target=self._main, name=f"toolfleet-{name}", daemon=True)
        self._thread.start()

    def put(self, note: Note) -> bool:
        """Called in the loop. False: the thread is over."""
        with self._lock:
            if self.over:
                return False
            self._notes.append(note)
        self._wake()
        return True

    def close(self) -> None:
        """Asks the thread to end; `ended` is done when it has."""
        self.closing = True
        with self._lock:
            if not self.over:
                self._wake()

    def take_notes(self) -> Sequence[Note]:
        """What was put since the last time."""
        with suppress(BlockingIOError):  # not woken for this
            self.wake.recv(64)
        self._woken = False  # before the deque is emptied: what is put now wakes again
        notes = []
        while self._notes:
            notes.append(self._notes.popleft())
        if self._loop.is_closed():
            self.closing = True  # nobody is left who could close this
        return notes

    def answer(self, command: Command, result: object) -> None:
        self._answers.append(_Answer(command, result, None))

    def fail(self, command: Command, reason: str) -> None:
        self._answers.append(_Answer(command, None, unavailable(self._name, reason)))

    def hand_in(self) -> None:
        """Gives the loop what was answered this turn."""
        if self._answers:
            answers, self._answers = self._answers, []
            self._call(lambda: self._deliver(answers))

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            with suppress(BlockingIOError):  # full of earlier wakes
                self._waker.send(b"\0")

    def _deliver(self, answers: Sequence[_Answer]) -> None:
        """In the loop."""
        for one in answers:
            future = one.command.future
            if not future.done():
                if one.error is not None:
                    future.set_exception(one.error)
                else:
                    future.set_result(one.result)
            elif isinstance(one.command, Take) and isinstance(one.result, list) and one.result:
                self.put(PutBack(one.result))

    def _call(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            self.closing = True  # the loop is closed: nobody waits any more

    def _main(self) -> None:
        error: ToolfleetError = unavailable(self._name, "the layer was closed")
        try:
            self._work()
        except UnsafeSettings as exc:
            error = self.refusal = exc
            log.error("broker_refused", broker=self._name, error=exc.message)
        except BaseException as exc:
            error = unavailable(self._name, _died(exc))
            log.exception("broker_thread_died", broker=self._name)
        finally:
            self._end(error)

    def _work(self) -> None:
        session: Session | None = None
        while not self.closing:
            try:
                session = self._connect()
            except ConnectionEnded as exc:
                self._wait_and_refuse(exc.reason)
                continue
            started_at = time.monotonic()
            try:
                session.run()
                session.close()
                self._fail_all(session, "the layer was closed")
                return
            except ConnectionEnded as exc:
                self._lost(session, exc, time.monotonic() - started_at)
            except BaseException as exc:
                self._fail_all(session, _died(exc))
                session.drop()
                raise

    def _connect(self) -> Session:
        """The node that was good last is tried first, then the others, each once."""
        nodes = self._wishes.nodes
        reasons = []
        for offset in range(len(nodes)):
            position = (self._best_node + offset) % len(nodes)
            try:
                session = Session(self._wishes, nodes[position], next(self._generations), self)
            except ConnectionEnded as exc:
                reasons.append(exc.reason)
                continue
            self._best_node = position
            log.info("broker_connected", broker=self._name, node=nodes[position].label)
            return session
        raise ConnectionEnded("; ".join(reasons))

    def _lost(self, session: Session, ended: ConnectionEnded, lived_s: float) -> None:
        """What only reads goes on with the next session, which is tried at once unless this one was short, too."""
        log.warning("broker_lost", broker=self._name, reason=ended.reason)
        session.end(ended.reason)
        for command in tuple(session.pending):
            if command.repeatable:
                self._notes.appendleft(command)
            else:
                self.fail(command, ended.reason)
        self.hand_in()
        if lived_s >= STEADY_S:
            self._failures = 0
        if self._failures:
            self._wait_and_refuse(ended.reason)
        else:
            self._failures = 1

    def _wait_and_refuse(self, reason: str) -> None:
        """Until the next try: longer each time, by chance not for all processes alike."""
        self._failures += 1
        pause = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2 ** min(self._failures - 1, 10)) * random.uniform(0.5, 1)
        until = time.monotonic() + pause
        log.warning("broker_unreachable", broker=self._name, reason=reason, again_s=round(pause, 2))
        while not self.closing and (left := until - time.monotonic()) > 0:
            for note in self.take_notes():
                if isinstance(note, Command):
                    self.fail(note, reason)
            self.hand_in()
            select.select([self.wake], [], [], left)

    def _fail_all(self, session: Session, reason: str) -> None:
        for command in tuple(session.pending):
            self.fail(command, reason)
        self.hand_in()

    def _end(self, error: ToolfleetError) -> None:
        with self._lock:
            self.over = True
            left = [note for note in self._notes if isinstance(note, Command)]
            self._notes.clear()
        self._answers += [_Answer(command, None, error) for command in left]
        self.hand_in()
        self.wake.close()
        self._waker.close()
        self._call(lambda: None if self.ended.done() else self.ended.set_result(None))


def _died(exc: BaseException) -> str:
    return f"its thread died of {type(exc).__name__}, and is started again"


def unavailable(name: str, reason: str) -> BrokerUnavailable:
    """What a caller is told when RabbitMQ cannot be asked."""
    return BrokerUnavailable(
        f"RabbitMQ ({name}) is not available: {reason}",
        hint="Nothing is lost: what is outstanding is published again from the database when it is back.",
    )
