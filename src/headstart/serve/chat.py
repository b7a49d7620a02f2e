"""``/v1/chat/completions``: the shape of its answers. Knows fresh output and reply models; not the engine or HTTP."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from headstart.decode.sampling import TokenLogprob as Logprob
from headstart.serve.calls import CallReader
from headstart.serve.replies import (
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    Finish,
    FunctionDelta,
    Metrics,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    TopLogprob,
    Usage,
)
from headstart.serve.shape import Fresh, Header, finite
from headstart.serve.tokens import TokenTexts
from headstart.serve.traced import traced


class ChatShape:
    """Args:
    n: number of choices.
    logprobs: whether they were asked for.
    show_usage: whether every chunk has a ``usage``, null if need be.
    calls: whether calls of functions are read out of the text.
    trace: whether every chunk says what its rounds did.
    """

    def __init__(
        self,
        header: Header,
        tokens: TokenTexts,
        n: int,
        logprobs: bool,
        show_usage: bool,
        calls: bool,
        trace: bool,
    ) -> None:
        self._header, self._tokens, self._n = header, tokens, n
        self._logprobs, self._show_usage, self._trace = logprobs, show_usage, trace
        self._readers = [CallReader(_call_id) for _ in range(n)] if calls else []

    def whole(self, choices: Sequence[Fresh], usage: Usage, metrics: Metrics) -> ChatCompletion:
        made = []
        for fresh in choices:
            content, calls = self._read(fresh)
            whole = [
                ToolCall(
                    id=call.id,
                    type="function",
                    function=CalledFunction(name=call.function.name, arguments=call.function.arguments),
                )
                for call in calls
                if call.id is not None and call.function.name is not None
            ]
            message = ChatMessage(
                role="assistant",
                content=content if content or not whole else None,
                refusal=None,
                **({"tool_calls": whole} if whole else {}),
            )
            finish = self._finish(fresh)
            assert finish is not None
            made.append(
                ChatChoice(
                    index=fresh.index,
                    message=message,
                    logprobs=self._log(fresh),
                    finish_reason=finish,
                    stop_reason=fresh.stop_reason,
                )
            )
        return ChatCompletion(**self._head("chat.completion"), choices=made, usage=usage, metrics=metrics)

    def opening(self) -> Iterable[ChatChunk]:
        for index in range(self._n):
            yield self._chunk(index, ChatDelta(role="assistant", content=""), None)

    def piece(self, fresh: Fresh, usage: Usage | None) -> ChatChunk | None:
        content, calls = self._read(fresh)
        something = content or calls or fresh.finish is not None or fresh.logprobs or usage is not None
        if not something and not self._trace:
            return None
        said: dict[str, Any] = {"content": content} if content or not (calls or fresh.finish) else {}
        if calls:
            said["tool_calls"] = calls
        return self._chunk(fresh.index, ChatDelta(**said), usage, fresh)

    def closing(self, usage: Usage, metrics: Metrics) -> ChatChunk:
        return ChatChunk(**self._head("chat.completion.chunk"), choices=[], usage=usage, metrics=metrics)

    def _chunk(self, index: int, delta: ChatDelta, usage: Usage | None, fresh: Fresh | None = None) -> ChatChunk:
        choice = ChatChunkChoice(
            index=index,
            delta=delta,
            logprobs=None if fresh is None else self._log(fresh),
            finish_reason=None if fresh is None else self._finish(fresh),
            **({} if fresh is None or fresh.finish is None else {"stop_reason": fresh.stop_reason}),
        )
        shown: dict[str, Any] = {"usage": usage} if self._show_usage or usage is not None else {}
        if self._trace and fresh is not None:
            shown["speculation"] = traced(fresh.chunks)
        return ChatChunk(**self._head("chat.completion.chunk"), choices=[choice], **shown)

    def _read(self, fresh: Fresh) -> tuple[str, list[ToolCallDelta]]:
        """Content, and parts of calls, one for each call."""
        if not self._readers:
            return fresh.text, []
        reader = self._readers[fresh.index]
        pieces = reader.feed(fresh.text)
        if fresh.finish is not None:
            pieces += reader.finish()
        content, calls = "", dict[int, ToolCallDelta]()
        for piece in pieces:
            if isinstance(piece, str):
                content += piece
            elif piece.id is not None:
                function = FunctionDelta(name=piece.name, arguments=piece.arguments)
                calls[piece.index] = ToolCallDelta(index=piece.index, id=piece.id, type="function", function=function)
            elif piece.index in calls:
                calls[piece.index].function.arguments += piece.arguments
            else:
                calls[piece.index] = ToolCallDelta(index=piece.index, function=FunctionDelta(arguments=piece.arguments))
        return content, list(calls.values())

    def _finish(self, fresh: Fresh) -> Finish | None:
        called = bool(self._readers) and self._readers[fresh.index].calls > 0
        return "tool_calls" if called and fresh.finish == "stop" else fresh.finish

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


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
