"""The README is run as it stands: what a newcomer pastes has to work."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_agent_of_the_readme_runs_as_pasted(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "hello.py").write_text(code)

    done = subprocess.run(
        [sys.executable, "hello.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert "Both reports are in: 5 messages so far." in done.stdout


def test_every_file_the_readme_links_to_is_there() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / "README.md").read_text())

    missing = [link for link in links if not (ROOT / link).exists()]

    assert links and not missing
