"""A kitchen small enough to check by hand, with every kind of receptacle and thing in it."""

from envs.household.game import Game, build_game
from envs.household.wording import grammar_for_task, own_rules

OBJECTS = """
  agent1 - agent
  AppleType - otype KnifeType - otype MugType - otype DeskLampType - otype BookType - otype
  CounterTopType - rtype FridgeType - rtype MicrowaveType - rtype SinkBasinType - rtype
  DrawerType - rtype
  Apple_bar__minus_01 - object Apple_bar__plus_02 - object Knife_bar_1 - object
  Mug_bar_1 - object DeskLamp_bar_1 - object Book_bar_1 - object
  CounterTop_bar_1 - receptacle Fridge_bar_1 - receptacle Microwave_bar_1 - receptacle
  Sink_bar_1_bar_SinkBasin - receptacle Drawer_bar_1 - receptacle Drawer_bar_2 - receptacle
  loc_bar_1 - location loc_bar_2 - location loc_bar_3 - location loc_bar_4 - location
  loc_bar_5 - location loc_bar_9 - location
"""

# Drawer 1 (the second in spelling) shares its place with the counter.
FACTS = """
  (atLocation agent1 loc_bar_9)
  (receptacleType CounterTop_bar_1 CounterTopType) (receptacleAtLocation CounterTop_bar_1 loc_bar_1)
  (receptacleType Fridge_bar_1 FridgeType) (receptacleAtLocation Fridge_bar_1 loc_bar_2)
  (receptacleType Microwave_bar_1 MicrowaveType)
  (receptacleAtLocation Microwave_bar_1 loc_bar_3)
  (receptacleType Sink_bar_1_bar_SinkBasin SinkBasinType)
  (receptacleAtLocation Sink_bar_1_bar_SinkBasin loc_bar_4)
  (receptacleType Drawer_bar_1 DrawerType) (receptacleAtLocation Drawer_bar_1 loc_bar_5)
  (receptacleType Drawer_bar_2 DrawerType) (receptacleAtLocation Drawer_bar_2 loc_bar_1)
  (openable Fridge_bar_1) (openable Microwave_bar_1) (openable Drawer_bar_1)
  (openable Drawer_bar_2)
  (canContain CounterTopType AppleType) (canContain CounterTopType KnifeType)
  (canContain CounterTopType MugType) (canContain CounterTopType BookType)
  (canContain FridgeType AppleType) (canContain FridgeType MugType)
  (canContain MicrowaveType AppleType) (canContain MicrowaveType MugType)
  (canContain SinkBasinType AppleType) (canContain SinkBasinType MugType)
  (canContain DrawerType KnifeType) (canContain DrawerType BookType)
  (objectType Apple_bar__minus_01 AppleType) (objectType Apple_bar__plus_02 AppleType)
  (objectType Knife_bar_1 KnifeType) (objectType Mug_bar_1 MugType)
  (objectType DeskLamp_bar_1 DeskLampType) (objectType Book_bar_1 BookType)
  (pickupable Apple_bar__minus_01) (pickupable Apple_bar__plus_02) (pickupable Knife_bar_1)
  (pickupable Mug_bar_1) (pickupable Book_bar_1) (isReceptacleObject Mug_bar_1)
  (cleanable Apple_bar__minus_01) (cleanable Apple_bar__plus_02) (cleanable Mug_bar_1)
  (heatable Apple_bar__minus_01) (heatable Apple_bar__plus_02) (heatable Mug_bar_1)
  (coolable Apple_bar__minus_01) (coolable Apple_bar__plus_02) (coolable Mug_bar_1)
  (sliceable Apple_bar__minus_01) (sliceable Apple_bar__plus_02)
  (toggleable DeskLamp_bar_1)
  (inReceptacle Apple_bar__minus_01 CounterTop_bar_1)
  (objectAtLocation Apple_bar__minus_01 loc_bar_1)
  (inReceptacle Apple_bar__plus_02 Fridge_bar_1) (objectAtLocation Apple_bar__plus_02 loc_bar_2)
  (inReceptacle Knife_bar_1 CounterTop_bar_1) (objectAtLocation Knife_bar_1 loc_bar_1)
  (inReceptacle Mug_bar_1 Microwave_bar_1) (objectAtLocation Mug_bar_1 loc_bar_3)
  (inReceptacle DeskLamp_bar_1 Drawer_bar_1) (objectAtLocation DeskLamp_bar_1 loc_bar_5)
  (inReceptacle Book_bar_1 Drawer_bar_2) (objectAtLocation Book_bar_1 loc_bar_1)
"""

GOALS = {
    "place": "(exists (?r - receptacle) (exists (?o - object) (and (inReceptacle ?o ?r) "
    "(objectType ?o AppleType) (receptacleType ?r SinkBasinType))))",
    "clean": "(exists (?r - receptacle ?o - object) (and (cleanable ?o) (objectType ?o AppleType) "
    "(receptacleType ?r CounterTopType) (isClean ?o) (inReceptacle ?o ?r)))",
    "heat": "(exists (?r - receptacle ?o - object) (and (heatable ?o) (objectType ?o AppleType) "
    "(receptacleType ?r FridgeType) (isHot ?o) (inReceptacle ?o ?r)))",
    "cool": "(exists (?r - receptacle ?o - object) (and (coolable ?o) (objectType ?o MugType) "
    "(receptacleType ?r CounterTopType) (isCool ?o) (inReceptacle ?o ?r)))",
    "two": "(exists (?r - receptacle) (exists (?o1 - object) (and (objectType ?o1 AppleType) "
    "(receptacleType ?r MicrowaveType) (inReceptacle ?o1 ?r) (exists (?o2 - object) (and "
    "(not (= ?o1 ?o2)) (objectType ?o2 AppleType) (inReceptacle ?o2 ?r))))))",
    "lamp": "(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and "
    "(objectType ?ot DeskLampType) (toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l) "
    "(atLocation ?a ?l) (inReceptacle ?ot ?r))) (exists (?o - object ?a - agent) (and "
    "(objectType ?o BookType) (holds ?a ?o))))",
}


def problem(goal: str = "place", facts: str = FACTS, objects: str = OBJECTS) -> str:
    """The PDDL of the small kitchen; ``goal`` is a key of GOALS or a formula."""
    formula = GOALS.get(goal, goal)
    return (
        f"(define (problem small) (:domain alfred) (:objects {objects}) (:init {facts}) "
        f"(:goal {formula}))"
    )


def document(pddl_problem: str, sentence: str = "put a apple in sinkbasin") -> dict:
    """A game file's content around a problem."""
    domain, grammar = own_rules()
    return {
        "pddl_domain": domain,
        "grammar": grammar_for_task(grammar, sentence),
        "pddl_problem": pddl_problem,
        "solvable": True,
        "walkthrough": None,
    }


def small_game(goal: str = "place", facts: str = FACTS) -> Game:
    """The small kitchen, ready to play."""
    return build_game(document(problem(goal, facts)), "small")
