"""Optimizers against the formulas written out in NumPy, in float64."""

import gc
import io

import numpy as np
import pytest

from numgrad import memory, nn
from numgrad.checkpoint import load, save
from numgrad.graph import node, storage
from numgrad.graph.mode import no_grad
from numgrad.kernels import store
from numgrad.ops.creation import ones, tensor, zeros
from numgrad.optim import SGD, Adam, AdamW, Optimizer, RMSprop
from numgrad.optim.lr_scheduler import ExponentialLR
from numgrad.variable import Parameter, Variable
from tests.optim.paths import START, gradients, run


def sgd(grads, lr, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False):
    p, b, path = START.copy(), None, []
    for g in grads:
        g = g + weight_decay * p
        if momentum:
            b = g.copy() if b is None else momentum * b + (1 - dampening) * g
            g = g + momentum * b if nesterov else b
        p = p - lr * g
        path.append(p)
    return np.array(path)


def adam(grads, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, amsgrad=False):
    p, path = START.copy(), []
    m = v = largest = np.zeros(4)
    for t, g in enumerate(grads, 1):
        g = g + weight_decay * p
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        largest = np.maximum(largest, v)
        m_hat = m / (1 - betas[0] ** t)
        v_hat = (largest if amsgrad else v) / (1 - betas[1] ** t)
        p = p - lr * m_hat / (np.sqrt(v_hat) + eps)
        path.append(p)
    return np.array(path)


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.1},
        {"lr": 0.1, "weight_decay": 0.3},
        {"lr": 0.1, "momentum": 0.9},
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.4},
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.2, "dampening": 0.1},
        {"lr": 0.1, "momentum": 0.9, "nesterov": True},
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.2},
        {"lr": 0.0, "momentum": 0.5},
    ],
)
def test_sgd(options):
    expected = sgd(gradients(), **options)
    assert np.allclose(run(lambda p: SGD(p, **options)), expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lr": 0.1},
        {"lr": 0.1, "betas": (0.5, 0.9), "eps": 1e-3},
        {"lr": 0.1, "betas": (0.0, 0.0)},
        {"lr": 0.1, "weight_decay": 0.3},
        {"lr": 0.1, "amsgrad": True},
        {"lr": 0.1, "amsgrad": True, "weight_decay": 0.1, "betas": (0.8, 0.6)},
    ],
)
def test_adam(options):
    expected = adam(gradients(), **options)
    assert np.allclose(run(lambda p: Adam(p, **options)), expected, rtol=1e-12, atol=0)


def rmsprop(grads, lr=1e-2, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0, centered=False):
    p, path = START.copy(), []
    v = a = b = np.zeros(4)
    for g in grads:
        g = g + weight_decay * p
        v = alpha * v + (1 - alpha) * g * g
        a = alpha * a + (1 - alpha) * g
        root = np.sqrt(v - a * a if centered else v) + eps
        b = momentum * b + g / root
        p = p - lr * b
        path.append(p)
    return np.array(path)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lr": 0.1, "alpha": 0.5, "eps": 1e-3},
        {"lr": 0.1, "weight_decay": 0.3},
        {"lr": 0.1, "momentum": 0.9},
        {"lr": 0.1, "centered": True},
        {"lr": 0.1, "centered": True, "momentum": 0.5, "weight_decay": 0.2, "alpha": 0.8},
    ],
)
def test_rmsprop(options):
    expected = rmsprop(gradients(), **options)
    assert np.allclose(run(lambda p: RMSprop(p, **options)), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "options", [{}, {"lr": 0.1, "weight_decay": 0.5}, {"amsgrad": True, "weight_decay": 0}]
)
def test_adamw(options):
    """Adam without a penalty, on parameters that have shrunk by lr times the decay."""
    decay, lr = options.get("weight_decay", 1e-2), options.get("lr", 1e-3)
    path = run(lambda p: AdamW(p, **options))
    without = {**options, "weight_decay": 0.0}
    moves = np.diff(np.concatenate([[START], adam(gradients(), **without)]), axis=0)
    p = START
    for got, move in zip(path, moves, strict=True):
        p = p * (1 - lr * decay) + move  # the moves of Adam do not depend on p
        assert np.allclose(got, p, rtol=1e-12, atol=0)


