"""Hostile clients, idle ones, and good ones in between: `python -m tests.serve_attack` for many.

The whole runs in one process, so that threads and memory of the server can be read.
"""

import argparse
import asyncio
import contextlib
import json
import random
import resource
import threading
import time
from collections import Counter

from tests.serve_client import ENDLESS, asked, head, request, serving

_GET = b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n"


class Attack:
    """One run against a server.

    Args:
        server: under attack.
        seed: of what is sent and in which order.
        pause: seconds between two bytes of a client that drips.
    """

    def __init__(self, server, seed, pause=0.2):
        self.server, self.chance, self.pause = server, random.Random(seed), pause
        self.seen: dict[str, Counter] = {}
        self.good: list[int] = []
        self.threads = self.memory = self.idle_open = 0
        self.over = False
        self.names: set[str] = set()

    async def run(self, hostile, idle, good, at_once=64):
        """So many hostile requests, beside idle connections and requests that must be answered."""
        kinds = [self.chance.choice(KINDS) for _ in range(hostile)]
        gate = asyncio.Semaphore(at_once)
        beside = [asyncio.create_task(self.idle(n)) for n in range(idle)]
        beside.append(asyncio.create_task(self.measure()))
        asking = asyncio.create_task(self.ask(good))
        await asyncio.gather(*(self.send(kind, gate) for kind in kinds))
        await asking
        self.over = True
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)

    async def send(self, kind, gate):
        async with gate:
            status = "reset"
            with contextlib.suppress(OSError, EOFError):
                reader, writer = await self.connect()
                try:
                    status = await asyncio.wait_for(kind(self, reader, writer), 120)
                finally:
                    writer.close()
            self.seen.setdefault(kind.__name__, Counter())[status] += 1

    async def connect(self):
        return await asyncio.open_connection("127.0.0.1", self.server.server_port)

    async def idle(self, number):
        """A connection that says nothing, or nothing more, and comes again when it is closed."""
        while not self.over:
            with contextlib.suppress(OSError):
                reader, writer = await self.connect()
                self.idle_open += 1
                try:
                    if number % 2:
                        writer.write(_GET)
                    while await reader.read(1 << 16):
                        pass
                finally:
                    self.idle_open -= 1
                    writer.close()

    async def measure(self):
        while True:
            self.threads = max(self.threads, count_threads())
            self.names |= {thread.name for thread in threading.enumerate()}
            self.memory = max(self.memory, resident())
            await asyncio.sleep(0.05)

    async def ask(self, count):
        """As OpenAI's client asks: what is refused for now is asked again, as often as it says."""
        for number in range(count):
            for _ in range(100):
                reader, writer = await self.connect()
                writer.write(closing(seed=number, max_tokens=6))
                status = status_of(await reader.read())
                writer.close()
                if status not in (429, 500, 503):
                    break
                await asyncio.sleep(0.2)
            self.good.append(status)


def closing(**fields):
    """A request after whose reply the connection is closed."""
    return request(**fields).replace(b"\r\n", b"\r\nConnection: close\r\n", 1)


def count_threads():
    """Threads of this process, without those in which the attack looks up its addresses."""
    return sum(not thread.name.startswith("asyncio") for thread in threading.enumerate())


