"""Tensors on a device: where they are, moving them, what is refused, training, files, memory."""

import copy
import io
import pickle

import numpy as np
import pytest

import numgrad
from numgrad import cuda, nn, optim
from numgrad.graph import node
from numgrad.nn import functional as F


def pair(*shape, seed=0, requires_grad=False):
    """The same numbers on the CPU and on the device."""
    a = np.random.default_rng(seed).standard_normal(shape).astype("f")
    return (
        numgrad.tensor(a, requires_grad=requires_grad),
        numgrad.tensor(a, device="cuda", requires_grad=requires_grad),
    )


def close(got, wanted):
    assert got.device == "cuda:0" and wanted.device == "cpu"
    np.testing.assert_allclose(
        got.detach().cpu().numpy(), wanted.detach().numpy(), rtol=2e-6, atol=2e-6
    )


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


# --------------------------------------------------------------------------------------- the graph


def test_gradients_of_any_order():
    x, u = pair(4, requires_grad=True)
    for v in (x, u):
        (first,) = numgrad.autograd.grad((v.tanh() * v * 3.0).sum(), [v], create_graph=True)
        (second,) = numgrad.autograd.grad((first * first).sum(), [v], create_graph=True)
        second.sum().backward()
    close(u.grad, x.grad)


def test_accumulation_views_and_broadcasting():
    x, u = pair(3, 2, requires_grad=True)
    for v in (x, u):
        b = numgrad.ones(2, device=v.device, requires_grad=True)
        for _ in range(2):
            y = v * b + v[1]
            y[0].mul_(3)
            y.t()[1:].sum().backward()
        v.extra = b.grad
    close(u.grad, x.grad)
    close(u.extra, x.extra)


def test_functions_entries_and_distributions_of_the_user():
    import numgrad.kernels.scalar as s

    class Square(numgrad.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * g * x

    @numgrad.elementwise(dx=lambda g, x: g * s.where(x > 0, 2 * x, 0))
    def squared_relu(x):
        return s.where(x > 0, x * x, 0)

    x, u = pair(5, requires_grad=True)
    for v in (x, u):
        (Square.apply(v) + squared_relu(v)).sum().backward()
    close(u.grad, x.grad)
    normal = numgrad.distributions.Normal(u.detach(), 2.0)
    wanted = numgrad.distributions.Normal(x.detach(), 2.0).log_prob(x.detach() + 1)
    close(normal.log_prob(u.detach() + 1), wanted)
    assert normal.sample().device == "cuda:0"


class ToCpu(numgrad.Function):
    """Moves to the CPU, and forgets to move the gradient back."""

    @staticmethod
    def forward(ctx, x):
        return x.cpu()

    @staticmethod
    def backward(ctx, g):
        return g


def test_gradients_on_another_device():
    """Whoever brings one in is named; no kernel sees it."""
    x, u = pair(3, requires_grad=True)
    with pytest.raises(
        RuntimeError,
        match=r"^Function ToCpu returned an invalid gradient at index 0 - expected device cuda:0 "
        r"but got cpu",
    ):
        (ToCpu.apply(u.exp()) * 2).sum().backward()
    for v, move in ((u, lambda g: g.cpu()), (x, lambda g: g.cuda())):
        for hooked in (v, v.exp()):
            handle = hooked.register_hook(move)
            with pytest.raises(RuntimeError, match=r"^register_hook: expected a gradient on c"):
                (hooked * hooked).sum().backward()
            handle.remove()
    assert u.grad is None and x.grad is None
    # Whatever finds another way in does not reach a kernel either.
    for y, g in ((u.exp(), numgrad.ones(3)), (x.exp(), numgrad.ones(3, device="cuda"))):
        op, edge = y.edge[0].op, y.edge[0]
        with pytest.raises(RuntimeError, match=r"^exp: expected a gradient on the device of the"):
            op.vjp(edge, [g], [True], False)


def test_a_module_that_moves_between_the_passes():
    layer, twin = nn.Linear(2, 2), nn.Linear(2, 2)
    twin.load_state_dict(layer.state_dict())
    for _ in range(2):
        out = layer(numgrad.ones(3, 2, device=layer.weight.device)).sum()
        layer.cuda()
        out.backward()
        twin(numgrad.ones(3, 2)).sum().backward()
        for p, q in zip(layer.parameters(), twin.parameters(), strict=True):
            close(p.grad, q.grad)
        layer.cpu()


def test_a_function_of_several_results():
    class Twice(numgrad.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, g, h):
            return g * 2 + h * 3

    x, u = pair(3, requires_grad=True)
    for v in (x, u):
        Twice.apply(v)[0].sum().backward()
    close(u.grad, x.grad)


def test_an_output_without_gradient():
    """It counts as zeros on the device of the others."""
    from numgrad.ops.kernel_calls import copy_into
    from numgrad.ops.primitive import primitive

    @primitive(
        infer=lambda x: [(x.shape, x.dtype)] * 2,
        outs=("out", "twin"),
        dx=lambda g_out, g_twin: g_out + g_twin,
        cuda=True,
        register=False,
    )
    def doubled(out, twin, x):
        """x, and x again."""
        copy_into(out, x)
        copy_into(twin, x)

    x, u = pair(3, requires_grad=True)
    for v in (x, u):
        doubled(v)[1].sum().backward()
    close(u.grad, x.grad)


def test_assignment():
    x, u = pair(3, 3)
    for v in (x, u):
        v[0, 1] = 5
        v[1] = numgrad.ones(3, device=v.device)
        v[:, 2] += 4
    close(u, x)
    u[0] = numgrad.ones(3)  # assignment is a copy, which may come from another device
    assert u[0].tolist() == [1, 1, 1]


def test_gradient_through_a_move():
    x = numgrad.tensor([1.0, 2.0], requires_grad=True)
    y = (x.cuda() * 3).cpu() * x
    y.sum().backward()
    assert x.grad.device == "cpu" and x.grad.tolist() == [6, 12]


def test_volatile_and_no_grad():
    layer = nn.Linear(3, 2, device="cuda")
    before = node.counters.total("nodes")
    u = numgrad.Variable(pair(4, 3)[1], volatile=True)
    out = layer(u).tanh().mean()
    assert out.volatile and out.device == "cuda:0" and type(out) is numgrad.Variable
    with numgrad.no_grad():
        layer(pair(4, 3)[1])
    with numgrad.memory.track() as m:
        layer(u.cuda())
    assert node.counters.total("nodes") == before and m.nodes == m.saved_bytes == 0


def network():
    numgrad.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 1))


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda p: optim.SGD(p, lr=numgrad.tensor(0.1)),
        lambda p: optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True),
    ],
)
def test_training_equals_that_on_the_cpu(optimizer):
    x, u = pair(5, 3, seed=2)
    target, goal = pair(5, 1, seed=3)
    models, losses = (network(), network().cuda()), ([], [])
    for model, inputs, wanted, found in zip(models, (x, u), (target, goal), losses, strict=True):
        steps = optimizer(model.parameters())
        for _ in range(3):
            steps.zero_grad()
            loss = F.mse_loss(model(inputs), wanted)
            loss.backward()
            steps.step()
            found.append(loss.item())
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    assert losses[0][0] != losses[0][2]
    for p, q in zip(models[1].parameters(), models[0].parameters(), strict=True):
        close(p, q)
        close(p.grad, q.grad)


