"""Playing many games with a cache gives what reading each history afresh gives."""

import jax
import numpy as np
import pytest

from envs.household.format import FORMATS, Reply
from envs.household.generator import generate_games
from envs.text.batch import BatchEnv
from experiments.alfworld_data import plain_tokenizer
from experiments.household_rounds import play_games
from jaxagent.models.llm.cache import KVCache
from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.words import SubwordTokenizer
from jaxagent.planning import household_player
from jaxagent.planning.household_player import HouseholdPlayer, PlannerModel
from jaxagent.planning.reply_grammar import reply_grammar
from tests.models.llm.files import small_tokenizer
from tests.planning.small_planner import logits_after, small_planner

TURNS = 3


@pytest.fixture(scope="module")
def games():
    return [made.game for made in generate_games(6, 5)]


def greedy_reply(model, history, commands):
    """One reply, token by token, each from the whole history; constrained if commands are given."""
    grammar = reply_grammar(model.style, model.tokenizer)
    encoded = [model.tokenizer.encode(model.style.command(command)) for command in commands or ()]
    state, said, command = grammar.start, [], []
    while state != grammar.end and len(said) < grammar.max_tokens:
        logits = np.array(logits_after(model, history + said))
        if commands is not None:
            begun = [c[len(command)] for c in encoded if c[: len(command)] == command]
            allowed = np.zeros(len(logits), bool)
            allowed[begun if grammar.is_command[state] else grammar.permitted[state]] = True
            logits[~allowed] = -np.inf
        token = int(np.argmax(logits))
        said.append(token)
        if grammar.is_command[state]:
            command.append(token)
        state = grammar.following[state, token]
    return said


@pytest.mark.parametrize(
    ("name", "is_constrained"),
    [("compact-hierarchical", False), ("compact-hierarchical", True), ("plain", True)],
)
def test_each_turn_is_that_of_the_whole_history(name, is_constrained, games, monkeypatch):
    monkeypatch.setattr(household_player, "_FEWEST_ROWS", 1)
    model = small_planner(name, games, seed=3, max_positions=512)
    games = sorted(games, key=lambda game: len(game.receptacles.names))[:3]
    player = HouseholdPlayer(model, is_constrained=is_constrained)
    encode, style = model.tokenizer.encode, model.style
    env = BatchEnv(len(games))
    observations, info = env.reset(games)
    player.begin(observations)
    notes = [style.notes(text) for text in observations]
    histories = [
        encode(style.opening(text)) + encode(own.marker()) for text, own in zip(observations, notes)
    ]
    for turn in range(TURNS):
        # Some end early, so that rows are given up.
        admissible = [c if turn < 1 or n < 1 else [] for n, c in enumerate(info.admissible)]
        replies = player.act(observations, admissible)
        for number, commands in enumerate(admissible):
            if not commands:
                assert replies[number] == Reply("")
                continue
            said = greedy_reply(model, histories[number], commands if is_constrained else None)
            expected = style.read(model.tokenizer.decode(said))
            assert replies[number] == expected
            if is_constrained:
                assert replies[number].command in commands
            histories[number] += said
        step = env.step([reply.command for reply in replies])
        observations, info = step.observations, step.info
        for number in range(len(games)):
            if admissible[number]:
                notes[number].read(observations[number])
                text = style.observation(observations[number])
                histories[number] += encode(text) + encode(notes[number].marker())
    assert max(map(len, histories)) < 512


def test_put_of_the_older_wording_is_given_back_as_the_game_words_it(games):
    model = small_planner("compact")
    player = HouseholdPlayer(model, is_constrained=True)
    player.begin(["Your task is to: look at egg under the desklamp."])
    replies = player.act([""], [["put egg 1 in/on fridge 1"]])
    assert replies == [Reply("put egg 1 in/on fridge 1")]


def test_when_the_context_overflows_the_oldest_turns_go_and_the_task_stays(games):
    model = small_planner("compact", max_positions=96)
    player = HouseholdPlayer(model)
    opening = "Looking around you, you see a desk 1.\n\nYour task is to: put a pen in desk."
    player.begin([opening])
    seen = "On the desk 1, you see a pen 1, a cd 1, a book 1, and a mug 1."
    for _ in range(20):
        player.act([seen], [["look"]])
        game = player._games[0]
        assert len(game.opening) + sum(map(len, game.turns)) <= 96 + 7
    assert player.overflows >= 1
    task = model.tokenizer.encode("task put pen desk sees desk 1")
    assert game.opening[: len(task)] == task
    assert f"overflowed {player.overflows} times" in player.notes()[0]


