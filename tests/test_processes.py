"""Processes and threads: fork, training in many threads at once, the same bits everywhere."""

import json
import os
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest

import numgrad

REPOSITORY = pathlib.Path(numgrad.__file__).parents[1]


def program(text, **environment):
    """What a new process prints, as JSON."""
    found = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout.splitlines()[-1])


# --------------------------------------------------------------------------------------------- fork

FORKED = """
import json, multiprocessing, os, sys
import numpy as np
import numgrad
numgrad.set_num_threads(2)
rng = np.random.default_rng(1)
x = numgrad.tensor(rng.standard_normal((300, 400)).astype(np.float32))
w = numgrad.tensor(rng.standard_normal((400, 64)).astype(np.float32), requires_grad=True)

def work():
    "Kernels of every kind that share the work between threads in the parent, and a backward pass."
    y = (x * 2).tanh() @ w
    y.sum().backward()
    answer = [a.numpy().tobytes().hex() for a in (y.detach(), y.detach().sum(0), w.grad, x.t() + 1)]
    w.grad = None
    return answer

def new_formula(number):
    "A kernel that nobody has compiled before."
    op = numgrad.elementwise(dx=lambda g: g)(lambda x: x * number)
    return op(numgrad.tensor([1.0])).tolist()

expected = work()
layer = __import__("numba").threading_layer()

def in_child(depth):
    answers = [work() == expected, numgrad.get_num_threads() == 1]
    answers.append(new_formula(7919.0 + depth) == [7919.0 + depth])
    if depth:
        read, write = os.pipe()
        if os.fork() == 0:
            os.write(write, json.dumps(in_child(depth - 1)).encode())
            os._exit(0)
        os.close(write)
        answers += json.loads(open(read).read())
        answers.append(os.wait()[1] == 0)
    return answers

def run_in_child(queue):
    queue.put(in_child(1))

context = multiprocessing.get_context("fork")
queue = context.Queue()
child = context.Process(target=run_in_child, args=(queue,))
child.start()
answers = queue.get(timeout=100)
child.join()
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, json.dumps(in_child(1)).encode())
    os._exit(0)
os.close(write)
answers += json.loads(open(read).read())
answers += [os.wait()[1] == 0, child.exitcode == 0, work() == expected]
answers.append(numgrad.get_num_threads() == 2)
print(json.dumps([layer, answers]))
"""


@pytest.mark.parametrize("layer", ["default", "workqueue"])
def test_children_of_a_process_with_threads(layer):
    # Numba's layers do not survive fork (OpenMP's kills the child): children run serially.
    environment = {"NUMBA_NUM_THREADS": "2", "NUMBA_THREADING_LAYER": layer}
    used, answers = program(FORKED, **environment)
    assert layer == "default" or used == "workqueue"
    assert len(answers) == 2 * 7 + 4 and all(answers)


FORKED_WHILE_COMPILING = """
import json, os, threading
import numgrad
done = threading.Event()
def compile_many():
    number = 6007.0
    while not done.is_set():
        number += 1
        op = numgrad.elementwise(dx=lambda g: g)(lambda x: x * number)
        assert op(numgrad.tensor([1.0])).tolist() == [number]
thread = threading.Thread(target=compile_many)
thread.start()
codes = []
for i in range(6):
    if os.fork() == 0:
        op = numgrad.elementwise(dx=lambda g: g)(lambda x: x + 5003.0 + i)
        os._exit(0 if op(numgrad.tensor([1.0])).tolist() == [5004.0 + i] else 1)
    codes.append(os.wait()[1])
done.set()
thread.join()
print(json.dumps(codes))
"""


def test_fork_while_another_thread_compiles(tmp_path):
    assert program(FORKED_WHILE_COMPILING, NUMGRAD_CACHE=str(tmp_path)) == [0] * 6


# ------------------------------------------------------------------------------------------ threads

ROWS, CLASSES, HIDDEN, STEPS = 64, 10, 32, 500


