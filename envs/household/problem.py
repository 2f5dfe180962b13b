"""Writes a drawn room and task as the documents a game folder holds."""

from envs.household.frequencies import household
from envs.household.furnish import Layout
from envs.household.task import TASK_TYPES
from envs.household.wording import grammar_for_task, own_rules

_TREATED = {
    TASK_TYPES[2]: ("cleanable", "isClean"),
    TASK_TYPES[3]: ("heatable", "isHot"),
    TASK_TYPES[4]: ("coolable", "isCool"),
}
_ATTRIBUTES = (
    "pickupable",
    "isReceptacleObject",
    "cleanable",
    "heatable",
    "coolable",
    "toggleable",
    "sliceable",
)


def game_data(layout: Layout, kind: str, item: str, target: str, sentence: str, trial: str) -> dict:
    """The content of ``game.tw-pddl``, without its walkthrough.

    Args:
        layout: the room.
        kind: the task type.
        item: type of the thing the task is about.
        target: type of the receptacle, or of the lamp.
        sentence: the task in words.
        trial: the problem's name.

    Returns:
        The mapping to be written as JSON; ``solvable`` is claimed, the caller must prove it.
    """
    domain, grammar = own_rules()
    return {
        "pddl_domain": domain,
        "grammar": grammar_for_task(grammar, sentence),
        "pddl_problem": _problem(layout, kind, item, target, trial),
        "solvable": True,
        "walkthrough": None,
    }


def traj_data(layout: Layout, kind: str, item: str, target: str, trial: str, sentence: str) -> dict:
    """The content of ``traj_data.json``, as far as players of the text games read it."""
    lamp = kind == TASK_TYPES[1]
    return {
        "task_id": trial,
        "task_type": kind,
        "pddl_params": {
            "mrecep_target": "",
            "object_sliced": False,
            "object_target": item,
            "parent_target": "" if lamp else target,
            "toggle_target": target if lamp else "",
        },
        "scene": {"floor_plan": f"Generated {layout.room}", "random_seed": 0},
        "turk_annotations": {"anns": [{"task_desc": f"{sentence}.", "high_descs": []}]},
    }


def _problem(layout: Layout, kind: str, item: str, target: str, trial: str) -> str:
    objects = "\n  ".join(_declarations(layout))
    facts = "\n  ".join(_facts(layout))
    return (
        f"(define (problem plan_{trial})\n (:domain alfred)\n (:objects\n  {objects})\n"
        f" (:init\n  {facts})\n (:goal {_goal(kind, item, target)}))\n"
    )


def _declarations(layout: Layout) -> list[str]:
    accepted = {kind for place in layout.places for kind in _accepts(place.type)}
    object_types = sorted(accepted | set(layout.types.values()))
    locations = sorted({place.location for place in layout.places} | {layout.start})
    return [
        "agent1 - agent",
        *(f"{kind}Type - otype" for kind in object_types),
        *(f"{kind}Type - rtype" for kind in sorted({place.type for place in layout.places})),
        *(f"{identifier} - object" for identifier in layout.types),
        *(f"{place.identifier} - receptacle" for place in layout.places),
        *(f"{location} - location" for location in locations),
    ]


def _facts(layout: Layout) -> list[str]:
    attributes = household().attributes
    facts = [f"(atLocation agent1 {layout.start})"]
    for kind in sorted({place.type for place in layout.places}):
        facts += [f"(canContain {kind}Type {other}Type)" for other in _accepts(kind)]
    for place in layout.places:
        facts.append(f"(receptacleType {place.identifier} {place.type}Type)")
        facts.append(f"(receptacleAtLocation {place.identifier} {place.location})")
        if place.openable:
            facts.append(f"(openable {place.identifier})")
    for identifier, kind in layout.types.items():
        place = layout.inside[identifier]
        facts.append(f"(objectType {identifier} {kind}Type)")
        facts += [f"({able} {identifier})" for able in _ATTRIBUTES if kind in attributes[able]]
        facts.append(f"(inReceptacle {identifier} {place.identifier})")
        facts.append(f"(objectAtLocation {identifier} {place.location})")
    return facts


def _accepts(kind: str) -> list[str]:
    return household().accepts.get(kind, [])


def _goal(kind: str, item: str, target: str) -> str:
    if kind == TASK_TYPES[1]:
        return (
            "(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) "
            f"(and (objectType ?ot {target}Type) (toggleable ?ot) (isToggled ?ot) "
            "(receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r))) "
            "(exists (?o - object ?a - agent) "
            f"(and (objectType ?o {item}Type) (holds ?a ?o))))"
        )
    here = f"(objectType {{0}} {item}Type) (receptacleType ?r {target}Type) (inReceptacle {{0}} ?r)"
    if kind == TASK_TYPES[5]:
        return (
            f"(exists (?r - receptacle ?o1 - object) (and {here.format('?o1')} "
            f"(exists (?o2 - object) (and (not (= ?o1 ?o2)) {here.format('?o2')}))))"
        )
    extra = "".join(f" ({name} ?o)" for name in _TREATED.get(kind, ()))
    return f"(exists (?r - receptacle ?o - object) (and {here.format('?o')}{extra}))"
