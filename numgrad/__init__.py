"""numgrad: PyTorch's autograd API on Numba kernels, with volatile inputs that cost no tape."""

from . import autograd, backends, checkpoint, cuda, data, distributions, memory, nn, ops, optim
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
from .checkpoint import CheckpointError, load, save
from .graph.device import device
from .graph.dtypes import bool_ as bool
from .graph.dtypes import (
    float32,
    float64,
    get_default_dtype,
    int32,
    int64,
    set_default_dtype,
    uint8,
)
from .graph.dtypes import float32 as float
from .graph.dtypes import float64 as double
from .graph.dtypes import int32 as int
from .graph.dtypes import int64 as long
from .graph.errors import DeviceError, DtypeError, RangeError, ShapeError
from .kernels.launch import get_num_threads, set_num_threads
from .ops import *  # noqa: F403
from .ops.declare import elementwise
from .summary import summary
from .tensor import Size, Tensor, realize
from .typed import BoolTensor, ByteTensor, DoubleTensor, FloatTensor, IntTensor, LongTensor
from .variable import Variable
from .version import __version__

__all__ = [
    "BoolTensor",
    "ByteTensor",
    "CheckpointError",
    "DeviceError",
    "DoubleTensor",
    "DtypeError",
    "FloatTensor",
    "Function",
    "GradError",
    "IntTensor",
    "LongTensor",
    "RangeError",
    "ShapeError",
    "Size",
    "Tensor",
    "Variable",
    "__version__",
    "autograd",
    "backends",
    "bool",
    "checkpoint",
    "cuda",
    "data",
    "detect_anomaly",
    "device",
    "distributions",
    "double",
    "elementwise",
    "enable_grad",
    "explain",
    "float",
    "float32",
    "float64",
    "get_default_dtype",
    "get_num_threads",
    "inference_mode",
    "int",
    "int32",
    "int64",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "load",
    "long",
    "memory",
    "nn",
    "no_grad",
    "ops",
    "optim",
    "realize",
    "save",
    "set_default_dtype",
    "set_grad_enabled",
    "set_num_threads",
    "summary",
    "uint8",
]
__all__ += ops.__all__