def test_options_of_the_new_ones():
    p = Parameter(ones(2))
    for make, name in (
        (lambda: RMSprop([p], lr=-1), "RMSprop: expected lr >= 0"),
        (lambda: RMSprop([p], alpha=-0.1), "RMSprop: expected alpha >= 0"),
        (lambda: RMSprop([p], momentum=-1), "RMSprop: expected momentum >= 0"),
        (lambda: AdamW([p], weight_decay=-1), "AdamW: expected weight_decay >= 0"),
        (lambda: AdamW([p], betas=(1, 0)), "AdamW: expected two numbers"),
    ):
        with pytest.raises(ValueError, match=name):
            make()
    assert (AdamW([p]).defaults["weight_decay"], RMSprop([p]).defaults["lr"]) == (1e-2, 1e-2)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: RMSprop(p, momentum=0.9, centered=True, weight_decay=0.1),
        lambda p: AdamW(p, amsgrad=True),
    ],
)
def test_state_of_the_new_ones(make):
    """Half the steps, saved and loaded into another optimizer, end where all of them do."""
    whole = run(make)
    p = Parameter(tensor(START))
    optimizer = make([p])
    for i, g in enumerate(gradients()):
        if i == 3:
            file = io.BytesIO()
            save(optimizer.state_dict(), file)
            file.seek(0)
            optimizer = make([p])
            optimizer.load_state_dict(load(file))
        p.grad = tensor(g)
        optimizer.step()
    assert np.array_equal(p.detach().numpy(), whole[-1])


def test_a_changing_rate_compiles_nothing():
    """Options are arguments of kernels, never part of their text."""
    p = Parameter(ones(5))
    optimizers = [
        SGD([p], momentum=0.9, weight_decay=0.1),
        Adam([p], weight_decay=0.1),
        AdamW([p], amsgrad=True),
        RMSprop([p], momentum=0.9, centered=True, weight_decay=0.1),
    ]
    p.grad = ones(5)
    for optimizer in optimizers:
        optimizer.step()
    before = store.stats.compiled, store.stats.hits
    for optimizer in optimizers:
        schedule = ExponentialLR(optimizer, 0.9)
        for _ in range(4):
            optimizer.step()
            schedule.step()
            optimizer.param_groups[0]["weight_decay"] *= 0.7
    assert (store.stats.compiled, store.stats.hits) == before


def test_first_step_of_adam_is_lr():
    path = run(lambda p: Adam(p, lr=0.1, eps=0), [np.array([1e-5, -3.0, 1e4, 7.0])])
    assert np.allclose(path[0], START - 0.1 * np.array([1, -1, 1, 1]))


def test_amsgrad_differs():
    grads = [np.full(4, 10.0), *[np.full(4, 0.1)] * 8]
    plain, ams = (run(lambda p: Adam(p, lr=0.1, betas=(0, 0.5), amsgrad=a), grads) for a in (0, 1))
    assert np.abs(plain[-1] - plain[-2]).min() > 2 * np.abs(ams[-1] - ams[-2]).max()


def test_float32_stays_float32():
    p = Parameter(ones(3))
    for optimizer in (
        SGD([p], momentum=0.9),
        Adam([p], amsgrad=True),
        AdamW([p]),
        RMSprop([p], momentum=0.9, centered=True),
    ):
        p.grad = ones(3)
        optimizer.step()
        assert p.dtype == "float32" and p.is_leaf and p.requires_grad
        for value in optimizer.state[p].values():
            assert isinstance(value, int) or value.dtype == "float32"


# ------------------------------------------------------------------------------------- what moves


class Both:
    """All kinds."""

    def __init__(self, params):
        self.kinds = [
            SGD(params, lr=0.1, momentum=0.9, weight_decay=0.5),
            Adam(params, lr=0.1, weight_decay=0.5),
            AdamW(params, lr=0.1, weight_decay=0.5),
            RMSprop(params, lr=0.1, weight_decay=0.5, momentum=0.9, centered=True),
        ]


def test_frozen_parameters_never_move():
    for optimizer_of in (lambda p, i=i: Both(p).kinds[i] for i in range(4)):
        a, b = Parameter(ones(2)), Parameter(ones(2))
        optimizer = optimizer_of([a, b])
        b.grad = zeros(2)
        b.requires_grad_(False)
        a.grad = zeros(2)
        optimizer.step()
        assert (a.detach().numpy() < 1).all()  # weight decay
        assert (b.detach().numpy() == 1).all() and b not in optimizer.state
        b.requires_grad_(True)
        optimizer.step()
        assert (b.detach().numpy() < 1).all()


