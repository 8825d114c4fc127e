"""What a case is built with: one library, its tensors, and numbers that are the same in all."""

import importlib
import math
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

CHANNELS_LAST = "channels last"
FUSED = "fused"


class Kit:
    """One library and a variant of how it is given a case.

    ``t`` is the library, whose API numgrad shares with PyTorch. Random numbers come from NumPy,
    by the case's name, so that each process has the same.
    """

    def __init__(self, library: str, name: str, variant: str = "") -> None:
        self.t: Any = importlib.import_module(library)
        for part in ("autograd", "nn", "nn.functional", "optim"):
            importlib.import_module(f"{library}.{part}")
        self.library, self.variant = library, variant
        self.functional = self.t.nn.functional
        self._random = np.random.default_rng(zlib.crc32(name.encode()))

    def array(self, *shape: int) -> np.ndarray:
        """The next normal numbers, float32."""
        return self._random.standard_normal(shape, dtype=np.float32)

    def tensor(self, *shape: int) -> Any:
        """The next normal numbers, in the variant's layout."""
        return self.laid_out(self.t.tensor(self.array(*shape)))

    def touch(self, weight: Any) -> None:
        """Have nothing that was derived from a weight be used again, as after a training step."""
        if self.library == "numgrad":
            weight.storage.writes += 1

    def labels(self, count: int, classes: int) -> Any:
        """Classes, at random."""
        return self.t.tensor(self._random.integers(0, classes, count))

    def laid_out(self, value: Any) -> Any:
        """A picture tensor, or a network, in the variant's layout."""
        pictures = not hasattr(value, "ndim") or value.ndim == 4
        if self.variant == CHANNELS_LAST and pictures:
            return value.to(memory_format=self.t.channels_last)
        return value

    def loaded(self, model: Any) -> Any:
        """A network with the weights of :func:`weights`, in the variant's layout."""
        shapes = {name: tuple(x.shape) for name, x in model.state_dict().items()}
        state = {name: self.t.tensor(x) for name, x in weights(shapes.items()).items()}
        model.load_state_dict(state)
        return self.laid_out(model)


def weights(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, np.ndarray]:
    """First values of a network by the names and shapes of its state, the same in every library."""
    found: dict[str, np.ndarray] = {}
    for name, shape in shapes:
        random = np.random.default_rng(zlib.crc32(name.encode()))
        last = name.rpartition(".")[2]
        if last == "num_batches_tracked":
            found[name] = np.zeros((), np.int64)
        elif len(shape) > 1:
            fan_in = math.prod(shape[1:])
            normal = random.standard_normal(shape, dtype=np.float32)
            found[name] = normal * np.float32(math.sqrt(2 / fan_in))
        elif last in ("weight", "running_var"):
            found[name] = random.uniform(0.5, 1.0, shape).astype(np.float32)
        else:
            found[name] = 0.1 * random.standard_normal(shape, dtype=np.float32)
    return found
