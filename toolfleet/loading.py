"""Finds the fleet that `-A` names: `module:attribute`, `package.module`, or `path/to/file.py:attribute`.

The current folder is on the path, as it is for `python -m`. Whatever goes wrong is an InputError that says where.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from toolfleet.schemas.errors import InputError, InvalidDefinition, ToolfleetError

if TYPE_CHECKING:
    from toolfleet.fleet import Fleet

EXAMPLE = "-A myapp:fleet or -A path/to/myapp.py:fleet"


def load_fleet(app: str) -> Fleet:
    """The Fleet object `app` names. Without an attribute, the only one of its module.

    Raises InputError (no such module or attribute) and InvalidDefinition (not a Fleet; the module raised).
    """
    place, _, attribute = app.strip().partition(":")
    if not place:
        raise InputError(f"{app!r} names no module", hint=f"Use {EXAMPLE}.")
    as_path = place.endswith(".py") or "/" in place
    module = _from_file(place) if as_path else _from_path(place)
    return _named(module, attribute, app) if attribute else _only_one(module, app)


def _from_path(name: str) -> ModuleType:
    """Import a dotted name, with the current folder first on the path."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if not all(part.isidentifier() for part in name.split(".")):
        raise InputError(f"{name!r} is no module name", hint=f"Use {EXAMPLE}.")
    return _imported(name, searched=folder)


def _from_file(place: str) -> ModuleType:
    """Import a file under the name its folder gives it, so that child processes find it by that name too."""
    path = Path(place).resolve()
    if path.is_dir() or not path.exists():
        raise InputError(
            f"there is no Python file {place!r} (looked for {path})", hint=f"Use {EXAMPLE}; check the folder."
        )
    folder, parts = path.parent, [] if path.stem == "__init__" else [path.stem]
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    if not all(part.isidentifier() for part in parts):
        raise InputError(
            f"{path.name!r} cannot be imported: {'.'.join(parts)!r} is no module name",
            hint="Rename it to letters, digits and underscores; child processes import it by its name.",
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    module = _imported(".".join(parts), searched=str(folder))
    found = getattr(module, "__file__", None)
    if found is None or Path(found).resolve() != path:
        raise InputError(
            f"the name of {path.name} is taken: module {module.__name__!r} is {found or 'built in'}",
            hint="Rename the file; child processes import it by its name.",
        )
    return module


def _imported(name: str, *, searched: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        missing = exc.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise _raised(name, exc) from exc
        raise InputError(
            f"there is no module {missing!r} (looked in {searched} and in the installed packages)",
            hint=f"Run this in the folder that holds {missing.partition('.')[0]}.py, or give a path: {EXAMPLE}.",
        ) from exc
    except ToolfleetError as exc:
        where = _last_frame(exc, ours=False)
        raise InvalidDefinition(f"{name!r} cannot be loaded: {exc.message} ({where})", hint=exc.hint) from exc
    except (Exception, SystemExit) as exc:
        raise _raised(name, exc) from exc


def _raised(name: str, exc: BaseException) -> InvalidDefinition:
    what = f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
    return InvalidDefinition(
        f"importing {name!r} raised {what} ({_last_frame(exc)})",
        hint=f"Make it importable: python -c 'import {name}'. The whole traceback: toolfleet --debug …",
    )


def _last_frame(exc: BaseException, *, ours: bool = True) -> str:
    """Where it was raised, as `file:line in function: source`; without `ours`, the last place outside toolfleet."""
    if isinstance(exc, SyntaxError) and exc.filename is not None:
        return f"{exc.filename}:{exc.lineno or 0}: {(exc.text or '').strip()}"
    here = str(Path(__file__).resolve().parent.parent)
    frames = [f for f in traceback.extract_tb(exc.__traceback__) if not f.filename.startswith("<frozen")]
    outside = [f for f in frames if ours or not str(Path(f.filename).resolve()).startswith(here)]
    if not outside:
        return "at its import"
    frame = outside[-1]
    return f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"


def _fleets(module: ModuleType) -> list[str]:
    from toolfleet.fleet import Fleet

    return [name for name, value in vars(module).items() if isinstance(value, Fleet)]


def _named(module: ModuleType, attribute: str, app: str) -> Fleet:
    from toolfleet.fleet import Fleet

    place = app.rpartition(":")[0]
    choices = " or ".join(f"-A {place}:{name}" for name in _fleets(module)) or "none: make one with Fleet()"
    if not hasattr(module, attribute):
        raise InputError(
            f"module {module.__name__!r} has no attribute {attribute!r}", hint=f"Fleets in it: {choices}."
        )
    found = getattr(module, attribute)
    if not isinstance(found, Fleet):
        raise InvalidDefinition(
            f"{module.__name__}:{attribute} is a {type(found).__name__}, not a Fleet",
            hint=f"Fleets in it: {choices}.",
        )
    return found


def _only_one(module: ModuleType, app: str) -> Fleet:
    distinct = {id(vars(module)[name]): name for name in reversed(_fleets(module))}
    names = sorted(distinct.values())
    if len(names) == 1:
        fleet: Fleet = vars(module)[names[0]]
        return fleet
    if not names:
        raise InputError(
            f"module {module.__name__!r} has no Fleet", hint="Add `fleet = Fleet()` at its top level."
        )
    raise InputError(
        f"module {module.__name__!r} has {len(names)} fleets: {', '.join(names)}",
        hint=f"Name one: -A {app}:{names[0]}",
    )
