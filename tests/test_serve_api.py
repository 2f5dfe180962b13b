"""What OpenAI's API has besides plain replies, through OpenAI's own client."""

import json

import pytest

from jaxagent.models.llm.generate import Generator
from jaxagent.serve.fields import ApiError
from jaxagent.serve.messages import ChatPrompts, Tools, read_messages, read_tools
from tests.models.llm.random_models import byte_tokenizer, log_probs_after, random_model
from tests.serve_client import (
    HELLO,
    SCHEMA,
    asked,
    complete,
    complete_text,
    events,
    post,
    serving,
    text_of,
)

openai = pytest.importorskip("openai")
FUNCTION = {"name": "walk", "description": "goes there", "parameters": SCHEMA}
TOOLS = [
    {"type": "function", "function": FUNCTION},
    {"type": "function", "function": {"name": "wait"}},
]


@pytest.fixture(scope="module")
def generator():
    return Generator(random_model(max_positions=8192))


@pytest.fixture(scope="module")
def server(generator):
    with serving(generator, rows=4, queue_length=4, request_seconds=2.0) as server:
        yield server


@pytest.fixture
def client(server):
    with openai.OpenAI(api_key="none", base_url=server.url, max_retries=0) as client:
        yield client


def test_several_choices_are_drawn_apart(server):
    warm = {"temperature": 1.5, "max_tokens": 16}
    reply = complete(server, n=4, seed=3, **warm)
    texts = [choice["message"]["content"] for choice in reply["choices"]]
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert len(set(texts)) == 4
    assert texts[0] == text_of(complete(server, seed=3, **warm))
    # Neighbouring seeds have no choice in common.
    others = [c["message"]["content"] for c in complete(server, n=4, seed=4, **warm)["choices"]]
    assert not set(texts) & set(others)
    again = [c["message"]["content"] for c in complete(server, n=4, seed=3, **warm)["choices"]]
    assert again == texts
    usage = reply["usage"]
    assert usage["prompt_tokens"] == complete(server)["usage"]["prompt_tokens"]
    assert usage["completion_tokens"] == 4 * 16


def test_several_choices_are_streamed_side_by_side(client):
    asked = {"model": "random", "messages": HELLO, "max_tokens": 12, "seed": 5, "n": 3}
    whole = client.chat.completions.create(**asked)
    texts = ["", "", ""]
    ends = []
    for chunk in client.chat.completions.create(stream=True, **asked):
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        ends += [choice.index] if choice.finish_reason else []
    assert texts == [choice.message.content for choice in whole.choices]
    assert sorted(ends) == [0, 1, 2]


def test_log_probabilities_are_the_models(client, generator):
    reply = client.chat.completions.create(
        model="random", messages=HELLO, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3
    )
    choice = reply.choices[0]
    content = choice.logprobs.content
    assert "".join(entry.token for entry in content) == choice.message.content
    tokenizer = generator.model.tokenizer
    prompt = generator.encode(
        tokenizer.apply_chat_template(HELLO, add_generation_prompt=True, tokenize=False)
    )
    said = generator.encode(choice.message.content)
    table = log_probs_after(generator.model, prompt + said)
    if len(said) == len(content):  # the text may have another tokenization
        for place, entry in enumerate(content):
            row = table[len(prompt) - 1 + place]
            assert entry.logprob == pytest.approx(row[said[place]], abs=1e-3)
            best = sorted(row)[::-1][:3]
            assert [o.logprob for o in entry.top_logprobs] == pytest.approx(best, abs=1e-3)
    for entry in content:
        assert bytes(entry.bytes).decode("utf-8", "replace") == entry.token
        # Greedy: what was said is the likeliest.
        assert entry.top_logprobs[0].token == entry.token
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob, abs=1e-3)
        assert len(entry.top_logprobs) == 3


def test_log_probabilities_alone_come_with_the_stream(client):
    asked = {"model": "random", "messages": HELLO, "max_tokens": 6, "seed": 2, "logprobs": True}
    whole = client.chat.completions.create(**asked).choices[0]
    assert whole.logprobs.content[0].top_logprobs == []
    text, entries = "", []
    for chunk in client.chat.completions.create(stream=True, **asked):
        text += chunk.choices[0].delta.content or ""
        if chunk.choices[0].logprobs:
            entries += chunk.choices[0].logprobs.content
    assert text == whole.message.content
    assert [e.logprob for e in entries] == [e.logprob for e in whole.logprobs.content]


