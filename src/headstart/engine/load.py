"""From names to a running engine: load the target, make the drafters, wire them together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headstart.control.adaptive import MOST_NODES, AdaptiveDepth
from headstart.control.depth import DepthController, FixedDepth
from headstart.draft.base import Drafter
from headstart.draft.ensemble import AUTO, COPIES, JOINT, ROUTES, members
from headstart.engine.costs import cost_curve
from headstart.engine.engine import Engine
from headstart.errors import InvalidParameter
from headstart.target.load import load_target
from headstart.target.model import Target

TREE_FLOOR = 0.03
"""Least path probability of a node the n-gram drafter still grows when depth is adaptive."""


def load_engine(
    model: str,
    *,
    drafters: Sequence[str] = (AUTO,),
    draft_model: str | None = None,
    depth: int | None = None,
    nodes: int | None = None,
    controller: DepthController | None = None,
    dtype: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    max_model_len: int | None = None,
    max_sequences: int = 8,
    kv_tokens: int | None = None,
    kv_bytes: int | None = None,
    prefill_chunk: int = 256,
    prefix_cache: bool = True,
    kernels: str = "auto",
    weights: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Engine:
    """Load a target and its drafters by name.

    Args:
        model, draft_model: as ``headstart.target.load.load_target`` takes them. ``"self"`` as draft model drafts with a
            copy of the target, for tests of the machinery.
        drafters: routes to make ready, of ``ngram``, ``int8`` or ``int4`` and ``model``; several may be joined, as in
            ``ngram+int4``. ``auto`` is that where the target can hold a copy of itself in 4 bits, else ``ngram``. The
            first is the default, and an empty list means plain. ``model`` needs ``draft_model``, which adds it.
        depth, nodes: a fixed depth. ``None`` lets measured costs and acceptance decide each round, up to no draft at
            all, as trees of at most ``nodes`` tokens (16 if left out).
        controller: decides depth instead.

    Raises:
        InvalidParameter, ModelNotFound, UnsupportedModel, VocabularyMismatch
    """
    names = list(dict.fromkeys(name for drafter in drafters for name in members(resolved(drafter, None))))
    if draft_model is not None and "model" not in names:
        names.append("model")
    for name in names:
        if name not in ROUTES:
            known = ", ".join(ROUTES)
            raise InvalidParameter("drafter", f"{name!r} is unknown; choose from {known}, or join with {JOINT}")
    if "model" in names and draft_model is None:
        raise InvalidParameter("draft_model", "the model drafter needs one; name a small model of the target's family")
    copies = [name for name in names if name in COPIES]
    if AUTO in drafters and not copies and depth is None:  # at a fixed depth the first with something to say drafts
        copies.append(AUTO)
    if len(copies) > 1:
        raise InvalidParameter("drafter", f"{' and '.join(copies)} are both copies of the target; name one of them")
    chosen = controller
    if chosen is None and depth is not None:
        chosen = FixedDepth(depth, nodes)
    target = load_target(
        model,
        dtype=dtype,
        device=device,
        threads=threads,
        max_model_len=max_model_len,
        max_sequences=max_sequences,
        kv_tokens=kv_tokens,
        kv_bytes=kv_bytes,
        kernels=kernels,
        weights=weights,
        draft_weights=next(iter(copies), None),
        progress=progress,
    )
    if target.draft_weights is not None and target.draft_weights not in names:
        names.append(target.draft_weights)
    names.sort(key=ROUTES.index)
    made: list[Drafter] = []
    for name in names:
        draft = None
        if name == "model":
            draft = load_target(
                model if draft_model == "self" else str(draft_model),
                dtype=dtype,
                device=device,
                max_sequences=max_sequences,
                exact=False,  # its own context limit may be shorter than the target's
                kernels=kernels,
                progress=progress,
            )
        made.append(make_drafter(name, target, draft=draft, adaptive=depth is None))
    if chosen is None:
        if progress is not None:
            progress("measuring what rows cost")
        chosen = AdaptiveDepth(cost_curve(target), tree=True, most_nodes=MOST_NODES if nodes is None else nodes)
    return Engine(
        target,
        made,
        default_drafter=next((resolved(drafter, target) for drafter in drafters), None),
        controller=chosen,
        max_sequences=max_sequences,
        prefill_chunk=prefill_chunk,
        prefix_cache=prefix_cache,
    )


def make_drafter(name: str, target: Target, *, draft: Target | None = None, adaptive: bool = True) -> Drafter:
    """One of ``ROUTES`` for ``target``, with the settings of ``load_engine``.

    Args:
        draft: the small model of the ``model`` drafter.
        adaptive: whether a controller that knows what a row costs cuts drafts; the n-gram drafter then need only not
            be absurd.

    Raises:
        InvalidParameter: an unknown name. ValueError: a copy that ``target`` does not hold, or ``draft`` is missing.
    """
    if name == "ngram":
        from headstart.draft.ngram import NgramDrafter

        return NgramDrafter(tree_min_path=TREE_FLOOR) if adaptive else NgramDrafter()
    if name in COPIES:
        from headstart.draft.quantised import QuantisedDrafter

        if name != target.draft_weights:
            raise ValueError(f"{target.name} holds no copy in {name}; load it with draft_weights")
        return QuantisedDrafter(target)
    if name == "model":
        from headstart.draft.model import ModelDrafter

        if draft is None:
            raise ValueError("the model drafter needs a small model")
        return ModelDrafter(draft, target)
    raise InvalidParameter("drafter", f"{name!r} is unknown; choose from {', '.join(ROUTES)}")


def resolved(drafter: str, target: Target | None) -> str:
    """What ``auto`` stands for with this target; other names stand for themselves."""
    if drafter != AUTO:
        return drafter
    copy = None if target is None else target.draft_weights
    return "ngram" if copy is None else f"ngram{JOINT}{copy}"
