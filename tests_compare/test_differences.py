"""Where numgrad's answer is not PyTorch's, on purpose: both answers, and the reason.

PyTorch's are asserted too: an entry that PyTorch has caught up with has to go.
"""

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import numgrad
from tests_compare.checks import array_of, tensor

INF, NAN = math.inf, math.nan


def gradient(t: Any, call: Any, values: Any) -> list[float]:
    x = tensor(t, np.array(values, np.float64), True)
    call(t, x).sum().backward()
    return array_of(x.grad).tolist()


def value(t: Any, call: Any, values: Any) -> list[float]:
    return array_of(call(t, tensor(t, np.array(values, np.float32)))).tolist()


# (what, reason, of, call, values, numgrad's answer, PyTorch's)
DIFFERENT: list[tuple[str, str, Any, Any, Any, Any, Any]] = [
    (
        "where(x > 0, sqrt(x), x)",
        "the branch that was not taken must not leak nan into the gradient",
        gradient,
        lambda t, x: t.where(x > 0, t.sqrt(x), x),
        [-1.0, -4.0],
        [1.0, 1.0],
        [NAN, NAN],
    ),
    (
        "where(x == 0, x / 2, sqrt(x) + 1)",
        "the same, with an infinite derivative",
        gradient,
        lambda t, x: t.where(x == 0, x / 2, t.sqrt(x) + 1),
        [16.0, 0.0],
        [0.125, 0.5],
        [0.125, NAN],
    ),
    (
        "gradient of logsumexp of -inf alone",
        "no element is any part of the sum: 0, not nan",
        gradient,
        lambda t, x: t.logsumexp(x, 0),
        [-INF, -INF],
        [0.0, 0.0],
        [NAN, NAN],
    ),
    (
        "gradient of amax with nan",
        "the nan elements are the extreme and share the gradient; others get 0",
        gradient,
        lambda t, x: t.amax(x),
        [1.0, NAN, NAN],
        [0.0, 0.5, 0.5],
        [NAN, NAN, NAN],
    ),
    (
        "gelu(inf) in float32",
        "inf * 1; PyTorch's own float64 gelu, and its float32 one of few elements, give inf",
        value,
        lambda t, x: t.nn.functional.gelu(x),
        [INF] * 16,
        [INF] * 16,
        [NAN] * 16,
    ),
    (
        "gradient of kl_div for a probability of 0",
        "0 log(0) counts as 0, and so does its derivative; PyTorch: log(0) + 0 / 0",
        gradient,
        lambda t, y: t.nn.functional.kl_div(y.detach() - 2, y, reduction="none"),
        [0.0, 1.0],
        [2.0, 2.0],
        [NAN, 2.0],
    ),
]


@pytest.mark.parametrize(
    ("what", "reason", "of", "call", "values", "ours", "theirs"),
    DIFFERENT,
    ids=[d[0] for d in DIFFERENT],
)
def test_difference(
    what: str, reason: str, of: Any, call: Any, values: Any, ours: Any, theirs: Any
) -> None:
    np.testing.assert_array_equal(of(numgrad, call, values), ours, err_msg=reason)
    np.testing.assert_array_equal(of(torch, call, values), theirs, err_msg="PyTorch has changed")


def test_arithmetic_on_bool() -> None:
    """``1 - mask`` worked when masks were uint8: it gives int64. PyTorch raises."""
    for call in (lambda m: 1 - m, lambda m: m - m, lambda m: -m):
        mask = np.array([True, False])
        assert str(call(tensor(numgrad, mask)).dtype) == "int64"
        with pytest.raises(RuntimeError):
            call(tensor(torch, mask))


def test_repeated_places_of_a_write() -> None:
    """The last value of a repeated place wins, and it alone has a gradient; PyTorch: all."""
    found = []
    for t in (numgrad, torch):
        v = tensor(t, np.array([10.0, 20.0, 30.0]), True)
        z = tensor(t, np.zeros(2))
        z[tensor(t, np.array([1, 0, 1]))] = v
        (z * tensor(t, np.array([1.0, 2.0]))).sum().backward()
        assert array_of(z).tolist() == [20.0, 30.0]
        found.append(array_of(v.grad).tolist())
    assert found == [[0.0, 1.0, 2.0], [2.0, 1.0, 2.0]]


