"""A task of an existing Celery app as a tool."""

from __future__ import annotations

from typing import Any

from celery import Celery

from toolfleet.adapters.tools.celery_task import check_backend, run_task
from toolfleet.definitions import Tool, parameters_of, tool
from toolfleet.schemas.errors import InvalidDefinition
from toolfleet.schemas.tools import ToolContext


def celery_task_tool(
    app: Celery,
    task: Any,
    *,
    queue: str | None = None,
    parameters: dict[str, Any] | None = None,
    name: str | None = None,
    description: str | None = None,
    **options: Any,
) -> Tool[..., Any]:
    """A tool whose work is done by `task` of `app`: a task object, or the name of one another code base has.

    The call's arguments are the task's keyword arguments; its result has to be JSON. For a task object the schema comes
    from its signature and the description from its docstring; for a name `parameters` (a JSON Schema) and
    `description` have to be given. `queue`: where it is sent, else where the app routes it. Options are those of
    `toolfleet.tool` (tier, effect, timeout_s, …). Raises InvalidDefinition.
    """
    task_name = task if isinstance(task, str) else task.name
    if isinstance(task, str):
        if parameters is None or description is None:
            raise InvalidDefinition(
                f"Celery task {task!r} is only a name, so nothing says what it takes and does",
                hint="Give parameters= (a JSON Schema) and description=.",
            )
    else:
        parameters = parameters_of(task.run) if parameters is None else parameters
        description = description or (task.run.__doc__ or "").strip()
    check_backend(app, task_name)

    async def run(context: ToolContext, **arguments: Any) -> Any:
        return await run_task(app, task_name, queue, arguments, context)

    run.__name__ = run.__qualname__ = (name or task_name).replace(".", "_")
    # What `get_type_hints` would look for here; the module's own annotations are texts.
    run.__annotations__ = {"context": ToolContext, "arguments": Any, "return": Any}
    return tool(name=run.__name__, description=description, parameters=parameters, runner="loop", **options)(
        run
    )