# --------------------------------------------------------------------------------------- modules


class Lists(nn.Module):
    """A layer, a ModuleList and a plain list, moved in ``__init__``."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.listed = nn.ModuleList([nn.Linear(3, 3)])
        self.forgotten = [nn.Linear(3, 3), nn.Linear(3, 3)]
        self.type(numgrad.cuda.FloatTensor)

    def forward(self, x):
        x = self.listed[0](self.first(x))
        for layer in self.forgotten:
            x = layer(x)
        return x


def test_a_plain_list_does_not_move():
    with pytest.warns(UserWarning, match=r"^Lists\.forgotten: expected a numgrad\.nn\.ModuleList"):
        model = Lists()
    names = ["first.weight", "first.bias", "listed.0.weight", "listed.0.bias"]
    assert [name for name, _ in model.named_parameters()] == list(model.state_dict()) == names
    assert {str(p.device) for p in model.parameters()} == {"cuda:0"}
    assert model.forgotten[0].weight.device == "cpu"
    with pytest.raises(RuntimeError) as raised:
        nn.Sequential(model)(numgrad.ones(1, 3, device="cuda"))
    text = str(raised.value)
    assert "x on cuda:0 and weight on cpu" in text
    assert "Lists.forgotten is a list that is not registered" in text and "ModuleList" in text
    assert text.count("forgotten") == 1
    with pytest.raises(RuntimeError) as raised:  # the input is what is wrong here
        model.first(numgrad.ones(1, 3))
    assert "forgotten" not in str(raised.value)


def test_modules_move():
    model = network()
    ids = [id(p) for p in model.parameters()]
    model(numgrad.ones(1, 3)).sum().backward()
    before = [p.tolist() for p in model.parameters()]
    for move in (
        lambda: model.cuda(),
        lambda: model.cpu(),
        lambda: model.to("cuda"),
        lambda: model.to("cpu"),
        lambda: model.to(0),
        lambda: model.type(numgrad.FloatTensor),
        lambda: model.type(cuda.FloatTensor),
    ):
        assert move() is model
        where = {str(p.device) for p in model.parameters()}
        assert len(where) == 1 and {str(p.grad.device) for p in model.parameters()} == where
    assert where == {"cuda:0"} and [id(p) for p in model.parameters()] == ids
    assert [p.tolist() for p in model.parameters()] == before
    assert model.double()[0].weight.dtype == numgrad.float64


def test_files(tmp_path):
    model = network().cuda()
    state = model.state_dict()
    numgrad.save(state, tmp_path / "model.safetensors")
    loaded = numgrad.load(tmp_path / "model.safetensors")
    assert {str(v.device) for v in loaded.values()} == {"cpu"}
    other = network().cuda()
    numgrad.manual_seed(7)
    other[0].reset_parameters()
    assert other[0].weight.tolist() != model[0].weight.tolist()
    other.load_state_dict(loaded)
    on_cpu = network()
    on_cpu.load_state_dict(state)
    for p, q, r in zip(model.parameters(), other.parameters(), on_cpu.parameters(), strict=True):
        assert p.tolist() == q.tolist() == r.tolist()
        assert (p.device, q.device, r.device) == ("cuda:0", "cuda:0", "cpu")
    twin = copy.deepcopy(model)
    assert twin[0].weight.device == "cuda:0" and twin[0].weight.tolist() == p_list(model)
    back = pickle.load(io.BytesIO(pickle.dumps(model[0].weight)))
    assert back.device == "cpu" and back.tolist() == p_list(model)


def test_state_of_the_modules_own_device_memory():
    """Values are read before any is written, and arrays of any dtype come onto the device."""
    pair = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).cuda()
    first, second = (pair[i].weight.tolist() for i in (0, 1))
    state = pair.state_dict()
    state["0.weight"], state["1.weight"] = state["1.weight"], state["0.weight"]
    pair.load_state_dict(state)
    assert [pair[i].weight.tolist() for i in (0, 1)] == [second, first]
    own = pair.state_dict()["0.weight"]
    pair.load_state_dict({"0.weight": own.t(), "1.weight": own}, strict=False)
    assert [pair[i].weight.tolist() for i in (0, 1)] == [np.transpose(second).tolist(), second]
    pair.load_state_dict({name: np.full(v.shape, 3, ">i2") for name, v in state.items()})
    assert {str(v.device) for v in pair.state_dict().values()} == {"cuda:0"}
    assert pair[1].weight.tolist() == [[3, 3], [3, 3]]
    optimizer = optim.SGD(pair.parameters(), lr=0.1, momentum=0.9)
    groups = [{"lr": 0.1, "params": [0, 1, 2, 3]}]
    buffer = {"momentum_buffer": np.ones((2, 2))}
    optimizer.load_state_dict({"state": {0: buffer}, "param_groups": groups})
    assert optimizer.state[pair[0].weight]["momentum_buffer"].device == "cuda:0"


def test_files_of_torch_save(tmp_path):
    whole = numgrad.arange(6.0, device="cuda")
    state = {"row": whole.view(2, 3)[1], "t": whole.view(2, 3).t(), "p": nn.Parameter(whole[:2])}
    for name in state:
        assert state[name].is_cuda
    numgrad.save({**state, "wide": whole[:1].expand(3000)}, tmp_path / "x.pth")
    loaded = numgrad.load(tmp_path / "x.pth")
    assert loaded.pop("wide").tolist() == [0.0] * 3000
    for name, value in state.items():
        got = loaded[name]
        assert got.device == "cpu" and got.stride() == value.stride()
        assert got.tolist() == value.tolist() and got.requires_grad == value.requires_grad
    loaded["t"].zero_()
    assert loaded["row"].tolist() == [0, 0, 0] and loaded["p"].tolist() == [0, 0]


def test_clipping():
    x, u = pair(3, 2, requires_grad=True)
    found = []
    for v in (x, u):
        (v * v).sum().backward()
        nn.utils.clip_grad_value_([v], 1.0)
        found.append((nn.utils.clip_grad_norm_([v], 0.5), v.grad))
    for wanted, got in zip(*found, strict=True):
        close(got, wanted)
    assert nn.utils.clip_grad_norm_([], 0.5).device == "cpu"


def test_the_state_of_an_optimizer_moves_to_its_parameters():
    x, u = pair(3, requires_grad=True)
    steps = [optim.Adam([v], lr=0.1) for v in (x, u)]
    for v, step in zip((x, u), steps, strict=True):
        (v * v).sum().backward()
        step.step()
    for other, state in ((u, steps[0].state_dict()), (x, steps[1].state_dict())):
        again = optim.Adam([other], lr=0.1)
        again.load_state_dict(state)
        held = [v for v in again.state[other].values() if isinstance(v, numgrad.Tensor)]
        assert {v.device for v in held if v.shape} == {other.device}
        again.step()
    close(u, x)


def p_list(model):
    return model[0].weight.tolist()


# ---------------------------------------------------------------------------------------- memory


def test_memory_is_counted_by_device():
    def live(name):
        return numgrad.memory.stats("cuda")["by_category"][name]["live_bytes"]

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
