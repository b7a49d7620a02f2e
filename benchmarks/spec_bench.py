"""Decode speed on Spec-Bench prompts: headstart plain and speculative beside transformers, in one interleaved run.

    python benchmarks/spec_bench.py --per-group 5 --json spec_bench.json

Each prompt is decoded by every way in turn, in an order that rotates from prompt to prompt, alone on the machine.
Counted are emitted token ids up to and including end of sequence; the time is that of the tokens after the first.
Speedups are sums of tokens over sums of seconds; the interval is a percentile bootstrap over prompts of the geometric
mean of per-prompt ratios. Text is never re-tokenised.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path
from time import perf_counter

GROUPS = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
DEFAULT_PROMPTS = Path(__file__).resolve().parents[2] / "shared" / "spec_bench" / "question.jsonl"


@dataclass(frozen=True)
class Run:
    """One prompt decoded one way."""

    way: str
    group: str
    question: int
    tokens: int
    seconds: float
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    identical: bool | None


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, default=DEFAULT_PROMPTS)
    parser.add_argument("--per-group", type=int, default=10, help="prompts per task group; 80 are all")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--draft-model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--weights", choices=["int8"])
    parser.add_argument("--trees", type=int, metavar="NODES", help="also measure trees of up to NODES nodes")
    parser.add_argument("--without-transformers", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.json and options.json.exists():
        sys.exit(f"{options.json} exists; name another file")
    if not options.prompts.is_file():
        sys.exit(f"{options.prompts}: no such file; give --prompts FILE in Spec-Bench's format")

    from headstart.threads import wait_gently

    wait_gently()
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    questions = sample(options.prompts, options.per_group)
    ways, info = make_ways(options)
    runs: list[Run] = []
    load_before = os.getloadavg()[0]
    for number, (group, question, text) in enumerate(questions):
        names = list(ways)
        order = names[number % len(names) :] + names[: number % len(names)]
        outputs: dict[str, tuple[list[int], float, float | None, float | None]] = {}
        if number == 0:
            for name in names:
                ways[name](text)
        for name in order:
            outputs[name] = ways[name](text)
        for name in names:
            ids, seconds, rate, length = outputs[name]
            baseline = "transformers plain" if name.startswith("transformers") else "headstart plain"
            identical = None if name == baseline else ids == outputs[baseline][0]
            runs.append(Run(name, group, question, max(0, len(ids) - 1), seconds, rate, length, identical))
        done = ", ".join(
            f"{n.split(' ', 1)[1]} {outputs[n][0].__len__() / max(outputs[n][1], 1e-9):.0f}" for n in names
        )
        print(f"[{number + 1}/{len(questions)}] {group} {question}: {done} tok/s", file=sys.stderr, flush=True)
    report = {
        "model": options.model,
        "info": info,
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "load_before": load_before,
        "runs": [asdict(run) for run in runs],
    }
    print(table(runs, list(ways)))
    if options.json:
        temporary = options.json.with_suffix(".part")
        temporary.write_text(json.dumps(report, indent=1))
        temporary.rename(options.json)


def sample(path: Path, per_group: int) -> list[tuple[str, int, str]]:
    """Evenly spaced questions of every group, groups interleaved: ``(group, id, first turn)``."""
    by_group: dict[str, list[tuple[int, str]]] = {group: [] for group in GROUPS}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        group = entry["category"] if entry["category"] in by_group else "mt_bench"
        by_group[group].append((entry["question_id"], entry["turns"][0]))
    chosen = []
    for i in range(per_group):
        for group, entries in by_group.items():
            if i < len(entries):
                question, text = entries[i * len(entries) // min(per_group, len(entries))]
                chosen.append((group, question, text))
    return chosen


Way = Callable[[str], tuple[list[int], float, float | None, float | None]]


def make_ways(options: argparse.Namespace) -> tuple[dict[str, Way], dict[str, object]]:
    """Ways to decode one prompt: emitted ids, seconds after the first token, acceptance rate and length."""
    from headstart.control.adaptive import AdaptiveDepth
    from headstart.decode.params import SamplingParams
    from headstart.draft.model import ModelDrafter
    from headstart.draft.ngram import NgramDrafter
    from headstart.engine.costs import cost_curve
    from headstart.engine.engine import Engine
    from headstart.target.load import load_target

    target = load_target(options.model, dtype=options.dtype, weights=options.weights, max_sequences=1)
    params = SamplingParams(max_tokens=options.max_tokens, temperature=options.temperature, seed=0)

    def ours(engine: Engine) -> Way:
        def decode(text: str) -> tuple[list[int], float, float | None, float | None]:
            output = engine.generate([[{"role": "user", "content": text}]], params)[0]
            record = output.completions[0].record
            seconds = output.seconds - (output.first_token_seconds or 0.0)
            return output.token_ids, seconds, record.acceptance_rate, record.mean_acceptance_length

        return decode

    ways: dict[str, Way] = {"headstart plain": ours(Engine(target))}
    ways["headstart ngram"] = ours(Engine(target, [NgramDrafter()], controller=AdaptiveDepth(cost_curve(target))))
    if options.trees:
        controller = AdaptiveDepth(cost_curve(target), tree=True, most_nodes=options.trees)
        ways["headstart ngram tree"] = ours(Engine(target, [NgramDrafter()], controller=controller))
    if options.draft_model:
        draft = load_target(options.draft_model, dtype=options.dtype, max_sequences=1, exact=False)
        controller = AdaptiveDepth(cost_curve(target))
        ways["headstart model"] = ours(Engine(target, [ModelDrafter(draft, target)], controller=controller))
    if not options.without_transformers:
        ways |= transformers_ways(options, target.tokenizer, target.eos_ids)
    return ways, target.info


def transformers_ways(options: argparse.Namespace, tokenizer: object, eos: frozenset[int]) -> dict[str, Way]:
    """transformers' own generate on its own copy of the model: plain and prompt lookup with 10 tokens."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.generation.streamers import BaseStreamer

    from headstart.target.load import DTYPES, resolve

    model = AutoModelForCausalLM.from_pretrained(resolve(options.model), dtype=DTYPES[options.dtype]).eval()

    class FirstToken(BaseStreamer):
        """Notes when the first token after the prompt arrived."""

        def __init__(self) -> None:
            self.calls, self.at = 0, 0.0

        def put(self, value: object) -> None:
            self.calls += 1
            if self.calls == 2:  # the first call hands over the prompt
                self.at = perf_counter()

        def end(self) -> None:
            pass

    def way(**more: object) -> Way:
        def decode(text: str) -> tuple[list[int], float, float | None, float | None]:
            chat = tokenizer.apply_chat_template(  # type: ignore[attr-defined]
                [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
            )
            ids = tokenizer(chat, add_special_tokens=False, return_tensors="pt")["input_ids"]  # type: ignore[operator]
            sampling = (
                {"do_sample": False}
                if options.temperature == 0
                else {
                    "do_sample": True,
                    "temperature": options.temperature,
                    "top_k": 0,
                }
            )
            torch.manual_seed(0)
            first = FirstToken()
            with torch.inference_mode():
                out = model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=options.max_tokens,
                    streamer=first,
                    eos_token_id=sorted(eos),
                    pad_token_id=min(eos),
                    **sampling,
                    **more,
                )
            ended = perf_counter()
            return out[0, ids.shape[1] :].tolist(), ended - first.at, None, None

        return decode

    return {"transformers plain": way(), "transformers prompt lookup": way(prompt_lookup_num_tokens=10)}


