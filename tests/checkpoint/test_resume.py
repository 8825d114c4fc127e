"""Training that is stopped, saved in one file and gone on with in another process: the same bits.

This file is the test and, run as a program with a folder, the process that goes on.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import numgrad as ng
from numgrad import nn
from numgrad.optim import SGD, Adam, RMSprop
from numgrad.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR, ReduceLROnPlateau

ROOT = Path(__file__).parents[2]
STEPS, STOP = 6, 3
KINDS = {
    "sgd": (
        lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=True),
        lambda o: MultiStepLR(o, [2, 4], 0.5),
    ),
    "adam": (
        lambda p: Adam(p, lr=0.01, amsgrad=True),
        lambda o: CosineAnnealingLR(o, STEPS),
    ),
    "rmsprop": (
        lambda p: RMSprop(p, lr=0.01, momentum=0.5, centered=True),
        lambda o: ReduceLROnPlateau(o, patience=0, threshold=1.0, factor=0.5),
    ),
}


class Run:
    """A network with dropout and batch-norm, its optimizer and its schedule, from random values."""

    def __init__(self, kind):
        make_optimizer, make_schedule = KINDS[kind]
        self.model = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)
        )
        self.optimizer = make_optimizer(self.model.parameters())
        self.scheduler = make_schedule(self.optimizer)
        self.step = 0

    def train(self, stop):
        """Steps up to number ``stop``, on random batches of fixed data."""
        rng = np.random.default_rng(0)
        x = ng.tensor(rng.normal(size=(20, 6)).astype("float32"))
        y = ng.tensor(rng.integers(0, 3, 20))
        while self.step < stop:
            chosen = ng.randperm(20)[:8]
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(x[chosen]), y[chosen])
            loss.backward()
            self.optimizer.step()
            plateau = isinstance(self.scheduler, ReduceLROnPlateau)
            self.scheduler.step(*[loss.item()] * plateau)
            self.step += 1
        return self

    def state(self):
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "rng": ng.get_rng_state(),
            "step": self.step,
        }

    def load(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        ng.set_rng_state(state["rng"])
        self.step = state["step"]
        return self


def go_on(folder):
    """Load each file of the folder, train to the end, and write the end beside it."""
    for path in sorted(Path(folder).iterdir()):
        ng.manual_seed(99)  # the first values are not those of the run that was stopped
        run = Run(path.name.partition(".")[0]).load(ng.load(path)).train(STEPS)
        ng.save(run.state(), path.with_name("end " + path.name))


def same(a, b):
    """Whether two states are equal to the bit."""
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, ng.Tensor):
        return a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()
    return a == b


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of stopped runs, and those of the ends that another process reached from them."""
    folder = tmp_path_factory.mktemp("runs")
    for kind in KINDS:
        ng.manual_seed(1)
        stopped = Run(kind).train(STOP)
        for suffix in ("pt", "safetensors"):
            ng.save(stopped.state(), folder / f"{kind}.{suffix}")
    done = subprocess.run(
        [sys.executable, __file__, folder],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
@pytest.mark.parametrize("kind", KINDS)
def test_resume(folder, kind, suffix):
    ng.manual_seed(1)
    run = Run(kind).train(STOP)
    before = run.optimizer.param_groups[0]["lr"]
    whole = run.train(STEPS).state()
    assert whole["optimizer"]["param_groups"][0]["lr"] < before  # the schedule has been at work
    found = ng.load(folder / f"end {kind}.{suffix}")
    assert found["step"] == STEPS
    for part in whole:
        assert same(whole[part], found[part]), part


def test_without_the_rng_state_it_goes_another_way(folder):
    """What the test above compares does depend on the dropout and the order of the data."""
    ng.manual_seed(1)
    whole = Run("sgd").train(STEPS).state()
    state = {**ng.load(folder / "sgd.pt"), "rng": ng.tensor([5, 0])}
    assert not same(whole["model"], Run("sgd").load(state).train(STEPS).state()["model"])


if __name__ == "__main__":
    go_on(sys.argv[1])
