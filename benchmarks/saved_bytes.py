"""What the tape of ResNet-18 keeps, here and in PyTorch: ``python benchmarks/saved_bytes.py``.

One forward of batch 8, eval mode, 224 × 224, no backward. On both sides: bytes of the distinct
storages that saved values hold, parameters and buffers excluded, the input included. Exits 1 if
numgrad keeps more than ``LIMIT`` of what PyTorch keeps.
"""

import argparse
import pathlib
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 0.95
MIB = 1 << 20


def ours(batch: int, size: int, training: bool) -> int:
    """Bytes that numgrad keeps."""
    import numgrad
    from numgrad import models

    model = models.resnet18().train(training)
    x = numgrad.randn(batch, 3, size, size)
    with numgrad.memory.track() as m:
        out = model(x)
    assert out.requires_grad
    return int(m.saved_bytes)


def theirs(batch: int, size: int, training: bool) -> int:
    """Bytes that PyTorch keeps."""
    import torch

    from tests_compare import torch_networks

    model = torch_networks.resnet18().train(training)
    x = torch.randn(batch, 3, size, size)
    own = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers()]}
    kept: dict[int, Any] = {}

    def pack(saved: Any) -> Any:
        # The storage is kept alive, so that no other one gets its address.
        kept[saved.untyped_storage().data_ptr()] = saved.untyped_storage()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        out = model(x)
    assert out.requires_grad
    return sum(storage.nbytes() for address, storage in kept.items() if address not in own)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=224)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    print(f"saved bytes of ResNet-18, batch {options.batch}, {options.size} × {options.size}:")
    ok = True
    for training in (False, True):
        a, b = (f(options.batch, options.size, training) for f in (ours, theirs))
        print(
            f"{'training' if training else 'eval':<9} numgrad {a / MIB:7.2f} MiB   "
            f"PyTorch {b / MIB:7.2f} MiB   ratio {a / b:.3f} (asked: <= {LIMIT})"
        )
        ok = ok and a <= LIMIT * b
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