def table(runs: list[Run], names: list[str]) -> str:
    """Markdown: tokens per second by way and group, and speedup over headstart plain with its interval."""
    base = {(r.group, r.question): r for r in runs if r.way == "headstart plain"}
    lines = [
        "| way | group | tok/s | over headstart plain | 95 % interval | accepted | length | identical |",
        "|---|" + "---|" * 7,
    ]
    for name in names:
        for group in (*GROUPS, "all"):
            mine = [r for r in runs if r.way == name and group in (r.group, "all") and r.tokens and r.seconds > 0]
            if not mine:
                continue
            plain = [base[r.group, r.question] for r in mine]
            speed = sum(r.tokens for r in mine) / sum(r.seconds for r in mine)
            plain_speed = sum(r.tokens for r in plain) / sum(r.seconds for r in plain)
            ratios = [
                log(r.tokens / r.seconds) - log(p.tokens / p.seconds)
                for r, p in zip(mine, plain, strict=True)
                if p.tokens
            ]
            low, high = bootstrap(ratios)
            rates = [r.acceptance_rate for r in mine if r.acceptance_rate is not None]
            lengths = [r.mean_acceptance_length for r in mine if r.mean_acceptance_length is not None]
            same = [r.identical for r in mine if r.identical is not None]
            cells = (
                name,
                group,
                f"{speed:.1f}",
                f"{speed / plain_speed:.2f}",
                f"{low:.2f}–{high:.2f}",
                f"{sum(rates) / len(rates):.0%}" if rates else "–",
                f"{sum(lengths) / len(lengths):.2f}" if lengths else "–",
                f"{sum(same)} of {len(same)}" if same else "–",
            )
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def bootstrap(ratios: list[float], rounds: int = 2000) -> tuple[float, float]:
    """95 % percentile interval of the geometric mean over prompts."""
    generator = random.Random(0)
    means = sorted(exp(sum(generator.choices(ratios, k=len(ratios))) / len(ratios)) for _ in range(rounds))
    return means[int(0.025 * rounds)], means[int(0.975 * rounds)]


if __name__ == "__main__":
    main()
