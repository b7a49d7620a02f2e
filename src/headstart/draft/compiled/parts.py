"""``headstart.draft.parts`` in C, called with Python's lock held: a draft takes less time than giving it away would."""

from __future__ import annotations

import ctypes
import logging
from array import array
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from headstart.draft.automaton import REFRESH_LIMIT
from headstart.draft.calibration import Calibration
from headstart.draft.parts import STORE_CONTEXT, Growth, Index, Row, Shape, Table
from headstart.draft.recycle import LONGEST
from headstart.target.native.build import BuildFailed, Signatures, built, declared

log = logging.getLogger(__name__)

MOST_SOURCES = 3
NOBODY = -1


_pointer, _number = ctypes.c_void_p, ctypes.c_int64
SIGNATURES: Signatures = {
    "index_new": (_pointer, (_number,)),
    "index_free": (None, (_pointer,)),
    "index_extend": (_number, (_pointer, _pointer, _number)),
    "index_separate": (None, (_pointer,)),
    "table_new": (_pointer, ()),
    "table_free": (None, (_pointer,)),
    "table_size": (_number, (_pointer,)),
    "table_drop": (None, (_pointer,)),
    "table_hear": (_number, (_pointer, _number, _number, _pointer, _number)),
    "grow": (None, (_pointer, _pointer, _number)),
}


class _Growth(ctypes.Structure):
    """``growth`` of ngram.c."""

    _fields_ = (
        ("sources", ctypes.c_void_p * MOST_SOURCES),
        ("recycled", ctypes.c_void_p),
        ("hits", ctypes.c_void_p),
        ("trials", ctypes.c_void_p),
        ("prior", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("sources_size", "depth", "nodes", "width")),
        *((name, ctypes.c_double) for name in ("min_path", "least", "match_cap")),
        *((name, ctypes.c_int64) for name in ("size", "shown")),
        *((name, ctypes.c_void_p) for name in ("tokens", "parents", "cells", "confidence")),
    )


@cache
def compiled_parts() -> CompiledParts | None:
    """``None`` where there is no compiler."""
    folder = Path(__file__).parent
    sources = [folder / name for name in ("ngram.c", "opinions.h", "blend.h", "automaton.h")]
    try:
        return CompiledParts(built("ngram", sources, ("-O2", "-shared", "-fPIC", "-ffp-contract=off"), ctypes.PyDLL))
    except BuildFailed as error:
        log.info("n-gram drafts are grown in Python (%s)", error)
        return None


class CompiledIndex:
    """``Index``."""

    def __init__(self, library: ctypes.CDLL, tokens: Iterable[int]) -> None:
        self._library = library
        self.size = 0
        self.handle = library.index_new(REFRESH_LIMIT)
        if not self.handle:
            raise MemoryError("no memory for an index of n-grams")
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        new = array("i", tokens)
        if not self._library.index_extend(self.handle, new.buffer_info()[0], len(new)):
            raise MemoryError("no memory for an index of n-grams")
        self.size += len(new)

    def separate(self) -> None:
        self._library.index_separate(self.handle)

    def __del__(self) -> None:
        self._library.index_free(self.handle)


class CompiledTable:
    """``Table``."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.handle = library.table_new()
        if not self.handle:
            raise MemoryError("no memory for a table of opinions")

    def __len__(self) -> int:
        return int(self._library.table_size(self.handle))

    def hear(self, rows: Iterable[Row], most: int) -> None:
        for context, successors in rows:
            ranked = array("i", successors[:most])
            if not ranked or not context:
                continue
            before, last = (NOBODY, *context)[-LONGEST:]
            if not self._library.table_hear(self.handle, before, last, ranked.buffer_info()[0], len(ranked)):
                raise MemoryError("no memory for a table of opinions")

    def drop_oldest(self) -> None:
        self._library.table_drop(self.handle)

    def __del__(self) -> None:
        self._library.table_free(self.handle)


class CompiledParts:
    """``Parts``."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = declared(library, SIGNATURES)

    def index(self, tokens: Iterable[int] = ()) -> CompiledIndex:
        return CompiledIndex(self._library, tokens)

    def table(self) -> CompiledTable:
        return CompiledTable(self._library)

    def grow(
        self,
        history: Sequence[int],
        indexes: Sequence[Index],
        calibration: Calibration,
        recycled: Table | None,
        shape: Shape,
    ) -> Growth:
        room = max(shape.nodes, shape.depth + 1)
        tokens, parents, cells = (array("i", bytes(4 * room)) for _ in range(3))
        confidence = array("d", bytes(8 * room))
        handles = [index.handle for index in indexes if isinstance(index, CompiledIndex)]
        growth = _Growth(
            sources=(ctypes.c_void_p * MOST_SOURCES)(*handles),
            sources_size=len(handles),
            recycled=recycled.handle if isinstance(recycled, CompiledTable) else None,
            hits=calibration.hits.buffer_info()[0],
            trials=calibration.trials.buffer_info()[0],
            prior=calibration.prior,
            depth=shape.depth,
            nodes=shape.nodes,
            width=shape.width,
            min_path=shape.min_path,
            least=shape.least,
            match_cap=-1.0 if shape.match_cap is None else shape.match_cap,
            tokens=tokens.buffer_info()[0],
            parents=parents.buffer_info()[0],
            cells=cells.buffer_info()[0],
            confidence=confidence.buffer_info()[0],
        )
        tail = array("i", history[-STORE_CONTEXT:])
        self._library.grow(ctypes.byref(growth), tail.buffer_info()[0], len(tail))
        size = growth.size
        return Growth(
            tokens[:size].tolist(),
            parents[:size].tolist(),
            cells[:size].tolist(),
            confidence[:size].tolist(),
            growth.shown,
        )
