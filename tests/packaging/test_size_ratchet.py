"""Code stays small enough to read: a function fits a screen, a module one sitting. What is larger can only shrink.

Also here, because it is found in the same walk: module names that mean nothing, swallowed errors, and tasks
that nobody filed.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDERS = ("toolfleet", "schemas", "queues", "workers", "adapters", "examples", "docs")
FUNCTION_LINES_MAX = 60
MODULE_LINES_AIM = 400
MODULE_LINES_MAX = 600

# What is larger than allowed today: "path" or "path::Class.function" -> its lines. A row that is larger than
# the code, or no longer needed, fails as well: the table follows the code down and never up.
EXCEPTIONS: dict[str, int] = {
    # lists of columns, which nobody reads as a function and nothing may change any more
    "adapters/store/migrations/versions/rev_0001_initial.py::_history": 68,
    "adapters/store/migrations/versions/rev_0001_initial.py::_runs": 88,
}

# Names that say nothing about what is inside, so that anything ends up there (also as a part: string_utils).
EMPTY_NAMES = {"util", "utils", "common", "helper", "helpers", "manager", "managers", "base", "misc"}


def sizes(path: str, source: str) -> dict[str, int]:
    """Lines of the module under its path, and of each function or method under `path::Class.function`."""
    found = {path: len(source.splitlines())}
    for name, node in _functions(ast.parse(source), ""):
        assert node.end_lineno is not None
        key = f"{path}::{name}"
        found[key] = max(found.get(key, 0), node.end_lineno - node.lineno + 1)  # overloads share a name
    return found


def too_large(measured: dict[str, int]) -> dict[str, int]:
    return {
        key: lines
        for key, lines in measured.items()
        if lines > (FUNCTION_LINES_MAX if "::" in key else MODULE_LINES_MAX)
    }


def swallowed(source: str) -> list[int]:
    """Lines of handlers that do nothing and do not say why, and of suppress(Exception) without a reason."""
    lines_with_comment = {line for line, _ in _comments(source)}
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler) and all(_is_nothing(statement) for statement in node.body):
            line = node.lineno
            reason = range(line, (node.body[-1].end_lineno or line) + 1)
        elif isinstance(node, ast.withitem) and _suppresses_everything(node.context_expr):
            line = node.context_expr.lineno
            reason = range(line - 1, line + 1)
        else:
            continue
        if lines_with_comment.isdisjoint(reason):
            found.append(line)
    return found


def unfiled(source: str) -> list[int]:
    """Lines of comments that leave work undone without the number of the issue for it."""
    return [
        line
        for line, comment in _comments(source)
        if re.search(r"\b(TODO|FIXME)\b", comment) and not re.search(r"#\d+|\bissue \d+", comment)
    ]


def is_empty_name(file: Path) -> bool:
    """Of the module or of a folder above it."""
    return any(EMPTY_NAMES & set(part.lower().split("_")) for part in file.with_suffix("").parts)


@pytest.fixture(scope="module")
def sources(root: Path, project_files: list[Path]) -> dict[str, str]:
    """Path -> text of each Python file of the product. The links in toolfleet/ are not followed."""
    chosen = [file for file in project_files if file.suffix == ".py" and file.parts[0] in FOLDERS]
    return {str(file): (root / file).read_text() for file in chosen}


def test_functions_and_modules_are_small(sources: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    measured = _measured(sources)

    grown = {key: lines for key, lines in too_large(measured).items() if lines > EXCEPTIONS.get(key, 0)}
    over_aim = [f"{key} ({n})" for key, n in measured.items() if "::" not in key and n > MODULE_LINES_AIM]

    with capsys.disabled():  # the aim fails nothing, but whoever runs the tests should see it
        print(f"\nmodules over {MODULE_LINES_AIM} lines: {', '.join(over_aim)}" if over_aim else "", end="")
    assert len(measured) > 100, "hardly anything was measured"
    assert grown == {}, f"split it; limits: function {FUNCTION_LINES_MAX}, module {MODULE_LINES_MAX} lines"


def test_the_table_of_exceptions_follows_the_code_down(sources: dict[str, str]) -> None:
    large = too_large(_measured(sources))

    assert {key: lines for key, lines in EXCEPTIONS.items() if large.get(key) != lines} == {}, (
        "take out what is no longer needed and lower what has shrunk"
    )


def test_no_module_has_an_empty_name(project_files: list[Path]) -> None:
    named = [file for file in project_files if file.suffix == ".py"]

    assert [str(file) for file in named if is_empty_name(file)] == []


def test_no_error_is_swallowed_without_a_reason(sources: dict[str, str]) -> None:
    found = [f"{path}:{line}" for path, source in sources.items() for line in swallowed(source)]

    assert found == [], "say in a comment why nothing is to be done"


def test_no_task_is_left_without_an_issue(root: Path, project_files: list[Path]) -> None:
    python = {file: (root / file).read_text() for file in project_files if file.suffix == ".py"}

    assert [f"{file}:{line}" for file, source in python.items() for line in unfiled(source)] == []


def test_a_large_function_or_module_is_noticed() -> None:
    body = "        x = 1\n" * FUNCTION_LINES_MAX
    fits = body.removesuffix("        x = 1\n")
    source = f"class A:\n    def long(self):\n{body}\n    async def fits(self):\n{fits}\n"

    assert too_large(sizes("a.py", source)) == {"a.py::A.long": FUNCTION_LINES_MAX + 1}
    assert too_large(sizes("b.py", "x = 1\n" * (MODULE_LINES_MAX + 1))) == {"b.py": MODULE_LINES_MAX + 1}
    assert too_large(sizes("b.py", "x = 1\n" * MODULE_LINES_MAX)) == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("try:\n    f()\nexcept KeyError:\n    pass\n", [3]),
        ("try:\n    f()\nexcept KeyError:\n    ...\n", [3]),
        ("try:\n    f()\nexcept KeyError:\n    pass  # it was never there\n", []),
        ("try:\n    f()\nexcept KeyError:\n    # it was never there\n    pass\n", []),
        ("try:\n    f()\nexcept KeyError:\n    g()\n", []),
        ("with contextlib.suppress(Exception):\n    f()\n", [1]),
        ("# f is only a hint\nwith suppress(Exception):\n    f()\n", []),
        ("with suppress(KeyError):\n    f()\n", []),
    ],
)
def test_a_swallowed_error_is_noticed(source: str, found: list[int]) -> None:
    assert swallowed(source) == found


def test_a_task_without_an_issue_is_noticed() -> None:
    assert unfiled("x = 1  # TODO later\ny = 2  # TODO #12: later\nz = 'TODO'\n") == [1]


@pytest.mark.parametrize(
    ("name", "empty"),
    [
        ("adapters/store/utils.py", True),
        ("adapters/common/rows.py", True),
        ("workers/_string_helpers.py", True),
        ("adapters/store/database.py", False),
        ("schemas/__init__.py", False),
    ],
)
def test_an_empty_name_is_noticed(name: str, empty: bool) -> None:
    assert is_empty_name(Path(name)) is empty


def _measured(sources: dict[str, str]) -> dict[str, int]:
    return {key: lines for path, source in sources.items() for key, lines in sizes(path, source).items()}


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield prefix + child.name, child
                yield from _functions(child, f"{prefix}{child.name}.")
            case ast.ClassDef():
                yield from _functions(child, f"{prefix}{child.name}.")
            case _:
                yield from _functions(child, prefix)


def _comments(source: str) -> list[tuple[int, str]]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]


def _is_nothing(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Expr(value=ast.Constant()):
            return True
        case _:
            return False


def _suppresses_everything(expression: ast.expr) -> bool:
    if not isinstance(expression, ast.Call):
        return False
    name = ast.unparse(expression.func).split(".")[-1]
    caught = {ast.unparse(argument) for argument in expression.args}
    return name == "suppress" and bool(caught & {"Exception", "BaseException"})
