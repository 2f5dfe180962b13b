"""Every public function is documented, its example runs, and the API page is current."""

import doctest
import importlib
import inspect
import pkgutil

import jax
import jax.numpy as jnp
import pytest

from jaxagent import losses

FUNCTIONS = [n for n in losses.__all__ if inspect.isfunction(getattr(losses, n))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_example_runs(name):
    function = getattr(losses, name)
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
    globs = {**vars(losses), "jax": jax, "jnp": jnp}
    (example,) = finder.find(function, name, globs=globs)
    code = [line for e in example.examples for line in e.source.strip().splitlines()]
    assert 1 <= len(code) <= 6
    result = runner.run(example)
    assert result.failed == 0
    assert result.attempted > 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_has_every_section_and_argument(name):
    function = getattr(losses, name)
    text = inspect.getdoc(function)
    for section in ("Args:", "Returns:", "Raises:", "Example:"):
        assert section in text
    for parameter in inspect.signature(function).parameters:
        assert f"    {parameter}: " in text


def test_all_is_every_public_function_of_the_modules():
    modules = [
        importlib.import_module(f"jaxagent.losses.{m.name}")
        for m in pkgutil.iter_modules(losses.__path__)
        if m.name != "contract"
    ]
    public = {
        name
        for module in modules
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and hasattr(value, "__wrapped__")
        and value.__module__ == module.__name__
    }
    assert public == set(FUNCTIONS)
    assert losses.__all__ == sorted(losses.__all__)
