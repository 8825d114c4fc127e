"""ResNet-18 for the peers: as PyTorch modules with torchvision's names, and as an ONNX model."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .kit import Kit, weights

CLASSES = 1000
PICTURE = 224


class Shape:
    """A convolution of ResNet-18: what it is given, and how often the network has it."""

    def __init__(self, c: int, h: int, k: int, r: int, stride: int, count: int) -> None:
        self.c, self.h, self.k, self.r = c, h, k, r
        self.stride, self.padding, self.count = stride, r // 2, count
        self.out = (h + 2 * self.padding - r) // stride + 1

    @property
    def name(self) -> str:
        """Channels, picture, output channels, window, stride."""
        stride = f"-s{self.stride}" if self.stride > 1 else ""
        return f"{self.c}x{self.h}-{self.k}x{self.r}x{self.r}{stride}"

    def flops(self, batch: int) -> float:
        """Of a direct convolution: a multiplication and an addition each."""
        return 2.0 * batch * self.k * self.c * self.r**2 * self.out**2


SHAPES = (
    Shape(3, 224, 64, 7, 2, 1),
    Shape(64, 56, 64, 3, 1, 4),
    Shape(64, 56, 128, 3, 2, 1),
    Shape(64, 56, 128, 1, 2, 1),
    Shape(128, 28, 128, 3, 1, 3),
    Shape(128, 28, 256, 3, 2, 1),
    Shape(128, 28, 256, 1, 2, 1),
    Shape(256, 14, 256, 3, 1, 3),
    Shape(256, 14, 512, 3, 2, 1),
    Shape(256, 14, 512, 1, 2, 1),
    Shape(512, 7, 512, 3, 1, 3),
)


def forward_flops(batch: int) -> float:
    """Of one forward of ResNet-18: convolutions and the last layer."""
    convolutions = sum(shape.count * shape.flops(batch) for shape in SHAPES)
    return convolutions + 2.0 * batch * 512 * CLASSES


def step_flops(batch: int) -> float:
    """Of forward and backward: twice the forward more, without the gradient of the pictures."""
    return 3 * forward_flops(batch) - SHAPES[0].flops(batch)


def resnet18(kit: Kit) -> Any:
    """The network: numgrad's own, or the same of PyTorch's modules."""
    if kit.library == "numgrad":
        from ... import models

        return kit.loaded(models.resnet18())
    return kit.loaded(_network(kit.t))


def _network(torch: Any) -> Any:
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[name-defined]
        def __init__(self, c: int, k: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(c, k, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(k)
            self.relu = nn.ReLU(inplace=True)
            self.conv2 = nn.Conv2d(k, k, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(k)
            self.downsample = None
            if c != k:
                conv = nn.Conv2d(c, k, 1, stride, bias=False)
                self.downsample = nn.Sequential(conv, nn.BatchNorm2d(k))

        def forward(self, x: Any) -> Any:
            identity = x if self.downsample is None else self.downsample(x)
            out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
            out += identity
            return self.relu(out)

    class ResNet(nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
            self.bn1 = nn.BatchNorm2d(64)
            self.relu = nn.ReLU(inplace=True)
            self.maxpool = nn.MaxPool2d(3, 2, 1)
            layers: dict[str, list[Any]] = {}
            for name, c, k, stride in blocks():
                layers.setdefault(name.partition(".")[0], []).append(Block(c, k, stride))
            for name, found in layers.items():
                setattr(self, name, nn.Sequential(*found))
            self.fc = nn.Linear(512, CLASSES)

        def forward(self, x: Any) -> Any:
            x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            return self.fc(x.mean((2, 3)))

    return ResNet()


def blocks() -> Iterator[tuple[str, int, int, int]]:
    """Name, input channels, output channels and stride of each residual block."""
    c = 64
    for i, k in enumerate((64, 128, 256, 512)):
        for j in range(2):
            yield f"layer{i + 1}.{j}", c, k, 2 if i and not j else 1
            c = k


# ------------------------------------------------------------------------------------------ ONNX


def state_shapes() -> dict[str, tuple[int, ...]]:
    """The names and shapes of the network's state."""
    shapes: dict[str, tuple[int, ...]] = {}

    def convolution(conv: str, norm: str, k: int, c: int, r: int) -> None:
        shapes[f"{conv}.weight"] = (k, c, r, r)
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{norm}.{part}"] = (k,)

    convolution("conv1", "bn1", 64, 3, 7)
    for name, c, k, _ in blocks():
        convolution(f"{name}.conv1", f"{name}.bn1", k, c, 3)
        convolution(f"{name}.conv2", f"{name}.bn2", k, k, 3)
        if c != k:
            convolution(f"{name}.downsample.0", f"{name}.downsample.1", k, c, 1)
    shapes["fc.weight"], shapes["fc.bias"] = (CLASSES, 512), (CLASSES,)
    return shapes


def onnx_bytes(batch: int) -> bytes:
    """ResNet-18 in eval mode as an ONNX model, made from its weights alone."""
    from onnx import TensorProto, helper, numpy_helper

    state = weights(state_shapes().items())
    nodes: list[Any] = []

    def add(kind: str, inputs: list[str], out: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [out], **attributes))
        return out

    def convolution(x: str, conv: str, norm: str, stride: int) -> str:
        r = state[f"{conv}.weight"].shape[-1]
        y = add("Conv", [x, f"{conv}.weight"], conv, kernel_shape=[r, r],
                strides=[stride] * 2, pads=[r // 2] * 4)  # fmt: skip
        parts = ("weight", "bias", "running_mean", "running_var")
        return add("BatchNormalization", [y, *(f"{norm}.{p}" for p in parts)], norm, epsilon=1e-5)

    x = add("Relu", [convolution("x", "conv1", "bn1", 2)], "relu")
    x = add("MaxPool", [x], "maxpool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for name, c, k, stride in blocks():
        y = add("Relu", [convolution(x, f"{name}.conv1", f"{name}.bn1", stride)], f"{name}.r1")
        y = convolution(y, f"{name}.conv2", f"{name}.bn2", 1)
        if c != k:
            x = convolution(x, f"{name}.downsample.0", f"{name}.downsample.1", stride)
        x = add("Relu", [add("Add", [y, x], f"{name}.add")], f"{name}.r2")
    x = add("Flatten", [add("GlobalAveragePool", [x], "avgpool")], "flatten")
    add("Gemm", [x, "fc.weight", "fc.bias"], "out", transB=1)
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "resnet18",
        [helper.make_tensor_value_info("x", floats, [batch, 3, PICTURE, PICTURE])],
        [helper.make_tensor_value_info("out", floats, [batch, CLASSES])],
        [numpy_helper.from_array(value, name) for name, value in state.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    found: bytes = model.SerializeToString()
    return found


def onnx_forward(x: np.ndarray, threads: int) -> Any:
    """A function that runs ResNet-18 on ``x`` in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        onnx_bytes(len(x)), options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, {"x": x})[0]