def test_what_a_stop_string_cuts_has_no_log_probability(server):
    whole = complete(server, temperature=0, max_tokens=12)
    stop = text_of(whole)[4:7]
    cut = complete(server, temperature=0, max_tokens=12, stop=stop, logprobs=True)["choices"][0]
    spelled = b"".join(bytes(entry["bytes"]) for entry in cut["logprobs"]["content"])
    assert spelled.decode("utf-8", "replace").startswith(cut["message"]["content"])
    assert len(cut["logprobs"]["content"]) < 12
    assert len(whole["choices"][0]["message"]["content"]) > len(cut["message"]["content"])


def test_completions_go_on_from_a_text(client, generator, server):
    from jaxagent.models.llm.sampling import SamplingConfig

    (alone,) = generator.generate(["look at"], SamplingConfig(max_new_tokens=8))
    asked = {"model": "random", "temperature": 0, "max_tokens": 8}
    reply = client.completions.create(prompt="look at", **asked)
    assert reply.object == "text_completion"
    assert reply.choices[0].text == alone.text
    assert reply.usage.prompt_tokens == len(generator.encode("look at"))
    ids = client.completions.create(prompt=generator.encode("look at"), **asked)
    assert ids.choices[0].text == alone.text
    pieces = client.completions.create(prompt="look at", stream=True, **asked)
    assert "".join(chunk.choices[0].text for chunk in pieces) == alone.text
    assert len(complete_text(server, max_tokens=None)["choices"][0]["text"]) > 0  # 16 tokens


def test_several_prompts_have_several_choices(client):
    reply = client.completions.create(
        model="random", prompt=["look", "go to"], n=2, echo=True, max_tokens=4, seed=1
    )
    texts = [choice.text for choice in reply.choices]
    assert [text.startswith(("look", "go to")) for text in texts] == [True] * 4
    assert [text.startswith("look") for text in texts] == [True, True, False, False]
    assert len(set(texts)) == 4


def test_a_text_is_scored_by_its_echo(server, generator):
    """How evaluations read log-likelihoods: the first token has none, all others the model's."""
    text = "go to desk 1"
    logs = complete_text(server, prompt=text, echo=True, logprobs=2, max_tokens=1, temperature=0)
    logs = logs["choices"][0]["logprobs"]
    tokens = generator.encode(text)
    table = log_probs_after(generator.model, tokens)
    wanted = [table[i, token] for i, token in enumerate(tokens[1:])]
    assert logs["token_logprobs"][0] is None
    assert logs["top_logprobs"][0] is None
    assert logs["token_logprobs"][1 : len(tokens)] == pytest.approx(wanted, abs=1e-3)
    assert "".join(logs["tokens"][: len(tokens)]) == text
    assert logs["text_offset"][: len(tokens)] == [
        len("".join(logs["tokens"][:i])) for i in range(len(tokens))
    ]
    for said, likeliest in zip(logs["tokens"][1:], logs["top_logprobs"][1:]):
        assert said in likeliest
        assert 2 <= len(likeliest) <= 3


def test_any_json_object(client):
    for seed in range(4):
        reply = client.chat.completions.create(
            model="random",
            messages=HELLO,
            response_format={"type": "json_object"},
            seed=seed,
            max_tokens=60,
        )
        assert isinstance(json.loads(reply.choices[0].message.content), dict)


def test_a_schema_of_pydantic(client):
    pydantic = pytest.importorskip("pydantic")

    class Answer(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        sure: bool
        go: str = pydantic.Field(max_length=5)

    reply = client.chat.completions.parse(
        model="random", messages=HELLO, response_format=Answer, max_tokens=60
    )
    assert isinstance(reply.choices[0].message.parsed, Answer)


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"walk", "wait"}),
        ({"type": "function", "function": {"name": "walk"}}, {"walk"}),
    ],
)
def test_a_call_keeps_its_schema(client, choice, names):
    called = set()
    for seed in range(4):
        reply = client.chat.completions.create(
            model="random", messages=HELLO, tools=TOOLS, tool_choice=choice, seed=seed,
            temperature=2, max_tokens=80,
        )  # fmt: skip
        assert reply.choices[0].finish_reason == "tool_calls"
        assert reply.choices[0].message.content is None
        assert reply.usage.completion_tokens > 0
        (call,) = reply.choices[0].message.tool_calls
        called.add(call.function.name)
        arguments = json.loads(call.function.arguments)
        if call.function.name == "walk":
            assert arguments["go"] in SCHEMA["properties"]["go"]["enum"]
        else:
            assert arguments == {}
    assert called <= names


