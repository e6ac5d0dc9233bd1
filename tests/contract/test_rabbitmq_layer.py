"""The contract of the message layer over RabbitMQ, and what this layer promises beyond it. Kills of nodes: tests/fault."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import amqp
import pytest

from tests import servers
from tests.contract.message_layer_suite import (  # after its asserts were made to speak
    HIGH,
    LOW,
    RESULTS,
    Bench,
    MakeLayer,
    MessageLayerSuite,
    bodies,
    outgoing,
    take,
)
from toolfleet.adapters.broker.amqp_session import Session
from toolfleet.adapters.broker.amqp_topology import Topology
from toolfleet.adapters.broker.rabbitmq import RabbitLayer
from toolfleet.schemas.errors import BrokerUnavailable, UnsafeSettings
from toolfleet.schemas.ports import Delivery, MessageLayer

_numbers = itertools.count(1)


class Proxy:
    """Passes connections on to the broker until they are cut: what was written to them before still arrives."""

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.answering = threading.Event()  # cleared: what the broker says is kept from the client
        self.answering.set()
        self.accepted = 0
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self) -> int:
        """Ends every connection, and says how many; new ones are accepted."""
        pairs, self._pairs = self._pairs, []
        for client, _ in pairs:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)  # what is there is still read, and nothing is answered
        return len(pairs)

    def close(self) -> None:
        self.answering.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            self.accepted += 1
            self._pairs.append((client, broker))
            answers = threading.Thread(target=self._pump, args=(broker, client, True))
            asks = threading.Thread(target=self._carry, args=(client, broker, answers))
            self._threads += [answers, asks]
            answers.start()
            asks.start()

    def _carry(self, client: socket.socket, broker: socket.socket, answers: threading.Thread) -> None:
        self._pump(client, broker)
        answers.join()
        client.close()
        broker.close()

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool = False) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if answers:
                    self.answering.wait()
                sink.sendall(data)
        for sock, how in ((sink, socket.SHUT_WR), (source, socket.SHUT_RD)):
            with contextlib.suppress(OSError):
                sock.shutdown(how)


class Broker:
    """A prefix of its own at a node, and the layers that were opened on it, each through a proxy."""

    claim_s = 0.5  # nobody's: a connection that ends gives its messages back at once

    def __init__(self, server: servers.Server) -> None:
        self.server = server
        self.topology = Topology(f"test{os.getpid()}.{next(_numbers)}")
        self._proxies: dict[RabbitLayer, Proxy] = {}
        self.rabbit = self.open()

    @property
    def layer(self) -> MessageLayer:
        return self.rabbit

    def open(self, **options: float) -> RabbitLayer:
        proxy = Proxy(self.server.port)
        url = f"amqp://guest:guest@127.0.0.1:{proxy.port}//"
        layer = RabbitLayer(url, prefix=self.topology.prefix, **options)  # type: ignore[arg-type]
        self._proxies[layer] = proxy
        return layer

    async def second(self) -> MessageLayer:
        return self.open()

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def fall_silent(self, layer: MessageLayer) -> MessageLayer:
        """After a round trip: RabbitMQ hands on what was settled a moment before its connection ended, or does not."""
        assert isinstance(layer, RabbitLayer)
        with contextlib.suppress(BrokerUnavailable):
            await layer.depths()
        self._proxies.pop(layer).close()
        await layer.aclose()
        return self.open()

    def proxy(self, layer: RabbitLayer) -> Proxy:
        return self._proxies[layer]

    async def empty(self) -> None:
        with self.admin() as channel:
            for queue in self.topology.all_queues():
                channel.queue_delete(queue)

    @contextlib.contextmanager
    def admin(self) -> Iterator[amqp.Channel]:
        with amqp.Connection(f"127.0.0.1:{self.server.port}", connect_timeout=5) as connection:
            yield connection.channel()

    async def aclose(self) -> None:
        for layer, proxy in self._proxies.items():
            await layer.aclose()
            proxy.close()
        await self.empty()
        with self.admin() as channel:
            channel.exchange_delete(self.topology.exchange)
            channel.exchange_delete(self.topology.refused)


@contextlib.asynccontextmanager
async def broker_of(server: servers.Server) -> AsyncIterator[Broker]:
    broker = Broker(server)
    try:
        yield broker
    finally:
        await broker.aclose()


@pytest.fixture
def make_layer(rabbitmq: servers.Server) -> MakeLayer:
    def make() -> contextlib.AbstractAsyncContextManager[Bench]:
        return broker_of(rabbitmq)

    return make


class TestRabbitLayer(MessageLayerSuite):
    pass


def play(server: servers.Server, story: Callable[[Broker], Awaitable[None]], within_s: float = 60) -> None:
    """Plays the story on a fresh prefix of that node."""

    async def played() -> None:
        async with asyncio.timeout(within_s), broker_of(server) as broker:
            await story(broker)

    asyncio.run(played())


async def until(holds: Callable[[], bool], within_s: float = 20) -> None:
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110  # what happens elsewhere sets no event of ours
            await asyncio.sleep(0.01)


async def patiently(ask: Callable[[], Awaitable[object]], within_s: float = 20) -> object:
    """The answer once the broker is there: until then nothing but BrokerUnavailable may be raised."""
    async with asyncio.timeout(within_s):
        while True:
            try:
                return await ask()
            except BrokerUnavailable:
                await asyncio.sleep(0.02)


async def receive(layer: MessageLayer, queue: str, count: int, within_s: float = 20) -> list[Delivery]:
    """So many messages, left in flight."""
    found: list[Delivery] = []
    async with asyncio.timeout(within_s):
        while len(found) < count:
            try:
                found += await layer.fetch([queue], count - len(found), wait_s=1)
            except BrokerUnavailable:
                await asyncio.sleep(0.02)
    return found


def everything(layer: MessageLayer, held: list[Delivery]) -> list[Awaitable[object]]:
    return [
        layer.publish(outgoing(LOW, b"1")),
        layer.fetch([LOW], 1, wait_s=0),
        layer.fetch([LOW, HIGH], 1, wait_s=0.1),
        layer.settle(held),
        layer.release(held, delay_s=0),
        layer.marker(),
        layer.set_marker("x"),
        layer.depths(),
    ]


# -- addresses and settings ------------------------------------------------------------------------------------------------


def test_a_dead_node_is_passed_over(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        dead, alive = servers.free_port(), rabbitmq.port
        url = f"amqp://guest:guest@127.0.0.1:{dead}//;amqp://guest:guest@127.0.0.1:{alive}//"
        layer = RabbitLayer(url, prefix=broker.topology.prefix)

        await layer.publish(outgoing(LOW, b"1"))

        assert bodies(await take(layer, [LOW])) == [b"1"]
        await layer.aclose()

    play(rabbitmq, story)


@pytest.mark.parametrize(
    "url", ["http://u:secret@h/", "amqp://u:secret@:1/", "amqp://u:secret@h:x/", "", "h:5672"]
)
def test_an_address_that_is_none_is_refused_and_not_quoted(url: str) -> None:
    with pytest.raises(UnsafeSettings, match="number 2") as refused:
        RabbitLayer(f"amqp://u:secret@good/;{url}")

    assert "secret" not in str(refused.value)


def test_a_wrong_password_is_said_and_not_shown(
    rabbitmq: servers.Server, capfd: pytest.CaptureFixture[str]
) -> None:
    async def story(broker: Broker) -> None:
        layer = RabbitLayer(
            f"amqp://guest:hunter2@127.0.0.1:{rabbitmq.port}//", prefix=broker.topology.prefix
        )

        with pytest.raises(BrokerUnavailable, match="refused user, password") as refused:
            await layer.publish(outgoing(LOW, b"1"))

        await layer.aclose()
        assert refused.value.__cause__ is None
        assert "hunter2" not in repr(refused.value) + repr(vars(refused.value))

    play(rabbitmq, story)
    assert "hunter2" not in "".join(capfd.readouterr())


def test_a_virtual_host_that_is_not_there_is_said(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        layer = RabbitLayer(f"amqp://guest:guest@127.0.0.1:{rabbitmq.port}/nowhere", prefix="x")

        with pytest.raises(BrokerUnavailable, match=r"virtual host.*nowhere"):
            await layer.depths()

        await layer.aclose()

    play(rabbitmq, story)


def test_a_queue_with_other_arguments_is_refused_once_and_for_all(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        name = broker.topology.queue(LOW)
        with broker.admin() as channel:
            channel.queue_declare(name, durable=True, auto_delete=False)  # a classic one

        for _ in range(2):
            with pytest.raises(UnsafeSettings, match=name) as refused:
                await broker.layer.publish(outgoing(LOW, b"1"))
            assert "prefix" in refused.value.hint
        assert broker.proxy(broker.rabbit).accepted == 1

    play(rabbitmq, story)


@pytest.mark.parametrize(
    ("module", "question"),
    [("gevent.monkey", "is_module_patched"), ("eventlet.patcher", "is_monkey_patched")],
)
def test_a_patched_process_is_refused(module: str, question: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patched = types.ModuleType(module)
    setattr(patched, question, lambda name: name == "socket")
    monkeypatch.setitem(sys.modules, module, patched)

    with pytest.raises(UnsafeSettings, match="monkey-patched"):
        RabbitLayer("amqp://localhost")


def test_tls_is_spoken_and_the_name_of_the_node_checked() -> None:
    with servers.folder_of("tls") as folder:
        certificate, key, port = folder / "cert.pem", folder / "key.pem", servers.free_port()
        request = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=node",
        ]
        request += ["-addext", "subjectAltName=DNS:node.test,IP:127.0.0.1", "-keyout", str(key)]
        subprocess.run([*request, "-out", str(certificate)], check=True, capture_output=True)
        key.chmod(0o644)
        settings = {
            "listeners.ssl.default": f"127.0.0.1:{port}",
            "ssl_options.certfile": str(certificate),
            "ssl_options.cacertfile": str(certificate),
            "ssl_options.keyfile": str(key),
        }

        async def story(broker: Broker) -> None:
            url, prefix, tls = (
                f"amqps://guest:guest@127.0.0.1:{port}//",
                broker.topology.prefix,
                {"ca_certs": str(certificate)},
            )
            layer = RabbitLayer(url, prefix=prefix, tls=tls)
            large = bytes(range(256)) * 200
            await layer.publish(outgoing(RESULTS, *[large] * 200))
            assert bodies(await receive(layer, RESULTS, 200)) == [large] * 200
            await layer.aclose()

            for refused in ({}, {**tls, "server_hostname": "other.test"}):
                layer = RabbitLayer(url, prefix=prefix, tls=refused)
                with pytest.raises(BrokerUnavailable, match="certificate"):
                    await layer.depths()
                await layer.aclose()

        with servers.rabbitmq_server(**settings) as server:
            play(server, story)


# -- a broker that is away, slow or short of memory --------------------------------------------------------------------------


def test_everything_fails_soon_and_alike_while_the_broker_is_away(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        await broker.layer.publish(outgoing(LOW, b"1", b"2"))
        held = await take(broker.layer, [LOW])
        proxy = broker.proxy(broker.rabbit)
        proxy.close()
        started = time.monotonic()

        for _ in range(3):
            for error in await asyncio.gather(*everything(broker.layer, held), return_exceptions=True):
                assert isinstance(error, BrokerUnavailable), repr(error)

        assert time.monotonic() - started < 5

    play(rabbitmq, story)


def test_a_publish_returns_when_it_is_confirmed_and_not_before(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        layer = broker.open(patience_s=3)
        await layer.publish(outgoing(LOW, b"1"))
        proxy = broker.proxy(layer)

        proxy.answering.clear()
        with pytest.raises(BrokerUnavailable, match="no answer"):
            await layer.publish(outgoing(LOW, b"2"))
        proxy.answering.set()
        await layer.publish(outgoing(LOW, b"3"))

        assert bodies(await receive(broker.layer, LOW, 3)) == [b"1", b"2", b"3"]

    play(rabbitmq, story)


def test_what_waits_for_a_confirm_is_unknown_when_the_connection_ends(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        await broker.layer.depths()
        proxy = broker.proxy(broker.rabbit)
        proxy.answering.clear()
        publishing = asyncio.create_task(broker.layer.publish(outgoing(LOW, b"1")))
        await receive(broker.open(), LOW, 1)  # it is there, and nobody here has been told

        proxy.cut()
        proxy.answering.set()

        with pytest.raises(BrokerUnavailable):
            await publishing

    play(rabbitmq, story)


def test_closing_does_not_wait_for_a_broker_that_is_silent(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        await broker.layer.depths()
        broker.proxy(broker.rabbit).answering.clear()
        started = time.monotonic()

        await broker.layer.aclose()

        assert time.monotonic() - started < 6

    play(rabbitmq, story)


def test_a_broker_short_of_memory_takes_nothing_and_still_gives_and_settles(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        layer = broker.open(patience_s=1)
        await layer.publish(outgoing(LOW, b"1", b"2"))
        try:
            servers.rabbitmq_control(rabbitmq, "set_vm_memory_high_watermark", "0.00001")
            for _ in range(2):
                with pytest.raises(BrokerUnavailable):
                    await layer.publish(outgoing(HIGH, b"x"))

            held = await layer.fetch([LOW], 10, wait_s=5)
            await layer.settle(held)
            depths = await layer.depths()
        finally:
            servers.rabbitmq_control(rabbitmq, "set_vm_memory_high_watermark", "0.4")

        assert bodies(held) == [b"1", b"2"] and depths[LOW] == 0
        await patiently(lambda: layer.publish(outgoing(RESULTS, b"3")))
        assert bodies(await receive(layer, RESULTS, 1)) == [b"3"]

    play(rabbitmq, story)


def test_three_cuts_in_a_row_are_survived(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        layer, proxy = broker.rabbit, broker.proxy(broker.rabbit)
        seen: set[bytes] = set()
        sent: list[bytes] = []

        async def consume() -> None:
            while True:
                for one in await receive(layer, LOW, 1):
                    seen.add(one.body)
                    with contextlib.suppress(BrokerUnavailable):
                        await layer.settle([one])

        consuming = asyncio.create_task(consume())
        for number in range(3):
            sent.append(b"%d" % number)
            await patiently(lambda: layer.publish(outgoing(LOW, sent[-1])))
            await until(lambda: sent[-1] in seen)
            assert proxy.cut() == 2
        sent.append(b"last")
        await patiently(lambda: layer.publish(outgoing(LOW, sent[-1])), within_s=10)
        await until(lambda: sent[-1] in seen, within_s=10)
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)

        assert seen == set(sent)

    play(rabbitmq, story)


def test_connections_closed_by_an_operator_are_opened_again(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        await broker.layer.publish(outgoing(LOW, b"1"))
        await take(broker.layer, [LOW])

        await asyncio.to_thread(servers.rabbitmq_control, rabbitmq, "close_all_connections", "maintenance")

        assert bodies(await receive(broker.layer, LOW, 1)) == [b"1"]

    play(rabbitmq, story)


def test_a_settle_from_before_a_reconnect_disturbs_nothing(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        layer = broker.layer
        await layer.publish(outgoing(LOW, *[b"%d" % number for number in range(20)]))
        old = await take(layer, [LOW])
        broker.proxy(broker.rabbit).cut()
        (new,) = await receive(layer, LOW, 1)

        await layer.settle(old)  # tags up to 20 on a channel that has given out one
        await layer.release(old, delay_s=0)
        await layer.extend(old)
        (again,) = await receive(layer, LOW, 1)

        assert new.handle.generation == again.handle.generation == old[0].handle.generation + 1
        assert (await layer.depths())[LOW] == 20

    play(rabbitmq, story)


def test_a_waiting_fetch_does_not_notice_a_reconnect(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        await broker.layer.depths()
        waiting = asyncio.create_task(broker.layer.fetch([LOW, HIGH], 1, wait_s=30))
        await asyncio.sleep(0)
        broker.proxy(broker.rabbit).cut()

        await broker.open().publish(outgoing(HIGH, b"1"))

        assert bodies(await waiting) == [b"1"]

    play(rabbitmq, story)


@contextlib.contextmanager
def short_consumer_timeout(server: servers.Server) -> Iterator[None]:
    """Five seconds for the channels that are opened now, and looked at before an idle one sleeps, after a second.

    rabbitmq.conf has no word for the second setting.
    """
    setting = "application:set_env(rabbit, {}, {})."
    try:
        servers.rabbitmq_control(server, "eval", setting.format("consumer_timeout", 5_000))
        servers.rabbitmq_control(server, "eval", setting.format("channel_tick_interval", 300))
        yield
    finally:
        servers.rabbitmq_control(server, "eval", setting.format("consumer_timeout", 1_800_000))
        servers.rabbitmq_control(server, "eval", setting.format("channel_tick_interval", 60_000))


def test_a_holder_that_outlives_the_consumer_timeout_is_not_stopped(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        layer = broker.layer
        await layer.publish(outgoing(LOW, b"long"))
        started = time.monotonic()
        held = await receive(layer, LOW, 1)

        (again,) = await receive(layer, LOW, 1, within_s=30)
        assert time.monotonic() - started >= 5 and again.redelivered
        await broker.pass_time(12 - (time.monotonic() - started))  # the second one is taken away as well
        await patiently(lambda: layer.settle([*held, again]))

        await layer.settle(await receive(layer, LOW, 1))
        await layer.publish(outgoing(LOW, b"next"))
        assert bodies(await receive(layer, LOW, 1)) == [b"next"]

    with short_consumer_timeout(rabbitmq):
        play(rabbitmq, story)


@contextlib.contextmanager
def unanswering(server: servers.Server, queue: str) -> Iterator[None]:
    """That queue says nothing, as one that has no leader at the moment."""
    process = f"whereis('%2F_{queue}')"
    servers.rabbitmq_control(server, "eval", f"sys:suspend({process}).")
    try:
        yield
    finally:
        servers.rabbitmq_control(server, "eval", f"sys:resume({process}).")


def test_a_queue_that_does_not_answer_keeps_no_other_waiting(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        layer = broker.open(patience_s=3)
        await layer.publish([*outgoing(LOW, b"low"), *outgoing(HIGH, b"high")])
        with unanswering(rabbitmq, broker.topology.queue(LOW)):
            for wait_s in (0.1, 0.0):
                with contextlib.suppress(BrokerUnavailable):
                    assert await layer.fetch([LOW], 1, wait_s=wait_s) == []

            held = await layer.fetch([HIGH], 10, wait_s=10)
            await layer.settle(held)
            assert bodies(held) == [b"high"]
            assert await take(layer, [HIGH]) == []

        found: list[Delivery] = []
        while not found:
            with contextlib.suppress(BrokerUnavailable):
                found = await layer.fetch([LOW], 1, wait_s=1)
        assert bodies(found) == [b"low"]

    play(rabbitmq, story)


def test_a_marker_that_does_not_answer_keeps_nobody_waiting(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        layer = broker.open(patience_s=3)
        await layer.set_marker("ours")
        with unanswering(rabbitmq, broker.topology.marker):
            for _ in range(3):
                with pytest.raises(BrokerUnavailable, match="no answer"):
                    await layer.marker()
                await layer.publish(outgoing(LOW, b"1"))
                await layer.settle(await layer.fetch([LOW], 1, wait_s=10))

        assert await patiently(layer.marker) == "ours"

    play(rabbitmq, story)


# -- queues that were deleted ------------------------------------------------------------------------------------------------


def test_a_message_for_a_deleted_queue_is_published_after_all(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        await broker.layer.depths()
        with broker.admin() as channel:
            channel.queue_delete(broker.topology.queue(LOW))

        await broker.layer.publish([*outgoing(LOW, b"1", b"2"), *outgoing(HIGH, b"3")])

        assert bodies(await receive(broker.layer, LOW, 2)) == [b"1", b"2"]
        assert bodies(await receive(broker.layer, HIGH, 1)) == [b"3"]

    play(rabbitmq, story)


def test_a_message_that_no_queue_takes_is_unknown(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        await broker.layer.depths()
        with broker.admin() as channel:
            channel.queue_delete(broker.topology.queue(LOW))
            channel.exchange_delete(broker.topology.exchange)

        with pytest.raises(BrokerUnavailable):
            await broker.layer.publish(outgoing(LOW, b"1"))
        await patiently(lambda: broker.layer.publish(outgoing(LOW, b"2")))

        assert bodies(await receive(broker.layer, LOW, 1)) == [b"2"]

    play(rabbitmq, story)


@pytest.mark.parametrize("queues", [[LOW], [HIGH, LOW]])
def test_a_waiting_fetch_survives_that_all_queues_are_deleted(
    rabbitmq: servers.Server, queues: list[str]
) -> None:
    async def story(broker: Broker) -> None:
        waiting = asyncio.create_task(broker.layer.fetch(queues, 1, wait_s=30))
        await broker.layer.depths()

        await broker.empty()
        await patiently(lambda: broker.layer.publish(outgoing(LOW, b"1")))

        assert bodies(await waiting) == [b"1"]

    play(rabbitmq, story)


# -- who gets what -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queues", [[LOW], [LOW, HIGH]])
def test_nothing_waits_behind_a_busy_process(rabbitmq: servers.Server, queues: list[str]) -> None:  # B046
    async def story(broker: Broker) -> None:
        busy, idle = broker.layer, await broker.second()
        await idle.depths()
        await busy.publish(outgoing(LOW, b"0"))
        first = await busy.fetch(queues, 1, wait_s=10)
        started = time.monotonic()

        await busy.publish(outgoing(LOW, b"1", b"2", b"3"))
        found = await receive(idle, LOW, 3)

        assert time.monotonic() - started < 1
        assert sorted(bodies(found)) == [b"1", b"2", b"3"] and bodies(first) == [b"0"]

    play(rabbitmq, story)


def test_what_settling_makes_room_for_goes_elsewhere_when_nobody_fetches(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        stopping, idle = broker.layer, await broker.second()
        await stopping.publish(outgoing(LOW, *[b"%d" % number for number in range(8)]))
        held = await stopping.fetch([LOW], 4, wait_s=10)
        started = time.monotonic()

        await stopping.settle(held)
        found = await receive(idle, LOW, 8 - len(held))

        assert time.monotonic() - started < 1
        assert len({*bodies(held), *bodies(found)}) == 8

    play(rabbitmq, story)


def test_a_message_for_a_cancelled_fetch_goes_to_an_idle_process(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        idle = await broker.second()
        await idle.depths()
        waiting = asyncio.create_task(broker.layer.fetch([LOW], 10, wait_s=60))
        await broker.layer.depths()
        waiting.cancel()

        await idle.publish(outgoing(LOW, b"1"))

        assert bodies(await receive(idle, LOW, 1, within_s=2)) == [b"1"]

    play(rabbitmq, story)


def test_who_waits_is_served_before_a_thousand_of_a_batch(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        layer, lanes = broker.layer, ["decide.interactive", "decide.batch"]
        await layer.publish(outgoing(lanes[1], *[b"batch"] * 1000))
        await layer.settle(await layer.fetch(lanes, 32, wait_s=1))

        await layer.publish(outgoing(lanes[0], b"somebody waits"))
        found = await layer.fetch(lanes, 32, wait_s=1)

        assert bodies(found) == [b"somebody waits", *[b"batch"] * 31]

    play(rabbitmq, story)


def test_all_slots_are_used_and_none_twice(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        layer = broker.layer
        await layer.publish(outgoing(LOW, *[b"%d" % number for number in range(100)]))

        held = await receive(layer, LOW, 40)
        await layer.settle(held[::2])
        more = await receive(layer, LOW, 20)

        assert bodies([*held, *more]) == [b"%d" % number for number in range(60)]
        assert (await layer.depths())[LOW] == 80

    play(rabbitmq, story)


def test_what_is_kept_back_comes_at_once_when_its_holder_dies(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        await broker.layer.publish(outgoing(LOW, b"1"))
        await broker.layer.release(await receive(broker.layer, LOW, 1), delay_s=3600)
        assert (await broker.layer.depths())[LOW] == 1

        layer = await broker.fall_silent(broker.layer)

        assert bodies(await receive(layer, LOW, 1)) == [b"1"]

    play(rabbitmq, story)


def test_a_body_of_many_frames_arrives(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        large = os.urandom(1_000_000)
        await broker.layer.publish(outgoing(LOW, large, b"", large))

        assert bodies(await receive(broker.layer, LOW, 3)) == [large, b"", large]

    play(rabbitmq, story)


def test_keepers_that_read_the_marker_at_once_all_see_it(rabbitmq: servers.Server) -> None:
    async def story(broker: Broker) -> None:
        keepers = [broker.open() for _ in range(4)]
        await asyncio.gather(*(keeper.set_marker("same") for keeper in keepers))

        seen = [await asyncio.gather(*(keeper.marker() for keeper in keepers)) for _ in range(25)]

        assert {one for times in seen for one in times} == {"same"}

    play(rabbitmq, story)


# -- the thread --------------------------------------------------------------------------------------------------------------


def test_a_thread_that_dies_is_noticed_and_started_again(
    rabbitmq: servers.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(broker: Broker) -> None:
        await broker.layer.publish(outgoing(LOW, b"1"))
        with monkeypatch.context() as patch:
            patch.setattr(Session, "_turn", lambda self: 1 / 0)
            with pytest.raises(BrokerUnavailable, match="died of ZeroDivisionError"):
                await broker.layer.fetch([HIGH], 1, wait_s=60)

        assert bodies(await receive(broker.layer, LOW, 1)) == [b"1"]

    play(rabbitmq, story)


def test_the_thread_ends_with_its_loop(rabbitmq: servers.Server) -> None:
    layer = RabbitLayer(servers.rabbitmq_url(rabbitmq), prefix=f"test{os.getpid()}.{next(_numbers)}")
    asyncio.run(layer.depths())  # and no aclose

    (thread,) = [one for one in threading.enumerate() if one.name == f"toolfleet-{layer.name}"]
    thread.join(10)

    assert not thread.is_alive()
