"""Memory that is freed does not stay with the process, and programs take little of it."""

import functools
import platform
import subprocess
import sys
from collections import Counter

import jax
import jax.numpy as jnp
import pytest

from jaxagent.models.llm import host_memory
from jaxagent.models.llm.generate import Generator
from jaxagent.models.llm.load import load_model
from jaxagent.models.llm.sampling import SamplingConfig
from jaxagent.models.llm.weights import abstract_params
from tests.models.llm.files import write_folder
from tests.models.llm.random_models import random_model

_BLOCKS = """
import ctypes, os
from jaxagent.models.llm.host_memory import give_back_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def fill(size, count):
    blocks = [libc.malloc(size) for _ in range(count)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    return blocks

def free(blocks):
    for block in blocks:
        libc.free(block)
"""
_TRIMMED = """
blocks = fill(2**16, 2_000)
free(blocks[:-1])  # the last one keeps the heap from shrinking by itself
before = resident()
give_back_memory()
print(before - resident())
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries give it back themselves"
)
def test_freed_memory_is_no_longer_resident():
    command = [sys.executable, "-c", _BLOCKS + _TRIMMED]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert float(done.stdout) > 100, "of 125 MB that were freed"


def test_only_a_compilation_gives_back_memory(monkeypatch):
    given_back = []
    monkeypatch.setattr(host_memory, "give_back_memory", lambda: given_back.append(True))

    @host_memory.gives_back_memory
    @functools.partial(jax.jit, static_argnames="times")
    def several(x, times):
        return times * x

    for times, so_far in ((2, 1), (2, 1), (3, 2)):
        assert several(jnp.ones(2), times=times).tolist() == [times] * 2
        assert len(given_back) == several._cache_size() == so_far


def compiled(caplog) -> list[str]:
    return [r.getMessage().split()[1] for r in caplog.records if r.msg.startswith("Compiling")]


def test_a_new_batch_compiles_its_steps_and_nothing_beside_them(caplog):
    # Every program stays in memory, 1.4 MB at least, that of a jnp.zeros or jnp.array as well.
    generator = Generator(random_model(max_positions=1900))
    prompts = [[7] * 9, [8] * 12, [9] * 5]
    with jax.log_compiles():
        generator.generate(prompts, SamplingConfig(max_new_tokens=4, stop_tokens=()))
    reading = ["jit(enter)", "jit(through_layer)", "jit(leave)"]
    # Of the last two, and of an empty cache and the zero in it, another test may have had need.
    steps = [*reading, *reading, "jit(say)", "jit(merge_rows)"]
    zeros = ["jit(broadcast_in_dim)", "jit(convert_element_type)"]
    names = Counter(compiled(caplog))
    assert Counter(reading + reading) <= names <= Counter(steps + zeros)
    caplog.clear()
    with jax.log_compiles():
        generator.generate(prompts[::-1], SamplingConfig(max_new_tokens=7, stop_tokens=()))
        abstract_params(generator.model.config)
    assert not compiled(caplog)


def test_the_programs_of_loading_die_with_it(tmp_path, caplog):
    write_folder(tmp_path, "smollm2")
    load_model(tmp_path)
    with jax.log_compiles():
        load_model(tmp_path)
    assert "jit(_put_layer)" in compiled(caplog), "what was kept is not compiled again"
