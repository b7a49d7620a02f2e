"""Imports point one way, heavy packages load late, and files stay readable: read from the source, not by importing.

The tables below are the architecture. A change to them is a change of design and belongs in docs/architecture.md too.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src"
ROOT = "headstart"
MAX_LINES = 400

# package: the other parts of headstart that it may import, wherever in a file the import stands.
LOWER = {"decode"}
PARTS = LOWER | {"control", "draft", "target"}
ENGINE = PARTS | {"engine"}
COMMANDS = {"serve", "bench", "plan", "train", "deploy"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "threads": set(),
    "decode": set(),
    "control": LOWER,
    "draft": LOWER,
    "target": LOWER,
    "engine": PARTS,
    "observe": set(),
    "serve": ENGINE | {"observe", ROOT},  # the root for its version
    "bench": {"observe"},
    "plan": set(),
    "train": ENGINE,
    "deploy": {"observe", "plan"},
    "cli": ENGINE | COMMANDS | {"observe"},
    ROOT: ENGINE,  # headstart/__init__.py: the public names
}
EVERYWHERE = {"errors", "threads"}

# module: what it may import beyond its package, and why.
EXCEPTIONS: dict[str, set[str]] = {
    "headstart.draft.model": {"target"},  # a draft model is run by the same code as a target
    "headstart.draft.quantised": {"target"},  # which holds the copy that drafts
    "headstart.draft.compiled.parts": {"target"},  # compiled as its kernels are
}

# package: the only packages outside the standard library that it may import.
ONLY_THIRD_PARTY: dict[str, set[str]] = {
    "errors": set(),
    "threads": set(),
    "decode": {"torch", "numpy"},
    "plan": set(),
}

# These must work, or at least answer --help, where the engine extra is not installed: no import of it on loading.
HEAVY = {"accelerate", "gguf", "numpy", "safetensors", "tokenizers", "torch", "transformers"}
LIGHT = {ROOT, "errors", "threads", "cli", "bench", "plan", "deploy", "observe"}


@dataclass(frozen=True)
class Import:
    module: str
    name: str
    line: int
    on_load: bool

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]

    @property
    def part(self) -> str:
        """The part of headstart that is imported; ``headstart`` for the root itself."""
        return part_of(self.name)

    def __str__(self) -> str:
        return f"{self.module}, line {self.line}: imports {self.name}"


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted((SRC / ROOT).rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def part_of(module: str) -> str:
    names = module.split(".")
    return names[1] if len(names) > 1 else ROOT


def imports(module: str, source: str, known: set[str]) -> list[Import]:
    """All imports of a module; ``from headstart import engine`` counts as one of ``headstart.engine``."""
    found = []
    for node, on_load in _walk(ast.parse(source), True):
        if isinstance(node, ast.Import):
            found += [Import(module, alias.name, node.lineno, on_load) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}, line {node.lineno}: relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                name = full if full in known else str(node.module)
                found.append(Import(module, name, node.lineno, on_load))
    return found


def _walk(node: ast.AST, on_load: bool) -> Iterator[tuple[ast.AST, bool]]:
    yield node, on_load
    inside_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for child in node.body:
            yield from _walk(child, False)
        for child in node.orelse:
            yield from _walk(child, on_load)
        return
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, on_load and not inside_function)


def all_imports() -> list[Import]:
    files = modules()
    return [found for module, path in files.items() for found in imports(module, path.read_text("utf-8"), set(files))]


def test_every_part_is_in_the_table() -> None:
    assert {part_of(module) for module in modules()} <= set(ALLOWED)


def test_imports_point_one_way() -> None:
    wrong = []
    for found in all_imports():
        if found.top != ROOT:
            continue
        own = part_of(found.module)
        allowed = ALLOWED[own] | EVERYWHERE | {own} | EXCEPTIONS.get(found.module, set())
        if found.part not in allowed:
            wrong.append(str(found))
    assert not wrong, "\n".join(wrong)


def test_low_packages_know_few_others() -> None:
    wrong = [
        str(found)
        for found in all_imports()
        if (only := ONLY_THIRD_PARTY.get(part_of(found.module))) is not None
        and found.top not in only | {ROOT} | sys.stdlib_module_names
    ]
    assert not wrong, "\n".join(wrong)


def test_light_packages_load_without_the_engine_extra() -> None:
    wrong = [
        str(found) for found in all_imports() if part_of(found.module) in LIGHT and found.on_load and found.top in HEAVY
    ]
    assert not wrong, "\n".join(wrong)


def test_the_table_has_no_circle() -> None:
    graph = {part: set(allowed) for part, allowed in ALLOWED.items()}
    for module, extra in EXCEPTIONS.items():
        graph[part_of(module)] |= extra
    while graph:
        leaves = {part for part, below in graph.items() if not below & set(graph)}
        assert leaves, f"circle among {sorted(graph)}"
        graph = {part: below for part, below in graph.items() if part not in leaves}


def test_the_reader_sees_every_kind_of_import() -> None:
    source = """
from typing import TYPE_CHECKING
import a.b, c as d
from headstart import errors, engine
if TYPE_CHECKING:
    import e
else:
    import f
class K:
    import g
    def m(self):
        import h
"""
    known = {"headstart", "headstart.errors", "headstart.engine"}
    seen = {(found.name, found.on_load) for found in imports("m", source, known)}
    assert seen == {
        ("typing", True),
        ("a.b", True),
        ("c", True),
        ("headstart.errors", True),
        ("headstart.engine", True),
        ("e", False),
        ("f", True),
        ("g", True),
        ("h", False),
    }


@pytest.mark.parametrize("module", ["headstart", "headstart.cli.main"])
def test_importing_does_not_load_torch(module: str) -> None:
    """The direct proof, through everything that is imported on the way."""
    code = f"import {module}, sys; print(*sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@pytest.mark.parametrize("module", modules())
def test_a_module_says_what_it_is_and_stays_short(module: str) -> None:
    source = modules()[module].read_text("utf-8")
    if source.strip():
        assert ast.get_docstring(ast.parse(source)), f"{module} has no docstring"
    lines = source.count("\n")
    assert lines <= MAX_LINES, f"{module} has {lines} lines; split it by idea"
