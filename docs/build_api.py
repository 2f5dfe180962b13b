"""Write `docs/losses.md` from the docstrings of `jaxagent.losses`.

python docs/build_api.py            writes the page
python docs/build_api.py --check    fails when the page is stale
"""

import argparse
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxagent import losses

PAGE = Path(__file__).parent / "losses.md"
MODULES = [
    "advantages",
    "ppo",
    "sac",
    "distributions",
    "divergence",
    "imitation",
    "preference",
    "tokens",
    "group",
    "segments",
    "credit",
    "hae",
    "hindsight",
    "guidance",
    "schedules",
    "sources",
]


def public(module_name: str) -> list[tuple[str, Any]]:
    """The names of `losses.__all__` that a module defines, in its own order."""
    module = importlib.import_module(f"jaxagent.losses.{module_name}")
    return [
        (name, value)
        for name, value in vars(module).items()
        if name in losses.__all__ and value.__module__ == module.__name__
    ]


def parts(function: Callable) -> tuple[str, str, str]:
    """First sentence, equation and the rest of a docstring."""
    text = inspect.getdoc(function) or ""
    first, _, rest = text.partition("\n\n")
    equation = re.match(r"((?:    .*\n?|\n)+)", rest)
    block = inspect.cleandoc("\n" + equation.group(1)) if equation else ""
    return " ".join(first.split()), block, rest[equation.end() if equation else 0 :].strip()


def cell(text: str) -> str:
    """Text that survives inside a Markdown table."""
    return text.replace("|", "\\|").replace("\n", "<br>")


def overview() -> str:
    """The table: which function, which equation, what it is and whose."""
    rows = ["| Function | Equation | What, and from which paper |", "|---|---|---|"]
    for module in MODULES:
        for name, value in public(module):
            if inspect.isfunction(value):
                what, equation, _ = parts(value)
                lines = [" ".join(line.split()) for line in equation.splitlines() if line.strip()]
                formula = "<br>".join(f"`{cell(line)}`" for line in lines)
                rows.append(f"| [`{name}`](#{name}) | {formula} | {cell(what.rstrip('.'))} |")
    return "\n".join(rows)


def signature(function: Callable) -> str:
    """The signature with the shapes, one argument a line."""
    lines, keyword_only = [], False
    described = inspect.signature(function)
    for parameter in described.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            lines.append("    *,")
            keyword_only = True
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        lines.append(f"    {parameter.name}: {kind(parameter.annotation)}{default},")
    returned = kind(described.return_annotation)
    return "\n".join([f"{function.__name__}(", *lines, f") -> {returned}"])


def kind(annotation: object) -> str:
    """An annotation as it stands in the source."""
    text = getattr(annotation, "__name__", None) if isinstance(annotation, type) else None
    text = text or str(annotation)
    scalar = r"float \| int \| (?:jaxtyping\.)?Float\[(?:jax\.|jaxlib\._jax\.)?Array, ''\]"
    text = re.sub(r"(jaxtyping|typing|collections\.abc)\.", "", text)
    text = re.sub(r"<class '(.*?)'>", r"\1", text)
    text = re.sub(r"(jaxlib\._jax|jax|jaxagent\.losses\.\w+)\.", "", text)
    return re.sub(scalar, "Scalar", text)


def entry(name: str, value: Any) -> str:
    """One function or result type of the page."""
    if not inspect.isfunction(value):
        fields = ", ".join(f"`{field}`" for field in value._fields)
        return f"### `{name}`\n\n{inspect.getdoc(value)}\n\nFields: {fields}.\n"
    what, equation, rest = parts(value)
    block = f"```text\n{equation}\n```\n\n" if equation else ""
    return (
        f"### `{name}`\n\n{what}\n\n{block}```text\n{signature(value)}\n```\n\n{sections(rest)}\n"
    )


def sections(rest: str) -> str:
    """Google-style sections as Markdown."""
    out = []
    for chunk in re.split(r"\n(?=(?:Args|Returns|Raises|Example):\n)", rest):
        title, _, body = chunk.partition("\n")
        body = inspect.cleandoc("\n" + body)
        if title == "Args:":
            items = re.sub(r"\n    +", " ", body).splitlines()
            named = [re.sub(r"^(\w+): ", r"- **\1**: ", item) for item in items]
            out.append("Arguments:\n\n" + "\n".join(named))
        elif title == "Example:":
            out.append(f"```pycon\n{body}\n```")
        elif title in ("Returns:", "Raises:"):
            text = " ".join(body.split()) if title == "Returns:" else raised(body)
            out.append(f"**{title[:-1]}** {text}")
        else:
            out.append(chunk)
    return "\n\n".join(out)


def raised(body: str) -> str:
    """The exceptions as one sentence each."""
    joined = re.sub(r"\n    +", " ", body)
    return " ".join(re.sub(r"^(\w+):", r"`\1`:", line) for line in joined.splitlines())


def page() -> str:
    """The whole page."""
    out = [
        "# The losses",
        "<!-- Written by docs/build_api.py from the docstrings: change those, then run it. -->",
        inspect.getdoc(losses),
        "`Scalar` is a Python number or a traced scalar array. Time-major axes: `T` time, `B` "
        "batch, `L` tokens, `A` actions, `N` segments, `K` ensemble or levels, `S` any shape.",
        "The examples follow `import jax, jax.numpy as jnp` and `from jaxagent.losses import *`.",
        overview(),
    ]
    for module in MODULES:
        described = inspect.getdoc(importlib.import_module(f"jaxagent.losses.{module}"))
        out.append(f"## {module}\n\n{described}")
        out.extend(entry(name, value) for name, value in public(module))
    return "\n\n".join(part.strip() for part in out) + "\n"


def main() -> int:
    """Write the page, or with --check compare it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail when the page is stale")
    if parser.parse_args().check:
        fresh = PAGE.exists() and PAGE.read_text() == page()
        print("docs/losses.md is " + ("current" if fresh else "stale: run docs/build_api.py"))
        return int(not fresh)
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
