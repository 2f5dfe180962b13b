"""Slow independent answers: goals by trying every assignment, commands by trying every command."""

from collections import deque
from itertools import product

from envs.household.engine import admissible_commands, step
from envs.household.game import Game
from envs.household.pddl import Problem
from envs.household.state import State


def facts_of(game: Game, problem: Problem, state: State) -> set[tuple[str, ...]]:
    """Everything true in a state, as ground facts over the problem's identifiers."""
    names = _identifiers(problem)
    facts = {(p, *arguments) for p, rows in problem.facts.items() for arguments in rows}
    dynamic = ("atlocation", "inreceptacle", "objectatlocation", "opened", "isclean", "ishot",
               "iscool", "issliced", "istoggled")  # fmt: skip
    facts = {fact for fact in facts if fact[0] not in dynamic}
    objects, places = names["object"], names["receptacle"]
    (agent,) = names["agent"]
    facts.add(("atlocation", agent, names["location"][state.location]))
    if state.held >= 0:
        facts.add(("holds", agent, objects[state.held]))
    for place, members in enumerate(state.contents):
        facts |= {("inreceptacle", objects[item], places[place]) for item in members}
    for item, spots in enumerate(state.places):
        facts |= {("objectatlocation", objects[item], names["location"][s]) for s in spots}
    for flag, mask in (("isclean", state.clean), ("ishot", state.hot), ("iscool", state.cool),
                       ("issliced", state.sliced), ("istoggled", state.toggled)):  # fmt: skip
        facts |= {(flag, name) for i, name in enumerate(objects) if mask >> i & 1}
    facts |= {("opened", name) for i, name in enumerate(places) if state.opened >> i & 1}
    return facts


def _identifiers(problem: Problem) -> dict[str, list[str]]:
    mentioned = sorted({a for rows in problem.facts.values() for row in rows for a in row})
    kinds = ("agent", "location", "object", "receptacle")
    return {k: [name for name in mentioned if problem.types[name] == k] for k in kinds}


def goal_holds(goal, facts: set[tuple[str, ...]], problem: Problem, binding=None) -> bool:
    """The goal by the book: quantifiers try every declared thing of their type."""
    binding = binding or {}
    head, *rest = goal
    if head == "and":
        return all(goal_holds(part, facts, problem, binding) for part in rest)
    if head == "or":
        return any(goal_holds(part, facts, problem, binding) for part in rest)
    if head == "not":
        return not goal_holds(rest[0], facts, problem, binding)
    if head in ("exists", "forall"):
        words = rest[0]
        pairs, waiting = [], []
        for position, word in enumerate(words):
            if word == "-":
                pairs += [(name, words[position + 1]) for name in waiting]
                waiting = []
            elif position == 0 or words[position - 1] != "-":
                waiting.append(word)
        pools = [[n for n, kind in problem.types.items() if kind == k] for _, k in pairs]
        results = [
            goal_holds(rest[1], facts, problem, {**binding, **dict(zip([n for n, _ in pairs], c))})
            for c in product(*pools)
        ]
        return any(results) if head == "exists" else all(results)
    arguments = tuple(binding.get(word, word) for word in rest)
    if head == "=":
        return arguments[0] == arguments[1]
    return (head, *arguments) in facts


def commands_that_work(game: Game, state: State) -> set[str]:
    """Every command of the game's language that does something, found by trying them all."""
    objects, places = game.objects.names, game.receptacles.names
    tries = ["look", "inventory", "help"]
    tries += [f"{verb} {name}" for verb in ("go to", "open", "close", "examine") for name in places]
    tries += [f"{verb} {name}" for verb in ("examine", "use") for name in objects]
    for item, place in product(objects, places):
        tries += [f"take {item} from {place}", f"move {item} to {place}"]
        tries += [f"{verb} {item} with {place}" for verb in ("clean", "heat", "cool")]
    tries += [f"slice {item} with {knife}" for item, knife in product(objects, objects)]
    return {command for command in tries if step(game, state, command).valid}


def fewest_steps(game, start=None, limit=12, commands=admissible_commands):
    """Length of the shortest win by breadth-first search over ``commands``; None beyond the limit.

    It knows neither tasks nor routes: only what the engine says can be done.
    """
    start = game.initial if start is None else start
    seen, waiting = {start}, deque([(start, 0)])
    while waiting:
        state, depth = waiting.popleft()
        if state.won:
            return depth
        if depth < limit:
            for command in commands(game, state):
                after = step(game, state, command).state
                if after not in seen:
                    seen.add(after)
                    waiting.append((after, depth + 1))
    return None


def useful_commands(game, state):
    """Admissible commands without those that cannot shorten a win in a game of many places.

    Never useful: to take or move what the task does not name, to close, and to go to or open a
    place that holds no such thing, is no station and no target.
    """
    task = game.task
    kinds = {"sinkbasin", "microwave", "fridge", task.target}
    places = {
        name
        for name, kind, inside in zip(
            game.receptacles.names, game.receptacles.types, state.contents
        )
        if kind.removesuffix("type") in kinds
        or any(
            game.objects.types[item].removesuffix("type") in (task.item, task.target)
            for item in inside
        )
    }
    for command in admissible_commands(game, state):
        verb, _, rest = command.partition(" ")
        if verb in ("go", "open"):
            useful = rest.removeprefix("to ") in places
        else:
            useful = verb in ("take", "move", "put", "use", "clean", "heat", "cool")
            useful &= rest.split(" ")[0] in (task.item, task.target)
        if useful:
            yield command
