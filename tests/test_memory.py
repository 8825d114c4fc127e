"""The ledger as users see it: stats, peaks, regions, categories, threads, and exact accounting."""

import gc
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numgrad
from numgrad import Variable, memory, no_grad, ones, tensor, zeros
from numgrad.graph.storage import CATEGORIES, pool
from numgrad.nn import Linear
from numgrad.optim import Adam
from numgrad.variable import Parameter

N = 25_000  # float32: 100,000 bytes
BYTES = 4 * N


def live(category=None):
    stats = memory.stats()
    return stats["by_category"][category]["live_bytes"] if category else stats["live_bytes"]


@pytest.fixture(autouse=True)
def settled():
    gc.collect()


def test_stats():
    before = memory.stats()
    assert set(before) == {
        "live_bytes",
        "reserved_bytes",
        "peak_bytes",
        "peak_op",
        "peak_by_category",
        "peak_reserved_bytes",
        "by_category",
    }
    assert set(before["by_category"]) == set(before["peak_by_category"]) == set(CATEGORIES)
    x = ones(N)
    after = memory.stats()
    assert after["live_bytes"] == before["live_bytes"] + BYTES
    data = after["by_category"]["data"]
    assert data["live_bytes"] == before["by_category"]["data"]["live_bytes"] + BYTES
    assert data["count"] == before["by_category"]["data"]["count"] + 1
    assert sum(c["live_bytes"] for c in after["by_category"].values()) == after["live_bytes"]
    assert after["reserved_bytes"] >= x.storage.nbytes
    assert memory.stats(numgrad.device("cpu"))["live_bytes"] == live()


def test_reset_peak_and_empty_cache():
    memory.empty_cache()
    reserved = pool.reserved_bytes  # what other tests of this process keep
    big = ones(50 * N)
    memory.reset_peak()
    base = memory.stats()
    assert base["peak_bytes"] == base["live_bytes"] == live()
    del big
    y = ones(N)
    y = y.exp()
    stats = memory.stats()
    assert stats["peak_bytes"] == base["peak_bytes"] and live() < stats["peak_bytes"]
    memory.reset_peak()
    z = y.tanh()
    stats = memory.stats()
    assert stats["peak_bytes"] == live() and stats["peak_op"] == "tanh"
    assert sum(stats["peak_by_category"].values()) == stats["peak_bytes"]
    del y, z
    memory.empty_cache()
    assert memory.stats()["reserved_bytes"] == pool.reserved_bytes < reserved + 50 * BYTES


def test_track_counts_nodes_saved_values_and_launches():
    x, w = ones(N, requires_grad=True), Parameter(ones(N))
    with memory.track() as m:
        y = x * w  # saves x (data) and w (a parameter: not counted)
        z = y.exp()  # saves its result
        assert (m.nodes, m.saved_tensors, m.saved_bytes) == (2, 2, 2 * BYTES)
        z.sum()
    assert m.nodes == 3 and m.launches >= 3
    assert m.saved_tensors == 2 and m.saved_bytes == 2 * BYTES
    del y, z
    assert m.saved_bytes == 2 * BYTES  # what it was at the end of the region
    with memory.track() as m:
        (x * x).exp().sum()
    assert m.nodes == 3 and m.saved_tensors == m.saved_bytes == 0 and m.live_bytes == 0


def test_saved_bytes_are_of_distinct_whole_storages():
    x = ones(4 * N, requires_grad=True)
    with memory.track() as m:
        y = x[:N] * x[N : 2 * N]
        z = x[: 2 * N] * 2.0
        w = x * x
    assert m.saved_tensors == 4 and m.saved_bytes == 4 * BYTES
    del y, z, w


@pytest.mark.parametrize(
    "prepare",
    [
        lambda x, model: (x, no_grad()),
        lambda x, model: (x, numgrad.inference_mode()),
        lambda x, model: (Variable(x, volatile=True), numgrad.enable_grad()),
        lambda x, model: (x, model.requires_grad_(False) and numgrad.enable_grad()),
    ],
    ids=["no_grad", "inference_mode", "volatile", "frozen"],
)
def test_nothing_is_kept_where_nothing_is_recorded(prepare):
    model = Linear(16, 16)
    x, context = prepare(ones(64, 16), model)
    with memory.track() as m, context:
        y = model(x).tanh()
    assert m.nodes == m.saved_tensors == m.saved_bytes == 0 and m.live_bytes == y.storage.nbytes


