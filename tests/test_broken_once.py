"""Faults that were found by trying to break things: each stands for its kind."""

import contextlib
import copy
import gc
import math
import os
import pickle
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import numgrad
from numgrad import Function, GradError, Variable, nn, ones, tensor, zeros
from numgrad.graph import backward, mode, node


def test_allclose_of_infinities():
    assert not tensor([1.0]).allclose(tensor([math.inf]))
    assert not tensor([math.inf]).allclose(tensor([-math.inf]))
    assert tensor([math.inf]).allclose(tensor([math.inf]))


def test_view_of_a_base_that_was_squeezed_says_so():
    x = zeros(2, 1, 3)
    v = x[0]
    x.squeeze_(1)
    x.add_(ones(2, 3, requires_grad=True))
    with pytest.raises(GradError, match="make the view again after squeeze_"):
        v * 2


class Identity(Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return g


@pytest.mark.parametrize("leaf", [True, False])
def test_in_place_on_an_input_that_a_function_returned(leaf):
    x = ones(3, requires_grad=True)
    y = Identity.apply(x if leaf else x * 1)
    with pytest.raises(GradError, match="is a view and is being modified inplace"):
        y.mul_(5)
    assert x.tolist() == [1, 1, 1]
    with numgrad.no_grad():
        y.clone().mul_(5)
    y.sum().backward()
    assert x.grad.tolist() == [1, 1, 1]


# ------------------------------------------------------------------------ memory seen through NumPy


@pytest.mark.parametrize("pick", [np.asarray, lambda a: a[7:].view(np.int32)])
def test_memory_of_the_pool_keeps_its_storage(pick):
    x = zeros(5000)
    y = numgrad.from_numpy(pick(x.numpy()))
    assert y.storage is x.storage
    writes = x.storage.writes
    y.add_(1)
    assert x.storage.writes == writes + 2
    z = numgrad.from_numpy(x.numpy())
    with numgrad.memory.track() as m:
        out = z * ones(5000, requires_grad=True)
    assert m.saved_bytes == 20_000 and out.requires_grad


# ------------------------------------------------------------------------ finalisers, threads, fork


class MakesNodes:
    """Records an operation whenever it is freed."""

    def __init__(self, x):
        self.x, self.itself = x, self

    def __del__(self):
        self.x * 2


def test_finalisers_make_nodes_while_nodes_are_noted():
    x = ones(3, requires_grad=True)
    before = gc.get_threshold()
    alive = []
    with numgrad.memory.track() as m:
        gc.set_threshold(1, 1, 1)
        try:
            for _ in range(1200):  # past the number from which the dead are forgotten
                MakesNodes(x)
                alive.append(x * 2)
                m._recorder.saved_values()
        finally:
            gc.set_threshold(*before)
        assert m.saved_tensors == 0 and m.nodes >= 2000
    nodes = {r() for r in m._recorder._nodes}
    assert {y.grad_fn for y in alive} <= nodes


def test_node_made_at_any_point_while_one_is_noted(monkeypatch):
    x = ones(3, requires_grad=True)
    made, due = [], [1, 2]

    def finaliser():
        if due:
            due.pop()
            made.append(x * 3)

    class Weakref:
        @staticmethod
        def ref(node):
            finaliser()
            return weakref.ref(node)

    def work():
        with numgrad.memory.track() as m:
            m._recorder._nodes.append(finaliser)  # called, as a reference is, when it prunes
            m._recorder._limit = 1
            made.append(x * 2)
            noted.extend(r() for r in m._recorder._nodes)

    noted = []
    monkeypatch.setattr(node, "weakref", Weakref)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert {y.grad_fn for y in made} == {*noted} - {None} and len(made) == 3


LOCKED_FORK = """
import os, threading, time
import numgrad
from numgrad.graph import backward, node, storage
from numgrad.kernels import launch
from numgrad.ops import random
x = numgrad.ones(3, requires_grad=True)
(x * 2 + numgrad.rand(3)).sum().backward()
region = numgrad.memory.track()
with region:
    locks = [random._drawing, launch._card_lock, storage._folding, node._opening]
    locks += [region._recorder.pruning, *backward._locks]
    held, done = threading.Event(), threading.Event()

    def hold():
        for lock in locks:
            lock.acquire()
        held.set()
        done.wait()
        for lock in locks:
            lock.release()

    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    child = os.fork()
    if child == 0:
        numgrad.rand(3)
        with numgrad.memory.track():
            (x * 7 - 3).exp().sum().backward()
        assert storage._folding.acquire(blocking=False)
        assert region._recorder.pruning.acquire(blocking=False)
        os._exit(7)
    for _ in range(600):
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            break
        time.sleep(0.05)
    else:
        os.kill(child, 9)
    done.set()
print(os.waitstatus_to_exitcode(status) if found else "hangs")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_child_forked_while_another_thread_holds_the_locks():
    run = subprocess.run(
        [sys.executable, "-c", LOCKED_FORK], capture_output=True, text=True, timeout=240
    )
    assert run.stdout.strip() == "7", run.stdout + run.stderr


def test_generators_are_copied_and_pickled():
    generator = numgrad.Generator(3)
    numgrad.rand(5, generator=generator)
    for copied in (copy.deepcopy(generator), pickle.loads(pickle.dumps(generator))):
        again = copy.deepcopy(generator)
        expected = numgrad.rand(5, generator=again).tolist()
        assert numgrad.rand(5, generator=copied).tolist() == expected


def test_first_gradients_of_two_threads_are_both_counted(monkeypatch):
    x = ones(3, requires_grad=True)
    at_copy = threading.Barrier(2)
    copy_of = backward.above.copy

    def slow_copy(value):
        with contextlib.suppress(threading.BrokenBarrierError):
            at_copy.wait(0.5)  # without a lock both threads are here, each with no gradient seen
        return copy_of(value)

    monkeypatch.setattr(backward.above, "copy", slow_copy)
    roots = [x + 0, x + 0]
    threads = [threading.Thread(target=y.backward, args=(ones(3),)) for y in roots]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert x.grad.tolist() == [2, 2, 2]


def test_regions_close_while_others_go_on():
    first, second = numgrad.memory.track(), numgrad.memory.track()
    first.__enter__()
    second.__enter__()
    going_over = node.recorders
    first.__exit__()
    assert first._recorder in going_over and first._recorder not in node.recorders
    y = ones(3, requires_grad=True) * 2
    second.__exit__()
    assert (first.nodes, second.nodes) == (0, 1) and y.requires_grad


# ------------------------------------------------------------------------------ leaves that changed


def test_gradients_arrive_at_a_grad_of_the_other_scalar_shape():
    for x, g in [
        (Variable(ones(1), requires_grad=True), tensor(3.0)),
        (ones((), requires_grad=True), tensor([3.0])),
    ]:
        x.grad = g
        x.sum().backward()
        x.sum().backward(create_graph=True)
        assert float(x.grad) == 5


def test_leaf_of_another_dtype_after_the_forward_pass():
    m = nn.Linear(2, 2)
    for expected in (1.0, 2.0):
        m.float()
        y = m(ones(1, 2)).sum()
        m.double()
        y.backward()
        assert m.weight.grad.dtype == numgrad.float64
        assert m.weight.grad.tolist() == [[expected] * 2] * 2
    x = ones(3, requires_grad=True)
    x.sum().backward()
    x.data = ones(3).double()
    x.sum().backward()
    assert x.grad.dtype == numgrad.float64 and x.grad.tolist() == [2, 2, 2]


def test_leaf_of_another_shape_after_the_forward_pass():
    x = ones(3, requires_grad=True)
    y = (x * 2).sum()
    x.data = ones(4)
    with pytest.raises(GradError, match=r"expected the leaf to have the shape \(3,\)"):
        y.backward()
    x.grad = zeros(4)
    x.data = ones(2)
    with pytest.raises(GradError, match=r"expected \.grad to have the shape \(2,\)"):
        (x * 2).sum().backward()


def test_module_type_refuses_integers_for_parameters_that_require_grad():
    m = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"Module\.type: expected a floating-point dtype"):
        m.type(numgrad.int64)
    assert m.weight.dtype == numgrad.float32
    m.requires_grad_(False)
    assert m.type(numgrad.int64).weight.dtype == numgrad.int64
    assert nn.Linear(2, 2).type(numgrad.float64).weight.dtype == numgrad.float64


# -------------------------------------------------------------------------------------------- views


def test_inference_tensors_are_not_written_to_outside():
    with numgrad.inference_mode():
        a = ones(3)
        a.mul_(2)
    w = ones(3, requires_grad=True)
    for write in (lambda: a.mul_(w), lambda: a[:2].zero_(), lambda: a.data.add_(1)):
        with pytest.raises(GradError, match="Inplace update to inference tensor outside Inference"):
            write()
    with numgrad.no_grad(), pytest.raises(GradError, match="Inplace update to inference tensor"):
        a.add_(1)
    assert a.tolist() == [2, 2, 2]
    assert a.clone().mul_(w).requires_grad


def test_copy_of_a_view_is_a_view():
    b = zeros(4)
    v = copy.copy(b[:2])
    w = ones(2, requires_grad=True)
    v.add_(w)
    (b * 3).sum().backward()
    assert b.tolist() == [1, 1, 0, 0] and w.grad.tolist() == [3, 3]
    y = copy.copy(w * 2)
    assert not y.is_leaf
    y.sum().backward()
    assert w.grad.tolist() == [5, 5]
    assert copy.copy(w).is_leaf and copy.copy(w).requires_grad


def _data(b):
    b.data = zeros(4)


def _convert(b):
    m = nn.Module()
    m.register_buffer("b", zeros(4).double())
    b.take_memory(m.b)


@pytest.mark.parametrize("change", [_data, _convert])
def test_views_of_a_value_that_got_other_memory(change):
    b = zeros(4)
    v = b[:2]
    early = ones(4, requires_grad=True)
    change(b)
    w = ones(2, requires_grad=True)
    v.add_(w)
    assert not b.requires_grad and b.tolist() == [0] * 4
    (v * 3).sum().backward()
    assert w.grad.tolist() == [3, 3]
    b.add_(early.to(b.dtype))
    assert b.requires_grad and v._base is None
    b[:2].sum().backward()
    assert early.grad.tolist() == [1, 1, 0, 0]


def test_parameter_converted_under_a_view():
    m = nn.Linear(2, 2, bias=False).requires_grad_(False)
    v = m.weight[0]
    m.double()
    v.mul_(ones(2, requires_grad=True))
    assert v.requires_grad and not m.weight.requires_grad and m.weight.grad_fn is None


def test_in_place_on_a_view_of_a_base_that_was_squeezed():
    b = ones(1, 3)
    v = b[0]
    b.squeeze_()
    with pytest.raises(GradError, match="make the view again after squeeze_"):
        v.mul_(ones(3, requires_grad=True))
    assert b.tolist() == [1, 1, 1]
    assert v.mul_(2).tolist() == [2, 2, 2]


def test_view_makes_no_nodes_until_its_edge_is_asked_for():
    b = zeros(4)
    v = b[:2]
    u = b[1:]
    b.add_(ones(4, requires_grad=True))
    with numgrad.memory.track() as m:
        with numgrad.no_grad():
            v + 1
        assert v.requires_grad and m.nodes == 0
        assert v.grad_fn is not None and not v.is_leaf and m.nodes == 1
    with numgrad.no_grad():
        u + 1
    b.data = zeros(4)  # u was told of a history that is b's alone
    assert not u.requires_grad and u.is_leaf


def test_retained_gradient_of_a_view_whose_base_is_written_to():
    p = ones(4, requires_grad=True)
    b = p * 1
    v = b[:2]
    v.retain_grad()
    b.mul_(2)
    with numgrad.no_grad():
        v + 1
    (v * 3).sum().backward()
    assert v.grad.tolist() == [3, 3] and p.grad.tolist() == [6, 6, 0, 0]


def test_composites_look_at_stale_views_and_into_lists():
    w = ones(2, 3, requires_grad=True)
    b = Variable(zeros(2, 3))
    v = b[:1]
    b.copy_(Variable(zeros(2, 3), volatile=True))
    assert mode._is_volatile(v)
    assert mode._is_volatile([w, (b,)]) and not mode._is_volatile([w, 3, "x", None])
    with numgrad.memory.track() as m:
        numgrad.nn.functional.linear(v, w, ones(2, requires_grad=True))
    assert m.nodes == 0


def test_backward_takes_one_of_two_names():
    x = ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="one of grad_tensors and grad_variables"):
        numgrad.autograd.backward([x * 2], grad_tensors=[ones(2)], grad_variables=[ones(2)])
    numgrad.autograd.backward([x * 2], grad_variables=[ones(2)])
    assert x.grad.tolist() == [2, 2]


def test_deep_copies_share_memory_as_the_originals_do():
    x = zeros(2, 3)
    v = x.t()[1:]
    for originals in ([x, v], [v, x]):
        copies = dict(zip(map(id, originals), copy.deepcopy(originals), strict=True))
        a, b = copies[id(x)], copies[id(v)]
        b.add_(ones(2, 2, requires_grad=True))
        assert a.tolist() == [[0, 1, 1]] * 2 and a.requires_grad
        assert x.tolist() == [[0, 0, 0]] * 2 and not x.requires_grad
        assert b.stride() == v.stride() and a.group is b.group


@pytest.mark.parametrize("n", [3, 5000])  # below and above the pool's smallest block
def test_exported_while_a_numpy_alias_or_a_view_of_it_lives(n):
    x = ones(n)
    live = numgrad.memory.stats()["live_bytes"]
    assert not x.storage.exported
    alias = x.numpy()
    part = alias[1:][::2]
    assert x.storage.exported and numgrad.from_numpy(alias).storage is x.storage
    del alias
    assert x.storage.exported
    del x
    assert numgrad.memory.stats()["live_bytes"] == live  # the alias keeps it
    part[:] = 7
    del part
    assert numgrad.memory.stats()["live_bytes"] == live - 4 * n
    y = ones(n)
    y.numpy()
    assert not y.storage.exported
    assert numgrad.from_numpy(np.ones(3)).storage.exported


@pytest.mark.parametrize("name", ["sign", "floor", "ceil", "trunc", "round"])
def test_a_derivative_that_is_zero_is_zeros(name):
    x = tensor([-1.5, 0.0, 2.5], requires_grad=True)
    getattr(x, name)().sum().backward()
    assert x.grad.tolist() == [0, 0, 0]


def test_shape_and_dtype_are_read_only():
    x = ones(2)
    for name, value in (("shape", (50,)), ("dtype", "int64")):
        with pytest.raises(AttributeError):
            setattr(x, name, value)
    assert (x * 2).tolist() == [2, 2]


def test_nothing_around_a_volatile_operand_is_recorded():
    w = ones(3, requires_grad=True)
    v = numgrad.Variable(ones(3, dtype="float64"), volatile=True)
    index = numgrad.Variable(tensor([0, 2]), volatile=True)
    calls = {
        "cast": lambda: w * v,
        "index": lambda: w[index],
        "stack": lambda: numgrad.stack([v, w]),
        "cat": lambda: numgrad.cat([w, v]),
        "clamp": lambda: numgrad.clamp(w, 0, v),
    }
    for name, call in calls.items():
        with numgrad.memory.track() as m:
            out = call()
        assert (name, m.nodes, out.volatile, out.requires_grad) == (name, 0, True, False)


def test_mode_survives_an_interrupt_in_backward():
    def interrupt(g):
        raise KeyboardInterrupt

    x = ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        y.sum().backward()
    assert numgrad.is_grad_enabled()
    assert numgrad.graph.storage.local.account.category == numgrad.graph.storage.ACTIVATION


WARNINGS = {
    "softmax": lambda x: numgrad.softmax(x),
    "method": lambda x: x.log_softmax(),
    "functional": lambda x: numgrad.nn.functional.softmax(x),
    "module": lambda x: numgrad.nn.Softmax()(x),
    "mse_loss": lambda x: numgrad.mse_loss(x, ones(3)),
    "functional loss": lambda x: numgrad.nn.functional.mse_loss(x, ones(3)),
    "size_average": lambda x: numgrad.nn.functional.mse_loss(x, x, size_average=True),
    "loss module": lambda x: numgrad.nn.MSELoss(size_average=True),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_warnings_name_the_users_line(name):
    with pytest.warns(UserWarning) as caught:
        WARNINGS[name](ones(2, 3))
    assert [w.filename for w in caught] == [__file__]