def test_a_call_is_streamed(client):
    chunks = client.chat.completions.create(
        model="random", messages=HELLO, tools=TOOLS, tool_choice="required", stream=True, seed=1,
        max_tokens=80,
    )  # fmt: skip
    calls, ends = [], []
    for chunk in chunks:
        calls += chunk.choices[0].delta.tool_calls or []
        ends.append(chunk.choices[0].finish_reason)
    (call,) = calls
    assert (call.index, call.type) == (0, "function")
    assert call.id
    json.loads(call.function.arguments)
    assert ends[-1] == "tool_calls"


def test_a_model_that_begins_a_call_makes_one(server, monkeypatch):
    """Random weights never say the mark of a call: a text that they do say stands for it here."""
    told = {"tools": TOOLS, "temperature": 0, "max_tokens": 80}
    free = complete(server, **told)["choices"][0]
    assert free["finish_reason"] == "length"
    assert "tool_calls" not in free["message"]
    prompts = server.service._prompts
    mark = free["message"]["content"][6:10]
    monkeypatch.setattr(prompts, "form", prompts.form._replace(opening=mark + '{"name": "'))
    reply = complete(server, **told)
    message = reply["choices"][0]["message"]
    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    assert message["content"] == free["message"]["content"].partition(mark)[0]
    assert message["tool_calls"][0]["function"]["name"] in ("walk", "wait")
    assert reply["usage"]["completion_tokens"] > 10
    assert complete(server, tool_choice="none", **told)["choices"][0]["finish_reason"] == "length"
    short = complete(server, **(told | {"max_tokens": 8}))["choices"][0]
    assert short["finish_reason"] == "length"
    assert "tool_calls" not in short["message"]


def test_the_result_of_a_call_is_read(client, server):
    first = client.chat.completions.create(
        model="random", messages=HELLO, tools=TOOLS, tool_choice="required", max_tokens=80
    )
    message = first.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "a desk"}
    conversation = [*HELLO, message.model_dump(), result]
    second = client.chat.completions.create(
        model="random", messages=conversation, tools=TOOLS, max_tokens=8
    )
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


