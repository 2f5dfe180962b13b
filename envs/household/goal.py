"""Goal formulas, compiled once per game into a search that tests each literal as early as it can.

A household goal is a conjunction under existential quantifiers.  The compiled form binds one
variable after the other and checks every conjunct at the first depth at which all its variables
are bound; conjuncts about one variable that never change (its type, whether it can be cleaned)
are used up at compile time, to shorten the list of candidates.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from envs.household.pddl import SIGNATURES, Expression, GameFileError
from envs.household.state import State

_DYNAMIC: dict[str, Callable[[State, Sequence[int]], bool]] = {
    "atlocation": lambda s, x: s.location == x[1],
    "holds": lambda s, x: s.held == x[1],
    "opened": lambda s, x: bool(s.opened >> x[0] & 1),
    "inreceptacle": lambda s, x: x[0] in s.contents[x[1]],
    "objectatlocation": lambda s, x: x[1] in s.places[x[0]],
    "istoggled": lambda s, x: bool(s.toggled >> x[0] & 1),
    "isclean": lambda s, x: bool(s.clean >> x[0] & 1),
    "ishot": lambda s, x: bool(s.hot >> x[0] & 1),
    "iscool": lambda s, x: bool(s.cool >> x[0] & 1),
    "issliced": lambda s, x: bool(s.sliced >> x[0] & 1),
}


class Vocabulary(NamedTuple):
    """The game's side of the bargain: entities by type, and the facts that never change."""

    entities: dict[str, list[str]]
    static: dict[str, set[tuple[str, ...]]]

    def index(self, name: str) -> int:
        """Position of an entity among those of its type."""
        return next(names.index(name) for names in self.entities.values() if name in names)


class _Literal(NamedTuple):
    predicate: str
    slots: tuple[int, ...]
    positive: bool

    def holds(self, state: State, binding: list[int]) -> bool:
        test = _DYNAMIC[self.predicate]
        return test(state, [binding[slot] for slot in self.slots]) == self.positive


class _Fixed(NamedTuple):
    """A literal over facts that never change: true exactly for the listed index tuples."""

    truths: frozenset[tuple[int, ...]]
    slots: tuple[int, ...]
    positive: bool

    def holds(self, state: State, binding: list[int]) -> bool:
        return (tuple([binding[slot] for slot in self.slots]) in self.truths) == self.positive


class _Equal(NamedTuple):
    slots: tuple[int, int]
    positive: bool

    def holds(self, state: State, binding: list[int]) -> bool:
        return (binding[self.slots[0]] == binding[self.slots[1]]) == self.positive


class _AnyOf(NamedTuple):
    """``or``; with ``positive`` false, its negation."""

    parts: tuple["_Node", ...]
    positive: bool

    def holds(self, state: State, binding: list[int]) -> bool:
        return any(part.holds(state, binding) for part in self.parts) == self.positive


class _Search(NamedTuple):
    """``exists`` over a conjunction; with ``positive`` false, its negation."""

    before: tuple["_Node", ...]
    levels: tuple[tuple[int, tuple[int, ...], tuple["_Node", ...]], ...]
    positive: bool

    def holds(self, state: State, binding: list[int]) -> bool:
        for node in self.before:
            if not node.holds(state, binding):
                return not self.positive
        return self._search(state, binding, 0) == self.positive

    def _search(self, state: State, binding: list[int], depth: int) -> bool:
        if depth == len(self.levels):
            return True
        slot, candidates, checks = self.levels[depth]
        for candidate in candidates:
            binding[slot] = candidate
            for check in checks:
                if not check.holds(state, binding):
                    break
            else:
                if self._search(state, binding, depth + 1):
                    return True
        return False


_Node = _Literal | _Fixed | _Equal | _AnyOf | _Search


class Goal(NamedTuple):
    """A compiled goal: ``satisfied(state)``, and the changing predicates it reads."""

    root: _Node
    num_slots: int
    reads: frozenset[str]

    def satisfied(self, state: State) -> bool:
        """Whether the goal holds in ``state`` (now, not at some earlier time)."""
        return self.root.holds(state, [0] * self.num_slots)


