"""One import name over the five linked folders, in the checkout and in the wheel (docs/decisions/0001)."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

LINKED = ("workers", "queues", "adapters", "schemas", "examples")


@pytest.fixture(scope="module")
def wheel_entries(fresh_copy: Callable[[], Path]) -> dict[str, int]:
    """Name and size of each file in a wheel that was built from the sdist, as an index would build it."""
    source = fresh_copy()
    # no isolation: setuptools is one of the pinned tools, so this needs no network
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", "."]
    done = subprocess.run(command, check=False, cwd=source, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (wheel,) = (source / "dist").glob("*.whl")
    assert len(list((source / "dist").glob("*.tar.gz"))) == 1
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.file_size for entry in archive.infolist()}


@pytest.mark.parametrize("name", LINKED)
def test_the_link_leads_to_its_folder(root: Path, name: str) -> None:
    link = root / "toolfleet" / name

    assert link.is_symlink(), f"toolfleet/{name} is no link: on Windows, clone with core.symlinks=true"
    assert str(link.readlink()) == f"../{name}"
    assert link.resolve() == root / name
    assert (link / "__init__.py").is_file()


@pytest.mark.parametrize("name", LINKED)
def test_the_linked_folder_is_imported_under_one_name(root: Path, name: str) -> None:
    code = f"import toolfleet.{name} as module; print(module.__name__, module.__file__)"

    done = subprocess.run(
        [sys.executable, "-c", code], check=False, cwd=root, capture_output=True, text=True, timeout=30
    )

    assert done.returncode == 0, done.stderr
    module_name, file = done.stdout.split(maxsplit=1)
    assert module_name == f"toolfleet.{name}"
    assert Path(file.strip()).resolve() == root / name / "__init__.py"


def test_every_folder_with_code_in_it_is_a_package(project_files: list[Path]) -> None:
    folders = {file.parent for file in project_files if file.suffix == ".py" and file.parts[0] in LINKED}

    missing = [str(folder) for folder in folders if folder / "__init__.py" not in project_files]

    # alembic's versions are loaded by path, not imported
    assert [folder for folder in missing if not re.search(r"migrations(/versions)?$", folder)] == []


def test_the_wheel_holds_every_file_of_the_project(
    root: Path, project_files: list[Path], wheel_entries: dict[str, int]
) -> None:
    linked = [file for file in project_files if file.parts[0] in LINKED]
    own = [file for file in project_files if file.parts[0] == "toolfleet" and (root / file).is_file()]
    expected = {f"toolfleet/{file}": root / file for file in linked} | {str(f): root / f for f in own}

    missing = sorted(name for name in expected if name not in wheel_entries)
    cut = [name for name, file in expected.items() if wheel_entries.get(name, -1) == 0 < file.stat().st_size]

    assert len(linked) > len(LINKED), "nothing was looked at"
    assert missing == [], "add their ending to [tool.setuptools.package-data] in pyproject.toml"
    assert cut == []


def test_the_wheel_adds_one_name_to_where_it_is_installed(wheel_entries: dict[str, int]) -> None:
    names = {name.split("/")[0] for name in wheel_entries}

    assert {name for name in names if not name.endswith(".dist-info")} == {"toolfleet"}
    assert len(names) == 2


def test_the_wheel_carries_the_type_marker_and_the_licence(wheel_entries: dict[str, int]) -> None:
    licences = [name for name in wheel_entries if re.search(r"\.dist-info/(licenses/)?LICENSE$", name)]

    assert "toolfleet/py.typed" in wheel_entries
    assert len(licences) == 1


def test_the_wheel_holds_no_left_overs(wheel_entries: dict[str, int]) -> None:
    odd = [name for name in wheel_entries if re.search(r"__pycache__|\.pyc$|\.db$|\.lock$|(^|/)tests/", name)]

    assert odd == []
