"""The losses compile in hundredths of a second, but there are thousands of them: keep them all."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="package")
def _keep_small_programs():
    names = (
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    )
    before = [getattr(jax.config, name) for name in names]
    for name, value in zip(names, (0.0, -1)):
        jax.config.update(name, value)
    yield
    for name, value in zip(names, before):
        jax.config.update(name, value)