def compile_goal(formula: Expression, vocabulary: Vocabulary) -> Goal:
    """Compiles a goal formula made of and, or, not, exists, forall, = and domain predicates.

    Args:
        formula: nested lists as the reader returns them.
        vocabulary: entities by type in index order, and the game's unchanging facts.

    Returns:
        The compiled goal; it keeps no reference to ``vocabulary``.

    Raises:
        GameFileError: an unknown predicate, an unbound variable, or a malformed formula.
    """
    compiler = _Compiler(vocabulary)
    root = compiler.conjunction([], [formula], {}, True)
    return Goal(root, compiler.num_slots, frozenset(compiler.reads))


class _Compiler:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.num_slots = 0
        self.reads: set[str] = set()

    def formula(
        self, formula: Expression, scope: dict[str, tuple[int, str]], positive: bool
    ) -> _Node:
        if not isinstance(formula, list) or not formula or not isinstance(formula[0], str):
            raise GameFileError(f"malformed goal: {_show(formula)}")
        head, *rest = formula
        if head == "not" and len(rest) == 1:
            return self.formula(rest[0], scope, not positive)
        if head == "and":
            return self.conjunction([], rest, scope, positive)
        if head == "or":
            return _AnyOf(tuple(self.formula(part, scope, True) for part in rest), positive)
        if head == "exists" and len(rest) == 2:
            return self.conjunction(_typed_variables(rest[0]), [rest[1]], scope, positive)
        if head == "forall" and len(rest) == 2:
            # for all x: F  is  not exists x: not F
            variables = _typed_variables(rest[0])
            return self.conjunction(variables, [["not", rest[1]]], scope, not positive)
        return self.literal(str(head), rest, scope, positive)

    def conjunction(
        self,
        variables: list[tuple[str, str]],
        parts: list[Expression],
        scope: dict[str, tuple[int, str]],
        positive: bool,
    ) -> _Search:
        variables, parts = _hoist(variables, list(_flatten(parts)), scope)
        scope = dict(scope)
        first_new = self.num_slots
        for name, kind in variables:
            scope[name] = (self.num_slots, kind)
            self.num_slots += 1
        before: list[_Node] = []
        checks: dict[int, list[_Node]] = {scope[name][0]: [] for name, _ in variables}
        for part in parts:
            node = self.formula(part, scope, True)
            needed = [scope[word][0] for word in _words(part) if word in scope]
            deepest = max(needed, default=-1)
            (checks[deepest] if deepest >= first_new else before).append(node)
        levels = [
            self._level(scope[name][0], kind, checks[scope[name][0]]) for name, kind in variables
        ]
        return _Search(tuple(before), tuple(levels), positive)

    def _level(
        self, slot: int, kind: str, checks: list[_Node]
    ) -> tuple[int, tuple[int, ...], tuple[_Node, ...]]:
        if kind not in self.vocabulary.entities:
            raise GameFileError(f"the goal quantifies over unknown type {kind!r}")
        candidates = range(len(self.vocabulary.entities[kind]))
        fixed = [c for c in checks if isinstance(c, _Fixed) and c.slots == (slot,)]
        kept = [i for i in candidates if all(((i,) in f.truths) == f.positive for f in fixed)]
        return slot, tuple(kept), tuple(c for c in checks if c not in fixed)

    def literal(
        self,
        predicate: str,
        arguments: list[Expression],
        scope: dict[str, tuple[int, str]],
        positive: bool,
    ) -> _Node:
        if not all(isinstance(argument, str) for argument in arguments):
            raise GameFileError(f"malformed goal: {_show([predicate, *arguments])}")
        names = [str(argument) for argument in arguments]
        for name in names:
            if name.startswith("?") and name not in scope:
                raise GameFileError(f"the goal uses {name} without quantifying it")
        if predicate == "=" and len(names) == 2:
            if not all(name in scope for name in names):
                raise GameFileError(f"the goal compares a constant: {_show(['=', *names])}")
            return _Equal((scope[names[0]][0], scope[names[1]][0]), positive)
        signature = SIGNATURES.get(predicate)
        if signature is None or len(signature) != len(names):
            raise GameFileError(
                f"the goal uses {_show([predicate, *names])}, which is no predicate of the "
                "household domain that a game can change or test"
            )
        self._check_types(predicate, names, signature, scope)
        if predicate in _DYNAMIC:
            return self._dynamic(predicate, names, scope, positive)
        return self._fixed(predicate, names, signature, scope, positive)

    def _check_types(
        self,
        predicate: str,
        names: list[str],
        signature: tuple[str, ...],
        scope: dict[str, tuple[int, str]],
    ) -> None:
        for name, expected in zip(names, signature):
            if name in scope:
                known = scope[name][1] == expected
            else:
                known = name in self.vocabulary.entities.get(expected, ())
            if not known:
                raise GameFileError(
                    f"the goal gives {predicate} {name!r}, which is no {expected} of this game"
                )

    def _dynamic(
        self, predicate: str, names: list[str], scope: dict[str, tuple[int, str]], positive: bool
    ) -> _Node:
        self.reads.add(predicate)
        variables = [name if name in scope else self._constant(name, scope) for name in names]
        node = _Literal(predicate, tuple(scope[v][0] for v in variables), positive)
        constants = [(scope[v][0], v) for v in variables if v.startswith("=")]
        if not constants:
            return node
        # A constant is a variable with one candidate.
        levels = tuple((slot, (self.vocabulary.index(v[1:]),), ()) for slot, v in constants)
        return _Search((), (*levels[:-1], (*levels[-1][:2], (node,))), True)

    def _constant(self, name: str, scope: dict[str, tuple[int, str]]) -> str:
        alias = f"={name}"
        scope[alias] = (self.num_slots, "")
        self.num_slots += 1
        return alias

    def _fixed(
        self,
        predicate: str,
        names: list[str],
        signature: tuple[str, ...],
        scope: dict[str, tuple[int, str]],
        positive: bool,
    ) -> _Fixed:
        bound = [i for i, name in enumerate(names) if name in scope]
        index = {kind: {n: i for i, n in enumerate(self.vocabulary.entities[kind])}
                 for kind in {signature[i] for i in bound}}  # fmt: skip
        truths = [
            tuple(index[signature[i]][fact[i]] for i in bound)
            for fact in self.vocabulary.static.get(predicate, ())
            if all(name in scope or name == value for name, value in zip(names, fact))
        ]
        return _Fixed(frozenset(truths), tuple(scope[names[i]][0] for i in bound), positive)


