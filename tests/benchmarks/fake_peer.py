"""A peer whose answers are a function of the prompt: it counts on from the last token, end of sequence after 9.

Modes: ``plain``; ``wrong`` says other tokens; ``raises``; ``dies``; ``sleeps``; ``truth`` repeats the request's truth.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.peers.protocol import Answer, Decoded, Request, serve

EOS = 9


class FakePeer:
    def __init__(self, config: Mapping[str, Any]) -> None:
        if config.get("broken"):
            raise RuntimeError("no such model")
        print("this goes to stderr, not into the protocol")

    def info(self) -> dict[str, Any]:
        return {"versions": {"fake": "1"}, "weights": "bf16", "threads": 1, "settings": {}}

    def answer(self, request: Request) -> Answer:
        if request.mode == "raises":
            raise ValueError("not this one")
        if request.mode == "dies":
            os._exit(3)
        if request.mode == "sleeps":
            time.sleep(60)
        outputs = []
        for i, prompt in enumerate(request.prompts):
            ids = [(prompt[-1] + j) % 10 for j in range(1, request.max_tokens + 1)]
            if request.mode == "wrong":
                ids = [token + 1 for token in ids]
            if request.mode == "truth":
                ids = request.truth[i]
            outputs.append(Decoded(ids, first=0.1, first_tokens=1, seconds=0.5, drafted=4, accepted=2))
        return Answer(outputs, 0.6)


if __name__ == "__main__":
    serve(FakePeer)
