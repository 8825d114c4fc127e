"""One launch a group: the same bits as one by one, and what has to be updated one by one."""

import numpy as np
import pytest

from numgrad import get_num_threads, manual_seed, nn, set_num_threads
from numgrad.graph import storage
from numgrad.kernels.counters import launches
from numgrad.kernels.cpu.steps import CHUNK
from numgrad.ops.creation import from_numpy, ones, tensor, zeros
from numgrad.optim import SGD, Adam, AdamW, RMSprop
from numgrad.variable import Parameter

KINDS = [
    (SGD, {"lr": 0.1}),
    (SGD, {"lr": 0.1, "weight_decay": 0.3}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.4, "weight_decay": 0.2}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.2}),
    (Adam, {"lr": 0.1}),
    (Adam, {"lr": 0.1, "betas": (0.3, 0.9), "weight_decay": 0.3, "amsgrad": True}),
    (AdamW, {"lr": 0.1, "weight_decay": 0.3}),
    (AdamW, {"lr": 0.1, "amsgrad": True}),
    (RMSprop, {"lr": 0.1}),
    (RMSprop, {"lr": 0.1, "alpha": 0.4, "weight_decay": 0.2, "centered": True}),
    (RMSprop, {"lr": 0.1, "momentum": 0.9}),
    (RMSprop, {"lr": 0.1, "momentum": 0.9, "centered": True}),
]
SHAPES = [(), (1,), (3, 5), (0, 4), (17,), (CHUNK,), (CHUNK + 1,), (3, CHUNK - 2), (64, 3, 7, 7)]
FAST = [SGD, Adam, AdamW, RMSprop]


def one_by_one(kind):
    """The same optimizer with an ``update`` of its own, which is not bypassed."""

    class Own(kind):
        def update(self, param, grad, state, group):
            super().update(param, grad, state, group)

    return Own


def counted(step):
    before = launches.value
    step()
    return launches.value - before


def random_parameters(dtype, shapes=SHAPES):
    rng = np.random.default_rng(0)
    return [Parameter(tensor(rng.standard_normal(s).astype(dtype))) for s in shapes]


def set_gradients(params, seed):
    rng = np.random.default_rng(seed)
    for p in params:
        p.grad = tensor(np.asarray(rng.standard_normal(p.shape)).astype(p.dtype))