def test_peak_categories_are_of_the_instant_of_the_peak():
    x = ones(N)
    with memory.track() as m:
        a = x.exp()
        b = a.tanh()
        del a
        c = zeros(N // 2)
        del b, c
    assert m.peak_bytes == 2 * BYTES and m.peak_op == "tanh" and m.live_bytes == 0
    assert m.by_category["activation"] == 2 * BYTES and m.by_category["data"] == 0
    assert sum(m.by_category.values()) == m.peak_bytes


def test_regions_nest():
    with memory.track() as outer:
        a = ones(N)
        with memory.track() as inner:
            b = ones(2 * N)
            del b
        with memory.track() as last:
            c = ones(N, requires_grad=True) * 2
            memory.reset_peak()
    assert inner.peak_bytes == 2 * BYTES and inner.live_bytes == 0 and inner.nodes == 0
    assert last.live_bytes == BYTES and last.peak_bytes == 2 * BYTES and last.nodes == 1
    assert outer.peak_bytes == 3 * BYTES and outer.live_bytes == 2 * BYTES and outer.nodes == 1
    del a, c
    with pytest.raises(AttributeError, match=r"^track: expected one of nodes, .*got 'node'"):
        outer.node


def test_a_long_region_stays_small():
    x = ones(3, requires_grad=True)
    with memory.track() as m:
        for _ in range(5000):
            y = x * x
        assert len(m._recorder._nodes) < 2500
    assert m.nodes == 5000 and m.saved_tensors == 2
    del y


# --------------------------------------------------------------------------------------- categories


def test_saved_wins_over_activation_and_only_over_that():
    x = ones(N, requires_grad=True)
    base = {c: live(c) for c in CATEGORIES}
    y = x.exp()
    assert live("saved") - base["saved"] == BYTES and live("activation") == base["activation"]
    z = y * y
    loss = z.sum()
    loss.backward()
    assert live("saved") == base["saved"] and live("gradient") - base["gradient"] == BYTES
    assert live("activation") - base["activation"] == 2 * BYTES + 4
    assert live("data") == base["data"]
    del y, z, loss
    x.grad = None
    assert {c: live(c) for c in CATEGORIES} == base


def test_categories_of_a_training_step():
    model = Linear(100, 100)
    optimizer = Adam(model.parameters())
    base = {c: live(c) for c in CATEGORIES}
    x = ones(10, 100)
    loss = (model(x) ** 2).sum()
    loss.backward()
    parameters = 4 * (100 * 100 + 100)
    assert live("gradient") - base["gradient"] == parameters
    optimizer.step()
    optimizer.zero_grad()
    del loss
    assert live("optimizer") - base["optimizer"] >= 2 * parameters
    for category in ("gradient", "activation", "saved", "workspace", "parameter"):
        assert live(category) == base[category], category


def test_parameters_and_buffers():
    base = live("parameter"), live("buffer")
    p = Parameter(ones(N))
    assert live("parameter") - base[0] == BYTES
    module = numgrad.nn.Module()
    module.register_buffer("b", zeros(N))
    assert live("buffer") - base[1] == BYTES
    with memory.track() as m:
        y = p * module.b
    assert m.saved_tensors == 0 and y.requires_grad
    p.data = ones(2 * N)
    assert live("parameter") - base[0] == 2 * BYTES
    del p, y, module
    assert (live("parameter"), live("buffer")) == base


def test_in_place_keeps_what_it_overwrites_and_counts_it():
    x = ones(N, requires_grad=True)
    y = x * 1
    with memory.track() as m:
        y.mul_(y)
    assert m.nodes == 1 and m.saved_tensors == 2 and m.saved_bytes == m.live_bytes == 2 * BYTES
    y.sum().backward()
    assert x.grad[0].item() == 2


def test_workspace_is_gone_afterwards():
    x = ones(N).view(250, 100)
    with memory.track() as m:
        y = x.t().contiguous()
        x.t().sum(0)
        y.copy_(y.flip(0))
        y.view(-1)[1:].copy_(y.view(-1)[:-1])
    assert live("workspace") == 0 and m.peak_bytes >= BYTES


# ----------------------------------------------------------------------------- aliases, numpy, data


def test_a_numpy_alias_protects_its_memory():  # values.md row 32
    for n in (3, N):
        y = ones(n) * 7
        a = y.numpy()
        del y
        for _ in range(20):
            ones(n).fill_(3)
        assert (a == 7).all()


def test_the_storage_lives_as_long_as_an_alias():
    base = live()
    y = ones(N)
    a = y.numpy()[5:]
    del y
    assert live() == base + BYTES
    z = numgrad.from_numpy(a)
    version = z.storage.writes
    z.add_(1)
    assert z.storage.writes == version + 2 and live() == base + BYTES and a[0] == 2
    del a, z
    assert live() == base


def test_foreign_memory_is_not_counted():
    base = live()
    array = np.zeros(N, np.float32)
    x = numgrad.from_numpy(array)
    y = x[1:].view(-1)
    assert live() == base
    y.fill_(2)
    assert array[0] == 0 and array[1] == 2 and x.storage.writes == 2
    Parameter(x)
    assert live() == base


# ------------------------------------------------------------------------------------------ threads


def test_threads_are_counted_together():
    base = live()
    held, ready, go = [], threading.Barrier(3), threading.Event()

    def work():
        x = ones(N, requires_grad=True)
        held.append((x * x).sum())
        ready.wait()
        go.wait()

    with memory.track() as m:
        threads = [threading.Thread(target=work) for _ in range(2)]
        for t in threads:
            t.start()
        ready.wait()
        assert m.nodes == 4 and m.launches >= 4 and m.saved_bytes == 2 * BYTES
        go.set()
        for t in threads:
            t.join()
        del threads, t
    assert m.nodes == 4 and m.saved_tensors == 4 and m.peak_bytes >= 3 * BYTES
    held.clear()  # freed by another thread than made it
    assert live() == base
    thread = threading.Thread(target=lambda: held.append(ones(N)))
    thread.start()
    thread.join()
    del thread
    assert live() == base + BYTES
    memory.reset_peak()
    ones(N)
    assert memory.stats()["peak_bytes"] == base + 2 * BYTES
    held.clear()


def test_ended_threads_leave_no_account():
    from numgrad.graph import storage

    for _ in range(20):
        thread = threading.Thread(target=lambda: ones(10) + 1)
        thread.start()
        thread.join()
        del thread
    assert len(storage._accounts) < 10


# --------------------------------------------------------------------------------- exact accounting


STEPS = {
    "ones": lambda v: ones(3000),
    "leaf": lambda v: ones(3000, requires_grad=True),
    "volatile": lambda v: Variable(ones(3000), volatile=True),
    "exp": lambda v: v[-1].exp(),
    "mul": lambda v: v[-1] * v[0],
    "view": lambda v: v[-1].view(30, 100)[1:].t(),
    "flat": lambda v: v[-1].reshape(-1)[:2000].clone(),
    "write": lambda v: v[-1].clone().mul_(v[-1]),
    "write_view": lambda v: written(v[0].clone()),
    "detach": lambda v: v[-1].detach(),
    "sum": lambda v: v[-1].sum(),
    "backward": lambda v: differentiated(v[-1].sum(), v[0]),
    "grad": lambda v: second_order(ones(3000, requires_grad=True)),
    "numpy": lambda v: numgrad.from_numpy(v[-1].detach().numpy()),
    "drop": lambda v: v.pop() if len(v) > 1 else v[0],
    "no_grad": lambda v: no_grad()(lambda: v[-1] * 2)(),
    "fails": lambda v: fails(v[-1]),
}


def written(x):
    x[:10].add_(1)
    return x


def differentiated(loss, x):
    if loss.requires_grad:
        loss.backward()
    return x


def second_order(x):
    return numgrad.autograd.grad(x.exp().sum(), x, create_graph=True)[0]


def fails(x):
    try:
        x.add(ones(7, 11, 13))
    except ValueError:
        return x
    raise AssertionError


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=15))
def test_accounting_returns_exactly_to_its_start(steps):
    gc.collect()
    before = memory.stats()
    gc.disable()
    try:
        values = [ones(3000)]
        for step in steps:
            if values[-1].numel() == 3000 or step not in ("mul", "view", "flat", "write", "fails"):
                values.append(STEPS[step](values))
        assert live() == sum(c["live_bytes"] for c in memory.stats()["by_category"].values())
        values.clear()
        after = memory.stats()
        assert after["live_bytes"] == before["live_bytes"]
        assert after["by_category"] == before["by_category"]
    finally:
        gc.enable()


def test_graphs_somebody_keeps():
    gc.collect()
    base = memory.graphs()
    x = tensor([1.0, 2.0], requires_grad=True)
    total = zeros(())
    losses = []
    for _ in range(3):
        loss = (x * x).sum()
        losses.append(loss)
    assert memory.graphs() == base + 3
    for loss in losses:
        total = total + loss
    del losses, loss
    assert memory.graphs() == base + 1
    del total
    assert memory.graphs() == base


def test_a_region_shows_what_it_counted():
    with memory.track() as m:
        held = numgrad.ones(10, requires_grad=True).exp()
        assert repr(m).startswith("track(nodes=1, launches=")
    assert held.grad_fn and "saved_bytes=40, " in repr(m) and repr(m).count("=") == 7
    assert {"nodes", "launches", "saved_bytes", "peak_bytes", "by_category"} <= set(dir(m))