def _flatten(parts: list[Expression]):
    for part in parts:
        if isinstance(part, list) and part and part[0] == "and":
            yield from _flatten(part[1:])
        else:
            yield part


def _hoist(
    variables: list[tuple[str, str]],
    parts: list[Expression],
    scope: dict[str, tuple[int, str]],
) -> tuple[list[tuple[str, str]], list[Expression]]:
    """∃x (P ∧ ∃y Q) as ∃x,y (P ∧ Q), so that P and Q prune one search; not on name clashes."""
    taken = {*scope, *(name for name, _ in variables)}
    variables, kept = list(variables), []
    while parts:
        part = parts.pop(0)
        if isinstance(part, list) and len(part) == 3 and part[0] == "exists":
            inner = _typed_variables(part[1])
            if not taken.intersection(name for name, _ in inner):
                taken.update(name for name, _ in inner)
                variables += inner
                parts = [*_flatten([part[2]]), *parts]
                continue
        kept.append(part)
    return variables, kept


def _words(expression: Expression):
    if isinstance(expression, str):
        yield expression
    else:
        for part in expression:
            yield from _words(part)


def _show(expression: Expression) -> str:
    if isinstance(expression, str):
        return expression
    return "(" + " ".join(_show(part) for part in expression) + ")"


def _typed_variables(declaration: Expression) -> list[tuple[str, str]]:
    words = list(declaration) if isinstance(declaration, list) else []
    variables: list[tuple[str, str]] = []
    waiting: list[str] = []
    while words:
        word = words.pop(0)
        if not isinstance(word, str):
            raise GameFileError(f"malformed quantifier in the goal: {_show(declaration)}")
        if word == "-" and words and isinstance(words[0], str):
            kind = words.pop(0)
            variables += [(name, str(kind)) for name in waiting]
            waiting = []
        else:
            waiting.append(word)
    if waiting or not variables:
        raise GameFileError(f"a quantifier in the goal has no type: {_show(declaration)}")
    return variables
