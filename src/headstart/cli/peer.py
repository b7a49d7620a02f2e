"""transformers' own ``generate`` as routes of the experiment: plain, prompt lookup and a draft model.

It runs a second, untouched copy of the model, since our target replaces linear layers and attention. Same folder,
dtype, device, token ids, limits and stop ids; sdpa attention. Knows transformers; does not know our engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from headstart.cli.report import NOT_APPLICABLE, Run

if TYPE_CHECKING:
    import torch

    from headstart.cli.experiment import Ticker
    from headstart.decode.params import SamplingParams

PLAIN = "transformers plain"
LOOKUP = "transformers lookup"
ASSISTED = "transformers assisted"
LOOKUP_TOKENS = 10
"""What transformers' documentation recommends for ``prompt_lookup_num_tokens``."""


class PeerRoute:
    """``model.generate`` with some extra arguments."""

    def __init__(self, model: Any, name: str, baseline: str | None, eos_ids: Sequence[int], **extra: Any) -> None:
        self.name = name
        self.baseline = baseline
        self._model = model
        self._eos = list(eos_ids)
        self._extra = extra

    def run(self, prompt: Sequence[int], params: SamplingParams, tick: Ticker) -> Run:
        import torch

        sampling: dict[str, Any] = {"do_sample": False}
        if not params.greedy:
            sampling = {"do_sample": True, "temperature": params.temperature, "top_k": 0, "top_p": 1.0}
            torch.manual_seed(params.seed or 0)
        ids = torch.tensor([list(prompt)], device=self._model.device)
        watch = _Watch(tick)
        started = perf_counter()
        out = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=params.max_tokens,
            eos_token_id=self._eos or None,
            pad_token_id=self._eos[0] if self._eos else 0,
            streamer=watch,
            **sampling,
            **self._extra,
        )
        tokens = out[0, len(prompt) :].tolist()
        ended = perf_counter()
        first = watch.first if watch.first is not None else ended
        stop = next((i + 1 for i, token in enumerate(tokens) if token in self._eos), len(tokens))
        tokens = tokens[: min(stop, params.max_tokens or stop)]
        return Run(
            token_ids=tuple(tokens),
            seconds=ended - started,
            decode_seconds=ended - first,
            decode_tokens=max(0, len(tokens) - watch.first_tokens),
            rounds=max(0, watch.deliveries - 1),
        )

    def promises(self, params: SamplingParams) -> str | None:
        """transformers promises equal output to greedy decoding only."""
        return None if params.greedy else NOT_APPLICABLE

    def gap(self, prompt: Sequence[int], params: SamplingParams) -> float | None:
        import torch

        with torch.inference_mode():
            logits = (
                self._model(input_ids=torch.tensor([list(prompt)], device=self._model.device)).logits[0, -1].float()
            )
        best, second = torch.topk(logits, 2).values.tolist()
        return float(best - second)


class _Watch:
    """A streamer that keeps time: the prompt comes first, then each round's tokens."""

    def __init__(self, tick: Ticker) -> None:
        self.first: float | None = None
        self.first_tokens = 0
        self.deliveries = 0
        self._tokens = 0
        self._prompt_seen = False
        self._tick = tick

    def put(self, value: torch.Tensor) -> None:
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        self.deliveries += 1
        self._tokens += value.numel()
        if self.first is None:
            self.first = perf_counter()
            self.first_tokens = self._tokens
        self._tick(self._tokens, perf_counter() - self.first)

    def end(self) -> None:
        pass


def peer_routes(
    model: str,
    draft_model: str | None,
    dtype: torch.dtype,
    device: torch.device,
    eos_ids: Sequence[int],
    progress: Callable[[str], None],
) -> list[PeerRoute]:
    """Load the copies and return the routes that they make possible."""
    progress(f"loading {model} again for transformers")
    target = _load(model, dtype, device)
    routes = [
        PeerRoute(target, PLAIN, None, eos_ids),
        PeerRoute(target, LOOKUP, PLAIN, eos_ids, prompt_lookup_num_tokens=LOOKUP_TOKENS),
    ]
    if draft_model is not None:
        progress(f"loading {draft_model} again for transformers")
        assistant = _load(model if draft_model == "self" else draft_model, dtype, device)
        routes.append(PeerRoute(target, ASSISTED, PLAIN, eos_ids, assistant_model=assistant))
    return routes


def _load(model: str, dtype: torch.dtype, device: torch.device) -> Any:
    from transformers import AutoModelForCausalLM, GenerationConfig

    from headstart.target.load import resolve

    loaded: Any = AutoModelForCausalLM.from_pretrained(resolve(model), dtype=dtype, attn_implementation="sdpa")
    # The repository's sampling defaults (top-k, penalties, …) would be merged into every call.
    plain: Any = GenerationConfig
    loaded.generation_config = plain()
    return loaded.to(device).eval()
