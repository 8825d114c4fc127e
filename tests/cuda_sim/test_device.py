"""Tensors on a device: where they are, moving them, what is refused, memory."""

import gc

import numpy as np
import pytest

import numgrad
from numgrad import cuda, nn
from numgrad.graph import node
from numgrad.nn import functional as F
from tests.cuda_sim.pairs import close, pair

# --------------------------------------------------------------------------------------- the module


def test_the_device_is_there():
    assert cuda.is_available() and cuda.device_count() == 1 and cuda.current_device() == 0
    cuda.synchronize()
    found = cuda.get_device_properties()
    assert "simulator" in found.name and (found.major, found.minor) == (5, 2)
    assert cuda.get_device_name("cuda:0") == found.name
    with pytest.raises(RuntimeError, match=r"^zeros: expected one of 1 CUDA devices for device, g"):
        numgrad.zeros(2, device="cuda:3")
    with pytest.raises(ValueError, match=r"^synchronize: expected a CUDA device"):
        cuda.synchronize("cpu")


def test_creation():
    for make in (
        lambda **k: numgrad.zeros(2, 3, **k),
        lambda **k: numgrad.ones(2, 3, **k),
        lambda **k: numgrad.full((2,), 1.5, **k),
        lambda **k: numgrad.arange(2.0, 4.0, **k),
        lambda **k: numgrad.linspace(0, 1, 3, **k),
        lambda **k: numgrad.eye(2, 3, **k),
        lambda **k: numgrad.tensor([[1, 2], [3, 4]], **k),
        lambda **k: numgrad.tensor(True, **k),
        lambda **k: numgrad.as_tensor(np.arange(3), **k),
    ):
        x, u = make(), make(device="cuda")
        assert u.device == "cuda:0" and u.is_cuda and not x.is_cuda
        assert u.dtype == x.dtype and u.shape == x.shape and u.tolist() == x.tolist()
    assert numgrad.empty(2, 3, device="cuda", requires_grad=True).requires_grad
    u = numgrad.zeros(2, device="cuda")
    for like in (numgrad.ones_like, numgrad.zeros_like, numgrad.empty_like, numgrad.rand_like):
        assert like(u).device == "cuda:0"
    assert numgrad.ones_like(u, device="cpu").device == "cpu"
    assert u.new_zeros(3).device == u.new([1.0]).device == "cuda:0"
    assert numgrad.tensor(u).device == "cuda:0"


def test_random_numbers_are_those_of_the_cpu():
    for draw in (
        lambda device: numgrad.rand(5, device=device),
        lambda device: numgrad.randn(2, 3, device=device),
        lambda device: numgrad.randint(0, 9, (4,), device=device),
        lambda device: numgrad.randperm(6, device=device),
        lambda device: numgrad.empty(3, 2, device=device).t().normal_(1, 2),
        lambda device: numgrad.empty(4, device=device).uniform_(-1, 1),
        lambda device: nn.Linear(3, 2, device=device).weight,
        lambda device: numgrad.bernoulli(numgrad.full((9,), 0.5, device=device)),
        lambda device: numgrad.zeros(9, device=device).bernoulli_(0.5),
        lambda device: numgrad.zeros(9, device=device).bernoulli_(
            numgrad.full((9,), 0.5, device=device)
        ),
        lambda device: numgrad.normal(numgrad.arange(4.0, device=device), 0.5),
        lambda device: numgrad.normal(1.0, numgrad.arange(4.0, device=device)),
    ):
        numgrad.manual_seed(4)
        x = draw("cpu")
        numgrad.manual_seed(4)
        u = draw("cuda")
        assert u.device == "cuda:0" and u.tolist() == x.tolist()


def test_channel_dropout():
    x, u = pair(4, 5, 2, requires_grad=True)
    found = []
    for v in (x, u):
        numgrad.manual_seed(3)
        y = F.dropout2d(v, 0.5)
        y.sum().backward()
        numgrad.manual_seed(3)
        found.append((y, F.dropout2d(v.detach().clone(), 0.5, inplace=True), v.grad))
    for a, b in zip(*found, strict=True):
        close(b, a)
    zeros = (found[0][0] == 0).sum().item()
    assert 0 < zeros < 40 and zeros % 2 == 0


