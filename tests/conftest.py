"""The whole suite runs on the CPU, on two simulated devices, with rank promotion an error.

Between modules, and after a test that leaves much, compiled programs are dropped.
``TEST_PEAKS=FILE`` writes down the peak memory of each module, one line each: the worker's own,
without that of processes it starts.
"""

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
)
# A collective that waits for the other device must not hold the thread that it needs.
os.environ.setdefault("PJRT_NPROC", "8")

import jax
import pytest

from tests import memory

jax.config.update("jax_numpy_rank_promotion", "raise")
_CACHE = os.environ.get("JAXAGENT_CACHE", os.path.join(os.path.dirname(__file__), "../.cache/jax"))
os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.abspath(_CACHE)  # for child processes
jax.config.update("jax_compilation_cache_dir", os.path.abspath(_CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config):
    """As many workers for ``-n auto`` as cores and memory allow, each with whole modules."""
    from xdist.plugin import pytest_xdist_auto_num_workers as by_cores

    # A module spread over workers is compiled in each of them.
    if config.option.dist == "no":
        config.option.dist = "loadfile"
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None
    return memory.workers_for(by_cores(config), memory.available_bytes())


@pytest.fixture(scope="module", autouse=True)
def _memory_of_a_module(request):
    # Set up first, so torn down last: the module's own fixtures have let go of their models.
    memory.begin_peak()
    # The workers of the suite fill the cores already, and two compilations need twice the memory.
    if (trainer := sys.modules.get("jaxagent.training.trainer")) is not None:
        trainer.COMPILED_AT_ONCE = 1
    yield
    peak, path = memory.peak_bytes(), os.environ.get("TEST_PEAKS")
    memory.drop_what_a_module_left()
    if path and peak is not None:
        with open(path, "a") as file:
            file.write(f"{peak / 1e9:.2f} GB {request.node.nodeid}\n")


@pytest.fixture(autouse=True)
def _memory_of_a_test(_memory_of_a_module):
    yield
    memory.drop_if_large()


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
