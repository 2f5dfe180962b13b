"""A model's replies to requests, without HTTP."""

import asyncio
import contextlib
import dataclasses
import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from jaxagent.models.llm.batching import Progress
from jaxagent.models.llm.constrain import Automaton
from jaxagent.models.llm.generate import Generator
from jaxagent.models.llm.generate_reply import Completion
from jaxagent.models.llm.sampling import SamplingConfig
from jaxagent.models.llm.tokenizer import encode_chat
from jaxagent.serve.answers import Said
from jaxagent.serve.engine import Engine, EngineFailure
from jaxagent.serve.fields import ApiError
from jaxagent.serve.json_object import any_object
from jaxagent.serve.logprobs import TokenLogs
from jaxagent.serve.messages import CallForm, ChatPrompts, Tools
from jaxagent.serve.requests import ChatRequest, TextRequest, Wanted

_KEPT_SCHEMAS = 16
_WAITING_SCHEMAS = 4  # to be built; each may take seconds, and others wait for places meanwhile
Result = TypeVar("Result")


class Piece(NamedTuple):
    """What was added to one choice; `said` is there once it is complete."""

    index: int
    text: str
    said: Said | None


@dataclasses.dataclass(frozen=True)
class Choice:
    """A choice that is to be made."""

    prompt: list[int]
    sampling: SamplingConfig
    wanted: Wanted
    constraint: Automaton | None = None
    calls: "CallPlan | None" = None
    echo: str | None = None


@dataclasses.dataclass(frozen=True)
class CallPlan:
    """Which functions may or must be called, and how a call is written."""

    form: CallForm
    is_required: bool
    names: Automaton | None  # of a name and what follows it; None: there is one
    arguments: Mapping[str, Automaton]