def test_moving():
    x, u = pair(2, 3)
    assert x.cuda().tolist() == x.tolist() and x.cuda().device == "cuda:0"
    for move in (x.cuda, u.cuda, nn.Linear(1, 1).cuda):
        with pytest.raises(ValueError, match=r"^cuda: expected a CUDA device for device, got 'cpu"):
            move("cpu")
    assert u.cuda() is u and u.cuda(0) is u and u.to("cuda") is u and x.cpu() is x
    assert u.cpu().tolist() == x.tolist() and u.cpu().device == "cpu"
    assert x.to(0).device == x.to("cuda", non_blocking=True).device == "cuda:0"
    assert x.to(u).device == "cuda:0" and u.to(x).device == "cpu"
    both = x.to("cuda", numgrad.float64)
    assert both.device == "cuda:0" and both.dtype == numgrad.float64
    assert u.double().device == "cuda:0" and x.to(both).dtype == numgrad.float64
    assert x.t().cuda().tolist() == x.t().tolist() and u.t().cpu().tolist() == x.t().tolist()
    assert numgrad.zeros(0, 3).cuda().shape == (0, 3)
    y = numgrad.zeros(2, 3)
    y.copy_(u)
    v = numgrad.zeros(3, 2, device="cuda")
    v.t().copy_(x)
    assert y.tolist() == x.tolist() == v.t().tolist()


def test_types():
    x, u = pair(2)
    assert u.type() == "numgrad.cuda.FloatTensor" and u.long().type() == "numgrad.cuda.LongTensor"
    for kind in (cuda.FloatTensor, "numgrad.cuda.FloatTensor", "torch.cuda.FloatTensor"):
        assert x.type(kind).device == "cuda:0" and u.type(kind) is u
    assert x.type(cuda.DoubleTensor).dtype == numgrad.float64
    assert (
        u.type(numgrad.FloatTensor).device == "cpu" and u.type("torch.LongTensor").device == "cpu"
    )
    assert u.type(numgrad.float64).device == "cuda:0" and x.type_as(u).device == "cuda:0"
    made = cuda.LongTensor([1, 2])
    assert made.tolist() == [1, 2] and made.type() == "numgrad.cuda.LongTensor"
    assert cuda.FloatTensor(2, 3).shape == (2, 3)
    assert isinstance(u, cuda.FloatTensor) and not isinstance(u, numgrad.FloatTensor)
    assert isinstance(x, numgrad.FloatTensor) and not isinstance(x, cuda.FloatTensor)
    assert repr(cuda.ByteTensor) == "<class 'numgrad.cuda.ByteTensor'>"


def test_views_need_no_kernel():
    from numgrad.kernels import launch

    x, u = pair(2, 3, 4)
    before = launch.launches.value
    views = [
        lambda v: v.permute(2, 0, 1),
        lambda v: v.transpose(0, 2)[1:],
        lambda v: v.view(6, 4).T,
        lambda v: v[:, ::2, None, -1],
        lambda v: v[1, 2, 3],
        lambda v: v[:, :1].expand(2, 5, 4),
        lambda v: v.unsqueeze(1).squeeze(),
        lambda v: v.narrow(2, 1, 2).select(0, 1),
    ]
    found = [(view(u), view(x)) for view in views]
    assert launch.launches.value == before
    for got, wanted in found:
        assert got.shape == wanted.shape and got.stride() == wanted.stride()
        assert got.is_contiguous() == wanted.is_contiguous()
        assert got.tolist() == wanted.tolist()
    with pytest.raises(RuntimeError, match=r"^view: expected a shape compatible"):
        u.permute(2, 0, 1).view(24)
    u[0, 1].fill_(9)
    assert u.tolist()[0][1] == [9] * 4


