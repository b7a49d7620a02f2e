"""OpenVINO GenAI on a CPU: plain and prompt lookup, through its continuous-batching pipeline, which is its default.

KV cache and activations have the precision that OpenVINO chooses. Sampling is from the whole law.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from time import perf_counter
from typing import Any

from benchmarks.peers.protocol import Answer, Decoded, Request, serve, versions

LOOKUP = {"num_assistant_tokens": 5, "max_ngram_size": 3}
"""What its documentation recommends."""


class OpenVino:
    def __init__(self, config: Mapping[str, Any]) -> None:
        import openvino_genai

        self.genai = openvino_genai
        self.config = config
        self.lookup = config["mode"] == "prompt lookup"
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = config["kv_gib"]
        scheduler.max_num_seqs = config["max_sequences"]
        properties = {"INFERENCE_NUM_THREADS": config["threads"]}
        if self.lookup:
            properties["prompt_lookup"] = True
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(config["folder"], scheduler, "CPU", properties)
        self.ids = count()

    def info(self) -> dict[str, Any]:
        return {
            "versions": versions("openvino", "openvino-genai", "openvino-tokenizers"),
            "weights": self.config["weights"],
            "threads": self.config["threads"],
            "settings": LOOKUP if self.lookup else {},
        }

    def answer(self, request: Request) -> Answer:
        import numpy
        from openvino import Tensor

        if request.mode != self.config["mode"]:
            raise ValueError(f"this process decodes {self.config['mode']}, not {request.mode}")
        started = perf_counter()
        handles = [
            self.pipeline.add_request(
                next(self.ids), Tensor(numpy.array([prompt], dtype=numpy.int64)), self.parameters(request)
            )
            for prompt in request.prompts
        ]
        outputs = [Decoded([], 0.0, 0, 0.0) for _ in handles]
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            now = perf_counter() - started
            for handle, output in zip(handles, outputs, strict=True):
                fresh = [t for part in self.read(handle) for t in part.generated_ids]
                if fresh and not output.ids:
                    output.first, output.first_tokens = now, len(fresh)
                if fresh:
                    output.ids.extend(fresh)
                    output.seconds = now
        return Answer(outputs, perf_counter() - started)

    def parameters(self, request: Request) -> Any:
        """Generation settings of one request."""
        config = self.genai.GenerationConfig()
        config.max_new_tokens = request.max_tokens
        config.stop_token_ids = set(request.eos)
        config.set_eos_token_id(min(request.eos))
        if request.temperature > 0:
            config.do_sample = True
            config.temperature = request.temperature
            config.top_p, config.top_k = 1.0, 2**31 - 1
            config.rng_seed = request.seed
        if self.lookup:
            for name, value in LOOKUP.items():
                setattr(config, name, value)
        return config

    def read(self, handle: Any) -> list[Any]:
        return list(handle.read().values()) if handle.can_read() else []


if __name__ == "__main__":
    serve(OpenVino)
