"""Which rule texts the engine accepts, and what it takes from them."""

import re

import pytest

from envs.household.display_names import display_names
from envs.household.grammar import domain_actions
from envs.household.pddl import GameFileError
from envs.household.wording import WORDINGS, grammar_for_task, own_rules, recognise

DOMAIN, GRAMMAR = own_rules()


def test_own_rules_speak_version_04():
    assert recognise(DOMAIN, grammar_for_task(GRAMMAR, "put a cup in sink")) == (
        WORDINGS["0.4"],
        "put a cup in sink",
    )


def test_layout_comments_and_costs_do_not_matter():
    domain = "; copied\n" + re.sub(r"\s+", "\n   ", DOMAIN.partition("\n(define")[2])
    domain = "(define" + domain.replace("(increase (total-cost) 1)", "", 3).partition("copied")[2]
    grammar = GRAMMAR.replace(",\n", " ,\n\n   ") + "\n\n"
    assert recognise(domain, grammar)[0] == WORDINGS["0.4"]


def test_wordings_of_version_03_are_taken_from_the_file():
    old = (
        GRAMMAR.replace("move {o} to {r}", "put {o} in/on {r}")
        .replace("You move the {o.name} to the", "You put the {o.name} in/on the")
        .replace("You arrive at {r.name}", "You arrive at {lend.name}")
    )
    help_action = DOMAIN[DOMAIN.index("(:action help") : DOMAIN.index("(:action examineRec")]
    assert recognise(DOMAIN.replace(help_action, ""), old)[0] == WORDINGS["0.3"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("You pick up the", "You take the"),
        ('"rhs": ", and "', '"rhs": " and "'),
        ("take {o} from {r}", "grab {o} from {r}"),
        ("isclean(o:object) & ishot", "ishot"),
        ("This is a cold", "This is a cool"),
    ],
)
def test_any_other_sentence_is_refused(before, after):
    assert before in GRAMMAR
    with pytest.raises(GameFileError, match="grammar is none that the engine knows"):
        recognise(DOMAIN, GRAMMAR.replace(before, after, 1))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(holdsAny ?a) (increase", "(increase"),
        ("SinkBasinType", "BathtubBasinType"),
        ("(not (isHot ?o))", ""),
        ("(:action SliceObject", "(:action ChopObject"),
    ],
)
def test_any_other_rule_is_refused(before, after):
    assert before in DOMAIN
    with pytest.raises(GameFileError, match="pddl_domain is none that the engine knows"):
        recognise(DOMAIN.replace(before, after), GRAMMAR)


def test_an_action_ends_where_its_parenthesis_closes():
    domain = """(define (domain small) (:predicates (wet ?o))
        (:action soak :effect (and (wet ?o) (increase (total-cost) 1)))
        (:constants towel - object)
        (:action dry :effect (not (wet ?o))) (:functions (total-cost)))"""
    assert domain_actions(domain) == {
        "soak": ":effect ( and ( wet ?o ) )",
        "dry": ":effect ( not ( wet ?o ) )",
    }


def test_names_are_numbered_downwards_in_the_order_of_spelling():
    names = display_names(
        ["apple_bar__plus_01", "apple_bar__minus_01", "sink_bar_1_bar_sinkbasin", "sink_bar_1",
         "agent1", "loc_bar_4", "apple_bar__minus_01"]
    )  # fmt: skip
    assert names == {
        "agent1": "agent1 ",
        "apple_bar__minus_01": "apple 2",
        "apple_bar__plus_01": "apple 1",
        "loc_bar_4": "loc 1",
        "sink_bar_1": "sink 1",
        "sink_bar_1_bar_sinkbasin": "sinkbasin 1",
    }