def test_what_is_dropped_is_read_again_as_if_it_had_never_been():
    model = small_planner("compact", max_positions=96)
    player = HouseholdPlayer(model)
    player.begin(["Looking around you, you see a desk 1.\n\nYour task is to: put a pen in desk."])
    seen = "On the desk 1, you see a pen 1, a cd 1, a book 1, and a mug 1."
    while not player.overflows:
        replies = player.act([seen], [["look"]])
    game = player._games[0]
    history = game.opening + [token for turn in game.turns[:-1] for token in turn]
    said = greedy_reply(model, history, None)
    assert replies == [model.style.read(model.tokenizer.decode(said))]


def test_the_number_of_programs_is_fixed(games):
    model = small_planner("compact", seed=9)
    household_player.play_turn.clear_cache()
    counts = []
    for _ in range(2):
        player = HouseholdPlayer(model)
        env = BatchEnv(len(games))
        observations, info = env.reset(games)
        player.begin(observations)
        for _ in range(30):
            replies = player.act(observations, info.admissible)
            step = env.step([reply.command for reply in replies])
            observations, info = step.observations, step.info
        counts.append(household_player.play_turn._cache_size())
    assert counts[0] == counts[1] <= 4  # few or many new tokens, a small or the full cache


def opening_of(places: int, task: str = "put a pen in desk") -> str:
    room = ", ".join(f"a cabinet {number}" for number in range(places, 0, -1))
    return f"Looking quickly around you, you see {room}.\n\nYour task is to: {task}."


@pytest.mark.parametrize("name", ["compact", "plain"])
def test_an_opening_that_does_not_fit_loses_its_room_and_not_its_task(name, games):
    model = small_planner(name, games, max_positions=120)
    player = HouseholdPlayer(model, is_constrained=True)
    player.begin([opening_of(1199), opening_of(3)])
    for _ in range(12):
        replies = player.act(["Nothing happens."] * 2, [["look"], ["look"]])
        assert replies[0].command == "look"
    assert player.cut == 1
    assert player.overflows >= 1
    assert "of openings 1 were cut short" in player.notes()[-1]
    said = model.tokenizer.decode(player._games[0].opening)
    assert (
        "task put pen desk sees cabinet 31" if name == "compact" else ". \n \n Your task is to"
    ) in said


def test_a_task_that_does_not_fit_is_one_clear_line(games):
    player = HouseholdPlayer(small_planner("compact", max_positions=96))
    player.begin([opening_of(3, "please " * 200)])
    with pytest.raises(ValueError, match=r"task has 20\d tokens .* reply up to 3: .* of 96"):
        player.act([""], [["look"]])
    with pytest.raises(ValueError, match="a context of 20 tokens has no room for a reply"):
        HouseholdPlayer(small_planner("plain", games), slots=20)


