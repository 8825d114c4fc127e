"""``numgrad env``: versions, CPU, threads, and the kernel folder."""

import re
import shutil
from pathlib import Path
from typing import Any

from .output import machine, pairs, printable, size, to_json

FEATURES = (
    "sse4.2",
    "avx",
    "f16c",
    "fma",
    "avx2",
    "avx512f",
    "avx512vl",
    "avx512dq",
    "neon",
    "sve",
)
"""Those that decide how kernels are compiled or how fast they are, of LLVM's names."""

FOLDER = re.compile(r"numba-[\w.+]+-py\d+-[\w.+-]*-[0-9a-f]{8}")
"""Names of the folders that the store makes: nothing else is ever removed."""


def add(commands: Any) -> None:
    """Describe the command's arguments."""
    parser = commands.add_parser(
        "env",
        help="versions, CPU, threads, kernel folder",
        description="Show versions, CPU, threads and the kernel folder.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON with exact numbers")
    parser.add_argument(
        "--clear-kernels",
        action="store_true",
        help="remove the compiled kernels of all versions; they are compiled again when needed",
    )
    parser.set_defaults(run=run)


def collect() -> dict[str, Any]:
    """What the command shows."""
    import llvmlite.binding as llvm
    import numba

    from ..kernels import launch, store
    from ..kernels.cpu.vector import INSTRUCTION_SET

    numba.get_num_threads()  # starts the threading layer: only then does Numba tell which one
    features = llvm.get_host_cpu_features()
    return {
        "machine": machine(),
        "llvm_cpu": llvm.get_host_cpu_name(),
        "features": [name for name in FEATURES if features.get(name)],
        "instruction_set": INSTRUCTION_SET,
        "threads": launch.get_num_threads(),
        "threading_layer": launch.threading_layer(),
        "kernels": store.describe(),
    }


def run(options: Any) -> int:
    """Print what `collect` finds, or clear the kernel folder."""
    if options.clear_kernels:
        return clear(options.json)
    found = collect()
    if options.json:
        print(to_json(found))
        return 0
    versions, kernels = found["machine"], found["kernels"]
    named = ("numgrad", "python", "numba", "llvmlite", "numpy")
    pairs(
        [
            *((name, versions[name]) for name in named),
            ("system", f"{versions['system']} {versions['architecture']}"),
            ("cpu", f"{versions['cpu']} ({found['llvm_cpu']}), {versions['cpus']} CPUs"),
            ("features", " ".join(found["features"]) or "none of those numgrad uses"),
            ("matmul kernel", found["instruction_set"]),
            ("threads", f"{found['threads']}, layer {found['threading_layer']}"),
            ("kernel folder", printable(kernels["folder"])),
            (
                "kernels there",
                f"{kernels['generated']} generated, {kernels['handwritten']} handwritten, "
                f"{size(kernels['bytes'])}",
            ),
        ]
    )
    return 0


def clear(as_json: bool) -> int:
    """Remove the folders of compiled kernels, of this version and of others."""
    from ..kernels import store

    root = store.root()
    folders = sorted(f for f in root.glob("numba-*") if f.is_dir() and FOLDER.fullmatch(f.name))
    removed: list[dict[str, Any]] = []
    for folder in folders:
        files = [f for f in folder.rglob("*") if f.is_file()]
        removed.append(
            {
                "folder": str(folder),
                "files": len(files),
                "bytes": sum(f.stat().st_size for f in files),
            }
        )
        shutil.rmtree(folder)
    _remove_if_empty(root)
    if as_json:
        print(to_json({"removed": removed}))
        return 0
    for one in removed:
        print(f"removed {printable(one['folder'])}: {one['files']} files, {size(one['bytes'])}")
    if not removed:
        print(f"nothing to remove in {printable(str(root))}")
    return 0


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
