"""What the graph needs from the layers above it; they set it when they are imported.

``Tensor``, ``Variable``
: the classes of results.

``add(x, y)``, ``sum_to(x, shape)``, ``cast(x, dtype)``, ``reshape(x, shape)``, ``copy(x)``,
``zeros(spec, device=None)``, ``to_device(x, device)``, ``guard(g, dx)``,
``variable_gradient(value)``
: what the backward pass itself computes, on Tensors.

``view_scatter``
: the op that writes a view back into its base.
"""

from types import SimpleNamespace
from typing import Any

above: Any = SimpleNamespace()
