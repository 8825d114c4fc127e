"""numgrad: PyTorch's autograd API on Numba kernels, with volatile inputs that cost no tape."""

from . import autograd, memory, ops
from .autograd import (
    Function,
    GradError,
    detect_anomaly,
    enable_grad,
    explain,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from .graph.device import device
from .graph.dtypes import (
    bool_ as bool,
)
from .graph.dtypes import (
    float32,
    float64,
    get_default_dtype,
    int32,
    int64,
    set_default_dtype,
    uint8,
)
from .graph.dtypes import (
    float32 as float,
)
from .graph.dtypes import (
    float64 as double,
)
from .graph.dtypes import (
    int32 as int,
)
from .graph.dtypes import (
    int64 as long,
)
from .kernels.launch import get_num_threads, set_num_threads
from .ops import *  # noqa: F403
from .ops.declare import elementwise
from .tensor import Size, Tensor, Variable
from .typed import BoolTensor, ByteTensor, DoubleTensor, FloatTensor, IntTensor, LongTensor
from .version import __version__


def realize(*tensors: Tensor) -> None:
    """Wait until the tensors' values exist. Operations run at once, so there is nothing to wait for."""
    for i, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"realize: expected a Tensor for tensors[{i}], got {tensor!r}; pass tensors"
            )
