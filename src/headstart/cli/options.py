"""Options that several commands share, so that one word means one thing everywhere. Knows names and help texts only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MODEL = "Model"
SPECULATION = "Speculation"
SAMPLING = "Sampling"
OUTPUT = "Output"

Model = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="NAME",
        help="The target: smollm2, a folder in the hub's layout, a .gguf file or a hub id.",
        rich_help_panel=MODEL,
    ),
]
Dtype = Annotated[
    str,
    typer.Option("--dtype", metavar="DTYPE", help="auto, float32, bfloat16 or float16.", rich_help_panel=MODEL),
]
Device = Annotated[
    str, typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda, cuda:0, …", rich_help_panel=MODEL)
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", metavar="N", help="CPU threads; left to torch if not given.", rich_help_panel=MODEL),
]
DraftModel = Annotated[
    str | None,
    typer.Option(
        "--draft-model",
        metavar="NAME",
        help="A small model of the target's family; adds the route 'model'.",
        rich_help_panel=SPECULATION,
    ),
]
Depth = Annotated[
    int | None,
    typer.Option(
        "--depth",
        metavar="K",
        help="Draft tokens per round. [default: decided every round by measured costs and acceptance]",
        rich_help_panel=SPECULATION,
    ),
]
Kernels = Annotated[
    str,
    typer.Option("--kernels", metavar="KIND", help="native, torch, or auto: native where they can run."),
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="KIND",
        help="int8 or int4: hold weights in fewer bits. Faster, and another model: plain changes with it.",
    ),
]
Nodes = Annotated[
    int | None,
    typer.Option(
        "--nodes",
        metavar="N",
        help="Draft tokens per round when the draft may be a tree; more than K invites trees.",
        rich_help_panel=SPECULATION,
    ),
]
Verify = Annotated[
    str,
    typer.Option(
        "--verify",
        metavar="RULE",
        help="coupled (same text as plain, at any temperature), rejection or block (same law above temperature 0).",
        rich_help_panel=SPECULATION,
    ),
]
Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write everything measured to FILE.", rich_help_panel=OUTPUT),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the JSON file if it exists.", rich_help_panel=OUTPUT)]
