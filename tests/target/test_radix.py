"""The radix tree against a list that is searched from end to end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.target.radix import Node, RadixTree, common_prefix

WORDS = st.lists(st.integers(0, 2), min_size=1, max_size=9)


def naive(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(WORDS, WORDS)
def test_common_prefix(a: list[int], b: list[int]) -> None:
    assert common_prefix(a, b) == naive(a, b)


def nodes(tree: RadixTree[tuple[int, ...]]) -> list[Node[tuple[int, ...]]]:
    found, open_ = [], [tree.root]
    while open_:
        node = open_.pop()
        found.append(node)
        open_.extend(node.children.values())
    return found


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.booleans(), WORDS), max_size=30), WORDS)
def test_it_finds_what_a_search_of_everything_finds(steps: list[tuple[bool, list[int]]], query: list[int]) -> None:
    tree: RadixTree[tuple[int, ...]] = RadixTree()
    held: dict[tuple[int, ...], Node[tuple[int, ...]]] = {}
    for put, word in steps:
        key = tuple(word)
        if put:
            node = tree.insert(word)
            assert node.entry == (key if key in held else None)
            node.entry = key
            held[key] = node
            assert {*node.above()} == {k for k in held if k != key and k == key[: len(k)]}
        elif held:
            gone = [*held][len(word) % len(held)]
            tree.remove(held.pop(gone))
        node, length = tree.longest(query)
        assert length == max((naive([*k], query) for k in held), default=0)
        if length:
            found = node.any()
            assert found in held
            assert [*found][:length] == query[:length]
        for node in nodes(tree):
            assert node is tree.root or node.entry is not None or len(node.children) > 1
            assert all(child.tokens[0] == first and child.parent is node for first, child in node.children.items())
        assert tree.empty == (not held)


def test_a_look_up_does_not_grow_with_what_is_held() -> None:
    """Counted, not timed: how many nodes a look-up touches."""
    touched = 0

    class Counting(dict):  # type: ignore[type-arg]
        def get(self, *args: object) -> object:
            nonlocal touched
            touched += 1
            return super().get(*args)

    tree: RadixTree[int] = RadixTree()
    shared = [7] * 4000
    for i in range(500):
        tree.insert([*shared, i, *range(50)]).entry = i
    for node in nodes(tree):  # type: ignore[arg-type]
        node.children = Counting(node.children)
    node, length = tree.longest([*shared, 250, 0, 1, 99])
    assert length == 4003
    assert node.any() == 250
    assert touched <= 3
