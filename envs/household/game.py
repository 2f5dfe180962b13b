"""What never changes in one game: built once from its file, shared by all its episodes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from envs.household.display_names import display_names
from envs.household.goal import Goal, Vocabulary, compile_goal
from envs.household.pddl import GameFileError, Problem, parse_problem
from envs.household.state import State
from envs.household.task import Task, read_task
from envs.household.wording import Wording, recognise

_MAX_FILE_BYTES = 16 * 2**20
_FIELDS = ("pddl_domain", "grammar", "pddl_problem")


class Objects(NamedTuple):
    """The movable and immovable things, in the order of their identifiers."""

    names: tuple[str, ...]
    types: tuple[str, ...]
    number: dict[str, int]
    pickupable: frozenset[int]
    cleanable: frozenset[int]
    heatable: frozenset[int]
    coolable: frozenset[int]
    toggleable: frozenset[int]
    sliceable: tuple[int, ...]
    knives: frozenset[int]
    containers: dict[int, tuple[int, ...]]


class Receptacles(NamedTuple):
    """The places that things stand on or in, in the order of their identifiers."""

    names: tuple[str, ...]
    types: tuple[str, ...]
    number: dict[str, int]
    location: tuple[int, ...]
    openable: frozenset[int]
    accepts: tuple[frozenset[str], ...]
    sinks: frozenset[int]
    microwaves: frozenset[int]
    fridges: frozenset[int]


class Game(NamedTuple):
    """One household game; every member is unchanging and indices refer to it alone.

    ``at_location[l]`` lists the receptacles at location ``l``; location −1 has none.
    ``bits_at_location[l]`` is the same as a bit mask.
    """

    name: str
    task_text: str
    wording: Wording
    objects: Objects
    receptacles: Receptacles
    location_names: tuple[str, ...]
    at_location: dict[int, tuple[int, ...]]
    bits_at_location: dict[int, int]
    goal: Goal
    task: Task | None
    initial: State
    shared_text: dict[Any, Any]


def load_game(path: str | Path) -> Game:
    """Reads one ``game.tw-pddl`` file.

    Args:
        path: the file.

    Returns:
        The game, named by the last two folders of its path. ``traj_data.json`` is not read: the
        task is taken from the goal.

    Raises:
        GameFileError: the file is missing, cut short, or no household game.
    """
    path = Path(path)
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise GameFileError(f"{path}: larger than {_MAX_FILE_BYTES} bytes, not a game file")
        data = json.loads(path.read_text(encoding="utf-8"))
    except GameFileError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise GameFileError(f"{path}: cannot be read as a game file: {error}") from None
    try:
        return build_game(data, name="/".join(path.parts[-3:-1]) or path.stem)
    except GameFileError as error:
        raise GameFileError(f"{path}: {error}") from None


def build_game(data: Mapping[str, str], name: str = "game") -> Game:
    """Builds a game from the content of a game file.

    Args:
        data: the mapping with ``pddl_domain``, ``grammar`` and ``pddl_problem``.
        name: how panels and transcripts call it.

    Returns:
        The game. Whether it can be won is not examined.

    Raises:
        GameFileError: a field is missing, or holds what the engine does not know.
    """
    if not isinstance(data, Mapping):
        raise GameFileError(f"a game file holds one JSON object, not {type(data).__name__}")
    for field in _FIELDS:
        if not isinstance(data.get(field), str):
            raise GameFileError(f"field {field!r} is missing or not a text")
    wording, task_text = recognise(data["pddl_domain"], data["grammar"])
    return _assemble(name, task_text, wording, parse_problem(data["pddl_problem"]))


def _assemble(name: str, task_text: str, wording: Wording, problem: Problem) -> Game:
    named = display_names(
        argument for facts in problem.facts.values() for fact in facts for argument in fact
    )
    entities: dict[str, list[str]] = {
        kind: [] for kind in ("agent", "location", "object", "receptacle", "rtype", "otype")
    }
    for identifier in named:
        kind = problem.types.get(identifier, "")
        if kind in entities:
            entities[kind].append(identifier)
    if len(entities["agent"]) != 1:
        raise GameFileError(f"a game has one agent, this one has {len(entities['agent'])}")
    index = {kind: {n: i for i, n in enumerate(ids)} for kind, ids in entities.items()}
    receptacles = _receptacles(problem, named, index)
    at_location: dict[int, list[int]] = {i: [] for i in range(-1, len(entities["location"]))}
    for number, location in enumerate(receptacles.location):
        if location >= 0:
            at_location[location].append(number)
    static = {key: set(map(tuple, facts)) for key, facts in problem.facts.items()}
    goal = compile_goal(problem.goal, Vocabulary(entities, static))
    initial = _initial(problem, index)
    return Game(
        name=name,
        task_text=task_text,
        wording=wording,
        objects=_objects(problem, named, index),
        receptacles=receptacles,
        location_names=tuple(named[i] for i in entities["location"]),
        at_location={key: tuple(members) for key, members in at_location.items()},
        bits_at_location={key: sum(1 << r for r in rs) for key, rs in at_location.items()},
        goal=goal,
        task=read_task(problem.goal),
        initial=initial._replace(won=goal.satisfied(initial)),
        shared_text={},
    )


def _objects(problem: Problem, named: dict[str, str], index: dict[str, dict[str, int]]) -> Objects:
    facts, number = problem.facts, index["object"]

    def having(predicate: str) -> frozenset[int]:
        return frozenset([number[fact[0]] for fact in facts[predicate]])

    types = [""] * len(number)
    for identifier, kind in facts["objecttype"]:
        if types[number[identifier]] not in ("", kind):
            raise GameFileError(f"object {identifier!r} has two types")
        types[number[identifier]] = kind
    inner: dict[int, list[int]] = {number[fact[0]]: [] for fact in facts["isreceptacleobject"]}
    for inside, outside in sorted(facts["inreceptacleobject"]):
        inner.setdefault(number[outside], []).append(number[inside])
    containers = having("isreceptacleobject")
    return Objects(
        names=tuple(named[identifier] for identifier in number),
        types=tuple(types),
        number={named[identifier]: i for identifier, i in number.items()},
        pickupable=having("pickupable"),
        cleanable=having("cleanable"),
        heatable=having("heatable"),
        coolable=having("coolable"),
        toggleable=having("toggleable"),
        sliceable=tuple(sorted(having("sliceable"))),
        knives=frozenset(i for i, kind in enumerate(types) if kind in _KNIVES),
        containers={key: tuple(value) for key, value in inner.items() if key in containers},
    )


_KNIVES = ("knifetype", "butterknifetype")


def _receptacles(
    problem: Problem, named: dict[str, str], index: dict[str, dict[str, int]]
) -> Receptacles:
    facts, number = problem.facts, index["receptacle"]
    types = [""] * len(number)
    for identifier, kind in facts["receptacletype"]:
        if types[number[identifier]] not in ("", kind):
            raise GameFileError(f"receptacle {identifier!r} has two types")
        types[number[identifier]] = kind
    location = [-1] * len(number)
    for identifier, place in facts["receptacleatlocation"]:
        if location[number[identifier]] not in (-1, index["location"][place]):
            raise GameFileError(f"receptacle {identifier!r} stands at two locations")
        location[number[identifier]] = index["location"][place]
    accepts: dict[str, set[str]] = {}
    for receptacle_type, object_type in facts["cancontain"]:
        accepts.setdefault(receptacle_type, set()).add(object_type)
    frozen = {kind: frozenset(members) for kind, members in accepts.items()}

    def of_type(kind: str) -> frozenset[int]:
        return frozenset(i for i, own in enumerate(types) if own == kind)

    return Receptacles(
        names=tuple(named[identifier] for identifier in number),
        types=tuple(types),
        number={named[identifier]: i for identifier, i in number.items()},
        location=tuple(location),
        openable=frozenset(number[fact[0]] for fact in facts["openable"]),
        accepts=tuple(frozen.get(kind, frozenset()) for kind in types),
        sinks=of_type("sinkbasintype"),
        microwaves=of_type("microwavetype"),
        fridges=of_type("fridgetype"),
    )


def _initial(problem: Problem, index: dict[str, dict[str, int]]) -> State:
    facts, objects, receptacles = problem.facts, index["object"], index["receptacle"]
    if facts["holds"]:
        raise GameFileError("(holds ...) in (:init ...): games start with empty hands")
    if len(facts["atlocation"]) != 1:
        raise GameFileError(f"the agent starts at {len(facts['atlocation'])} locations, not one")
    contents: list[set[int]] = [set() for _ in receptacles]
    for item, place in facts["inreceptacle"]:
        contents[receptacles[place]].add(objects[item])
    places: list[set[int]] = [set() for _ in objects]
    for item, place in facts["objectatlocation"]:
        places[objects[item]].add(index["location"][place])

    def mask(predicate: str, numbers: dict[str, int]) -> int:
        return sum(1 << i for i in {numbers[fact[0]] for fact in facts[predicate]})

    return State(
        location=index["location"][facts["atlocation"][0][1]],
        held=-1,
        opened=mask("opened", receptacles),
        contents=tuple(tuple(sorted(members)) for members in contents),
        places=tuple(tuple(sorted(members)) for members in places),
        removed=(),
        toggled=mask("istoggled", objects),
        clean=mask("isclean", objects),
        hot=mask("ishot", objects),
        cool=mask("iscool", objects),
        sliced=mask("issliced", objects),
        won=False,
    )
