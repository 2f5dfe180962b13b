"""What random play achieved, which commands mattered, and how it is written as a search."""

import itertools
import random
from collections import Counter

import pytest

from envs.household.engine import admissible_commands, step
from envs.household.goal import Vocabulary, compile_goal
from envs.household.memory import Memory
from envs.household.relabel import _number_of_visits, relabelled
from envs.household.subgoals import kind_of
from envs.household.task import TASK_TYPES, Task, read_sentence, sentence_of
from envs.household.walks import (
    Solution,
    carried_out,
    critical_path,
    is_achieved,
    random_walk,
    solutions,
    with_other_thing,
)


@pytest.fixture(scope="module")
def games(generated):
    return [made.game for made in generated]


@pytest.fixture(scope="module")
def solved(games):
    rng = random.Random(0)
    return [
        (game, solution)
        for game in games
        for _ in range(12)
        for solution in solutions(game, random_walk(game, rng, 60))
    ]


def states(game, commands):
    state = game.initial
    yield state
    for command in commands:
        state = step(game, state, command).state
        yield state


def test_the_predicate_is_the_goal_that_the_game_compiles(generated):
    """Along each game's own plan, which wins it, and along random walks, which seldom do."""
    rng, won = random.Random(1), Counter()
    for made in generated:
        for commands in (made.plan, random_walk(made.game, rng, 60)):
            for state in states(made.game, commands):
                expected = made.game.goal.satisfied(state)
                assert is_achieved(made.game, state, made.game.task) == expected
                won[made.game.task.kind, expected] += 1
    assert all(won[kind, is_won] for kind in TASK_TYPES for is_won in (True, False))


def goal_of(task: Task) -> list:
    """The benchmark's formula of a treated thing in a place, as game files hold it."""
    flag, able = {"clean": ("isclean", "cleanable"), "heat": ("ishot", "heatable"),
                  "cool": ("iscool", "coolable")}[task.kind.split("_")[1]]  # fmt: skip
    parts = [["objecttype", "?o", f"{task.item}type"],
             ["receptacletype", "?r", f"{task.target}type"],
             ["inreceptacle", "?o", "?r"], [flag, "?o"], [able, "?o"]]  # fmt: skip
    variables = ["?r", "-", "receptacle", "?o", "-", "object"]
    return ["exists", variables, ["and", *parts]]


def test_a_walk_gives_only_commands_that_the_game_takes_and_never_idles(games):
    walk = random_walk(games[0], random.Random(2), 60)
    assert len(walk) == 60
    assert {c.partition(" ")[0] for c in walk}.isdisjoint({"look", "inventory", "help", "examine"})
    state = games[0].initial
    for command in walk:
        assert command in admissible_commands(games[0], state)
        state = step(games[0], state, command).state


def test_verbs_are_drawn_alike(games):
    """The first command goes somewhere; of the next, rare verbs are as frequent as going."""
    seen = Counter()
    for number in range(300):
        walk = random_walk(games[0], random.Random(number), 2)
        state = step(games[0], games[0].initial, walk[0]).state
        verbs = {c.partition(" ")[0] for c in admissible_commands(games[0], state)}
        if {"open", "go"} <= verbs and "take" not in verbs and "use" not in verbs:
            seen[walk[1].partition(" ")[0]] += 1
    assert 0.35 < seen["open"] / seen.total() < 0.65


def test_every_type_of_task_is_solved_by_chance(solved):
    assert {solution.task.kind for _, solution in solved} == set(TASK_TYPES)


def test_a_solution_solves_its_task_at_its_end_and_not_before(solved):
    for game, (task, commands) in solved:
        *before, last = [is_achieved(game, s, task) for s in states(game, commands)]
        assert last
        assert not any(before)


def test_no_command_of_a_critical_path_can_be_left_out(solved):
    for game, (task, commands) in solved:
        for left_out in range(len(commands)):
            rest = commands[:left_out] + commands[left_out + 1 :]
            assert carried_out(game, task, rest) is None, (task, commands, left_out)


def test_of_lamp_and_thing_the_lamp_is_last_where_that_is_possible(solved):
    looked = [(g, s) for g, s in solved if s.task.kind == TASK_TYPES[1]]
    last = [s.commands[-1].startswith("use ") for _, s in looked]
    assert sum(last) > len(last) / 2
    for game, (task, commands) in looked:
        if not commands[-1].startswith("use "):
            for start in range(1, len(commands)):
                rotated = commands[start:] + commands[:start]
                if rotated[-1].startswith("use "):
                    assert carried_out(game, task, rotated) is None


def test_commands_that_do_not_achieve_the_task_are_refused(games):
    with pytest.raises(ValueError, match="is not achieved by the commands given"):
        critical_path(games[0], games[0].task, ["look"])


