"""The most memory that ResNet-18 needs above the warm model, as the system counts it.

The base is the process after runs of the very batch, in the same mode, when what is kept for
later was given back: the model, the derived weights and the input are in it. The high-water mark is
then set back to that and the run repeated. Each measurement has a fresh process.
"""

import contextlib
import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ..output import UsageError
from .measuring import environment

MODES = {
    "inference": "volatile forward",
    "forward": "taped forward",
    "backward": "taped forward + backward",
}


def measure(library: str, mode: str, batch: int = 32, variant: str = "") -> dict[str, Any]:
    """What a fresh process of ``library`` needed, in bytes.

    Args:
        library: ``numgrad`` or ``torch``.
        mode: one of MODES.
        batch: pictures.
        variant: of the kit, for instance channels last.

    Returns:
        ``base`` (resident), ``peak`` (the high-water mark above base), ``model`` (parameters and
        buffers); of numgrad also ``ledger`` (the peak of its own count above base), ``op`` (what
        was running then), ``categories`` (at that instant, above base) and ``derived`` (in base).

    Raises:
        UsageError: an unknown mode, the system does not count this, or the process failed.
    """
    if mode not in MODES:
        raise UsageError(
            f"bench speed: expected one of {', '.join(MODES)} for mode, got {mode!r}; pass one"
        )
    if not Path("/proc/self/clear_refs").exists():
        raise UsageError("bench speed: expected a Linux system to measure memory, got another one")
    source = (
        "from numgrad.cli.speed.high_water import tell_peak\n"
        f"tell_peak({library!r}, {mode!r}, {batch!r}, {variant!r})"
    )
    # One thread: stacks and buffers of workers, which come and go, are not what is asked for.
    done = subprocess.run(
        [sys.executable, "-c", source], env=environment(1), capture_output=True, text=True
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise UsageError(f"bench speed: the process of a high-water mark failed: {last[0]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def resident(which: str) -> int:
    """``VmRSS`` or ``VmHWM`` of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{which}:"):
            return int(line.split()[1]) << 10
    raise UsageError(f"bench speed: expected {which} in /proc/self/status, got none")


def _give_back(library: Any) -> None:
    """Give all that nobody uses back to the system."""
    gc.collect()
    if library.__name__ == "numgrad":
        library.memory.empty_cache()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def tell_peak(library: str, mode: str, batch: int, variant: str) -> None:
    """Run in a process of its own: print what :func:`measure` returns, as JSON."""
    from .kit import Kit
    from .networks import resnet18

    kit = Kit(library, "high-water", variant)
    t = kit.t
    if library == "torch":
        t.set_num_threads(1)
    model = resnet18(kit)
    model.train(mode != "inference")
    x, labels = kit.tensor(batch, 3, 224, 224), kit.labels(batch, 1000)

    def run() -> None:
        if mode == "inference":
            with t.inference_mode():
                model(x)
            return
        loss = kit.functional.cross_entropy(model(x), labels)
        if mode == "backward":
            loss.backward()
            for p in model.parameters():
                p.grad = None

    run()
    run()  # what is derived from weights is kept when it is wanted a second time
    _give_back(t)
    found: dict[str, Any] = {
        "model": sum(x.numel() * x.element_size() for x in (*model.parameters(), *model.buffers()))
    }
    Path("/proc/self/clear_refs").write_text("5")
    found["base"] = resident("VmRSS")
    if library != "numgrad":
        run()
        found["peak"] = resident("VmHWM") - found["base"]
    else:
        before = t.memory.stats()["by_category"]
        t.memory.reset_peak()
        live = t.memory.stats()["live_bytes"]
        run()
        found["peak"] = resident("VmHWM") - found["base"]
        stats = t.memory.stats()
        found["ledger"], found["op"] = stats["peak_bytes"] - live, stats["peak_op"]
        found["categories"] = {
            name: value - before.get(name, {"live_bytes": 0})["live_bytes"]
            for name, value in stats["peak_by_category"].items()
        }
        found["derived"] = before.get("derived", {"live_bytes": 0})["live_bytes"]
    print(json.dumps(found))
