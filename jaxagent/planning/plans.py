"""Plans in files: read strictly, refuse with the line, write back."""

import math
import pathlib

import yaml

from jaxagent.types import Plan, SubGoal

_KEYS = ("target", "radius", "heading")


def load_plan(path: str | pathlib.Path) -> Plan:
    """Read a plan from a YAML or JSON file.

        sub_goals:
          - {target: [5, 5], radius: 1.0}
          - {target: [10, 10], radius: 1.0, heading: 45}

    Args:
        path: the file. target and radius are in metres, heading in degrees.

    Raises:
        ValueError: not a plan; the message gives file, line, what was found and the rule.
        FileNotFoundError: there is no such file.
    """
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}:{line}: not text in UTF-8: {error.reason}") from None
    except RecursionError:
        raise ValueError(f"{path}: nested too deep for a plan") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or str(error)
        raise ValueError(f"{path}:{line}: not YAML or JSON: {problem}") from None
    fields = _mapping(path, root, ("sub_goals",), "a plan")
    if "sub_goals" not in fields:
        raise ValueError(f"{path}:1: a plan must have the key sub_goals")
    node = fields["sub_goals"]
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise ValueError(f"{path}:{_line(node)}: sub_goals must list at least one sub-goal")
    return Plan(tuple(_sub_goal(path, item) for item in node.value), str(path))


def _sub_goal(path, node) -> SubGoal:
    fields = _mapping(path, node, _KEYS, "a sub-goal")
    if "target" not in fields:
        raise ValueError(f"{path}:{_line(node)}: a sub-goal must have a target: [x, y]")
    point = fields["target"]
    if not isinstance(point, yaml.SequenceNode) or len(point.value) != 2:
        raise ValueError(f"{path}:{_line(point)}: target must be two numbers [x, y], in metres")
    x, y = (_number(path, item, "target") for item in point.value)
    radius = _number(path, fields["radius"], "radius") if "radius" in fields else 1.0
    if radius <= 0:
        line = _line(fields["radius"])
        raise ValueError(f"{path}:{line}: radius ({radius}) must be greater than 0 metres")
    heading = _number(path, fields["heading"], "heading") if "heading" in fields else None
    return SubGoal((x, y), radius, heading)


def _line(node) -> int:
    return node.start_mark.line + 1 if node is not None else 1


def _mapping(path, node, keys: tuple[str, ...], what: str) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        raise ValueError(f"{path}:{_line(node)}: {what} must be a mapping of {', '.join(keys)}")
    found: dict[str, yaml.Node] = {}
    for key, value in node.value:
        if key.value not in keys:
            known = ", ".join(keys)
            raise ValueError(f"{path}:{_line(key)}: unknown key {key.value!r}; known: {known}")
        if key.value in found:
            raise ValueError(f"{path}:{_line(key)}: key {key.value!r} stands twice")
        found[key.value] = value
    return found


def _number(path, node, name: str) -> float:
    try:
        value = float(node.value)
    except (TypeError, ValueError):
        value = math.nan
    # YAML writes infinity as .inf; float() refuses it, and so do we.
    if not math.isfinite(value):
        shown = node.value if isinstance(node, yaml.ScalarNode) else "a collection"
        raise ValueError(f"{path}:{_line(node)}: {name} ({shown}) must be a finite number")
    return value


def dump_plan(plan: Plan) -> dict:
    """The plan as plain data, in the form that `load_plan` reads."""
    sub_goals = []
    for goal in plan.sub_goals:
        entry = {"target": [float(x) for x in goal.target], "radius": float(goal.radius)}
        if goal.heading is not None:
            entry["heading"] = float(goal.heading)
        sub_goals.append(entry)
    return {"sub_goals": sub_goals}