def test_sentences_are_read_back():
    for kind in TASK_TYPES:
        task = Task(kind, "mug", "shelf")
        assert read_sentence(sentence_of(task)) == task


@pytest.fixture(scope="module")
def episodes(solved):
    rng = random.Random(3)
    made = [(g, s, relabelled(g, s, rng)) for g, s in solved]
    assert sum(e is None for _, _, e in made) < len(made) / 20
    return [each for each in made if each[2] is not None]


def test_a_relabelled_episode_is_one_that_the_engine_plays(episodes):
    for game, solution, episode in episodes:
        assert episode.opening.endswith(f"Your task is to: {sentence_of(solution.task)}.")
        state = game.initial
        for turn in episode.turns:
            assert not is_achieved(game, state, solution.task)
            state, text, _, is_valid = step(game, state, turn.command)
            assert (text, is_valid) == (turn.observation, True)
        assert is_achieved(game, state, solution.task)
        assert len(episode.turns) <= 50


def wanted_of(commands, place):
    """What is taken or used after a place is gone to."""
    for command in commands[place + 1 :]:
        verb, _, rest = command.partition(" ")
        if verb == "go":
            return ""
        if verb in ("take", "use"):
            return rest.partition(" from ")[0]
    return ""


def test_flags_say_what_had_been_printed(episodes):
    """Read again from the printed text alone, by other code."""
    checked = Counter()
    for _, _, episode in episodes:
        memory = Memory(episode.opening)
        commands = [turn.command for turn in episode.turns]
        for number, turn in enumerate(episode.turns):
            verb, _, rest = turn.command.partition(" ")
            printed = {t for things in memory.contents.values() for t in things}
            if verb == "take":
                assert turn.seen == (rest.split(" from ")[0] in printed)
            if verb == "go":
                place = rest.removeprefix("to ")
                kind = [p for p in memory.receptacles if kind_of(p) == kind_of(place)]
                left = [p for p in kind if p not in memory.contents]
                assert turn.first_of_kind == (left[:1] == [place])
                if turn.is_critical:
                    sought = wanted_of(commands, number)
                    assert turn.seen == (not sought or sought in printed)
                else:
                    assert not turn.seen
                checked["visit", turn.is_critical, turn.seen, turn.first_of_kind] += 1
            memory.read(turn.observation)
    # Both kinds of guess occur: those that are taught and those that are not.
    assert checked["visit", True, False, True] > 50
    assert checked["visit", True, False, False] > 20


def test_no_visit_finds_what_is_wanted(episodes):
    visits = 0
    for _, solution, episode in episodes:
        if solution.task.kind == TASK_TYPES[1]:
            continue  # both the thing and the lamp are sought
        memory = Memory(episode.opening)
        for number, turn in enumerate(episode.turns):
            memory.read(turn.observation)
            if not turn.is_critical:
                place = turn.command.removeprefix("go to ")
                after = episode.turns[number + 1]
                if after.command == f"open {place}":
                    memory.read(after.observation)
                assert solution.task.item not in map(kind_of, memory.contents[place])
                visits += 1
    assert visits > 200


def test_without_visits_only_what_matters_is_done(solved):
    rng = random.Random(4)
    for game, solution in solved[:100]:
        episode = relabelled(game, solution, rng, has_visits=False)
        assert all(turn.is_critical for turn in episode.turns)
        assert len(episode.turns) == len(solution.commands)


def test_how_many_visits():
    rng = random.Random(5)
    drawn = [_number_of_visits(rng, 30) for _ in range(4000)]
    assert 0.22 < drawn.count(0) / 4000 < 0.28
    assert max(drawn) == 30
    assert 0.05 < sum(n > 20 for n in drawn) / 4000 < 0.12  # only those of any number


def test_places_are_named_by_what_is_used_there(episodes):
    """Whoever goes to one receptacle and uses another at the same place cannot be imitated."""
    for game, _, episode in episodes:
        places = game.receptacles
        commands = [turn.command for turn in episode.turns]
        for command, following in itertools.pairwise(commands):
            if command.startswith("go to ") and following.partition(" ")[0] in ("take", "move"):
                at = command.removeprefix("go to ")
                used = " ".join(following.split(" ")[-2:])
                assert (
                    at == used
                    or places.location[places.number[at]] != (places.location[places.number[used]])
                )


def test_the_first_receptacle_of_the_target_s_kind_is_used_where_any_will_do(games):
    game = next(g for g in games if g.task.kind == TASK_TYPES[0])
    memory, task = None, None
    rng = random.Random(6)
    for found in solutions(game, random_walk(game, rng, 400)):
        place = " ".join(found.commands[-1].split(" ")[-2:])
        episode = relabelled(game, found, rng, has_visits=False)
        memory, task = Memory(episode.opening), found.task
        used = " ".join(episode.turns[-1].command.split(" ")[-2:])
        kind = [p for p in memory.receptacles if kind_of(p) == task.target]
        assert kind.index(used) <= kind.index(place) if place in kind else True
    assert task is not None


