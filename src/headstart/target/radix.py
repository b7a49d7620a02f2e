"""A radix tree over token ids: which of the token sequences in it shares the longest prefix with another one.

A look-up compares each token of the prefix once, in C, however many sequences there are. Knows lists of ids; what hangs
at the end of a sequence is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Node(Generic[T]):
    """The end of an edge with ``tokens`` on it; ``entry`` is what ends here. All nodes but the root have an entry or at
    least two children."""

    tokens: list[int]
    parent: Node[T] | None = None
    children: dict[int, Node[T]] = field(default_factory=dict)
    entry: T | None = None

    def any(self) -> T | None:
        """What ends here, else something that ends below."""
        node = self
        while node.entry is None and node.children:
            node = next(iter(node.children.values()))
        return node.entry

    def above(self) -> Iterator[T]:
        """What ends at proper prefixes of this node's sequence."""
        node = self.parent
        while node is not None:
            if node.entry is not None:
                yield node.entry
            node = node.parent


class RadixTree(Generic[T]):
    """Token sequences and what belongs to each."""

    def __init__(self) -> None:
        self.root: Node[T] = Node([])

    @property
    def empty(self) -> bool:
        return not self.root.children

    def longest(self, tokens: list[int]) -> tuple[Node[T], int]:
        """A node below which every sequence shares the longest prefix that any shares with ``tokens``, and the length
        of that prefix."""
        node, length = self.root, 0
        while length < len(tokens):
            child = node.children.get(tokens[length])
            if child is None:
                break
            node = child
            same = common_prefix(node.tokens, tokens[length : length + len(node.tokens)])
            length += same
            if same < len(node.tokens):
                break
        return node, length

    def insert(self, tokens: list[int]) -> Node[T]:
        """The node at the end of ``tokens``, made if need be. Give it an entry, or ``remove`` it."""
        node, length = self.root, 0
        while length < len(tokens):
            child = node.children.get(tokens[length])
            if child is None:
                child = node.children[tokens[length]] = Node(tokens[length:], node)
                return child
            same = common_prefix(child.tokens, tokens[length : length + len(child.tokens)])
            length += same
            node = child if same == len(child.tokens) else _split(child, same)
        return node

    def remove(self, node: Node[T]) -> None:
        """Take away what ends at ``node``, and the nodes that are there for nothing then."""
        node.entry = None
        while node.parent is not None and node.entry is None and not node.children:
            parent = node.parent
            del parent.children[node.tokens[0]]
            node = parent
        if node.parent is not None and node.entry is None and len(node.children) == 1:
            (child,) = node.children.values()
            child.tokens = node.tokens + child.tokens
            child.parent = node.parent
            node.parent.children[child.tokens[0]] = child


def common_prefix(a: list[int], b: list[int]) -> int:
    """Length of the longest common prefix."""
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:
        return shorter
    low, high = 0, shorter  # a[:low] == b[:low], a[:high] != b[:high]
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _split(node: Node[T], at: int) -> Node[T]:
    """Put a node into the edge to ``node``, after its first ``at`` tokens."""
    assert node.parent is not None
    upper = Node(node.tokens[:at], node.parent, {node.tokens[at]: node})
    node.parent.children[node.tokens[0]] = upper
    node.tokens = node.tokens[at:]
    node.parent = upper
    return upper
