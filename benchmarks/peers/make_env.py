"""Make a peer's environment and the model in its own form; what is there already stays.

    python -m benchmarks.peers.make_env vllm llamacpp openvino

Environments lie in the user's cache (or ``$HEADSTART_PEERS``), with the exact versions of ``requirements/NAME.txt``.
Downloads: vllm 0.6 GB, llamacpp 80 MB and some minutes of compiling, openvino 0.5 GB. Where the package index has no
CPU build of torch, the one of download.pytorch.org is asked.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.machine import processor
from benchmarks.peers.models import Models, find_models, make_draft, make_gguf, make_openvino
from benchmarks.peers.place import PEERS, environment, environment_python, stamp

REQUIREMENTS = Path(__file__).resolve().parent / "requirements"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
LLAMA_SOURCE = "llama-cpp-python==0.3.36"
"""Its source archive carries llama.cpp's; the binding itself is not used."""
ARCTIC = "arctic-inference==0.3.0"
ARCTIC_BUILD = ("nanobind==2.9.2", "cmake==4.4.5", "grpcio-tools==1.85.1", "setuptools==78.1.1")
RECIPE = 1
"""Raise it when a step below changes."""


def main() -> int:
    """Make what was asked for; the exit code tells whether all of it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="+", choices=PEERS)
    parser.add_argument("--model", default="smollm2", help="smollm2, a folder or a .gguf file")
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    models = find_models(options.model, options.dtype)
    make_draft(models)
    failed = 0
    for peer in options.peers:
        try:
            make(peer, models)
            say(f"{peer}: ready in {environment(peer)}")
        except (subprocess.CalledProcessError, OSError) as error:
            failed += 1
            say(f"{peer}: could not be made ({error}); the benchmark goes without it")
    return 1 if failed else 0


def make(peer: str, models: Models) -> None:
    """The environment, if it is not there or was made otherwise, then the model's forms."""
    recipe = hashlib.sha256(f"{RECIPE} {sys.version_info[:2]} {pins(peer)}".encode()).hexdigest()
    try:
        current = json.loads(stamp(peer).read_text())["recipe"] == recipe
    except (OSError, ValueError, KeyError):
        current = False
    notes: list[str] = []
    if not current:
        stamp(peer).unlink(missing_ok=True)
        if not environment_python(peer).is_file():
            subprocess.run([sys.executable, "-m", "venv", str(environment(peer))], check=True)
        STEPS[peer](notes)
        stamp(peer).write_text(json.dumps({"recipe": recipe, "notes": notes}, indent=1))
    if peer == "llamacpp":
        make_gguf(models, say)
    if peer == "openvino":
        make_openvino(models, say)


def make_vllm(notes: list[str]) -> None:
    """vLLM without torchvision, torchaudio and torchcodec, whose builds do not load beside this torch."""
    install_pins("vllm")
    try:
        pip("vllm", "install", *ARCTIC_BUILD)
        path = f"{environment('vllm') / 'bin'}{os.pathsep}{os.environ['PATH']}"
        pip("vllm", "install", "--no-build-isolation", "--no-deps", ARCTIC, PATH=path)
    except subprocess.CalledProcessError:
        notes.append(f"{ARCTIC} could not be built, so suffix decoding is not available")
        say(notes[-1])


def make_openvino_environment(notes: list[str]) -> None:
    install_pins("openvino")


def make_llamacpp(notes: list[str]) -> None:
    """Compile the server for this processor, without AMX, whose kernels are illegal instructions on some machines."""
    install_pins("llamacpp")
    home = environment("llamacpp")
    source = home / "src"
    if not source.is_dir():
        say("fetching llama.cpp's source")
        fetched = home / "fetched"
        shutil.rmtree(fetched, ignore_errors=True)
        only_source = ("--no-deps", "--no-build-isolation", "--no-binary", ":all:", "-d", str(fetched))
        pip("llamacpp", "download", *only_source, LLAMA_SOURCE)
        [archive] = fetched.glob("*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(fetched, filter="data")
        [unpacked] = [path for path in fetched.iterdir() if path.is_dir()]
        unpacked.rename(source)
        shutil.rmtree(fetched)
    options = llama_options()
    environ = {**os.environ, "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    say("compiling llama.cpp")
    configure = ["cmake", "-S", str(source / "vendor" / "llama.cpp"), "-B", str(home / "build"), "-GNinja", *options]
    subprocess.run(configure, check=True, env=environ, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", str(home / "build"), "llama-server", "llama-quantize"], check=True, env=environ)
    told = " ".join(option.removeprefix("-DGGML_") for option in options if option.startswith("-DGGML_AVX"))
    about = {"options": told, "versions": {"source": LLAMA_SOURCE.replace("==", " ")}}
    (home / "build.json").write_text(json.dumps(about))


def llama_options() -> list[str]:
    """cmake options: the vector instructions this processor has, AMX excepted, and nothing that is not used."""
    flags = set(processor().get("flags", "").split())
    instructions = {
        "AVX512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"},
        "AVX512_VBMI": {"avx512vbmi"},
        "AVX512_VNNI": {"avx512_vnni"},
        "AVX512_BF16": {"avx512_bf16"},
        "AVX_VNNI": {"avx_vnni"},
    }
    found = [f"-DGGML_{name}=ON" for name, needed in instructions.items() if needed <= flags]
    off = ("GGML_NATIVE", "GGML_CCACHE", "BUILD_SHARED_LIBS", "LLAMA_OPENSSL", "LLAMA_BUILD_TESTS")
    unused = ("LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_UI", "LLAMA_USE_PREBUILT_UI", "LLAMA_BUILD_APP")
    return ["-DCMAKE_BUILD_TYPE=Release", *(f"-D{name}=OFF" for name in (*off, *unused)), *found]


STEPS: dict[str, Callable[[list[str]], None]] = {
    "vllm": make_vllm,
    "llamacpp": make_llamacpp,
    "openvino": make_openvino_environment,
}


def install_pins(peer: str) -> None:
    """Everything of the requirements file; torch first, since it may lie elsewhere."""
    torch = [line for line in pins(peer).splitlines() if line.startswith("torch==")]
    for pin in torch:
        try:
            pip(peer, "install", "--no-deps", pin)
        except subprocess.CalledProcessError:
            pip(peer, "install", "--no-deps", "--index-url", TORCH_INDEX, pin)
    pip(peer, "install", "--no-deps", "-r", str(REQUIREMENTS / f"{peer}.txt"))


def pins(peer: str) -> str:
    return (REQUIREMENTS / f"{peer}.txt").read_text()


def pip(peer: str, *arguments: str, **environ: str) -> None:
    say(f"{peer}: pip {' '.join(arguments[:1])} {arguments[-1]}")
    command: Sequence[str] = [str(environment_python(peer)), "-m", "pip", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, env={**os.environ, **environ}, stdout=subprocess.DEVNULL)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