def test_printing_and_reading():
    u = numgrad.tensor([1.0, 2.5], device="cuda", requires_grad=True)
    assert repr(u) == "tensor([1. , 2.5], device='cuda:0', requires_grad=True)"
    assert u.detach()[1].item() == 2.5 and u.tolist() == [1.0, 2.5] and float(u[0].detach()) == 1
    assert bool((u > 0).all()) and len(u) == 2 and f"{u[0].detach():.2f}" == "1.00"
    with pytest.raises(TypeError, match=r"^can't convert cuda:0 device .* \.cpu\(\)\.numpy\(\)$"):
        u.detach().numpy()
    with pytest.raises(TypeError, match=r"^can't convert cuda:0"):
        np.asarray(u.detach())
    for function in (np.sum, np.sort, np.asarray):
        with pytest.raises(TypeError, match=r"expected memory of the host, got DeviceArray"):
            function(u.detach().array)


# ---------------------------------------------------------------------------------- what is refused


def test_devices_never_mix():
    x, u = pair(3, 3)
    from numgrad.kernels import launch

    before = node.counters.total("nodes"), launch.launches.value
    for op, call in {
        "add": lambda: x + u,
        "mul": lambda: u.double() * x.requires_grad_(),
        "where": lambda: numgrad.where(u > 0, u, x),
        "matmul": lambda: x @ u,
        "linear": lambda: F.linear(u, x),
        "concatenate": lambda: numgrad.cat([u, x]),
        "lerp": lambda: u.lerp_(x, 0.5),
        "sub": lambda: u.sub_(x),
    }.items():
        with pytest.raises(RuntimeError) as raised:
            call()
        text = str(raised.value)
        assert text.startswith(f"{op}: expected all operands on one device, got "), text
        assert " on cpu" in text and " on cuda:0" in text
        assert text.endswith("; move one with .cuda() or .cpu()")
    assert node.counters.total("nodes") == before[0]
    assert launch.launches.value - before[1] == 2  # u.double() and u > 0
    with pytest.raises(RuntimeError, match=r"^add: expected a tensor on cuda:0 for out, got one"):
        numgrad.add(u, u, out=numgrad.zeros(3, 3))
    with pytest.raises(RuntimeError, match=r"^backward: expected a gradient on cuda:0 for the ro"):
        u.requires_grad_().mul(2).backward(numgrad.ones(3, 3))
    with pytest.raises(RuntimeError, match=r"^assigned grad has data located on a different devi"):
        u.grad = numgrad.zeros(3, 3)
    images, kernels, row = numgrad.zeros(1, 1, 3, 3), numgrad.zeros(1, 1, 2, 2), numgrad.zeros(3)
    for op, call in {  # also ops that have no kernel of a GPU
        "convolution": lambda: F.conv2d(images.cuda(), kernels),
        "normalize_rows": lambda: F.layer_norm(u, (3,), row, row),
    }.items():
        with pytest.raises(RuntimeError) as raised:
            call()
        text = str(raised.value)
        assert text.startswith(f"{op}: expected all operands on one device, got x on cuda:0"), text
    index, rows = numgrad.tensor([0, 1, 2], device="cuda"), numgrad.zeros(3, 3)
    for call in (
        lambda: x[index],
        lambda: x[u > 0],
        lambda: x.__setitem__(u > 0, 0),
        lambda: x.gather(0, rows.long().cuda()),
        lambda: x.index_select(0, index),
        lambda: F.cross_entropy(rows, index),
        lambda: F.nll_loss(rows, index),
    ):
        with pytest.raises(RuntimeError, match=r"on one device, got x on cpu and \w+ on cuda:0; "):
            call()
    assert (u * 2 + 1).device == "cuda:0"  # numbers are on every device