def resident():
    """Bytes of memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def status_of(data):
    """The status of the last reply, after interim ones; how often there was one beside it."""
    replies = [int(part[:3]) for part in data.split(b"HTTP/1.1 ")[1:]]
    final = [status for status in replies if status != 100]
    if len(final) > 1:
        return f"{len(final)} replies"
    return final[0] if final else "closed"


async def drip(attack, reader, writer, data):
    answered = asyncio.create_task(reader.read())
    for byte in data:
        if answered.done():
            break
        writer.write(bytes([byte]))
        await asyncio.sleep(attack.pause)
    return status_of(await answered)


async def dripping_head(attack, reader, writer):
    return await drip(attack, reader, writer, head(X="x" * 10_000))


async def dripping_body(attack, reader, writer):
    writer.write(head(Content_Length=10_000) + b"\r\n")
    return await drip(attack, reader, writer, b" " * 10_000)


async def dripping_chunks(attack, reader, writer):
    writer.write(head(Transfer_Encoding="chunked") + b"\r\n")
    return await drip(attack, reader, writer, b"1\r\n \r\n" * 2000)


async def half_closed(attack, reader, writer):
    writer.write(request(max_tokens=4))
    writer.write_eof()
    return status_of(await reader.read())


async def chunked(attack, reader, writer):
    body = json.dumps(asked(max_tokens=4)).encode()
    at = attack.chance.randrange(1, len(body))
    writer.write(head(Transfer_Encoding="chunked", Connection="close") + b"\r\n")
    for part in (body[:at], body[at:], b""):
        writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        await writer.drain()
    return status_of(await reader.read())


async def endless(attack, reader, writer):
    writer.write(head(Transfer_Encoding="chunked") + b"\r\n")
    answered = asyncio.create_task(reader.read())
    while not answered.done():
        writer.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
        with contextlib.suppress(OSError):
            await asyncio.wait_for(writer.drain(), 1)
        await asyncio.sleep(0.01)
    return status_of(await answered)


async def smuggled(attack, reader, writer):
    hidden = b"0\r\n\r\n" + request(max_tokens=4)
    lengths = [len(hidden), 5, 0]
    length = attack.chance.choice(lengths)
    writer.write(head(Content_Length=length, Transfer_Encoding="chunked") + b"\r\n" + hidden + _GET)
    return status_of(await reader.read())


async def two_lengths(attack, reader, writer):
    body = json.dumps(asked()).encode()
    first = head(Content_Length=len(body))
    other = attack.chance.choice([0, 5, len(body) - 1])
    writer.write(first + b"Content-Length: %d\r\n\r\n" % other + body + _GET)
    return status_of(await reader.read())


async def huge(attack, reader, writer):
    data = attack.chance.choice(
        [
            head(Content_Length=10**9) + b"\r\n",
            head(Content_Length=3 << 20) + b"\r\n" + b" " * (3 << 20) + _GET,
            head(X="x" * 300_000) + b"\r\n",
        ]
    )
    writer.write(data)
    first = await reader.readline()
    return status_of(first)


async def schema_bomb(attack, reader, writer):
    length = attack.chance.randrange(1000, 100_000)
    names = {f"p{i}": {"type": "string", "maxLength": length} for i in range(20)}
    schema = {"type": "object", "properties": names, "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "bomb", "schema": schema}}
    writer.write(closing(response_format=form))
    return status_of(await reader.read())


async def failing_batch(attack, reader, writer):
    """Whoever is in the batch shares its fate; it is not to be more than that."""
    batcher = attack.server.service.engine._batcher

    def fail(steps):
        raise MemoryError

    if batcher is not None:
        batcher.step = fail
    writer.write(closing())
    return status_of(await reader.read())


async def garbage(attack, reader, writer):
    writer.write(attack.chance.randbytes(400) + b"\r\n\r\n")
    return status_of(await reader.read())


async def slow_reader(attack, reader, writer):
    writer.transport.pause_reading()
    writer.write(request(max_tokens=ENDLESS, stream=True, logprobs=False))
    await asyncio.sleep(1)
    return "left"


async def gone(attack, reader, writer):
    writer.write(request(max_tokens=ENDLESS))
    await asyncio.sleep(attack.chance.random() / 10)
    return "left"


KINDS = [
    dripping_head, dripping_body, dripping_chunks, half_closed, chunked, endless, smuggled,
    two_lengths, huge, schema_bomb, failing_batch, garbage, slow_reader, gone,
]  # fmt: skip
# What may be answered, by kind; "closed" is no reply at all.
ALLOWED = {
    "dripping_head": {408, "reset"},
    "dripping_body": {408, "reset"},
    "dripping_chunks": {408, "reset"},
    "half_closed": {200, 429, 500},
    "chunked": {200, 429, 500},
    "endless": {413, "closed", "reset"},
    "smuggled": {400},
    "two_lengths": {400},
    "huge": {413, 431},
    "schema_bomb": {200, 400, 429, 500},
    "failing_batch": {200, 429, 500},
    "garbage": {400, "reset"},
    "slow_reader": {"left"},
    "gone": {"left"},
}


def attack(generator, *, hostile, idle, good, seed=0, **options):
    """Attack a server of its own; the attack, and threads and memory from before it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))
    with serving(generator, rows=4, queue_length=32, **options) as server:
        run = Attack(server, seed)
        asyncio.run(asyncio.wait_for(run.run(0, 0, 2), 120))  # what is compiled once
        run.good.clear()
        threads, memory = count_threads(), resident()
        run.threads = run.memory = 0
        asyncio.run(run.run(hostile, idle, good))
        end = time.monotonic() + 60
        while server.service.engine.under_way and time.monotonic() < end:
            time.sleep(0.05)
        left = server.service.engine.under_way
    return run, threads, memory, left


def main():
    from jaxagent.models.llm.generate import Generator
    from tests.models.llm.random_models import random_model

    parser = argparse.ArgumentParser()
    for name, value in (("hostile", 1000), ("idle", 500), ("good", 100), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    begin = time.monotonic()
    generator = Generator(random_model(max_positions=8192))
    run, threads, memory, left = attack(generator, request_seconds=10.0, **vars(options))
    for kind, counts in sorted(run.seen.items()):
        odd = set(counts) - ALLOWED[kind]
        print(f"{kind:16} {dict(counts)} {f'NOT ALLOWED: {odd}' if odd else ''}")
    print(f"good: {Counter(run.good)} of {options.good}")
    print(f"threads: {threads} before, {run.threads} at most; places still taken: {left}")
    print(f"their names: {', '.join(sorted(run.names))}")
    print(f"memory: {memory >> 20} MiB before, {run.memory >> 20} MiB at most")
    print(f"{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
