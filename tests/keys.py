"""Watches what a program does with its random keys, where they are data."""

import collections
import contextlib

import jax
import numpy as np

SAMPLERS = (
    "bernoulli", "categorical", "gumbel", "normal", "permutation", "rademacher", "randint",
    "uniform",
)  # fmt: skip


class Uses:
    """What was done with which key: split, folded with a number, or drawn from."""

    def __init__(self):
        self.found = collections.Counter()

    def note(self, kind, data, number=0):
        """Called from inside the program, for one key."""
        self.found[(kind, tuple(np.asarray(data).tolist()), int(number))] += 1

    def of(self, kind: str) -> set:
        """The keys that were used in this way."""
        return {key for found, key, _ in self.found if found == kind}

    def check(self) -> None:
        """A key is split, folded, or drawn from; drawn from once, folded once with a number.

        Two programs may split the same key: they name the parts, and take each for one purpose.
        """
        kinds = {kind: self.of(kind) for kind in ("split", "fold", "draw")}
        assert all(kinds.values())
        assert not kinds["split"] & kinds["fold"], "a key is split and folded"
        assert not kinds["split"] & kinds["draw"], "a key is split and drawn from"
        assert not kinds["fold"] & kinds["draw"], "a key is folded and drawn from"
        again = [use for use, count in self.found.items() if count > 1 and use[0] != "split"]
        assert not again, f"used twice: {again}"


@contextlib.contextmanager
def watched_keys(monkeypatch):
    """The uses of all keys by programs that are traced and run inside."""
    uses = Uses()
    real = {name: getattr(jax.random, name) for name in ("split", "fold_in", *SAMPLERS)}

    def split(key, *rest, **named):
        jax.debug.callback(lambda data: uses.note("split", data), jax.random.key_data(key))
        return real["split"](key, *rest, **named)

    def fold_in(key, number):
        told = jax.random.key_data(key), number
        jax.debug.callback(lambda data, n: uses.note("fold", data, n), *told)
        return real["fold_in"](key, number)

    def sampler(name):
        def draw(key, *rest, **named):
            jax.debug.callback(lambda data: uses.note("draw", data), jax.random.key_data(key))
            return real[name](key, *rest, **named)

        return draw

    with monkeypatch.context() as patch:
        patch.setattr(jax.random, "split", split)
        patch.setattr(jax.random, "fold_in", fold_in)
        for name in SAMPLERS:
            patch.setattr(jax.random, name, sampler(name))
        yield uses
    jax.effects_barrier()
