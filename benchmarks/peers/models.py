"""The same model in the form each peer reads, made once and kept beside the environments.

The peers' 16-bit forms come from the same weights as the 4-bit file they start from. The draft model is the target's
own first layers, untrained: there is no smaller model with this vocabulary, and all peers get the same.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.place import environment, peers_home

DRAFT_LAYERS = 10


@dataclass(frozen=True)
class Models:
    """Paths of one model's forms; they exist once made.

    ``folder`` is in the hub's layout; ``source`` the GGUF file that it was made of, if it was.
    """

    folder: Path
    source: Path | None
    dtype: str = "bfloat16"

    @property
    def home(self) -> Path:
        return peers_home() / "models" / self.folder.name

    @property
    def draft(self) -> Path:
        return self.home / f"draft-{DRAFT_LAYERS}-layers"

    def gguf(self, weights: str) -> Path:
        """``q4_1``: the source itself; ``bf16`` and ``draft``: made from it."""
        if weights == "q4_1" and self.source is not None:
            return self.source
        return self.home / f"{weights}.gguf"

    def openvino(self, weights: str) -> Path:
        return self.home / f"openvino-{weights}"


def find_models(model: str, dtype: str) -> Models:
    """The model by headstart's own names; its other forms need not exist yet."""
    from headstart.target.load import bundled_smollm2, resolve

    source = bundled_smollm2() if model == "smollm2" else Path(model) if model.endswith(".gguf") else None
    folder = Path(resolve(model))
    if not folder.is_dir():
        raise SystemExit(f"{model}: the peers need a local folder, a .gguf file or smollm2")
    return Models(folder, source, dtype)


def make_draft(models: Models) -> None:
    """The target without its later layers."""
    if (models.draft / "config.json").is_file():
        return

    def write(work: Path) -> None:
        from safetensors.torch import load_file, save_file

        shutil.copytree(models.folder, work, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors*"))
        config = json.loads((work / "config.json").read_text())
        config["num_hidden_layers"] = min(DRAFT_LAYERS, config["num_hidden_layers"])
        if "layer_types" in config:
            config["layer_types"] = config["layer_types"][: config["num_hidden_layers"]]
        (work / "config.json").write_text(json.dumps(config, indent=2))
        kept = {}
        for file in sorted(models.folder.glob("*.safetensors")):
            for name, tensor in load_file(file).items():
                if not name.startswith("model.layers.") or int(name.split(".")[2]) < DRAFT_LAYERS:
                    kept[name] = tensor
        save_file(kept, work / "model.safetensors", metadata={"format": "pt"})

    make_whole(models.draft, write)


def make_gguf(models: Models, say: Callable[[str], None]) -> None:
    """With llama.cpp's own tool: the source's weights in bfloat16, and its first layers alone."""
    if models.source is None:
        say("llama.cpp reads GGUF files only, and this model is a folder: its ways will be reported as missing")
        return
    tool = environment("llamacpp") / "build" / "bin" / "llama-quantize"
    layers = json.loads((models.folder / "config.json").read_text())["num_hidden_layers"]
    pruned = ",".join(str(i) for i in range(DRAFT_LAYERS, layers))
    for weights, options in (("bf16", []), ("draft", ["--prune-layers", pruned])):
        target = models.gguf(weights)
        if target.is_file():
            continue
        say(f"writing {target.name}")
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        command = [str(tool), "--allow-requantize", *options, str(models.source), str(part), "BF16"]
        subprocess.run(command, check=True, capture_output=True)
        part.rename(target)


def make_openvino(models: Models, say: Callable[[str], None]) -> None:
    """By optimum-intel: 4-bit weights in groups of 64 (the hidden size has no larger power of two), and 16-bit ones."""
    for weights, options in (("int4", ["--group-size", "64", "--ratio", "1.0"]), ("fp16", [])):
        target = models.openvino(weights)
        if target.is_dir():
            continue
        say(f"converting to OpenVINO, {weights}")

        def write(work: Path, weights: str = weights, options: list[str] = options) -> None:
            tool = environment("openvino") / "bin" / "optimum-cli"
            command = [str(tool), "export", "openvino", "--model", str(models.folder)]
            command += ["--task", "text-generation-with-past", "--weight-format", weights, *options, str(work)]
            subprocess.run(command, check=True)

        make_whole(target, write)


def make_whole(target: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a folder that gets its name only when it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        write(work)
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
