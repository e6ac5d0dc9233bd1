"""`-A`: what is found, and what is said when it is not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolfleet.loading import load_fleet
from toolfleet.schemas.errors import InputError, InvalidDefinition

ONE = "from toolfleet import Fleet\n\nfleet = Fleet()\nnumber = 7\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def test_a_fleet_is_found_by_module_by_file_and_without_its_name(folder: Path) -> None:
    (folder / "shop_app.py").write_text(ONE)

    by_module = load_fleet("shop_app:fleet")
    by_file = load_fleet(f"{folder / 'shop_app.py'}:fleet")
    alone = load_fleet("shop_app")

    assert by_module is by_file is alone


def test_a_file_in_a_package_is_imported_as_part_of_it(folder: Path) -> None:
    (folder / "shop_pack").mkdir()
    (folder / "shop_pack" / "__init__.py").touch()
    (folder / "shop_pack" / "names.py").write_text("NAME = 'desk'\n")
    (folder / "shop_pack" / "fleets.py").write_text(f"from .names import NAME\n{ONE}")

    fleet = load_fleet("shop_pack/fleets.py:fleet")

    assert fleet is sys.modules["shop_pack.fleets"].fleet


@pytest.mark.parametrize(
    ("app", "what", "hint"),
    [
        ("shop_nothing:fleet", "there is no module 'shop_nothing'", "shop_nothing.py"),
        ("shop_one.more:fleet", "there is no module 'shop_one.more'", "shop_one"),
        ("nothing/here.py:fleet", "there is no Python file 'nothing/here.py'", "check the folder"),
        ("shop-app:fleet", "'shop-app' is no module name", "-A myapp:fleet"),
        ("shop-app.py:fleet", "'shop-app.py' cannot be imported", "Rename it"),
        ("json.py:fleet", "the name of json.py is taken", "Rename the file"),
        (":fleet", "names no module", "-A myapp:fleet"),
        ("shop_one:flete", "has no attribute 'flete'", "-A shop_one:fleet"),
        ("shop_one:number", "is a int, not a Fleet", "-A shop_one:fleet"),
        ("shop_two", "has 2 fleets: east, west", "-A shop_two:east"),
        ("shop_none", "has no Fleet", "fleet = Fleet()"),
    ],
)
def test_what_cannot_be_found_is_said_with_what_could_be(
    folder: Path, app: str, what: str, hint: str
) -> None:
    for name in ("shop_one.py", "shop-app.py", "json.py"):
        (folder / name).write_text(ONE)
    (folder / "shop_two.py").write_text("from toolfleet import Fleet\n\nwest = Fleet()\neast = Fleet()\n")
    (folder / "shop_none.py").write_text("number = 7\n")

    with pytest.raises(InputError) as caught:
        load_fleet(app)

    assert what in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("code", "what", "where"),
    [
        (
            "import shop_missing_part\n",
            "ModuleNotFoundError: No module named 'shop_missing_part'",
            ":1 in <module>",
        ),
        ("def f():\n    return {}['x']\n\n\nf()\n", "KeyError: 'x'", ":2 in f: return {}['x']"),
        ("def f(:\n", "SyntaxError", ":1: def f(:"),
        ("raise SystemExit(3)\n", "SystemExit: 3", ":1 in <module>"),
        (
            "from toolfleet import tool\n\n\n@tool\ndef untyped(a):\n    pass\n",
            "parameter 'a' has no type",
            ":4 in <module>",
        ),
    ],
)
def test_what_an_import_raises_is_said_with_its_place(folder: Path, code: str, what: str, where: str) -> None:
    (folder / "shop_broken.py").write_text(code)

    with pytest.raises(InvalidDefinition) as caught:
        load_fleet("shop_broken:fleet")

    assert what in caught.value.message
    assert f"shop_broken.py{where}" in caught.value.message
    assert caught.value.hint
