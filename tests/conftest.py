"""The whole suite runs on the CPU, on two simulated devices, with rank promotion an error."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
)
# A collective that waits for the other device must not hold the thread that it needs.
os.environ.setdefault("PJRT_NPROC", "8")

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
_CACHE = os.environ.get("JAXAGENT_CACHE", os.path.join(os.path.dirname(__file__), "../.cache/jax"))
os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.abspath(_CACHE)  # for child processes
jax.config.update("jax_compilation_cache_dir", os.path.abspath(_CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


@pytest.fixture(params=["eager", "jit", "vmap"])
def transform(request):
    """Wrap a function of arrays so that one test runs it eagerly, jitted and vmapped.

    Under vmap every argument gets a leading axis of one, which the result loses again: the
    function under test must not notice.
    """

    def eager(function):
        return function

    def vmapped(function):
        def call(*args):
            batched = jax.tree.map(lambda x: x[None], args)
            return jax.tree.map(lambda y: y[0], jax.vmap(function)(*batched))

        return call

    return {"eager": eager, "jit": jax.jit, "vmap": vmapped}[request.param]
