"""What is measured in a process that has done nothing else: cold starts."""

import json
import subprocess
import sys
import tempfile
import time
from typing import Any

from ..output import UsageError
from .measuring import environment

FIRST = """
import json, time
import numgrad as ng
from numgrad import models
from numgrad.kernels import store
ng.manual_seed(0)
model = models.resnet18()
x = ng.randn({batch}, 3, 224, 224)
if {training}:
    rule = ng.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    loss = ng.nn.functional.cross_entropy(model(x), ng.tensor([1] * {batch}))
    loss.backward()
    rule.step()
    loss.item()
else:
    with ng.inference_mode():
        model.eval()(x).numpy()
print(json.dumps([store.stats.compiled, store.stats.seconds]))
"""


def cold(training: bool, threads: int) -> dict[str, Any]:
    """A first result of ResNet-18 with an empty kernel folder: seconds, kernels compiled.

    Seconds are those of the whole process.
    """
    source = "import numgrad.nn, numgrad.optim\n" + FIRST.format(
        batch=16 if training else 1, training=training
    )
    with tempfile.TemporaryDirectory() as folder:
        env = {**environment(threads), "NUMGRAD_CACHE": folder}
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", source], env=env, capture_output=True, text=True
        )
        seconds = time.perf_counter() - started
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise UsageError(f"bench speed: the process of a cold start failed: {last[0]}")
    kernels, compiling = json.loads(done.stdout.splitlines()[-1])
    return {"seconds": seconds, "kernels": kernels, "compiling_seconds": compiling}
