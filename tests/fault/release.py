"""A copy of the project that is one release newer: its messages have the next version, its schema one more revision."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from toolfleet.adapters.store.migrate import HEAD

ROOT = Path(__file__).parent.parent.parent
NEXT_REVISION = "9999"
MIGRATION = """import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = "{head}"


def upgrade():
    op.add_column("runs", sa.Column("of_the_next_release", sa.Text(), nullable=True))
"""
CODE = ("toolfleet", "workers", "queues", "adapters", "schemas", "examples")


def next_release(folder: Path) -> Path:
    """The folder with the newer code; `tests` in it is the one there is."""
    folder.mkdir(parents=True)
    skip = shutil.ignore_patterns("__pycache__", "data")
    for name in CODE:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=skip)
    (folder / "tests").symlink_to(ROOT / "tests")
    messages = folder / "schemas" / "messages.py"
    text, count = re.subn(r"MESSAGE_VERSION: Final = (\d+)", _next, messages.read_text())
    assert count == 1, "the version of messages is where it was"
    messages.write_text(text)
    _next_schema(folder / "adapters" / "store")
    return folder


def _next_schema(store: Path) -> None:
    """A revision that only adds, as one that is rolled out beside the release before has to."""
    migrate = store / "migrate.py"
    text = migrate.read_text()
    after, count = re.subn(
        r"^HEAD: Final = ", f'REVISIONS += ("{NEXT_REVISION}",)\nHEAD: Final = ', text, flags=re.MULTILINE
    )
    assert count == 1, "the newest known revision is where it was"
    migrate.write_text(after)
    (store / "migrations" / "versions" / f"rev_{NEXT_REVISION}.py").write_text(
        MIGRATION.format(revision=NEXT_REVISION, head=HEAD)
    )


def _next(found: re.Match[str]) -> str:
    return f"MESSAGE_VERSION: Final = {int(found.group(1)) + 1}"
