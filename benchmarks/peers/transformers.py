"""transformers' own ``generate``: plain, prompt lookup, and a draft model. Several prompts at once in plain only."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.peers.protocol import Answer, Decoded, Request, serve, versions

if TYPE_CHECKING:
    import torch

LOOKUP_TOKENS = 10
"""What transformers' documentation recommends for ``prompt_lookup_num_tokens``."""


class Transformers:
    def __init__(self, config: Mapping[str, Any]) -> None:
        import torch

        torch.set_num_threads(config["threads"])
        self.dtype = config["dtype"]
        self.model = self.load(config["folder"])
        self.draft = self.load(config["draft"]) if config.get("draft") else None

    def load(self, folder: str) -> Any:
        import torch
        from transformers import AutoModelForCausalLM, GenerationConfig

        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, self.dtype), attn_implementation="sdpa"
        )
        model.generation_config = GenerationConfig()  # the repository's sampling defaults would join every call
        return model.eval()

    def info(self) -> dict[str, Any]:
        import torch

        return {
            "versions": versions("transformers", "torch"),
            "weights": self.dtype,
            "threads": torch.get_num_threads(),
            "settings": {"prompt_lookup_num_tokens": LOOKUP_TOKENS},
        }

    def answer(self, request: Request) -> Answer:
        import torch

        extra: dict[str, Any] = {}
        if request.mode == "prompt lookup":
            extra["prompt_lookup_num_tokens"] = LOOKUP_TOKENS
        elif request.mode == "draft model":
            extra["assistant_model"] = self.draft
        elif request.mode != "plain":
            raise ValueError(f"no mode {request.mode!r}")
        if request.temperature > 0:
            extra |= {"do_sample": True, "temperature": request.temperature, "top_k": 0, "top_p": 1.0}
        else:
            extra["do_sample"] = False
        longest = max(map(len, request.prompts))
        pad = min(request.eos)
        ids = torch.tensor([[pad] * (longest - len(p)) + p for p in request.prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in request.prompts])
        torch.manual_seed(request.seed)
        started = perf_counter()
        watch = Watch(started)
        with torch.inference_mode():
            out = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=request.max_tokens,
                eos_token_id=request.eos,
                pad_token_id=pad,
                streamer=watch if len(request.prompts) == 1 else None,
                **extra,
            )
        seconds = perf_counter() - started
        first, first_tokens = (watch.first, watch.first_tokens) if watch.first is not None else (0.0, 0)
        return Answer([Decoded(row, first, first_tokens, seconds) for row in out[:, longest:].tolist()], seconds)


class Watch:
    """A streamer that notes when the first tokens came; the prompt is handed over before them."""

    def __init__(self, started: float) -> None:
        self.started = started
        self.first: float | None = None
        self.first_tokens = 0
        self.prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        if self.prompt_seen and self.first is None:
            self.first, self.first_tokens = perf_counter() - self.started, value.numel()
        self.prompt_seen = True

    def end(self) -> None:
        pass


if __name__ == "__main__":
    serve(Transformers)
