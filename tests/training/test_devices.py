"""Settings of a process as a whole, each tried in a process of its own."""

import os
import subprocess
import sys

import pytest

SHOW = """
import jax
from jaxagent.training.devices import use_compilation_cache
use_compilation_cache()
print(jax.config.jax_compilation_cache_dir)
print(jax.config.jax_persistent_cache_min_compile_time_secs)
"""


@pytest.mark.parametrize("chosen", [False, True])
def test_programs_are_kept_where_and_if_the_user_says(tmp_path, chosen):
    environment = {k: v for k, v in os.environ.items() if "CACHE" not in k}
    environment["XDG_CACHE_HOME"] = str(tmp_path)
    expected = [str(tmp_path / "jaxagent" / "jax"), "0.2"]
    if chosen:
        environment["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path / "own")
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "7.0"
        expected = [str(tmp_path / "own"), "7.0"]
    command = [sys.executable, "-c", SHOW]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == expected
