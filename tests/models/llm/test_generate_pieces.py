"""Replies in pieces of SentencePiece, whose decoder takes the first space of a text away."""

import dataclasses

import jax
import numpy as np

from jaxagent.models.llm.constrain_text import string_set
from jaxagent.models.llm.generate import Generator
from jaxagent.models.llm.generate_reply import Reply, Request
from jaxagent.models.llm.generate_steps import Finish
from jaxagent.models.llm.llama import init_params
from jaxagent.models.llm.load import LanguageModel
from jaxagent.models.llm.sampling import SamplingConfig
from tests.models.llm.random_models import COMMANDS, piece_tokenizer, random_model


def test_a_reply_of_pieces_keeps_its_first_space():
    """Which the decoder of a whole text takes away."""
    tokenizer = piece_tokenizer()
    go_to = tokenizer.encode("go to desk", add_special_tokens=False)
    assert tokenizer.decode(go_to) == "go to desk"
    config = SamplingConfig(max_new_tokens=40)
    for tokens, text in ((go_to, " go to desk"), (go_to[1:], None), ([], "")):
        reply = Reply(tokenizer, Request([1], config, None, ()), 0)
        pieces = []
        for token in tokens:
            reply.take([token], np.zeros((1, 3), np.float32), Finish.RUNNING)
            pieces.append(reply.new_text())
        reply.take([], np.zeros((0, 3), np.float32), Finish.END)
        said = reply.completion().text
        assert "".join(pieces) + reply.new_text() == said
        assert said == (
            tokenizer.decode(go_to)[len(tokenizer.decode(go_to[:1])) :] if text is None else text
        )


def test_a_set_of_strings_in_pieces_is_said_as_it_is_written():
    tokenizer, config = piece_tokenizer(), random_model().config
    config = dataclasses.replace(config, vocab_size=len(tokenizer))
    params = init_params(config, jax.random.key(0))
    generator = Generator(LanguageModel(config, params, tokenizer, "pieces"))
    for strings in (COMMANDS, [f" {command}" for command in COMMANDS]):
        constraint = string_set(tokenizer, strings, end_token=tokenizer.eos_token_id)
        sampling = SamplingConfig(max_new_tokens=60, temperature=2.0)
        replies = generator.generate(["look:"] * 4, sampling, constraint)
        assert all(reply.text in strings for reply in replies)
