"""headstart, asked like every peer: plain, n-gram chains and trees, the target in fewer bits, both, a draft model, and
drafters that follow a script.

All modes share one target. Scripted modes (``oracle 0.7``, ``oracle 0.7 depth 3``, ``wrong``) need the true
continuation in the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

from benchmarks.peers.protocol import Answer, Decoded, Request, serve, versions


class Headstart:
    def __init__(self, config: Mapping[str, Any]) -> None:
        from headstart.threads import wait_gently

        wait_gently()
        from headstart.target.load import load_target

        self.config = config
        self.target = load_target(
            config["folder"],
            dtype=config["dtype"],
            weights=config.get("weights"),
            threads=config["threads"],
            max_sequences=config["max_sequences"],
            kv_tokens=config["kv_tokens"],
            draft_weights=config.get("draft_weights"),
        )
        self.calibrated = self.curve().as_dict()
        self.engines: dict[str, Any] = {}
        self.controllers: dict[str, Any] = {}

    def info(self) -> dict[str, Any]:
        import torch

        from headstart.cli.versions import own_version

        info = self.target.info
        return {
            "versions": {"headstart": own_version(), **versions("torch", "transformers")},
            "weights": self.config.get("weights") or self.config["dtype"],
            "threads": torch.get_num_threads(),
            "settings": {name: info[name] for name in ("kernels", "exact_rows") if name in info},
            "curve": self.calibrated,
        }

    def curve(self) -> Any:
        """A cost curve of its own for every controller, since each corrects its own while it runs."""
        from headstart.engine.costs import cost_curve

        return cost_curve(self.target)

    def engine(self, mode: str) -> Any:
        """The engine of a mode, made once."""
        from headstart.control.adaptive import AdaptiveDepth
        from headstart.engine.engine import Engine

        if mode not in self.engines:
            most = self.config["max_sequences"]
            drafters = self.drafters(mode)
            self.engines[mode] = Engine(
                self.target,
                drafters,
                default_drafter="+".join(drafter.name for drafter in drafters) or None,
                controller=AdaptiveDepth(self.curve(), tree="chain" not in mode) if drafters else None,
                max_sequences=most,
            )
        return self.engines[mode]

    def drafters(self, mode: str) -> list[Any]:
        """The drafters of a mode, with settings as ``load_engine`` makes them."""
        from headstart.engine.load import make_drafter
        from headstart.target.load import load_target

        if mode == "plain":
            return []
        if mode == "draft model":
            draft = load_target(
                self.config["draft"],
                dtype=self.config["dtype"],
                max_sequences=self.config["max_sequences"],
                kv_tokens=self.config["kv_tokens"],
                exact=False,
            )
            return [make_drafter("model", self.target, draft=draft)]
        names = mode.removesuffix(" tree").removesuffix(" chain").removeprefix("drafter ").split("+")
        return [make_drafter(name, self.target, adaptive="chain" not in mode) for name in names]

    def scripted(self, request: Request) -> tuple[Any, int | None]:
        """A fresh engine whose drafter knows the truth of this request, and the depth it is held to."""
        from headstart.control.adaptive import AdaptiveDepth
        from headstart.draft.scripted import OracleDrafter, WrongDrafter
        from headstart.engine.engine import Engine

        truth = {tuple(p): t for p, t in zip(request.prompts, request.truth, strict=True)}
        kind, *rest = request.mode.split()
        drafter = WrongDrafter(truth) if kind == "wrong" else OracleDrafter(truth, float(rest[0]), seed=request.seed)
        key = f"{request.mode} {request.scope}"
        if key not in self.controllers:  # what it learns of the drafter stays, as it would in a server
            self.controllers[key] = AdaptiveDepth(self.curve())
        depth = int(rest[2]) if len(rest) == 3 else None
        most = self.config["max_sequences"]
        return Engine(self.target, [drafter], controller=self.controllers[key], max_sequences=most), depth

    def answer(self, request: Request) -> Answer:
        from headstart.decode.params import SamplingParams
        from headstart.engine.request import Speculation

        depth = None
        if request.mode.split()[0] in ("oracle", "wrong"):
            engine, depth = self.scripted(request)
        else:
            engine = self.engine(request.mode)
        params = SamplingParams(max_tokens=request.max_tokens, temperature=request.temperature, seed=request.seed)
        # peers compute every prompt
        speculation = Speculation(tenant=f"{request.mode} {request.scope}", depth=depth, prefix_cache=False)
        started = perf_counter()
        outputs = engine.generate(request.prompts, params, speculation)
        seconds = perf_counter() - started
        speculated = request.mode != "plain"
        decoded = []
        for output in outputs:
            record = output.completions[0].record
            decoded.append(
                Decoded(
                    ids=output.token_ids,
                    first=output.first_token_seconds if output.first_token_seconds is not None else output.seconds,
                    first_tokens=1,
                    seconds=output.seconds,
                    rounds=record.rounds,
                    drafted=record.drafted if speculated else None,
                    accepted=record.accepted if speculated else None,
                )
            )
        return Answer(decoded, seconds)


if __name__ == "__main__":
    serve(Headstart)
