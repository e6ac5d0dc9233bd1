"""The project's own files, and copies of them to build from and to plant mistakes in."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Only for a folder without git (an unpacked sdist); with git, .gitignore decides.
_NOT_OURS = {"build", "dist", "demo-out", "htmlcov", "__pycache__"}


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def project_files() -> list[Path]:
    """Paths under the root of all files that are tracked or could be: links as links, nothing ignored."""
    listed = _listed_by_git()
    names = listed if listed is not None else _walked()
    return sorted({Path(name) for name in names if os.path.lexists(ROOT / name)})


@pytest.fixture
def project_copy(project_files: list[Path], tmp_path: Path) -> Path:
    """A folder of its own with the project's files, to be changed at will."""
    return copy_project(project_files, tmp_path / "copy")


@pytest.fixture(scope="session")
def fresh_copy(project_files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Makes a copy for a fixture that lives longer than one test."""
    return lambda: copy_project(project_files, tmp_path_factory.mktemp("project") / "copy")


def copy_project(files: list[Path], to: Path) -> Path:
    for file in files:
        target = to / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / file, target, follow_symlinks=False)
    return to


def _listed_by_git() -> list[str] | None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        return None
    # safe.directory: a checkout made by another user is refused otherwise, and this only reads names
    command = [
        "git",
        "-c",
        "safe.directory=*",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=30)
    return [name for name in done.stdout.split("\0") if name]


def _walked() -> Iterator[str]:
    for folder, subfolders, files in os.walk(ROOT):
        here = Path(folder).relative_to(ROOT)
        links = [name for name in subfolders if (ROOT / here / name).is_symlink()]
        subfolders[:] = [name for name in subfolders if name not in links and _is_ours(name)]
        for name in [*links, *files]:
            yield str(here / name)


def _is_ours(folder_name: str) -> bool:
    hidden = folder_name.startswith(".") and folder_name != ".ci"
    return not (hidden or folder_name in _NOT_OURS or folder_name.endswith(".egg-info"))