def test_the_predicate_of_treated_things_is_that_of_the_compiled_formula(games):
    """For tasks that a game does not ask for, too."""
    compared = Counter()
    for game in games[:12]:
        entities = {
            "object": [f"o{i}" for i in range(len(game.objects.names))],
            "receptacle": [f"r{i}" for i in range(len(game.receptacles.names))],
            "otype": sorted(set(game.objects.types)),
            "rtype": sorted(set(game.receptacles.types)),
        }
        static = {
            "objecttype": {(f"o{i}", t) for i, t in enumerate(game.objects.types)},
            "receptacletype": {(f"r{i}", t) for i, t in enumerate(game.receptacles.types)},
            "cleanable": {(f"o{i}",) for i in game.objects.cleanable},
            "heatable": {(f"o{i}",) for i in game.objects.heatable},
            "coolable": {(f"o{i}",) for i in game.objects.coolable},
        }
        for number in range(6):
            walk = random_walk(game, random.Random(number), 80)
            for found in solutions(game, walk):
                if found.task.kind.split("_")[1] in ("clean", "heat", "cool"):
                    goal = compile_goal(goal_of(found.task), Vocabulary(entities, static))
                    for state in states(game, walk):
                        assert goal.satisfied(state) == is_achieved(game, state, found.task)
                        compared[goal.satisfied(state)] += 1
    assert compared[True]
    assert compared[False]


def test_a_solution_may_be_given_from_anywhere(games):
    """Refused commands, idle ones and detours in an episode do no harm."""
    made = games[0]
    plan = next(s for s in solutions(made, random_walk(made, random.Random(9), 200)))
    noisy = [x for command in plan.commands for x in ("look", "open sesame 1", command)]
    assert critical_path(made, plan.task, noisy) == critical_path(made, plan.task, plan.commands)
    assert isinstance(plan, Solution)


def tasks_of(games):
    """Every task with a thing of these games in it."""
    kinds = {kind_of(name) for game in games for name in game.objects.names}
    targets = {game.task.target for game in games}
    return {Task(t, kind, target) for t in TASK_TYPES for kind in kinds for target in targets}


def test_another_thing_stands_in_by_a_solution_of_its_own(games, solved):
    tasks, rng, found = tasks_of(games), random.Random(10), Counter()
    for game, solution in solved:
        other = with_other_thing(game, solution, tasks, rng)
        if other is None:
            continue
        assert other.task in tasks
        assert (other.task.kind, other.task.target) == (solution.task.kind, solution.task.target)
        assert carried_out(game, other.task, other.commands) == list(other.commands)
        assert not is_achieved(game, game.initial, other.task)
        for left_out in range(len(other.commands)):
            rest = other.commands[:left_out] + other.commands[left_out + 1 :]
            assert carried_out(game, other.task, rest) is None
        found[other.task.kind, other.task.item != solution.task.item] += 1
    assert all(found[kind, True] for kind in TASK_TYPES)


def taken_at(game, solution):
    """The kinds of receptacles that the task's things are taken from."""
    return [
        kind_of(command.partition(" from ")[2])
        for command in solution.commands
        if command.startswith(f"take {solution.task.item} ")
    ]


def test_things_are_found_where_they_lie_and_not_where_walks_find_them(games, solved):
    """A walk cleans what it finds beside the basin; another thing may lie anywhere."""
    tasks, rng = tasks_of(games), random.Random(11)
    walked, stood_in, lying = [], [], []
    for game, solution in solved:
        if solution.task.kind == TASK_TYPES[2]:
            walked += taken_at(game, solution)
            other = with_other_thing(game, solution, tasks, rng)
            stood_in += taken_at(game, other) if other else []
    for game in games:
        for place, items in enumerate(game.initial.contents):
            cleanable = [i for i in items if i in game.objects.cleanable]
            lying += [kind_of(game.receptacles.names[place])] * len(cleanable)
    share = {name: places.count("sinkbasin") / len(places) for name, places in
             (("walked", walked), ("stood in", stood_in), ("lying", lying))}  # fmt: skip
    assert share["walked"] > 2 * share["lying"]
    assert abs(share["stood in"] - share["lying"]) < (share["walked"] - share["lying"]) / 2


def test_no_other_thing_where_no_task_permits_one(solved):
    game, solution = solved[0]
    assert with_other_thing(game, solution, set(), random.Random(0)) is None