def train(seed):
    """The weights of a small network after 500 steps of gradient descent, as bytes."""
    rng = np.random.default_rng(seed)
    x = numgrad.tensor(rng.standard_normal((ROWS, 20)).astype(np.float32))
    labels = numgrad.tensor(rng.integers(0, CLASSES, ROWS))
    shapes = [(20, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,)]
    weights = [
        numgrad.tensor((0.3 * rng.standard_normal(n)).astype(np.float32), requires_grad=True)
        for n in shapes
    ]
    w1, b1, w2, b2 = weights
    first = last = None
    for _ in range(STEPS):
        hidden = (x @ w1 + b1).tanh()
        loss = numgrad.cross_entropy(hidden @ w2 + b2, labels)
        loss.backward()
        with numgrad.no_grad():
            for w in weights:
                w.sub_(w.grad * 0.1)
                w.grad = None
        last = loss.item()
        first = first or last
    assert last < 0.5 * first
    return b"".join(w.detach().numpy().tobytes() for w in weights)


def in_threads(function, count):
    """``function(i)`` of each of ``count`` threads that run at once; raises what they raise."""
    answers, errors = [None] * count, []
    ready = threading.Barrier(count)

    def work(i):
        try:
            ready.wait(timeout=60)
            answers[i] = function(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
    if errors:
        raise errors[0]
    return answers


def test_eight_threads_train_as_one():
    serial = [train(seed) for seed in (0, 1)]
    assert serial[0] != serial[1]
    answers = in_threads(lambda i: train(i % 2), 8)
    assert [answer == serial[i % 2] for i, answer in enumerate(answers)] == [True] * 8


def test_no_grad_in_one_thread_leaves_another_recording():
    inside, finish = threading.Event(), threading.Event()
    x = numgrad.tensor([1.0, 2.0], requires_grad=True)
    found = []

    def without():
        with numgrad.no_grad():
            inside.set()
            assert finish.wait(timeout=60)
            found.append((x * x).requires_grad)
        found.append((x * x).requires_grad)

    thread = threading.Thread(target=without)
    thread.start()
    assert inside.wait(timeout=60)
    y = x * x
    (y * 3).sum().backward()
    finish.set()
    thread.join()
    assert y.requires_grad and x.grad.tolist() == [6.0, 12.0]
    assert found == [False, True]


def test_a_new_thread_records():
    x = numgrad.tensor([1.0], requires_grad=True)
    with numgrad.no_grad():
        (answer,) = in_threads(lambda i: (x * x).requires_grad, 1)
        assert not (x * x).requires_grad
    assert answer


# --------------------------------------------------------------------------------- the same bits


def everything():
    """Results of ops that share their work between threads, by name."""
    rng = np.random.default_rng(2)
    x = numgrad.tensor(rng.standard_normal((401, 503)).astype(np.float32))
    y = numgrad.tensor(rng.standard_normal((503, 401)).astype(np.float32))
    index = numgrad.tensor(rng.integers(0, 401, 700))
    numgrad.manual_seed(3)
    results = {
        "elementwise": (x * 2 + x).exp(),
        "broadcast": x * y.t()[:, :1] + y.t(),
        "sum": x.sum(),
        "sum of rows": x.sum(1),
        "sum of columns": x.sum(0),
        "mean": x.mean(),
        "var": x.var(0),
        "max": x.max(1)[0],
        "argmax": x.argmax(1),
        "logsumexp": x.logsumexp(1),
        "softmax": x.softmax(1),
        "softmax of columns": x.softmax(0),
        "matmul": x @ y,
        "matmul of float64": x.double() @ y.double(),
        "vector": x @ y[:, 0],
        "rows": x[index],
        "columns": x[:, index],
        "mask": x[x > 0],
        "randn": numgrad.randn(401, 503),
        "rand": numgrad.rand(70_001),
        "dropout": numgrad.dropout(x, 0.5, True),
        "cat": numgrad.cat([x, y.t()], 0),
    }
    w = x.clone().requires_grad_()
    (w[index].tanh() @ y).softmax(1).square().sum().backward()
    results["gradient"] = w.grad
    return {name: a.detach().numpy().tobytes() for name, a in results.items()}


def test_same_bits_at_one_and_two_threads():
    before = numgrad.get_num_threads()
    try:
        answers = []
        for n in (1, 2, 2):
            numgrad.set_num_threads(n)
            answers.append(everything())
    finally:
        numgrad.set_num_threads(before)
    one, two, again = answers
    assert [name for name in one if one[name] != two[name] or one[name] != again[name]] == []
