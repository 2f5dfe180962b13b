"""Log-probabilities of given text: many candidates of one prompt, and whole sequences.

Candidates are read as one tree. Beginnings that several have in common are read once, each token
sees the prompt and its own ancestors, and the prompt's cache is shared by all, never copied.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxagent.models.llm.cache import KVCache
from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.constrain import bucket
from jaxagent.models.llm.generate_read import read
from jaxagent.models.llm.generate_steps import vocabulary_logits
from jaxagent.models.llm.generate_weights import Variables, Weights
from jaxagent.models.llm.llama import Llama, LlamaOutput, require_ids

# Rows of the vocabulary's logits that are held at once.
_LOGIT_ROWS = 32


class CandidateScores(NamedTuple):
    """How probable each of a set of candidates is.

    Attributes:
        log_prob: Σ of its tokens' log-probabilities under the model, given the prompt; the
            end token is not counted.
        permitted_log_prob: its log-probability under decoding that is constrained to the set, at
            temperature 1; these probabilities sum to one over distinct candidates (one that is
            there twice has the same in both places).
        token_log_probs: of each token of each candidate, under the model.
    """

    log_prob: np.ndarray
    permitted_log_prob: np.ndarray
    token_log_probs: list[np.ndarray]


class CandidateTree(NamedTuple):
    """Candidates that share beginnings, as nodes in the order in which they were first met.

    Attributes:
        tokens: of each node.
        parents: of each node; −1 is the prompt, and every parent comes before its children.
        depths: of each node, 0 right after the prompt.
        paths: the nodes of each candidate.
    """

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    paths: list[list[int]]


def candidate_tree(candidates: Sequence[Sequence[int]]) -> CandidateTree:
    """Lay candidates out as a tree.

    Args:
        candidates: token ids of each.

    Raises:
        ValueError: there are none, or one is empty.
    """
    if not len(candidates):
        raise ValueError("candidates must hold at least one candidate, found none")
    tree, place = CandidateTree([], [], [], []), {}
    for number, candidate in enumerate(candidates):
        if not len(candidate):
            raise ValueError(f"candidates[{number}] must not be empty")
        node, path = -1, []
        for depth, token in enumerate(candidate):
            if (node, token) not in place:
                place[node, token] = len(tree.tokens)
                tree.tokens.append(token)
                tree.parents.append(node)
                tree.depths.append(depth)
            node = place[node, token]
            path.append(node)
        tree.paths.append(path)
    return tree


def visible_slots(tree: CandidateTree, prompt_length: int, slots: int) -> np.ndarray:
    """[nodes, slots]: each node sees the prompt, its ancestors and itself."""
    visible = np.zeros((len(tree.tokens), slots), bool)
    for node, parent in enumerate(tree.parents):
        if parent < 0:
            visible[node, :prompt_length] = True
        else:
            visible[node] = visible[parent]
        visible[node, prompt_length + node] = True
    return visible


def read_nodes(
    config: LlamaConfig,
    weights: Weights,
    cache: KVCache,
    tokens: np.ndarray,
    positions: np.ndarray,
    visible: np.ndarray,
    count: int,
) -> tuple[KVCache, Float[Array, "L D"]]:
    """Read a piece of a tree behind a prompt.

    Args:
        config: of the model.
        weights: of the model.
        cache: of one row: the prompt and the pieces before; donated.
        tokens: [1, L], of the nodes, right-padded.
        positions: [1, L], of each, counted along its own branch.
        visible: [1, L, slots], which slots each attends to.
        count: live nodes.

    Returns:
        The cache with the nodes in it, and their features.
    """
    segment_ids = (np.arange(tokens.shape[1])[None, :] < count).astype(np.int32)
    options = {"positions": positions, "segment_ids": segment_ids, "visible": visible}
    cache, hidden = read(config, weights, cache, tokens, **options)
    return cache, hidden[0]


@functools.partial(jax.jit, static_argnames="config")
def edge_log_probs(
    config: LlamaConfig,
    variables: Variables,
    hidden: Float[Array, "P D"],
    children: Int[Array, "P C"],
) -> Float[Array, "P C"]:
    """log p of each child token after its parent; the vocabulary is held for a few rows at once.

    Args:
        config: of the model.
        variables: of the model.
        hidden: features of the parents; P is a multiple of 32, or below.
        children: token ids, anything where there are fewer.
    """

    def rows(block: tuple[Array, Array]) -> Array:
        logits = vocabulary_logits(config, variables, block[0])
        chosen = jnp.take_along_axis(logits, block[1], axis=-1)
        return chosen - jax.nn.logsumexp(logits, axis=-1, keepdims=True)

    size = min(_LOGIT_ROWS, hidden.shape[0])
    blocks = tuple(x.reshape(-1, size, x.shape[-1]) for x in (hidden, children))
    return jax.lax.map(rows, blocks).reshape(children.shape)


class Edges(NamedTuple):
    """What may follow each node that something follows; node −1, the prompt, comes first.

    Attributes:
        parents: nodes.
        children: for each parent, (child node, or −1 for the end token; token id).
    """

    parents: list[int]
    children: list[list[tuple[int, int]]]


def tree_edges(tree: CandidateTree, end_token: int) -> Edges:
    """The choices of constrained decoding: where a candidate is complete and others go on, the
    end token is one of them."""
    following: dict[int, list[tuple[int, int]]] = {-1: []}
    for node, parent in enumerate(tree.parents):
        following.setdefault(parent, []).append((node, tree.tokens[node]))
    for end in {path[-1] for path in tree.paths}:
        if end in following:
            following[end].append((-1, end_token))
    return Edges(list(following), list(following.values()))


def combine(tree: CandidateTree, edges: Edges, log_probs: np.ndarray) -> CandidateScores:
    """Scores of the candidates from those of the edges.

    Args:
        tree: of the candidates.
        edges: its choices.
        log_probs: [parents, children] under the model; what lies past a parent's children is not
            looked at.
    """
    node_log_prob = np.zeros(len(tree.tokens))
    permitted = np.zeros(len(tree.tokens))
    ending: dict[int, float] = {}
    for row, (parent, children) in enumerate(zip(*edges, strict=True)):
        values = log_probs[row, : len(children)].astype(np.float64)
        total = np.logaddexp.reduce(values)
        for (node, _), value in zip(children, values, strict=True):
            if node < 0:
                ending[parent] = value - total
            else:
                node_log_prob[node], permitted[node] = value, value - total
    ends = np.array([ending.get(path[-1], 0.0) for path in tree.paths])
    return CandidateScores(
        log_prob=np.array([node_log_prob[path].sum() for path in tree.paths]),
        permitted_log_prob=np.array([permitted[path].sum() for path in tree.paths]) + ends,
        token_log_probs=[node_log_prob[path] for path in tree.paths],
    )


def padded_edges(
    tree_features: Float[Array, "M D"], last: Float[Array, "1 D"], edges: Edges
) -> tuple[Float[Array, "P D"], np.ndarray]:
    """Features of the parents and tokens of their children, rounded up to a few sizes."""
    rows = bucket(len(edges.parents), smallest=_LOGIT_ROWS)
    width = bucket(max(map(len, edges.children)), smallest=16, factor=4)
    index = np.zeros(rows, np.int32)
    index[: len(edges.parents)] = edges.parents
    children = np.zeros((rows, width), np.int32)
    for row, choices in enumerate(edges.children):
        children[row, : len(choices)] = [token for _, token in choices]
    # Node −1 is the last row: the prompt's own features.
    return jnp.concatenate([tree_features, last])[index], children


def token_log_probs(
    config: LlamaConfig,
    variables: Variables,
    tokens: Int[Array, "B L"],
    *,
    positions: Int[Array, "B L"] | None = None,
    segment_ids: Int[Array, "B L"] | None = None,
    block: int = 0,
) -> Float[Array, "B L"]:
    """log π(tokenₗ | tokens before it), differentiable; for SFT, DPO and policy gradients.

    Feed it with a mask of completion tokens to `losses.token_clipped_loss` or
    `losses.sequence_log_prob`.

    Args:
        config: of the model.
        variables: of the model.
        tokens: right-padded, or several episodes packed in a row.
        positions: of each token; default 0 … L − 1.
        segment_ids: 0 is padding, tokens of other segments are not seen.
        block: tokens whose logits over the vocabulary are held at once, recomputed in the
            backward pass; must divide B·L. 0 holds all of them.

    Returns:
        [B, L]; 0 at the first token of a segment and on padding, which nothing predicts. No mask
        of completion tokens is applied.

    Raises:
        ValueError: a token is not in the vocabulary (where tokens are arrays, not under jit).
    """
    require_ids(tokens, config.vocab_size)
    return _token_log_probs(config, variables, tokens, positions, segment_ids, block)


@functools.partial(jax.jit, static_argnames=("config", "block"))
def _token_log_probs(
    config: LlamaConfig,
    variables: Variables,
    tokens: Int[Array, "B L"],
    positions: Int[Array, "B L"] | None,
    segment_ids: Int[Array, "B L"] | None,
    block: int,
) -> Float[Array, "B L"]:
    given: dict[str, Any] = {"positions": positions, "segment_ids": segment_ids}
    output = cast(LlamaOutput, Llama(config).apply(variables, tokens, **given))
    if segment_ids is None:
        segment_ids = jnp.ones_like(tokens)
    is_predicted = (segment_ids[:, 1:] == segment_ids[:, :-1]) & (segment_ids[:, 1:] != 0)

    def rows(block: tuple[Array, Array]) -> Array:
        hidden, following = block
        logits = vocabulary_logits(config, variables, hidden)
        chosen = jnp.take_along_axis(logits, following[:, None], axis=-1)[:, 0]
        return chosen - jax.nn.logsumexp(logits, axis=-1)

    hidden = output.hidden.reshape(-1, output.hidden.shape[-1])
    following = jnp.roll(tokens, -1, axis=1).reshape(-1)
    if block:
        blocks = (hidden.reshape(-1, block, hidden.shape[-1]), following.reshape(-1, block))
        log_probs = jax.lax.map(jax.checkpoint(rows), blocks)
    else:
        log_probs = rows((hidden, following))
    log_probs = log_probs.reshape(tokens.shape)[:, :-1]
    return jnp.pad(jnp.where(is_predicted, log_probs, 0.0), ((0, 0), (1, 0)))
