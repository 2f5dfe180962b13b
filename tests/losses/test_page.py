"""The API page says what the docstrings say."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_current():
    done = subprocess.run(
        [sys.executable, "docs/build_api.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_has_every_name():
    from jaxagent import losses

    text = (ROOT / "docs" / "losses.md").read_text()
    for name in losses.__all__:
        assert f"### `{name}`\n" in text
