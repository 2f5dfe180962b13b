"""Demonstrations as tokens: what is asked where, worked out by hand."""

from envs.household.format import FORMATS
from experiments.alfworld_data import entity_tokenizer
from jaxagent.training.written import EpisodeWriter, LabelledTurn

OPENING = "You see a desk 1, and a bed 1.\n\nYour task is to: put a pen in bed."


def asked(name: str, turns):
    """(the text up to a token that is asked for, that token)."""
    tokenizer = entity_tokenizer()
    episode = EpisodeWriter(FORMATS[name], tokenizer).write(OPENING, turns)
    before = [
        (tokenizer.decode(episode.tokens[: place + 1]), tokenizer.decode([token]))
        for place, token in enumerate(episode.target)
        if token >= 0
    ]
    return tokenizer.decode(episode.tokens), before


BEGIN = "task put pen bed sees desk 1 bed 1"
ASK = "> bed pen left desk 1 bed 1"
START = f"{BEGIN} {ASK}"


def test_what_was_done_right_is_asked_in_full():
    turns = [
        LabelledTurn("go to desk 1", "go to desk 1", "find pen", "On the desk 1, you see nothing.")
    ]
    text, targets = asked("compact", turns)
    assert text == f"{START} go desk 1 sees"
    assert targets == [(START, "go"), (f"{START} go", "desk 1")]


def test_a_mistake_is_asked_up_to_its_first_wrong_token():
    turns = [
        LabelledTurn("go to bed 1", "go to desk 1", "", "On the bed 1, you see a mug 1."),
        LabelledTurn("look", "take pen 1 from bed 1", "", "Nothing happens."),
    ]
    text, targets = asked("compact", turns)
    first = f"{START} go bed 1 sees mug 1 > bed pen left desk 1"
    assert text == f"{first} look nothing"
    # After "go" the right place is asked; after "look" nothing, since no right reply begins so.
    assert targets == [(START, "go"), (f"{START} go", "desk 1"), (first, "take")]


def test_sub_goals_are_switched_where_they_change():
    turns = [
        LabelledTurn("go to desk 1", "go to desk 1", "find pen", "Nothing happens."),
        LabelledTurn("look", "look", "find pen", "Nothing happens."),
        LabelledTurn("look", "look", "take pen 1", "Nothing happens."),
    ]
    text, targets = asked("compact-hierarchical", turns)
    first = f"{START} switch find pen go desk 1 nothing {ASK} keep look nothing"
    assert text == f"{first} {ASK} switch take pen 1 look nothing"
    assert [token for _, token in targets] == (
        ["switch", "find", "pen", "go", "desk 1", "keep", "look", "switch", "take", "pen 1", "look"]
    )


def test_writing_twice_gives_the_same():
    turns = [LabelledTurn("look", "look", "", "Nothing happens.")]
    assert asked("compact", turns) == asked("compact", turns)
