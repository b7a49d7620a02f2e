"""What prefix caching saves: time to the first token with and without it, and what the cache itself costs.

    python benchmarks/prefix_cache.py

Both engines run on one target and are asked in turn, in an order that turns round; every answer is compared. Times are
medians in milliseconds.
"""

from __future__ import annotations

import argparse
import random
from statistics import median
from time import perf_counter


def main() -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prompt", type=int, default=1000, metavar="TOKENS", help="length of what is shared")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--answer", type=int, default=32, metavar="TOKENS")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()

    from headstart.decode.params import SamplingParams
    from headstart.engine.engine import Engine
    from headstart.target.load import load_target

    target = load_target(options.model, dtype=options.dtype, max_sequences=4)
    params = SamplingParams(max_tokens=options.answer, ignore_eos=True)
    chance = random.Random(0)

    def text(length: int) -> list[int]:
        return [chance.randrange(1000, target.vocab_size) for _ in range(length)]

    def ask(engine: Engine, prompt: list[int]) -> tuple[float, list[int], int]:
        output = engine.generate([prompt], params)[0]
        return 1000 * (output.first_token_seconds or 0.0), output.token_ids, output.cached_tokens

    found: dict[str, tuple[list[float], list[float], list[int]]] = {}
    ask(Engine(target, prefix_cache=False), text(64))
    for turn in range(options.repeat):
        on, off = Engine(target), Engine(target, prefix_cache=False)
        shared = text(options.prompt)
        prompts = {"a new prompt": shared, "the same prompt": shared, "shared start, 30 new tokens": shared + text(30)}
        chat = text(options.prompt // 4)
        for number in range(1, options.turns + 1):
            prompts[f"chat, turn {number}"] = chat
            chat = chat + ask(off, chat)[1] + text(options.prompt // 8)
        for name, prompt in prompts.items():
            engines = (on, off) if turn % 2 else (off, on)
            times = {engine: ask(engine, prompt) for engine in engines}
            if times[on][1] != times[off][1]:
                raise SystemExit(f"{name}: the text differs")
            row = found.setdefault(name, ([], [], []))
            row[0].append(times[off][0])
            row[1].append(times[on][0])
            row[2].append(times[on][2])
            print(f"{name:30} {len(prompt):5} tokens, {times[on][2]:5} found", flush=True)
        on.close()
    print(f"\n{'time to first token, ms':30} {'off':>8} {'on':>8} {'found':>6}")
    for name, (without, with_, cached) in found.items():
        print(f"{name:30} {median(without):8.1f} {median(with_):8.1f} {cached[-1]:6}")
    costs(target.pool, options.prompt)


def costs(pool: object, tokens: int) -> None:
    """Time a look-up among many entries, and a copy."""
    from headstart.target.kv import KVPool
    from headstart.target.radix import RadixTree

    assert isinstance(pool, KVPool)
    prompt = [i % 997 for i in range(8000)]
    print()
    for entries in (1, 100, 1000):
        for where, spread in (("at one place", 1), ("each at its own place", 7900)):
            tree: RadixTree[int] = RadixTree()
            for i in range(entries):
                tree.insert([*prompt[: 7950 - i * 7 % spread], 1000 + i, 5]).entry = i
            times = []
            for _ in range(50):
                started = perf_counter()
                tree.longest(prompt)
                times.append(perf_counter() - started)
            print(
                f"look-up of 8,000 tokens, {entries:4} prompts that branch off {where}: {1e6 * median(times):5.0f} µs"
            )
    source, target = pool.reserve(tokens), pool.reserve(tokens)
    assert source is not None
    assert target is not None
    times = []
    for _ in range(10):
        started = perf_counter()
        pool.copy_prefix(source, target, tokens)
        times.append(perf_counter() - started)
    size = sum(shape.bytes_per_token(tensor.dtype) for shape, tensor in zip(pool.shapes, pool.keys, strict=True))
    print(f"copy of {tokens} tokens, {tokens * size / 1e6:.0f} MB: {1e3 * median(times):.1f} ms")


if __name__ == "__main__":
    main()
