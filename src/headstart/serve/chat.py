"""``/v1/chat/completions``: the shape of its answers. Knows fresh output and reply models; not the engine or HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from headstart.decode.sampling import TokenLogprob as Logprob
from headstart.serve.replies import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    Metrics,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from headstart.serve.shape import Fresh, Header, finite
from headstart.serve.tokens import TokenTexts


class ChatShape:
    """Args:
    n: number of choices.
    logprobs: whether they were asked for.
    show_usage: whether every chunk has a ``usage``, null if need be.
    """

    def __init__(self, header: Header, tokens: TokenTexts, n: int, logprobs: bool, show_usage: bool) -> None:
        self._header, self._tokens, self._n = header, tokens, n
        self._logprobs, self._show_usage = logprobs, show_usage

    def whole(self, choices: Sequence[Fresh], usage: Usage, metrics: Metrics) -> ChatCompletion:
        made = []
        for fresh in choices:
            assert fresh.finish is not None
            made.append(
                ChatChoice(
                    index=fresh.index,
                    message=ChatMessage(role="assistant", content=fresh.text, refusal=None),
                    logprobs=self._log(fresh),
                    finish_reason=fresh.finish,
                    stop_reason=fresh.stop_reason,
                )
            )
        return ChatCompletion(**self._head("chat.completion"), choices=made, usage=usage, metrics=metrics)

    def opening(self) -> Iterable[ChatChunk]:
        for index in range(self._n):
            yield self._chunk(index, ChatDelta(role="assistant", content=""), None)

    def piece(self, fresh: Fresh, usage: Usage | None) -> ChatChunk | None:
        text = fresh.text
        if not text and fresh.finish is None and not fresh.logprobs and usage is None:
            return None
        delta = ChatDelta(content=text) if text or fresh.finish is None else ChatDelta()
        return self._chunk(fresh.index, delta, usage, fresh)

    def closing(self, usage: Usage, metrics: Metrics) -> ChatChunk:
        return ChatChunk(**self._head("chat.completion.chunk"), choices=[], usage=usage, metrics=metrics)

    def _chunk(self, index: int, delta: ChatDelta, usage: Usage | None, fresh: Fresh | None = None) -> ChatChunk:
        choice = ChatChunkChoice(
            index=index,
            delta=delta,
            logprobs=None if fresh is None else self._log(fresh),
            finish_reason=None if fresh is None else fresh.finish,
            **({} if fresh is None or fresh.finish is None else {"stop_reason": fresh.stop_reason}),
        )
        shown: dict[str, Any] = {"usage": usage} if self._show_usage or usage is not None else {}
        return ChatChunk(**self._head("chat.completion.chunk"), choices=[choice], **shown)

    def _log(self, fresh: Fresh) -> ChatLogprobs | None:
        if not self._logprobs:
            return None
        return ChatLogprobs(content=[self._token(item) for item in fresh.logprobs], refusal=None)

    def _token(self, item: Logprob) -> TokenLogprob:
        return TokenLogprob(
            token=self._tokens.text(item.token),
            logprob=finite(item.logprob),
            bytes=self._tokens.utf8(item.token),
            top_logprobs=[
                TopLogprob(token=self._tokens.text(token), logprob=finite(value), bytes=self._tokens.utf8(token))
                for token, value in item.top
            ],
        )

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._header.id,
            "object": kind,
            "created": self._header.created,
            "model": self._header.model,
            "system_fingerprint": self._header.system_fingerprint,
        }
