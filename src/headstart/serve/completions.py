"""``/v1/completions``: the shape of its answers. Knows fresh output and reply models; not the engine or HTTP."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from headstart.serve.replies import Completion, CompletionChoice, CompletionLogprobs, Metrics, Usage
from headstart.serve.shape import Fresh, Header, finite
from headstart.serve.tokens import TokenTexts


class CompletionShape:
    """Args:
    echoes: for every choice, the text to put before it; empty without ``echo``.
    logprobs: whether they were asked for.
    show_usage: whether every chunk has a ``usage``, null if need be.
    """

    def __init__(
        self, header: Header, tokens: TokenTexts, echoes: Sequence[str], logprobs: bool, show_usage: bool
    ) -> None:
        self._header, self._tokens = header, tokens
        self._echoes, self._logprobs, self._show_usage = echoes, logprobs, show_usage
        self._offsets: Counter[int] = Counter()
        """Characters handed out, by choice."""

    def whole(self, choices: Sequence[Fresh], usage: Usage, metrics: Metrics) -> Completion:
        made = []
        for fresh in choices:
            echo = self._echo(fresh.index)
            made.append(self._choice(fresh, echo))
        return Completion(**self._head(), choices=made, usage=usage, metrics=metrics)

    def opening(self) -> Iterable[Completion]:
        for index, text in enumerate(self._echoes):
            if text:
                self._echo(index)
                choice = CompletionChoice(index=index, text=text, logprobs=None, finish_reason=None)
                yield Completion(**self._head(), choices=[choice], **self._usage(None))

    def piece(self, fresh: Fresh, usage: Usage | None) -> Completion | None:
        if not fresh.text and fresh.finish is None and not fresh.logprobs and usage is None:
            return None
        return Completion(**self._head(), choices=[self._choice(fresh, "")], **self._usage(usage))

    def closing(self, usage: Usage, metrics: Metrics) -> Completion:
        return Completion(**self._head(), choices=[], usage=usage, metrics=metrics)

    def _echo(self, index: int) -> str:
        text = self._echoes[index] if self._echoes else ""
        self._offsets[index] += len(text)
        return text

    def _choice(self, fresh: Fresh, echo: str) -> CompletionChoice:
        return CompletionChoice(
            index=fresh.index,
            text=echo + fresh.text,
            logprobs=self._log(fresh),
            finish_reason=fresh.finish,
            stop_reason=fresh.stop_reason,
        )

    def _log(self, fresh: Fresh) -> CompletionLogprobs | None:
        offsets = []
        for text, token in zip(fresh.texts, fresh.tokens, strict=True):
            if token is not None:
                offsets.append(self._offsets[fresh.index])
            self._offsets[fresh.index] += len(text)
        if not self._logprobs:
            return None
        return CompletionLogprobs(
            tokens=[self._tokens.text(item.token) for item in fresh.logprobs],
            token_logprobs=[finite(item.logprob) for item in fresh.logprobs],
            top_logprobs=[
                # the chosen token is always among them, as OpenAI has it
                {self._tokens.text(token): finite(value) for token, value in (*item.top, (item.token, item.logprob))}
                for item in fresh.logprobs
            ],
            text_offset=offsets,
        )

    def _head(self) -> dict[str, Any]:
        return {
            "id": self._header.id,
            "object": "text_completion",
            "created": self._header.created,
            "model": self._header.model,
            "system_fingerprint": self._header.system_fingerprint,
        }

    def _usage(self, usage: Usage | None) -> dict[str, Any]:
        return {"usage": usage} if self._show_usage or usage is not None else {}