class Service:
    """Prepares requests, on two threads of its own, and lets an engine answer them."""

    def __init__(self, generator: Generator, engine: Engine, context: int):
        """Bind model and engine.

        Args:
            generator: the model; its tokeniser has a chat template.
            engine: answers.
            context: tokens that prompt and reply may fill together.

        Raises:
            ValueError: no chat template, or a context that the model does not have.
        """
        self.name = generator.model.name
        limit = generator.model.config.max_positions
        if not getattr(generator.model.tokenizer, "chat_template", None):
            raise ValueError(f"the tokeniser of {self.name} has no chat template")
        if not 2 <= context <= limit:
            raise ValueError(f"context ({context}) must lie in [2, {limit}] for {self.name}")
        self.engine, self._generator, self._context = engine, generator, context
        self._prompts = ChatPrompts(generator.model.tokenizer, self.name)
        self._logs = TokenLogs(generator.model)
        self._schemas: OrderedDict[str, asyncio.Task[Automaton]] = OrderedDict()
        # Tokenisers are not made for several threads at once, so one thread does all that needs
        # them; a schema takes seconds, so another builds these, one at a time.
        self._texts = ThreadPoolExecutor(1, "texts")
        self._builder = ThreadPoolExecutor(1, "schemas")

    def close(self) -> None:
        """Prepare no more."""
        for pool in (self._texts, self._builder):
            pool.shutdown(wait=False, cancel_futures=True)

    async def chat(self, request: ChatRequest) -> list[Choice]:
        """Prepare a chat completion.

        Raises:
            ApiError: 400 for what cannot be answered, 429 while too many schemas are waiting.
        """
        wanted, tools = request.wanted, request.tools

        def encode() -> list[int]:
            tokens = encode_chat(
                self._generator.model.tokenizer,
                request.messages,
                lambda messages: self._prompts.render(messages, tools),
            )
            return self._generator.encode(tokens)

        with _named("messages"):
            prompt = await self._in(self._texts, encode)
        room = self._room(prompt, wanted)
        constraint = calls = None
        with _named("response_format"):
            if request.schema is not None:
                constraint = await self._schema(request.schema)
            elif request.any_object:
                constraint = await self._schema(any_object())
        if tools.offered:
            calls = await self._plan(tools)
        first = Choice(prompt, wanted.sampling(room), wanted, constraint, calls)
        with _named(None):
            self._check(first)
        return [
            dataclasses.replace(first, sampling=wanted.sampling(room, i))
            for i in range(wanted.choices)
        ]

    async def text(self, request: TextRequest) -> list[Choice]:
        """Prepare a completion.

        Raises:
            ApiError: 400 for what cannot be answered.
        """
        wanted, choices, tokenizer = request.wanted, [], self._generator.model.tokenizer
        for place, given in enumerate(request.prompts):
            with _named("prompt"):
                prompt = await self._in(self._texts, lambda given=given: self._encoded(given))
            echo = None
            if request.echo:
                echo = given if isinstance(given, str) else str(tokenizer.decode(prompt))
            room = self._room(prompt, wanted)
            for i in range(wanted.choices):
                sampling = wanted.sampling(room, place * wanted.choices + i)
                choices.append(Choice(prompt, sampling, wanted, echo=echo))
                with _named("prompt"):
                    self._check(choices[-1])
        return choices

    async def pieces(self, choices: list[Choice]) -> AsyncGenerator[Piece, None]:
        """Make the choices, all at a time.

        Raises:
            EngineFailure: nothing more will come.
        """
        queue: asyncio.Queue[Piece | BaseException] = asyncio.Queue()
        made = [asyncio.create_task(self._make(i, c, queue)) for i, c in enumerate(choices)]
        try:
            missing = len(choices)
            while missing:
                piece = await queue.get()
                if isinstance(piece, BaseException):
                    raise piece
                missing -= piece.said is not None
                yield piece
        finally:
            for task in made:
                task.cancel()
            await asyncio.gather(*made, return_exceptions=True)

    async def _make(self, index: int, choice: Choice, queue: asyncio.Queue[Any]) -> None:
        def told(text: str) -> None:
            queue.put_nowait(Piece(index, text, None))

        try:
            if choice.echo:
                told(choice.echo)
            make = self._say if choice.calls is None else self._say_or_call
            queue.put_nowait(Piece(index, "", await make(choice, told)))
        except Exception as error:
            queue.put_nowait(error)

    async def _say(self, choice: Choice, told: Callable[[str], None]) -> Said:
        reply = await self._reply(choice.prompt, choice.sampling, choice.constraint, told)
        return await self._with_logs(choice, reply)

    async def _with_logs(self, choice: Choice, reply: Completion) -> Said:
        top, logs = choice.wanted.logprobs, None
        if top is not None:
            logs = await self._in(
                self._texts, lambda: self._logs.of_reply(choice.prompt, reply, top)
            )
            if choice.echo is not None:
                logs = [
                    *await self._in(self._texts, lambda: self._logs.of_text(choice.prompt, top)),
                    *logs,
                ]
        return _said((choice.echo or "") + reply.text, reply, logs)

    async def _say_or_call(self, choice: Choice, told: Callable[[str], None]) -> Said:
        """Text that may end in a call, whose name and arguments are constrained."""
        plan, sampling, prompt = choice.calls, choice.sampling, choice.prompt
        if plan is None:
            raise ValueError("there is nothing to call")
        if plan.is_required:
            said = Said("", "tool_calls", len(prompt), 0, 0)
        else:
            stops = (*sampling.stop_strings, plan.form.marker)
            free = dataclasses.replace(sampling, stop_strings=stops)
            reply = await self._reply(prompt, free, None, told)
            said = await self._with_logs(choice, reply)
            spoken = self._generator.model.tokenizer.decode(
                reply.tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
            if not str(spoken).startswith(reply.text + plan.form.marker):
                return said
        return await self._call(choice, plan, said)

    async def _call(self, choice: Choice, plan: CallPlan, said: Said) -> Said:
        tokens = choice.prompt + self._generator.encode(said.text + plan.form.opening)
        wrote, cached = said.completion_tokens, said.cached_tokens

        async def forced(constraint: Automaton) -> str:
            nonlocal wrote, cached
            left = min(choice.sampling.max_new_tokens - wrote, self._context - len(tokens))
            sampling = dataclasses.replace(choice.sampling, max_new_tokens=left, stop_strings=())
            reply = await self._reply(tokens, sampling, constraint, lambda text: None)
            if not wrote:
                cached = min(reply.reused_length, len(choice.prompt))
            wrote += len(reply.tokens)
            return reply.text

        try:
            name = next(iter(plan.arguments))
            if plan.names is None:
                tokens = tokens + self._generator.encode(name + plan.form.middle)
            else:
                text = await forced(plan.names)
                name = text.removesuffix(plan.form.middle)
                tokens = tokens + self._generator.encode(text)
            arguments = await forced(plan.arguments[name])
        except ValueError:  # what is left is too short for a call
            return said._replace(finish_reason="length", completion_tokens=wrote)
        return said._replace(
            text=said.text.strip() and said.text,
            finish_reason="tool_calls",
            completion_tokens=wrote,
            cached_tokens=cached,
            calls=((name, arguments),),
        )

    async def _reply(
        self,
        prompt: list[int],
        sampling: SamplingConfig,
        constraint: Automaton | None,
        told: Callable[[str], None],
    ) -> Completion:
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Progress | EngineFailure] = asyncio.Queue()

        def report(event: Progress | EngineFailure) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, nobody listens
                loop.call_soon_threadsafe(events.put_nowait, event)

        ticket = self.engine.submit(prompt, sampling, constraint, report)
        try:
            while True:
                event = await events.get()
                if isinstance(event, EngineFailure):
                    raise event
                if event.text:
                    told(event.text)
                if event.completion is not None:
                    return event.completion
        finally:
            self.engine.cancel(ticket)

    def _encoded(self, prompt: str | list[int]) -> list[int]:
        return self._generator.encode(prompt)

    def _room(self, prompt: list[int], wanted: Wanted) -> int:
        room = self._context - len(prompt)
        if (wanted.max_tokens or 1) > room:
            raise ApiError(
                400,
                f"the context is {self._context} tokens; the prompt takes {len(prompt)}, and "
                f"{wanted.max_tokens or 1} are to follow",
                param="messages",
                code="context_length_exceeded",
            )
        return room

    def _check(self, choice: Choice) -> None:
        """Refuse what the engine would refuse, before a stream has begun."""
        plan = choice.calls
        if plan is None or not plan.is_required:
            self._generator.request(choice.prompt, choice.sampling, choice.constraint)
            return
        shortest = max(int(each.distance[0]) for each in plan.arguments.values())
        shortest += 0 if plan.names is None else int(plan.names.distance[0])
        if choice.sampling.max_new_tokens < shortest:
            raise ValueError(
                f"max_tokens ({choice.sampling.max_new_tokens}) must be at least {shortest}, the "
                "tokens of the shortest call"
            )

    async def _plan(self, tools: Tools) -> CallPlan:
        form, arguments = self._prompts.form, {}
        for tool in tools.offered:
            with _named("tools", f"the parameters of {tool.name}: "):
                arguments[tool.name] = await self._schema(tool.parameters)
        texts = [name + form.middle for name in arguments]
        names = None
        if len(texts) > 1:
            with _named("tools"):
                names = await self._in(self._texts, lambda: self._generator.string_set(texts))
        return CallPlan(form, tools.is_required, names, arguments)

    async def _schema(self, schema: Mapping[str, Any]) -> Automaton:
        key = json.dumps(schema)
        return await self._built(key, lambda: self._generator.json_schema(schema))

    async def _built(self, key: str, build: Callable[[], Automaton]) -> Automaton:
        """An automaton, or why there is none; both are remembered, equal schemas wait together."""
        if key not in self._schemas:
            if sum(not task.done() for task in self._schemas.values()) >= _WAITING_SCHEMAS:
                raise too_many(f"{_WAITING_SCHEMAS} schemas are being prepared, no more are taken")
            task = asyncio.create_task(self._build(build))
            self._schemas[key] = task
            task.add_done_callback(lambda task: self._keep(key, task))
        self._schemas.move_to_end(key)
        # Others wait for it, and the next may ask for the same, when this request is gone.
        return await asyncio.shield(self._schemas[key])

    async def _build(self, build: Callable[[], Automaton]) -> Automaton:
        # The tokeniser is read on the thread that reads it, once.
        await self._in(self._texts, lambda: self._generator.token_bytes)
        return await self._in(self._builder, build)

    def _keep(self, key: str, task: "asyncio.Task[Automaton]") -> None:
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or not isinstance(error, ValueError | RecursionError | None):
            self._schemas.pop(key, None)  # memory that ran out says nothing about the schema
        done = [name for name, other in self._schemas.items() if other.done()]
        for name in done[: max(0, len(done) - _KEPT_SCHEMAS)]:
            del self._schemas[name]

    @staticmethod
    async def _in(pool: ThreadPoolExecutor, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(pool, work)


def too_many(why: str) -> ApiError:
    """A refusal that asks to come again."""
    return ApiError(429, why, code="rate_limit_exceeded", headers={"Retry-After": "1"})


@contextlib.contextmanager
def _named(param: str | None, beginning: str = ""):
    """Refusals of the model's code as refusals of the request, which name its field."""
    try:
        yield
    except ValueError as error:
        raise ApiError(400, f"{beginning}{error}"[:2000], param=param) from None
    except RecursionError:
        message = f"{beginning}the schema is nested too deeply"
        raise ApiError(400, message, param=param) from None


def _said(text: str, reply: Completion, logs: Any) -> Said:
    return Said(
        text=text,
        finish_reason="length" if reply.finish_reason == "length" else "stop",
        prompt_tokens=reply.prompt_length,
        cached_tokens=reply.reused_length,
        completion_tokens=len(reply.tokens),
        logs=logs,
    )