@pytest.mark.parametrize("slots", [30, 80])
def test_no_bucket_is_larger_than_the_context(slots):
    player = HouseholdPlayer(small_planner("compact", max_positions=512), slots=slots)
    player.begin([opening_of(min(slots // 2, 60))])
    for _ in range(slots // 4):
        player.act(["On the desk 1, you see a pen 1, and a mug 1."], [["look"]])
    assert player.overflows
    assert not player.cut


LONG = "take the red mug 1 and the blue mug 2 and the green mug 3 from the old desk 1 by the door"


@pytest.mark.parametrize("name", ["compact", "compact-hierarchical", "plain"])
def test_admissible_commands_of_any_length_can_be_chosen(name, games):
    for seed in range(3):
        model = small_planner(name, games, seed=seed)
        player = HouseholdPlayer(model, is_constrained=True)
        player.begin([opening_of(3)])
        for _ in range(2):
            assert player.act([""], [[f"{LONG} {LONG}"]])[0].command == f"{LONG} {LONG}"
        # Only what is said in full counts, not what begins like it.
        assert player.act([""], [[f"{LONG} 1", f"{LONG} 2"]])[0].command[:-2] == LONG


def test_of_long_commands_the_one_that_was_said_is_chosen(games):
    """With a free choice between two that differ in their last word, the likelier one wins."""
    for seed in range(4):
        model = small_planner("compact", games, seed=seed)
        commands = ["go to the desk 1 mug 1", "go to the desk 1 mug 2"]
        ids = [model.tokenizer.encode(command) for command in commands]
        player = HouseholdPlayer(model, is_constrained=True)
        player.begin([opening_of(3)])
        history = player._games[0].opening + ids[0][:-1]
        logits = np.array(logits_after(model, history))
        likelier = commands[int(logits[ids[1][-1]] > logits[ids[0][-1]])]
        assert player.act([""], [commands])[0].command == likelier


def test_free_replies_are_as_long_as_the_longest_command_may_be(games):
    player = HouseholdPlayer(small_planner("plain", games))
    player.begin([opening_of(3)])
    player.act([""], [[LONG]])
    usual = player._reply_tokens
    player.act([""], [[f"{LONG} {LONG}"]])
    assert usual == player.grammar.max_tokens < len(player._encoded(f"{LONG} {LONG}"))
    assert player._reply_tokens >= len(player._encoded(f"{LONG} {LONG}"))


@pytest.mark.parametrize("places", [117, 300])
def test_a_long_context_is_paid_for_only_as_far_as_it_is_filled(places, games, monkeypatch):
    """A model of 8,192 positions reads what is new in pieces, into a cache of what there is."""
    seen = []
    for name, place in (("read_piece", 2), ("play_turn", 6)):
        plain = getattr(household_player, name)

        def watched(*given, plain=plain, place=place):
            seen.append((given[place + 1].shape[1], given[place].slots))
            return plain(*given)

        monkeypatch.setattr(household_player, name, watched)
    model = small_planner("compact", max_positions=8192)
    player = HouseholdPlayer(model)
    player.begin([opening_of(3), opening_of(places)])
    history = player._games[1].opening
    replies = player.act([""] * 2, [["look"], ["look"]])
    assert replies[1] == model.style.read(
        model.tokenizer.decode(greedy_reply(model, history, None))
    )
    widths, slots = zip(*seen)
    assert len(history) > 96 >= max(widths)
    assert max(slots) < 2 * max(len(history) + 3, 256)


SMOLLM2 = LlamaConfig(
    vocab_size=49152, hidden_size=576, intermediate_size=1536, num_layers=30, num_heads=9,
    num_kv_heads=3, head_dim=64, max_positions=8192, dtype="bfloat16",
)  # fmt: skip
QWEN = LlamaConfig(
    vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_layers=28, num_heads=12,
    num_kv_heads=2, head_dim=128, max_positions=32768, dtype="bfloat16",
)  # fmt: skip


@pytest.mark.parametrize(("config", "slots"), [(SMOLLM2, 2048), (SMOLLM2, 8192), (QWEN, 2048),
                                               (QWEN, 32768)])  # fmt: skip
def test_large_models_play_within_the_stated_memory(config, slots, games):
    tokenizer = plain_tokenizer(games)
    player = HouseholdPlayer(PlannerModel(config, {}, tokenizer, FORMATS["plain"]), slots=slots)
    layers, heads = config.num_layers, config.num_kv_heads
    row = 2 * layers * slots * heads * config.head_dim * 2  # keys and values, two bytes each
    assert player.most_games * row <= household_player.CACHE_BYTES < (player.most_games + 1) * row
    cache = jax.eval_shape(lambda: KVCache.create(config, player.most_games, slots))
    assert cache.keys.size * 2 + cache.values.size * 2 <= household_player.CACHE_BYTES


def test_games_are_played_in_batches_whose_caches_fit(games, monkeypatch):
    begun, begin = [], HouseholdPlayer.begin

    def watched(self, openings):
        begun.append(len(openings))
        begin(self, openings)

    monkeypatch.setattr(HouseholdPlayer, "begin", watched)
    model = small_planner("compact", seed=4)
    row = 2 * model.config.num_layers * 512 * 2 * 8 * 4
    whole = play_games(HouseholdPlayer(model), games[:5], horizon=4)
    parts = play_games(HouseholdPlayer(model, cache_bytes=2 * row), games[:5], horizon=4)
    assert begun == [5, 2, 2, 1]
    assert parts == whole
    play_games(HouseholdPlayer(model, cache_bytes=1), games[:2], horizon=1)
    assert begun[4:] == [1, 1]  # one game is played in any case


def test_the_end_of_a_turn_ends_a_reply():
    tokenizer = SubwordTokenizer(small_tokenizer(), 300, end_tokens=(7, 9))
    for style in ("plain", "plain-hierarchical"):
        grammar = reply_grammar(FORMATS[style], tokenizer)
        assert (grammar.following[:, [7, 9]] == grammar.end).all()
        assert grammar.following[grammar.start, 8] == grammar.start
    ids = tokenizer.encode("look")
    assert tokenizer.decode([*ids, 7]) == tokenizer.decode(ids) == "look"


def replies(model, games, turns=2, **sampling):
    """What a planner says in the first turns of some games, constrained."""
    player = HouseholdPlayer(model, is_constrained=True, **sampling)
    env = BatchEnv(len(games))
    observations, info = env.reset(games)
    player.begin(observations)
    said = []
    for _ in range(turns):
        chosen = player.act(observations, info.admissible)
        assert all(r.command in c for r, c in zip(chosen, info.admissible))
        said += [reply.command for reply in chosen]
        taken = env.step(said[-len(games) :])
        observations, info = taken.observations, taken.info
    return said


def test_sampled_replies_are_admissible_and_depend_on_the_key_alone(games):
    model = small_planner("compact", games, seed=3, max_positions=512)
    greedy = replies(model, games)
    key, other = jax.random.key(0), jax.random.key(1)
    warm = replies(model, games, temperature=1.0, key=key)
    assert replies(model, games, temperature=1.0, key=key) == warm
    assert replies(model, games, temperature=1.0, key=other) != warm
    assert replies(model, games, temperature=1e-6, key=key) == greedy


def test_commands_are_sampled_as_often_as_the_model_says(games):
    """One game many times: frequencies of the first word against the renormalized softmax."""
    model = small_planner("compact", games, seed=3, max_positions=512)
    copies = [games[0]] * 512
    env = BatchEnv(1)
    observations, info = env.reset(games[:1])
    commands = info.admissible[0]
    encode, style = model.tokenizer.encode, model.style
    opening = encode(style.opening(observations[0])) + encode(style.notes(observations[0]).marker())
    logits = np.array(logits_after(model, opening))
    first = sorted({encode(style.command(command))[0] for command in commands})
    expected = np.exp(logits[first] / 2.0 - (logits[first] / 2.0).max())
    expected /= expected.sum()
    said = replies(model, copies, 1, temperature=2.0, key=jax.random.key(0))
    words = [encode(style.command(command))[0] for command in said]
    found = np.array([words.count(token) for token in first]) / len(words)
    # Five standard errors of a share from 512 draws.
    assert (np.abs(found - expected) < 5 * np.sqrt(expected * (1 - expected) / 512) + 1e-3).all()
    assert (found > 0).sum() > 1


@pytest.mark.parametrize("temperature", [-1.0, float("inf"), float("nan"), 1.0])
def test_a_temperature_that_cannot_be_is_refused(games, temperature):
    model = small_planner("compact", games, seed=3, max_positions=512)
    with pytest.raises(ValueError, match=r"temperature \(.*\) must be at least 0 and finite"):
        HouseholdPlayer(model, temperature=temperature)


def log_softmax(logits):
    shifted = np.asarray(logits, np.float64) - np.max(logits)
    return shifted - np.log(np.sum(np.exp(shifted)))


@pytest.mark.parametrize("name", ["compact", "compact-hierarchical"])
def test_log_probabilities_are_those_of_the_whole_history(name, games):
    """Of the model, of what is permitted, and of the behaviour, token by token, no cache."""
    model, temperature = small_planner(name, games, seed=3, max_positions=512), 1.7
    games = sorted(games, key=lambda game: len(game.receptacles.names))[:2]
    player = HouseholdPlayer(
        model, is_constrained=True, temperature=temperature, key=jax.random.key(4)
    )
    grammar, encode, style = player.grammar, model.tokenizer.encode, model.style
    env = BatchEnv(len(games))
    observations, info = env.reset(games)
    player.begin(observations)
    notes = [style.notes(text) for text in observations]
    histories = [
        encode(style.opening(text)) + encode(own.marker()) for text, own in zip(observations, notes)
    ]
    for turn in range(2):
        commands = [reply.command for reply in player.act(observations, info.admissible)]
        for number, history in enumerate(histories):
            reply = player.sampled[number][turn]
            encoded = [encode(style.command(c)) for c in info.admissible[number]]
            state, command = grammar.start, []
            for place, token in enumerate(reply.ids):
                logits = np.array(logits_after(model, history + reply.ids[:place]))
                begun = [c[len(command)] for c in encoded if c[: len(command)] == command]
                allowed = np.zeros(len(logits), bool)
                allowed[begun if grammar.is_command[state] else grammar.permitted[state]] = True
                permitted = np.where(allowed, logits, -np.inf)
                for found, expected in (
                    (reply.log_prob, logits),
                    (reply.permitted_log_prob, permitted),
                    (reply.behaviour_log_prob, permitted / temperature),
                ):
                    assert abs(found[place] - log_softmax(expected)[token]) < 1e-3
                command += [token] if grammar.is_command[state] else []
                state = grammar.following[state, token]
        taken = env.step(commands)
        observations, info = taken.observations, taken.info
        for number, text in enumerate(observations):
            notes[number].read(text)
            histories[number] += player.sampled[number][turn].ids + encode(style.observation(text))
            histories[number] += encode(notes[number].marker())