def values(optimizer):
    """All parameters and all that is kept of them, as bytes or numbers."""
    found = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            found.append(p.detach().numpy().tobytes())
            for name, value in sorted(optimizer.state.get(p, {}).items()):
                found.append((name, value if isinstance(value, int) else value.numpy().tobytes()))
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_same_bits_as_one_by_one(kind, options, dtype):
    fast = kind(random_parameters(dtype), **options)
    slow = one_by_one(kind)(random_parameters(dtype), **options)
    for seed in range(4):
        for optimizer in (fast, slow):
            params = optimizer.param_groups[0]["params"]
            set_gradients(params, seed)
            params[2].grad = None if seed == 1 else params[2].grad  # its count of steps stays back
            optimizer.step()
        assert values(fast) == values(slow)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_special_values(kind, options):
    """nan, infinities, zeros and denormals, in parameters and gradients and so in the state."""
    edges = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-42, -3e38], "float32")
    x, g = np.meshgrid(edges, edges)
    found = []
    for made in (kind, one_by_one(kind)):
        p = Parameter(tensor(x))
        optimizer = made([p], **options)
        for gradient in (g, g[::-1], np.roll(g, 1, 0)):
            p.grad = tensor(np.ascontiguousarray(gradient))
            optimizer.step()
        kept = [v for v in optimizer.state[p].values() if not isinstance(v, int)]
        found.append([v.detach().numpy() for v in (p, *kept)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)  # a nan's sign is not decided


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_same_bits_at_any_number_of_threads(kind, options):
    before, found = get_num_threads(), []
    try:
        for threads in (1, 2):
            set_num_threads(threads)
            optimizer = kind(random_parameters("float32"), **options)
            for seed in range(2):
                set_gradients(optimizer.param_groups[0]["params"], seed)
                optimizer.step()
            found.append(values(optimizer))
    finally:
        set_num_threads(before)
    assert found[0] == found[1]


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_a_launch_a_group(kind, options):
    params = random_parameters("float32", [(30, 20), (20,), (7, 20), (7,), (2, 2)])
    optimizer = kind([{"params": params[:2]}, {"params": params[2:], "lr": 0.01}], **options)
    for seed in range(3):
        set_gradients(params, seed)
        count = counted(optimizer.step)
        assert count == 2 or seed == 0  # the first one makes the state
    params[0].grad = params[1].grad = None
    assert counted(optimizer.step) == 1
    assert counted(optimizer.zero_grad) == 0


def test_a_launch_a_dtype():
    params = [*random_parameters("float32"), *random_parameters("float64")]
    optimizer = SGD(params, lr=0.1)
    set_gradients(params, 0)
    assert counted(optimizer.step) == 2


def test_empty_parameters_launch_nothing():
    p = Parameter(zeros(0, 3))
    p.grad = zeros(0, 3)
    optimizer = Adam([p])
    optimizer.step()
    assert counted(optimizer.step) == 0 and optimizer.state[p]["step"] == 2


def strided(p):
    with_stride = Parameter(tensor(np.zeros((4, 6), "float32")).t())
    with_stride.grad = tensor(np.full((6, 4), 2.0, "float32"))
    return with_stride


def with_gradient(make):
    def change(p):
        p.grad = make(p)
        return p

    return change


def sharing_its_gradient(p):
    p.grad = p.detach()
    return p


def on_memory_of_the_gradient(p):
    memory = np.ones(48, "float32")
    p = Parameter(from_numpy(memory[:24].reshape(6, 4)))
    p.grad = from_numpy(memory[12:36].reshape(6, 4))
    return p


@pytest.mark.parametrize("kind", FAST)
@pytest.mark.parametrize(
    "change",
    [
        strided,
        with_gradient(lambda p: tensor(1.5).expand(6, 4)),
        with_gradient(lambda p: ones(4, 6).t()),
        with_gradient(lambda p: ones(6, 8)[:, ::2]),
        sharing_its_gradient,
        on_memory_of_the_gradient,
    ],
)
def test_what_goes_one_by_one(kind, change):
    """Odd layouts and shared memory: the same result, beside others that share a launch."""
    found = []
    for made in (kind, one_by_one(kind)):
        odd = change(Parameter(ones(6, 4)))
        others = random_parameters("float32", [(5,), (2, 3)])
        optimizer = made([others[0], odd, others[1]], lr=0.1, weight_decay=0.1)
        for p in others:
            p.grad = ones(*p.shape)
        for _ in range(2):
            optimizer.step()
        found.append(values(optimizer))
    assert found[0] == found[1]


def transposed_tie():
    base = tensor(np.arange(12, dtype="float32").reshape(3, 4))
    a, b = base.detach().t(), base.detach()
    return (a, ones(4, 3) * 0.3), (b, ones(3, 4) * 0.7)


def gradient_of_another():
    a, b = ones(3, 4).t().detach(), ones(4, 3)
    return (a, b.detach()), (b, ones(4, 3) * 0.5)


def expanded_gradient():
    whole = ones(8)
    return (whole[:6].detach(), ones(1).expand(6)), (whole[2:].detach(), ones(6) * 3)


def rows_backwards():
    base = tensor(np.arange(12, dtype="float32").reshape(4, 3))
    return (base.detach()[:, 1:], ones(4, 2)), (base.detach(), ones(4, 3) * 0.7)


@pytest.mark.parametrize("kind", FAST)
@pytest.mark.parametrize(
    "make", [transposed_tie, gradient_of_another, expanded_gradient, rows_backwards]
)
@pytest.mark.parametrize("turn", [1, -1])
def test_what_is_left_over_shares_memory_with_others(kind, make, turn):
    """Then the order matters, and is that of the parameters."""
    found = []
    for made in (kind, one_by_one(kind)):
        params = []
        for p, g in make()[::turn]:
            p.requires_grad_().grad = g
            params.append(p)
        optimizer = made(params, lr=0.5, weight_decay=0.9)
        for _ in range(2):
            optimizer.step()
        found.append(values(optimizer))
    assert found[0] == found[1]


def test_what_is_left_over_and_apart_leaves_the_others_together():
    """Parts of one memory that lie apart, one of them with an expanded gradient."""
    whole = ones(30)
    params = [whole[i : i + 10].detach().requires_grad_() for i in (0, 10, 20)]
    for p in params:
        p.grad = ones(10)
    params[1].grad = ones(1).expand(10)
    optimizer, alone = SGD(params, lr=0.5), SGD([params[1]], lr=0.5)
    assert counted(optimizer.step) == 1 + counted(alone.step)
    assert whole.tolist() == [0.5] * 10 + [0.0] * 10 + [0.5] * 10


def test_one_odd_parameter_leaves_the_others_together():
    odd = strided(None)
    others = random_parameters("float32", [(5,), (2, 3), (4,)])
    set_gradients(others, 0)
    optimizer = SGD([odd, *others], lr=0.1)
    optimizer.step()
    alone = SGD([odd], lr=0.1)
    assert counted(optimizer.step) == 1 + counted(alone.step)


def test_parameters_of_one_memory_that_lie_apart():
    """A flat vector's parts, and memory from outside, take the one launch as well."""
    flat = np.ones(12, "float32")
    params = [Parameter(from_numpy(part)) for part in (flat[:5], flat[5:])]
    for p in params:
        p.grad = ones(*p.shape)
    optimizer = SGD(params, lr=0.5)
    assert counted(optimizer.step) == 1
    assert (flat == 0.5).all()


def test_a_parameter_twice():
    p = Parameter(ones(3))
    with pytest.warns(UserWarning, match="got one twice"):
        optimizer = SGD([p, p], lr=0.25)
    p.grad = ones(3)
    optimizer.step()
    assert p.detach().numpy().tolist() == [0.5] * 3


def test_an_update_of_its_own_is_not_bypassed():
    p = Parameter(ones(3))
    p.grad = ones(3)

    class Nothing(SGD):
        def update(self, param, grad, state, group):
            state["seen"] = grad.shape

    optimizer = Nothing([p], lr=0.1)
    optimizer.step()
    assert (p.detach().numpy() == 1).all() and optimizer.state[p] == {"seen": (3,)}


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_writes_are_counted(kind, options):
    params = random_parameters("float32", [(5,), (3,)])
    optimizer = kind(params, **options)
    set_gradients(params, 0)
    optimizer.step()
    tensors = list(params)
    for p in params:
        tensors += [v for v in optimizer.state[p].values() if not isinstance(v, int)]
    before = [(x.storage.writes, x._version) for x in tensors]
    optimizer.step()
    for x, (writes, version) in zip(tensors, before, strict=True):
        assert x.storage.writes == writes + 2 and x._version == version + 1
        assert x.group.writer == f"{kind.__name__}.step"
    for x in tensors[2:]:
        assert x.storage.category == storage.OPTIMIZER


def test_options_that_are_no_plain_numbers():
    found = []
    for decay in (0.5, tensor(0.5)):
        p = Parameter(ones(3))
        p.grad = ones(3)
        optimizer = SGD([p], lr=0.5, weight_decay=decay)
        optimizer.step()
        found.append(p.detach().numpy().tolist())
    assert found[0] == found[1] == [0.25] * 3


@pytest.mark.parametrize("decay", [1e-46, 1e-39, 1e39])
def test_options_that_float32_does_not_hold(decay):
    found = []
    for made in (SGD, one_by_one(SGD)):
        p = Parameter(tensor([np.inf, 1.0, -1.0]))
        p.grad = ones(3)
        with np.errstate(over="ignore"):
            made([p], lr=0.5, weight_decay=decay).step()
        found.append(p.detach().numpy())
    np.testing.assert_array_equal(*found)


def test_read_only_memory_is_refused():
    array = np.ones(3, "float32")
    p = Parameter(from_numpy(array))
    p.array.flags.writeable = False
    p.grad = ones(3)
    with pytest.raises(RuntimeError, match="expected writable memory"):
        SGD([p], lr=0.1).step()


def test_a_network_trains():
    manual_seed(0)
    x = tensor(np.random.default_rng(0).standard_normal((16, 4)).astype("float32"))
    for kind in FAST:
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        optimizer = kind(net.parameters(), lr=1e-2)
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = (net(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]


def test_an_update_from_a_mixin_is_called():
    class Clip:
        def update(self, param, grad, state, group):
            super().update(param, grad.clamp(-1, 1), state, group)

    class Clipped(Clip, SGD):
        pass

    p = zeros(3).requires_grad_()
    p.grad = ones(3) * 50
    Clipped([p], lr=0.1).step()
    np.testing.assert_allclose(p.detach().numpy(), np.float32(-0.1))