def test_no_gradient_no_change():
    p = Parameter(ones(2))
    for optimizer in Both([p]).kinds:
        optimizer.step()
        assert (p.detach().numpy() == 1).all() and not optimizer.state


def test_step_leaves_no_graph_and_counts_a_version():
    p = Parameter(ones(2))
    (p * p).sum().backward()
    before, version, address = node.counters.nodes, p._version, p.data_ptr()
    SGD([p], lr=0.5).step()
    assert node.counters.nodes == before and p._version > version and p.data_ptr() == address
    assert p.is_leaf and p.grad_fn is None and p.detach().numpy().tolist() == [0, 0]


def test_step_between_forward_and_backward_is_noticed():
    p = Parameter(ones(2))
    loss = (p * p).sum()
    p.grad = ones(2)
    SGD([p], lr=0.5).step()
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        loss.backward()


def test_gradients_with_history():
    p = Parameter(ones(2))
    (p**3).sum().backward(create_graph=True)
    assert p.grad.requires_grad
    optimizer = SGD([p], lr=0.1, momentum=0.5)
    optimizer.step()
    assert not optimizer.state[p]["momentum_buffer"].requires_grad and p.is_leaf
    assert np.allclose(p.detach().numpy(), 0.7)
    optimizer.zero_grad(set_to_none=False)
    assert p.grad.numpy().tolist() == [0, 0] and not p.grad.requires_grad
    optimizer.zero_grad()
    assert p.grad is None


def test_gradients_that_are_variables():
    p = Parameter(tensor(2.0))
    loss = Variable(ones(1)) * p
    assert type(loss) is Variable
    loss.backward()
    for optimizer in (SGD([p], lr=0.5, momentum=0.9), Adam([p], lr=0.5)):
        optimizer.step()
        assert p.shape == () and not p.volatile and p.requires_grad
        for value in optimizer.state[p].values():
            assert isinstance(value, int) or (type(value) is not Variable and value.shape == ())
    assert p.item() == pytest.approx(1.0)


def test_optimizing_a_variable():
    x = Variable(ones(3), requires_grad=True)
    optimizer = SGD([x], lr=0.1, momentum=0.9, weight_decay=0.1)
    (x * x).sum().backward()
    optimizer.step()
    assert type(x) is Variable and x.requires_grad and not x.volatile and x.is_leaf
    assert np.allclose(x.data.numpy(), 1 - 0.1 * 2.1)


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("kind", [SGD, Adam, AdamW, RMSprop])
def test_rate_that_is_a_tensor(kind, shape):
    """As its number, on whatever device: the same bits, and a schedule may change it."""
    found = []
    for lr in (0.25, zeros(*shape).fill_(0.25)):
        p = Parameter(tensor([1.0, -2.0, 3.0]))
        made = kind([p], lr=lr, weight_decay=0.1, **({"momentum": 0.9} if kind is SGD else {}))
        schedule = ExponentialLR(made, 0.5)
        for _ in range(3):
            p.grad = p.detach() * 2
            made.step()
            schedule.step()
        found.append(p.detach().numpy())
    np.testing.assert_array_equal(*found)


def test_closure():
    p = Parameter(ones(1))
    optimizer = SGD([p], lr=0.25)

    def closure():
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    with no_grad():
        assert optimizer.step(closure).item() == 1
    assert p.detach().numpy().tolist() == [0.5]
    assert optimizer.step() is None


def test_groups():
    a, b, c = (Parameter(ones(1)) for _ in range(3))
    optimizer = SGD([{"params": [a]}, {"params": b, "lr": 0.5}], lr=0.1)
    optimizer.add_param_group({"params": [c], "lr": 1.0, "momentum": 0.9})
    for p in (a, b, c):
        p.grad = ones(1)
    optimizer.step()
    assert [p.item() for p in (a, b, c)] == pytest.approx([0.9, 0.5, 0.0])
    assert [len(s) for s in (optimizer.state[a], optimizer.state[c])] == [0, 1]
    optimizer.param_groups[0]["lr"] = 0.2
    optimizer.step()
    assert a.item() == pytest.approx(0.7)
    assert "Parameter Group 2" in repr(optimizer) and "lr: 0.2" in repr(optimizer)


def test_memory_is_optimizer_state():
    p = Parameter(ones(10_000))
    for make, count in ((lambda: SGD([p], momentum=0.9), 1), (lambda: Adam([p], amsgrad=True), 3)):
        before = storage.bytes_by_category()[storage.OPTIMIZER]
        optimizer = make()
        p.grad = ones(10_000)
        for _ in range(2):
            optimizer.step()
        assert storage.bytes_by_category()[storage.OPTIMIZER] - before == count * 40_000
        del optimizer