def test_optimisers_skip_frozen_parameters() -> None:
    """PyTorch decays a frozen parameter whose gradient is zeros; numgrad leaves it alone."""
    moved = []
    for t in (numgrad, torch):
        p = tensor(t, np.ones(2), True)
        optimiser = t.optim.SGD([p], lr=0.1, momentum=0.9, weight_decay=0.5)
        p.sum().backward()
        p.grad.zero_()
        p.requires_grad_(False)
        optimiser.step()
        moved.append(array_of(p).tolist())
    assert moved == [[1.0, 1.0], [0.95, 0.95]]


def test_both_warn_of_a_target_that_broadcasts() -> None:
    """mse_loss of (3, 1) against (3,): the same number 1.3333, and a warning from both."""
    values = []
    for t in (numgrad, torch):
        x, y = tensor(t, np.array([[1.0], [2.0], [3.0]])), tensor(t, np.array([1.0, 2.0, 3.0]))
        with pytest.warns(UserWarning, match="target size .* different to the input size"):
            values.append(t.nn.functional.mse_loss(x, y).item())
    assert values[0] == pytest.approx(values[1]) == pytest.approx(4 / 3)


def test_volatile_is_honoured() -> None:
    """PyTorch ignores volatile (it warns once and keeps the graph)."""
    w = tensor(numgrad, np.ones(2), True)
    x = numgrad.Variable(numgrad.ones(2).double(), volatile=True)
    assert (x * w).volatile and not (x * w).requires_grad
    theirs = tensor(torch, np.ones(2), True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        constant = torch.autograd.Variable(torch.ones(2).double(), volatile=True)
    assert (constant * theirs).requires_grad


# ------------------------------------------------------------------------------------- state dicts


def state_of(t: Any, **more: Any) -> dict[str, Any]:
    """Ones for a Linear(2, 2), and more."""
    return {"weight": tensor(t, np.ones((2, 2), "f4")), "bias": tensor(t, np.ones(2, "f4")), **more}


def zeros_linear(t: Any) -> Any:
    layer = t.nn.Linear(2, 2)
    for parameter in layer.parameters():
        parameter.data.zero_()
    return layer


def test_a_load_that_fails_changes_nothing() -> None:
    """PyTorch copies what fits, then raises."""
    left = []
    for t in (numgrad, torch):
        layer = zeros_linear(t)
        with pytest.raises(RuntimeError, match="size mismatch for bias"):
            layer.load_state_dict(state_of(t, bias=tensor(t, np.ones(3, "f4"))))
        left.append(array_of(layer.weight).tolist())
    assert left == [[[0.0, 0.0]] * 2, [[1.0, 1.0]] * 2]


def test_values_of_the_modules_own_memory() -> None:
    """Swapped entries of its own state dict are swapped; PyTorch reads what it has written."""
    found = []
    for t in (numgrad, torch):
        pair = t.nn.Sequential(*(t.nn.Linear(1, 1, bias=False) for _ in range(2)))
        for i, layer in enumerate(pair):
            layer.weight.data.fill_(i)
        state = pair.state_dict()
        state["0.weight"], state["1.weight"] = state["1.weight"], state["0.weight"]
        pair.load_state_dict(state)
        found.append([layer.weight.item() for layer in pair])
    assert found == [[1.0, 0.0], [1.0, 1.0]]


def test_names_after_a_prefix() -> None:
    """As DataParallel and compile() save them: taken without it, with a warning."""
    for prefix in ("module.", "_orig_mod."):
        state = {prefix + name: value for name, value in state_of(numgrad).items()}
        with pytest.warns(UserWarning, match=f"every name starts with '{prefix}'"):
            zeros_linear(numgrad).load_state_dict(state)
        state = {prefix + name: value for name, value in state_of(torch).items()}
        with pytest.raises(RuntimeError, match="Missing key"):
            zeros_linear(torch).load_state_dict(state)


def test_a_checkpoint_in_place_of_a_state_dict() -> None:
    """With strict=False PyTorch loads nothing and says nothing."""
    for strict in (True, False):
        for t in (numgrad, torch):
            layer, whole = zeros_linear(t), {"state_dict": state_of(t), "epoch": 3}
            if t is torch and not strict:
                assert layer.load_state_dict(whole, strict=False).missing_keys == ["weight", "bias"]
                continue
            with pytest.raises(RuntimeError) as error:
                layer.load_state_dict(whole, strict=strict)
            assert ("state_dict['state_dict'] has them" in str(error.value)) == (t is numgrad)


def test_counters_of_batch_norm() -> None:
    """Missing or too many: PyTorch misses it in what its newer versions saved."""
    for t in (numgrad, torch):
        without, more = t.nn.BatchNorm1d(2).state_dict(), t.nn.BatchNorm1d(2).state_dict()
        counter = without.pop("num_batches_tracked")
        del more["running_mean"], more["running_var"]
        assert counter.item() == 0
        for state, norm in (
            (without, t.nn.BatchNorm1d(2)),
            (more, t.nn.BatchNorm1d(2, track_running_stats=False)),
        ):
            if t is numgrad:
                assert norm.load_state_dict(state) == ([], [])
            else:
                with pytest.raises(RuntimeError, match="num_batches_tracked"):
                    norm.load_state_dict(state)


def test_values_that_are_arrays() -> None:
    """Of any dtype and byte order; and one element goes into one, () into (1,)."""
    for t in (numgrad, torch):
        layer, buffer = zeros_linear(t), t.nn.Module()
        buffer.register_buffer("b", tensor(t, np.zeros(1)))
        for module, state in (
            (layer, state_of(t, bias=np.array([1, 2], ">i2"))),
            (buffer, {"b": tensor(t, np.array(2.0))}),
        ):
            if t is numgrad:
                module.load_state_dict(state)
            else:
                with pytest.raises(RuntimeError):
                    module.load_state_dict(state)
        if t is numgrad:
            assert layer.bias.tolist() == [1.0, 2.0] and buffer.b.tolist() == [2.0]


def test_state_of_another_optimizer() -> None:
    """Of another shape, another kind, with lr < 0: PyTorch takes it, and fails or goes astray at a
    later step."""
    for t in (numgrad, torch):
        groups = [{"lr": 0.1, "params": [0]}]
        of_adam = {name: tensor(t, np.ones(2)) for name in ("exp_avg", "exp_avg_sq")}
        for state in (
            {"state": {0: {"momentum_buffer": tensor(t, np.ones(3))}}, "param_groups": groups},
            {"state": {0: of_adam}, "param_groups": groups},
            {"state": {}, "param_groups": [{"lr": -1, "params": [0]}]},
        ):
            optimizer = t.optim.SGD([tensor(t, np.ones(2), True)], lr=0.5, momentum=0.9)
            if t is torch:
                optimizer.load_state_dict(state)
            else:
                with pytest.raises(ValueError, match="expected "):
                    optimizer.load_state_dict(state)
                assert optimizer.param_groups[0]["lr"] == 0.5 and not optimizer.state


def test_an_infinite_input_of_a_convolution_that_goes_by_winograd() -> None:
    """A tile of 4×4 results is computed from sums of all its inputs: none is finite any more."""
    x = np.ones((1, 16, 8, 8), np.float32)
    x[0, 0, 0, 0] = INF
    w = np.ones((16, 16, 3, 3), np.float32)
    finite = {}
    for t in (numgrad, torch):
        out = t.nn.functional.conv2d(t.tensor(x), t.tensor(w), padding=1)
        finite[t] = np.isfinite(array_of(out)[0, 0])
    assert finite[torch].sum() == 64 - 4  # those whose window has it
    assert finite[numgrad].sum() == 64 - 16
    with numgrad.backends.cpu.flags(allow_winograd=False):
        out = numgrad.nn.functional.conv2d(numgrad.tensor(x), numgrad.tensor(w), padding=1)
    assert (np.isfinite(out.numpy()[0, 0]) == finite[torch]).all()
