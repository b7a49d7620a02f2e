"""vLLM on a CPU: plain, n-gram drafts, and suffix decoding where ``arctic-inference`` is installed.

One process a mode, since the drafter is fixed when the engine starts. The engine runs inside this process: another
process of its own would poll while it waits. Prefix caching is off, so that no prompt is met twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from benchmarks.peers.protocol import Answer, Decoded, Request, serve, versions

NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
SUFFIX = {"method": "suffix"}
DRAFTERS: dict[str, dict[str, Any] | None] = {"plain": None, "ngram": NGRAM, "suffix": SUFFIX}


class Vllm:
    def __init__(self, config: Mapping[str, Any]) -> None:
        os.environ |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": str(config["kv_gib"]),
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_PLUGINS": "",
            "HF_HUB_OFFLINE": "1",
        }
        from vllm import LLM

        self.mode = config["mode"]
        self.dtype = config["dtype"]
        self.count = 0
        self.drafter = DRAFTERS[self.mode]
        self.scope: str | None = None
        self.llm = LLM(
            model=config["folder"],
            dtype=self.dtype,
            max_model_len=config["max_model_len"],
            max_num_seqs=config["max_sequences"],
            enable_prefix_caching=False,
            disable_log_stats=False,
            speculative_config=self.drafter,
            seed=0,
        )

    def info(self) -> dict[str, Any]:
        import torch

        return {
            "versions": versions("vllm-cpu", "vllm", "torch", "transformers", "arctic-inference"),
            "weights": self.dtype,
            "threads": torch.get_num_threads(),
            "settings": self.drafter or {},
        }

    def answer(self, request: Request) -> Answer:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        if request.mode != self.mode:
            raise ValueError(f"this process decodes {self.mode}, not {request.mode}")
        self.enter(request.scope)
        params = SamplingParams(
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            seed=request.seed,
            stop_token_ids=request.eos,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        engine = self.llm.llm_engine
        before = self.drafts()
        started = perf_counter()
        outputs: dict[str, Decoded] = {}
        for prompt in request.prompts:
            self.count += 1
            outputs[str(self.count)] = Decoded([], 0.0, 0, 0.0)
            engine.add_request(str(self.count), {"prompt_token_ids": prompt}, params)
        while engine.has_unfinished_requests():
            moved = engine.step()
            now = perf_counter() - started
            for output in moved:
                mine, fresh = outputs[output.request_id], output.outputs[0].token_ids
                if fresh and not mine.ids:
                    mine.first, mine.first_tokens = now, len(fresh)
                mine.ids.extend(fresh)
                mine.seconds = now
        seconds = perf_counter() - started
        after = self.drafts()
        drafted, accepted = (b - a for a, b in zip(before, after, strict=True))
        speculated = self.drafter is not None
        return Answer(
            list(outputs.values()), seconds, drafted if speculated else None, accepted if speculated else None
        )

    def drafts(self) -> tuple[int, int]:
        """Draft tokens so far, and how many were accepted."""
        values = {m.name: getattr(m, "value", 0) for m in self.llm.get_metrics()} if self.drafter else {}
        return tuple(int(values.get(f"vllm:spec_decode_num_{what}_tokens", 0)) for what in ("draft", "accepted"))  # type: ignore[return-value]

    def enter(self, scope: str) -> None:
        """Forget the outputs of another scope: suffix decoding keeps them for later requests."""
        if self.mode == "suffix" and scope != self.scope:
            from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer

            core = self.llm.llm_engine.engine_core.engine_core
            runner = core.model_executor.driver_worker.worker.model_runner
            runner.drafter = SuffixDecodingProposer(self.llm.llm_engine.vllm_config)
        self.scope = scope


if __name__ == "__main__":
    serve(Vllm)
