"""Tensors on a device in the graph: gradients, functions, assignment, training."""

import numpy as np
import pytest

import numgrad
from numgrad import nn, optim
from numgrad.graph import node
from numgrad.nn import functional as F
from tests.cuda_sim.pairs import close, network, pair


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
