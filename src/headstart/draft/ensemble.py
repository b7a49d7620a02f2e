"""Several drafters for one request: an ordered set of names, written ``ngram+model``.

The first is asked first, so cheap ones belong in front; whether the next is asked at all is decided every round, by
what the ones before it said. Knows names only: who is asked, and whose draft is verified, is the engine's and the
controller's concern.
"""

from __future__ import annotations

from collections.abc import Iterable

from headstart.errors import InvalidParameter

PLAIN = "none"
"""The drafter name that means no drafter."""

GRAMMAR = "grammar"
"""Whose tokens they are that a request's grammar forces; no drafter may have this name."""

PREDICTION = "prediction"
"""The drafter made of a request's own prediction; every engine has it."""

JOINT = "+"

AUTO = "auto"
"""The best that needs nothing but the target: ``ngram+int4`` where the target can hold a copy, else ``ngram``."""

COPIES = ("int8", "int4")
"""Drafters that are the target itself in so many bits."""

ROUTES = ("ngram", *COPIES, "model")
"""Drafters that can be made by name, in order of deployment cost."""


def members(drafter: str, param: str = "drafter") -> tuple[str, ...]:
    """The drafters that a name stands for, in order; none for ``"none"``. ``param`` is what errors call it.

    Raises:
        InvalidParameter: a part is empty, twice there, or ``"none"`` among others.
    """
    if drafter == PLAIN:
        return ()
    names = tuple(drafter.split(JOINT))
    if "" in names:
        raise InvalidParameter(param, f"{drafter!r} lacks a name; write one, or several as ngram{JOINT}model")
    if PLAIN in names:
        raise InvalidParameter(param, f"{drafter!r}: {PLAIN} stands alone")
    if len(set(names)) < len(names):
        raise InvalidParameter(param, f"{drafter!r} names a drafter twice")
    return names


def check_names(names: Iterable[str]) -> None:
    """Raise ``InvalidParameter`` unless drafters of these names can be told apart and named together."""
    seen = {PLAIN, GRAMMAR, PREDICTION}
    for name in names:
        if not name or JOINT in name:
            raise InvalidParameter("drafters", f"a name must not be empty or contain {JOINT!r}, got {name!r}")
        if name in seen:
            reserved = f"{PLAIN!r}, {GRAMMAR!r} or {PREDICTION!r}"
            raise InvalidParameter("drafters", f"names must differ and not be {reserved}, got {name!r}")
        seen.add(name)
