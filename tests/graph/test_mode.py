"""no_grad, enable_grad, set_grad_enabled, inference_mode: nesting, decorators, threads."""

import threading

import pytest

import numgrad
from numgrad import (
    detect_anomaly,
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    ones,
    set_grad_enabled,
    tensor,
)
from numgrad.graph import mode
from numgrad.graph.node import counters

x = tensor([1.0, 2.0], requires_grad=True)


def recorded():
    return (x * 2).requires_grad


@pytest.fixture(autouse=True)
def leaves_no_trace():
    yield
    assert (mode.state.grad, mode.state.inference, mode.state.anomaly) == (True, False, False)


def test_no_grad_and_enable_grad_nest():
    with no_grad():
        assert not recorded() and not is_grad_enabled()
        with enable_grad():
            assert recorded() and is_grad_enabled()
            with no_grad():
                assert not recorded()
            assert recorded()
        assert not recorded()
    assert recorded()


def test_unrecorded_results_have_neither_flag():
    before = counters.nodes, counters.saved
    for context in (no_grad, inference_mode):
        with context():
            y = x * x
        assert not y.requires_grad and not y.volatile and y.grad_fn is None and y.is_leaf
    assert (counters.nodes, counters.saved) == before


@pytest.mark.parametrize("decorate", [no_grad(), no_grad, inference_mode(), inference_mode])
def test_decorators(decorate):
    @decorate
    def step(depth):
        """Doc."""
        return [recorded(), *(step(depth - 1) if depth else [])]

    assert step(3) == [False] * 4 and step.__name__ == "step" and step.__doc__ == "Doc."
    assert recorded()

    @decorate
    def fails():
        raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert recorded()


def test_decorated_methods():
    class Model:
        @no_grad()
        def step(self, by):
            return recorded(), by

    assert Model().step(by=3) == (False, 3)


def test_set_grad_enabled_as_call_and_as_context():
    set_grad_enabled(False)
    assert not recorded()
    set_grad_enabled(True)
    assert recorded()
    with set_grad_enabled(False):
        assert not recorded()
        with set_grad_enabled(True):
            assert recorded()
        assert not recorded()
    assert recorded()


def test_set_grad_enabled_as_decorator_acts_inside_alone():
    @set_grad_enabled(False)
    def f():
        return recorded()

    assert recorded() and not f() and recorded()


def test_inference_mode_wins():
    with inference_mode():
        assert is_inference_mode_enabled() and not is_grad_enabled()
        for inner in (enable_grad(), set_grad_enabled(True)):
            with inner:
                assert not recorded() and is_inference_mode_enabled()
        with inference_mode(False):
            assert recorded() and not is_inference_mode_enabled()
        assert not recorded()
    with no_grad(), inference_mode(False):
        assert not recorded()


def test_saving_an_inference_result_raises():
    with inference_mode():
        y = ones(2) * 3
        z = y[:1]
    for value in (y, y[:1], z, y.detach(), y.data, numgrad.Variable(y)):
        with pytest.raises(RuntimeError, match=r"Inference tensors cannot be saved for backward"):
            x[: value.shape[0]] * value
    (x + y).sum().backward()  # add keeps nothing
    (x * y.clone()).sum().backward()
    with pytest.raises(RuntimeError, match=r"inference tensor"):
        y.requires_grad_()
    x.grad = None


def test_function_saving_an_inference_result_raises():
    class Mul(numgrad.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a * b

        @staticmethod
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            return g * b, g * a

    with inference_mode():
        y = ones(2)
    with pytest.raises(RuntimeError, match=r"Inference tensors cannot be saved"):
        Mul.apply(x, y)


def test_modes_are_of_one_thread():
    seen, go, done = [], threading.Event(), threading.Event()

    def other():
        go.wait()
        seen.append((recorded(), is_inference_mode_enabled()))
        with no_grad():
            done.set()
            go2.wait()

    go2 = threading.Event()
    thread = threading.Thread(target=other)
    thread.start()
    with inference_mode():
        go.set()
        done.wait()
    assert recorded()  # though the other thread is inside no_grad now
    go2.set()
    thread.join()
    assert seen == [(True, False)]


def test_in_place_under_no_grad_keeps_the_leaf_and_bumps_its_version():
    p = ones(2).requires_grad_()
    version, writes = p._version, p.storage.writes
    with no_grad():
        p.add_(1)
        p[0] = 5
    assert p.requires_grad and p.is_leaf and p.tolist() == [5, 2]
    assert p._version == version + 2 and p.storage.writes == writes + 4


@pytest.mark.parametrize("make", [set_grad_enabled, inference_mode, detect_anomaly])
@pytest.mark.parametrize("value", [1, None, "on"])
def test_flags_must_be_bool(make, value):
    with pytest.raises(TypeError, match=f"^{make.__name__}: expected a bool for mode, got"):
        make(value)


def test_decorating_something_else():
    with pytest.raises(TypeError, match=r"^no_grad: expected a function to decorate, got 3"):
        no_grad()(3)


def test_detect_anomaly_names_the_lines():
    with detect_anomaly():
        y = x.exp()
        y.add_(1)
        with pytest.raises(RuntimeError) as error:
            y.sum().backward()
    assert str(error.value).count("test_mode.py:") == 2
