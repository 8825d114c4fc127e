"""Nothing grows: live bytes and resident memory over many forwards and training steps."""

import json
import subprocess
import sys
import textwrap

import pytest

PROGRAM = textwrap.dedent(
    """
    import gc, json, sys
    import numpy as np
    import numgrad
    from numgrad import nn, optim

    def resident():
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * 4096

    numgrad.manual_seed(0)
    rng = np.random.default_rng(0)
    images = numgrad.tensor(rng.random((64, 784), np.float32))
    labels = numgrad.tensor(rng.integers(0, 10, 64))
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10))
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def forward():
        return model(numgrad.Variable(images, volatile=True))

    def step():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    work, count = {"forward": (forward, 2000), "step": (step, 500)}[sys.argv[1]]
    gc.disable()
    for _ in range(100):
        work()
    optimizer.zero_grad()
    live, rss = numgrad.memory.stats()["live_bytes"], resident()
    nodes = numgrad.graph.node.counters.nodes
    for _ in range(count - 100):
        work()
    optimizer.zero_grad()
    print(json.dumps({
        "live": numgrad.memory.stats()["live_bytes"] - live,
        "rss": resident() - rss,
        "nodes": numgrad.graph.node.counters.nodes - nodes,
    }))
    """
)


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
@pytest.mark.parametrize("work", ["forward", "step"])
def test_memory_stays(work):
    out = subprocess.run(
        [sys.executable, "-c", PROGRAM, work], capture_output=True, text=True, check=True
    )
    grown = json.loads(out.stdout)
    assert grown["live"] == 0
    assert grown["rss"] <= 2 * 2**20
    assert (grown["nodes"] == 0) == (work == "forward")