class Own(Adam):
    """One whose update is its own, so each parameter goes through it."""

    def update(self, param, grad, state, group):
        super().update(param, grad, state, group)


@pytest.mark.parametrize(
    ("make", "temporaries"),
    [
        (lambda p: SGD(p), 0),
        (lambda p: SGD(p, weight_decay=0.1, momentum=0.9, nesterov=True), 0),
        (lambda p: Adam(p), 0),
        (lambda p: Adam(p, amsgrad=True, weight_decay=0.1), 0),
        (lambda p: RMSprop(p, momentum=0.9, centered=True), 0),
        (lambda p: Own(p), 1),
        (lambda p: Own(p, amsgrad=True, weight_decay=0.1), 1),
    ],
)
def test_temporaries(make, temporaries):
    p = Parameter(ones(10_000))
    optimizer = make([p])
    p.grad = ones(10_000)
    optimizer.step()
    gc.collect()  # garbage of other tests that goes inside the region would count
    with memory.track() as region:
        optimizer.step()
    assert region.peak_bytes == region.by_category["workspace"] == temporaries * 40_000
    assert region.nodes == region.live_bytes == 0


# ------------------------------------------------------------------------------------------ errors


def test_parameter_errors():
    p, frozen = Parameter(ones(1)), Parameter(ones(1), requires_grad=False)
    for make in (SGD, Adam):
        with pytest.raises(ValueError, match=r"^optimizer got an empty parameter list"):
            make([])
        with pytest.raises(
            ValueError, match=r"^optimizing a parameter that doesn't require gradients"
        ):
            make([p, frozen])
        with pytest.raises(ValueError, match=r"^can't optimize a non-leaf Variable"):
            make([p * 2])
        with pytest.raises(
            TypeError, match=r"expected an iterable .* got Parameter of shape \(1,\)"
        ):
            make(p)
        for bad, way in ((nn.Linear(2, 2), r"module\.parameters\(\)"), (3, "a list of tensors")):
            text = (
                f"^{make.__name__}: expected .* for params, got {type(bad).__name__} .*; pass {way}"
            )
            for params in (bad, [{"params": bad}]):
                with pytest.raises(TypeError, match=text):
                    make(params)
        with pytest.raises(TypeError, match="whose order changes"):
            make({p})
        with pytest.raises(TypeError, match="whose order changes"):
            make([{"params": {p}}])
        with pytest.raises(TypeError, match="expected tensors for params, got int 3 at 1"):
            make([p, 3])
        with pytest.raises(ValueError, match="appear in more than one parameter group"):
            make([{"params": [p]}, {"params": [p]}])
        with pytest.raises(ValueError, match="expected the key 'params'"):
            make([{"lr": 0.1}])
        with pytest.raises(TypeError, match="param_group must be a dict"):
            make([{"params": p}, p])
        with pytest.warns(UserWarning, match="got one twice"):
            make([p, p])
    with pytest.raises(NotImplementedError):
        p.grad = ones(1)
        Optimizer([p], {}).step()


@pytest.mark.parametrize(
    ("make", "options", "text"),
    [
        (SGD, {"lr": -1}, "SGD: expected lr >= 0 for lr, got -1"),
        (SGD, {"lr": float("nan")}, "got nan"),
        (SGD, {"momentum": -0.1}, "momentum >= 0"),
        (SGD, {"weight_decay": -1}, "weight_decay >= 0"),
        (SGD, {"nesterov": True}, "Nesterov momentum requires a momentum and zero dampening"),
        (SGD, {"nesterov": True, "momentum": 0.9, "dampening": 0.1}, "Nesterov momentum requires"),
        (Adam, {"lr": -1}, "Adam: expected lr >= 0 for lr, got -1"),
        (Adam, {"eps": -1e-8}, "eps >= 0"),
        (Adam, {"weight_decay": -1}, "weight_decay >= 0"),
        (Adam, {"betas": (1.0, 0.9)}, r"two numbers in \[0, 1\)"),
        (Adam, {"betas": (0.9, -0.1)}, r"two numbers in \[0, 1\)"),
    ],
)
def test_option_errors(make, options, text):
    p = Parameter(ones(1))
    with pytest.raises(ValueError, match=text):
        make([p], **options)
    with pytest.raises(ValueError, match=text):
        make([{"params": [p], **options}])