HERMES = (
    "{% if tools %}TOOLS{% for tool in tools %}{{ tool | tojson }}{% endfor %}\n{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.name and m.role == 'user' %}"
    " by {{ m.name }}{% endif %}"
    "{% for call in m.tool_calls or [] %}<call>{{ call.function.name }}="
    "{{ call.function.arguments | tojson }}</call>{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def prompts_of(template):
    import copy

    tokenizer = copy.copy(byte_tokenizer())
    tokenizer.chat_template = template
    return ChatPrompts(tokenizer, "m")


def conversation(**fields):
    calls = [
        {"id": name, "type": "function", "function": {"name": name, "arguments": '{"go": "desk"}'}}
        for name in ("walk", "wait")
    ]
    return read_messages(
        [
            {"role": "user", "content": "hi"} | fields,
            {"role": "assistant", "content": None, "tool_calls": calls, "refusal": None},
            {"role": "tool", "tool_call_id": "wait", "content": "second"},
            {"role": "tool", "tool_call_id": "walk", "content": "first"},
        ]
    )


NO_TOOLS = Tools([], (), False)


def test_a_template_that_knows_tools_puts_them_its_own_way():
    prompts = prompts_of(HERMES)
    assert prompts.form == ("<call>", "=")
    assert prompts.form.marker == "<call>"
    text = prompts.render(conversation(name="ann"), read_tools(TOOLS, None))
    assert '<call>walk={"go": "desk"}</call><call>wait={"go": "desk"}</call>' in text
    assert text.index("first") < text.index("second")  # in the order of the calls
    assert "by ann" in text
    assert '"description": "goes there"' in text
    assert "TOOLS" not in prompts.render(conversation(), NO_TOOLS)


def test_a_template_that_knows_no_tools_reads_all_of_it_as_text():
    plain = byte_tokenizer().chat_template
    prompts = prompts_of(plain)
    assert prompts.form.marker == "<tool_call>"
    text = prompts.render(conversation(), read_tools(TOOLS, "auto"))
    for part in ("walk", "wait", "goes there", '{"go": "desk"}', "first", "second"):
        assert part in text
    assert "tool\n" not in text  # no role that the model does not know


def test_a_field_that_the_template_does_not_read_is_refused_by_name():
    plain = prompts_of(byte_tokenizer().chat_template)
    with pytest.raises(ApiError, match="does not read the field 'name' of the role user"):
        plain.render(read_messages([{"role": "user", "content": "hi", "name": "ann"}]), NO_TOOLS)
    said = [*HELLO, {"role": "assistant", "content": "x", "reasoning_content": "hm"}]
    with pytest.raises(ApiError, match="reasoning_content"):
        plain.render(read_messages(said), NO_TOOLS)
    empty = {"refusal": None, "annotations": [], "audio": None, "tool_calls": []}
    said[1] = {"role": "assistant", "content": "x"} | empty
    assert "x" in plain.render(read_messages(said), NO_TOOLS)


CALL = {"id": "a", "type": "function", "function": {"name": "walk", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": [{}]}, "tools[0] must be of type function"),
        ({"tools": "walk"}, "tools must be a list"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "two functions of one name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "color": 1}}]},
            "unknown field 'color'",
        ),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "a", "parameters": {"type": "x"}}}
                ]
            },
            "the parameters of a: ",
        ),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice must be none, auto, required"),
        ({"tool_choice": "required"}, "tool_choice must be"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "run"}}},
            "tool_choice must be",
        ),
        ({"tools": TOOLS, "tool_choice": "required", "max_tokens": 2}, "max_tokens (2) must be at"),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "beside tools"),
        ({"messages": [*HELLO, {"role": "tool", "content": "x"}]}, "tool_call_id must be text"),
        (
            {"messages": [*HELLO, {"role": "tool", "content": "x", "tool_call_id": "b"}]},
            "messages[1].tool_call_id (b) must be the id of a call",
        ),
        (
            {"messages": [{"role": "user", "content": "", "tool_calls": [CALL]}]},
            "only an assistant",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]},
            "messages[0].tool_calls[0] must be a call of type function",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [CALL | {"function": {"name": "a", "arguments": "[]"}}],
                    }
                ]
            },
            "arguments must be a JSON object",
        ),
        ({"messages": [{"role": "user", "content": "x", "mood": "bad"}]}, "'mood'"),
        ({"functions": [{"name": "walk"}]}, "functions is not supported"),
    ],
)
def test_what_is_wrong_about_tools_and_messages_is_named(server, fields, message):
    status, _, body = post(server, asked(**fields))
    assert status == 400
    assert message in json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": None}, "prompt must be text"),
        ({"prompt": []}, "prompt must be text"),
        ({"prompt": ["a", 1]}, "prompt must be text"),
        ({"prompt": [[1], []]}, "prompt must be text"),
        ({"prompt": [10**9]}, "must lie in [0,"),
        ({"prompt": ""}, "at least one token"),
        ({"prompt": ["a"] * 100, "n": 2}, "must be 128 at most"),
        ({"prompt": ["a"] * 9}, "n (9 replies) must be at most 8"),
        ({"logprobs": 6}, "logprobs must be a whole number from 0 to 5"),
        ({"suffix": "x"}, "suffix is not supported"),
        ({"best_of": 3}, "best_of is not supported"),
        ({"messages": HELLO}, "unknown field 'messages'"),
        ({"max_tokens": 9000}, "the context is 8192 tokens"),
    ],
)
def test_what_is_wrong_about_a_completion_is_named(server, fields, message):
    body = {"model": "random", "prompt": "look", "max_tokens": 2} | fields
    status, _, reply = post(server, body, path="/v1/completions")
    assert status == 400
    assert message in json.loads(reply)["error"]["message"]


def test_an_error_before_the_first_piece_is_no_stream(server):
    fields = {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": 1}}}]}
    status, _, body = post(server, asked(stream=True, **fields))
    assert status == 400
    _, _, body = post(server, asked(stream=True, n=2))
    assert events(body)[-1] == "[DONE]"
