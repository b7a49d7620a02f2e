"""What an operator decides about a server: its name for the model, defaults, limits and timeouts. Plain values, checked
once; knows neither HTTP nor the engine."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from headstart.errors import InvalidParameter

_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Limits hold per HTTP request unless they say otherwise; times are in seconds.

    Raises:
        InvalidParameter: a limit or a time is not positive, or a default is out of range.
    """

    model_name: str
    """What clients call the model."""
    default_temperature: float = 1.0
    """For requests that give none; 1.0 is OpenAI's."""
    default_max_tokens: int | None = None
    """For chat requests that give none; ``None`` is the rest of the context."""

    max_queue: int = 64
    """Sequences that may wait for a place, over all requests; one more is answered 429."""
    max_body: int = 1 << 20
    """Bytes of a request's body."""
    max_sequences: int = 32
    """Prompts times ``n``."""
    max_stop: int = 16
    max_stop_length: int = 256
    """Characters of one stop string."""
    max_logit_bias: int = 1024
    max_logprobs: int = 20
    """``top_logprobs``, or ``logprobs`` of a completion."""
    max_connections: int = 512
    """Open connections, over all clients; one more is answered 503 and closed."""

    request_timeout: float = 600.0
    """From arrival to the last token; time in the queue counts."""
    receive_timeout: float = 30.0
    """For a request's head and body to arrive."""
    send_timeout: float = 30.0
    """A client that takes nothing for so long is cut off."""
    drain_timeout: float = 30.0
    """How long a server that was told to stop goes on with the requests it has."""

    log_interval: float = 10.0
    """Between two log lines on speculation, nothing while idle; 0 is never."""
    route_header: str | None = None
    """HTTP header whose value becomes the label ``route`` of metrics."""
    known_routes: tuple[str, ...] = ()
    """Routes with a place of their own from the start."""
    max_routes: int = 20
    """Other values of the header that become routes, in order of arrival; later ones are counted as ``other``."""

    def __post_init__(self) -> None:
        if not self.model_name:
            raise InvalidParameter("model_name", "is empty; name the model as clients will")
        if not 0 <= self.default_temperature <= 100:
            raise InvalidParameter("default_temperature", f"must be in [0, 100], got {self.default_temperature!r}")
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "max_routes" else 1
            if field.name.startswith("max_") and (type(value) is not int or value < least):
                raise InvalidParameter(field.name, f"must be an integer of at least {least}, got {value!r}")
            if field.name.endswith("_timeout") and not value > 0:
                raise InvalidParameter(field.name, f"must be a positive number of seconds, got {value!r}")
        if not self.log_interval >= 0:
            raise InvalidParameter("log_interval", f"must be 0 or a number of seconds, got {self.log_interval!r}")
        if self.route_header is not None and not _HEADER.fullmatch(self.route_header):
            raise InvalidParameter("route_header", f"{self.route_header!r} is not the name of an HTTP header")
        if self.default_max_tokens is not None and self.default_max_tokens < 1:
            raise InvalidParameter("default_max_tokens", f"must be at least 1, got {self.default_max_tokens!r}")
