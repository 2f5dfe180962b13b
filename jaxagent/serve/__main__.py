"""Offer a language model to OpenAI's clients: `python -m jaxagent.serve MODEL`.

MODEL is a name (smollm2-135m), a Hugging Face folder, or a GGUF file. Whoever sends requests to
/v1/chat/completions or /v1/completions shares the batch; replies are streamed or whole, in several
choices (n), with log-probabilities, as JSON (json_object, or of a schema), or as calls of tools,
whose arguments are always inside their schema. A request has --request-seconds to arrive and a
reply to be taken; beyond --rows and --queue requests are refused with status 429 and Retry-After.

Needs the extra serve: pip install "jaxagent[serve]"
"""

import argparse
import ipaddress
import os
import queue
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxagent.models.llm.batching import Progress
from jaxagent.models.llm.generate import Generator
from jaxagent.models.llm.load import load_model
from jaxagent.models.llm.sampling import SamplingConfig
from jaxagent.serve.engine import STEP_TOKENS, Engine, EngineFailure
from jaxagent.serve.service import Service
from jaxagent.training.config import refuse
from jaxagent.training.devices import use_compilation_cache

if TYPE_CHECKING:  # what it stands on is an extra
    from jaxagent.serve.server import ChatServer

# Prompts that are read in pieces of every length; the second goes on from the first.
_WARM_PROMPTS = (256 + 64 + 16, 256 + 64 + 16 + 32)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jaxagent.serve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.error = refuse  # type: ignore[method-assign, assignment]
    add = parser.add_argument
    add("model", metavar="MODEL", help="smollm2-135m, a Hugging Face folder, or a .gguf file")
    add("--host", default="127.0.0.1", help="address to listen on (default: this machine alone)")
    add("--port", type=int, default=8000, help="0 takes a free one and says which (default 8000)")
    add("--rows", type=int, default=4, help="requests answered together (default 4)")
    add("--queue", type=int, default=32, help="requests that may wait besides (default 32)")
    add("--context", type=int, help="tokens of prompt and reply (default 2048, or the model's)")
    add("--max-body", type=int, default=1 << 20, help="bytes of a request (default 1 MiB)")
    add(
        "--request-seconds",
        type=float,
        default=30.0,
        help="in which a request must arrive, and what is sent be taken (default 30)",
    )
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the parameters")
    add("--api-key-env", metavar="NAME", help="variable with the key that clients must show")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal comes; the exit status."""
    options = _parser().parse_args(arguments)
    try:
        key = _read_key(options.api_key_env)
        if not 0 <= options.port < 65536 or options.max_body < 1:
            raise ValueError(
                f"port ({options.port}) must lie in [0, 65535] and max-body "
                f"({options.max_body}) be at least 1"
            )
        if not 0 < options.request_seconds < float("inf"):
            raise ValueError(
                f"request-seconds ({options.request_seconds}) must be above 0 and finite"
            )
        if options.context is not None and options.context < 2:
            raise ValueError(f"context ({options.context}) must be at least 2")
        from jaxagent.serve import server  # before the model is loaded: it may be missing

        use_compilation_cache()
        generator = Generator(load_model(options.model, dtype=options.dtype))
        context = options.context
        if context is None:
            context = min(2048, generator.model.config.max_positions)
        with Engine(generator, rows=options.rows, queue_length=options.queue) as engine:
            service = Service(generator, engine, context)
            listening = _listen(server.ChatServer, options, service, key)
            _warm_up(generator, engine, context)
            _serve(listening, options.host, key)
    except (ValueError, EngineFailure) as error:
        refuse(str(error))
    except KeyboardInterrupt:  # before it listened
        return 128 + signal.SIGINT
    return 0


def _listen(
    make: "type[ChatServer]", options: argparse.Namespace, service: Service, key: str | None
) -> "ChatServer":
    try:
        return make(
            (options.host, options.port),
            service,
            key=key,
            max_body=options.max_body,
            request_seconds=options.request_seconds,
        )
    except OSError as error:
        why = error.strerror or error
        raise ValueError(f"{options.host}:{options.port} cannot be listened on: {why}") from None


def _read_key(name: str | None) -> str | None:
    if name is None:
        return None
    key = os.environ.get(name, "")
    if not key:
        raise ValueError(f"api-key-env ({name}): there is no such variable, or it is empty")
    return key


def _warm_up(generator: Generator, engine: Engine, context: int) -> None:
    """Compile what the first request would otherwise wait for."""
    sampling = SamplingConfig(max_new_tokens=1 + STEP_TOKENS, stop_tokens=())
    for prompt in _WARM_PROMPTS:
        length = max(1, min(prompt, context - sampling.max_new_tokens))
        events: queue.SimpleQueue[Progress | EngineFailure] = queue.SimpleQueue()
        engine.submit([generator.end_token] * length, sampling, None, events.put)
        while isinstance(event := events.get(), Progress) and event.completion is None:
            pass
        if isinstance(event, EngineFailure):
            raise event


def _serve(server: "ChatServer", host: str, key: str | None) -> None:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    print(f"serving {server.service.name} at {server.url}; Ctrl-C ends", flush=True)
    if key is None and not _is_loopback(host):
        print(
            f"warning: --host {host} lets other machines in and there is no --api-key-env",
            file=sys.stderr,
        )
    stop.wait()
    server.shutdown()
    thread.join()
    print("stopped", flush=True)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


if __name__ == "__main__":
    sys.exit(main())
