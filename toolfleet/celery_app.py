"""The Celery app that hosts a fleet's roles, and its control tasks.

    celery -A myapp:app worker -Q exec.low,exec.medium        with  app = fleet.celery
    other_app.send_task("toolfleet.submit", ["desk", "Hello"], queue="toolfleet.control")

The hot path does not go through celery: its workers read the control queue only, and a bootstep runs the roles.
"""

from __future__ import annotations

from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from celery import Celery, signals
from kombu.entity import Queue

from toolfleet.adapters.broker.host import Hosted, end_blocked_process, end_stuck_process, install
from toolfleet.brokers import RABBITMQ, refuse_embedded
from toolfleet.definitions import Registry
from toolfleet.queues.topology import QUEUES
from toolfleet.roles import ALL_ROLES, KEEPER
from toolfleet.schemas.ports import ModelClient
from toolfleet.settings import Settings
from toolfleet.worker import Worker

SUBMIT: Final = "toolfleet.submit"
RESULTS_KEPT_S: Final = 3600  # a caller that wants the run id asks for it sooner
REDIS_OPTIONS: Final = {  # celery's defaults lose messages for longer and notice a half-open connection later
    "visibility_timeout": 60,
    "unacked_restore_interval": 2,
    "unacked_restore_throttle": 1,
    "health_check_interval": 5,
    "socket_timeout": 10,
    "socket_connect_timeout": 3,
    "socket_keepalive": True,
}


class Accepted(Protocol):
    """A run that was accepted."""

    @property
    def id(self) -> str: ...


class HostedFleet(Protocol):
    """What of a Fleet is needed to host its workers."""

    registry: Registry

    @property
    def settings(self) -> Settings: ...

    def new_model(self) -> ModelClient: ...

    def submit(self, agent: str, input: str, **options: Any) -> Accepted: ...

    def stop(self) -> None: ...


def control_queue(settings: Settings) -> str:
    """The queue of control tasks; callers name it when they send one."""
    return f"{settings.broker_prefix}.control"


def make_app(fleet: HostedFleet) -> Celery:
    """A Celery app whose workers host the roles of this fleet. Raises UnsafeSettings for the embedded broker."""
    settings = fleet.settings
    refuse_embedded(settings)
    app = Celery("toolfleet", broker=_broker(settings), backend=_backend(settings))
    queue = control_queue(settings)
    app.conf.update(
        task_queues=[_queue(name) for name in (*(one.name for one in QUEUES), KEEPER, queue)],
        task_default_queue=queue,
        task_create_missing_queues=False,
        task_acks_late=True,
        task_serializer="json",
        accept_content=["json"],
        result_serializer="json",
        result_expires=RESULTS_KEPT_S,
        task_store_eager_result=False,
        worker_pool="solo",
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_send_task_events=False,
        worker_enable_remote_control=True,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={} if urlsplit(_broker(settings)).scheme in RABBITMQ else REDIS_OPTIONS,
    )
    install(
        app,
        roles=ALL_ROLES,
        control_queue=queue,
        make=lambda roles: _hosted(fleet, roles),
        drain_s=settings.drain_s,
    )
    _control_tasks(app, fleet)
    # A pool's children end without the interpreter's exit handlers, and spans of their tasks would end with them.
    signals.worker_process_shutdown.connect(lambda **_: fleet.stop(), weak=False)
    return app


def _hosted(fleet: HostedFleet, roles: list[str]) -> Hosted:
    return Worker(
        fleet.registry,
        fleet.settings,
        fleet.new_model,
        queues=roles,
        on_stuck=end_stuck_process,
        on_blocked=end_blocked_process,
    )


def _queue(name: str) -> Any:
    make: Any = Queue  # kombu's own types stop at its constructor
    return make(name, routing_key=name)


def _broker(settings: Settings) -> str:
    """In celery's words: it knows Valkey under the name of Redis, and a socket by another scheme."""
    url = settings.celery_broker or settings.broker
    if url.startswith("valkey"):
        return url.replace("valkey", "redis", 1)
    if url.startswith("unix://"):
        return url.replace("unix://", "redis+socket://", 1).replace("?db=", "?virtual_host=")
    return url


def _backend(settings: Settings) -> str:
    """Where the run id of a submit can be read: on Redis a key that expires, on RabbitMQ the caller's reply queue."""
    broker = _broker(settings)
    if broker.startswith("redis+socket"):
        return broker.replace("redis+", "", 1)
    return "rpc://" if urlsplit(broker).scheme in RABBITMQ else broker


def _control_tasks(app: Celery, fleet: HostedFleet) -> None:
    @app.task(name=SUBMIT, bind=True, max_retries=5)  # type: ignore[untyped-decorator]
    def submit(task: Any, agent: str, input: str, **options: Any) -> str:
        """Accept a run; returns its id. The task's own id is the idempotency key unless one is given: a message that
        comes twice makes one run."""
        options.setdefault("idempotency_key", f"celery/{task.request.id}")
        return fleet.submit(agent, input, **options).id
