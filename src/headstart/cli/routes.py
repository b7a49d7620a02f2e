"""Routes as the command line names them (``ngram``, ``int4``, ``model``, ``ngram+int4``, ``none``), checked before
anything is loaded. Knows names; what they become is the engine's."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.draft.ensemble import AUTO, COPIES, JOINT, PLAIN, ROUTES, members
from headstart.errors import InvalidParameter

HELP = (
    "ngram, int4 or int8 (the target in fewer bits), model, several in the order they are asked (ngram+int4), or none."
)


def checked_routes(given: Sequence[str], draft_model: str | None, *, spare_model: bool = False) -> list[str]:
    """The routes in order, each once; none for ``["none"]``. ``spare_model`` allows a draft model that no route uses.

    Raises:
        InvalidParameter: a name nobody knows, ``none`` beside others, a draft model missing or of no use.
    """
    routes = list(dict.fromkeys(given))
    if routes == [PLAIN]:
        routes = []
    named = []
    for route in routes:
        if route == PLAIN:
            raise InvalidParameter("--drafter", "none stands alone; plain decoding can always be had beside others")
        for name in () if route == AUTO else members(route, "--drafter"):
            if name not in ROUTES:
                known = ", ".join((AUTO, *ROUTES, PLAIN))
                raise InvalidParameter("--drafter", f"{name!r} is unknown; choose from {known}, or join with {JOINT}")
            named.append(name)
    if set(COPIES) <= set(named):
        both = " and ".join(COPIES)
        raise InvalidParameter("--drafter", f"{both} are both copies of the target; name one of them")
    if "model" in named and draft_model is None:
        raise InvalidParameter("--draft-model", "the route model needs one; name a small model of the target's family")
    if "model" not in named and draft_model is not None and not spare_model:
        used = ", ".join(routes) or PLAIN
        raise InvalidParameter("--draft-model", f"given, but --drafter {used} does not use it")
    return routes