@pytest.mark.parametrize(
    ("op", "call"),
    [
        ("index", lambda u: u[numgrad.tensor([0, 1], device="cuda")]),
        ("index", lambda u: u[u > 0]),
        ("index", lambda u: u.__setitem__(u > 0, 0)),
        ("index", lambda u: u.masked_select(u > 0)),
        ("index_select", lambda u: u.index_select(0, numgrad.tensor([0], device="cuda"))),
        ("gather", lambda u: u.gather(0, numgrad.zeros(3, 3, device="cuda").long())),
        ("take_rows", lambda u: u[[0, 1]]),
        ("nonzero", lambda u: u.nonzero()),
        ("max_along", lambda u: u.max(1)),
        ("argmax_along", lambda u: u.argmax()),
        ("dropout_at", lambda u: F.dropout(u)),
        ("nll_loss", lambda u: F.cross_entropy(u, numgrad.tensor([0, 1, 2], device="cuda"))),
        ("max_pool", lambda u: F.max_pool1d(u, 2)),
        ("normalize_rows", lambda u: F.layer_norm(u, (3,))),
    ],
)
def test_an_op_without_a_kernel_says_so(op, call):
    _, u = pair(3, 3)
    with pytest.raises(NotImplementedError) as raised:
        call(u)
    text = str(raised.value)
    assert text.startswith(f"{op}: expected operands on the CPU, got "), text
    assert text.endswith(" on cuda:0; the op has no CUDA kernel yet: use .cpu()")


def test_no_kernel_of_the_cpu_gets_memory_of_a_gpu():
    from numgrad.kernels import launch
    from numgrad.ops import kernel_calls

    x, u = (v.array for v in pair(2))
    for call in (lambda: launch.address(u), lambda: kernel_calls.copy_into(x, u)):
        with pytest.raises(NotImplementedError, match=r"expected memory of the host, got DeviceAr"):
            call()
    with pytest.raises(TypeError, match=r"^copy: expected memory of DeviceArray"):
        kernel_calls.copy_into(u, x)


def test_integers_that_have_no_result():
    """Values are looked at first, as on the CPU, and nothing is launched."""
    from numgrad.kernels import launch

    x = numgrad.tensor([3, 4])
    u, zeros, before = x.cuda(), numgrad.tensor([1, 0]), launch.launches.value
    for call in (
        lambda v, z: v // z,
        lambda v, z: v % z,
        lambda v, z: v ** (-z),
        lambda v, z: v.remainder_(z),
    ):
        with pytest.raises((ValueError, ZeroDivisionError, RuntimeError)) as wanted:
            call(x, zeros)
        with pytest.raises(type(wanted.value)) as raised:
            call(u, zeros.cuda())
        assert str(raised.value) == str(wanted.value)
    assert u.tolist() == [3, 4] and launch.launches.value - before <= 2  # -z of both


# ---------------------------------------------------------------------------------------- memory


def test_memory_is_counted_by_device():
    def live(name):
        return numgrad.memory.stats("cuda")["by_category"][name]["live_bytes"]

    gc.collect()  # not what earlier tests left in cycles
    on_cpu = numgrad.memory.stats()["live_bytes"]
    start, parameters = cuda.memory_allocated(), live("parameter")
    layer = nn.Linear(16, 8).cuda()
    assert live("parameter") - parameters == (16 * 8 + 8) * 4
    u = numgrad.ones(4, 16, device="cuda")
    assert live("data") >= 256
    saved = live("saved")
    out = layer(u).exp()
    assert live("saved") - saved == out.numel() * 4
    with numgrad.memory.track() as m:
        out = layer(u).exp()
    assert m.nodes == 2 and m.saved_bytes == 256 + out.numel() * 4
    view = out[1:]
    held = cuda.memory_allocated()
    del out
    assert cuda.memory_allocated() == held  # the view holds the block
    peak = cuda.max_memory_allocated()
    assert numgrad.memory.stats("cuda")["peak_op"] == "exp"
    found = numgrad.memory.stats("cuda")
    assert peak >= held and found["peak_bytes"] == sum(found["peak_by_category"].values()) == peak
    del view, u, layer
    assert cuda.memory_allocated() == start
    cuda.reset_peak_memory_stats()
    assert cuda.max_memory_allocated() == start
    assert numgrad.memory.stats()["live_bytes"] == on_cpu
