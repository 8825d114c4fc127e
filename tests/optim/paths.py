"""Parameters that an optimizer moves: where they begin, the gradients, the path."""

import numpy as np

from numgrad.ops.creation import tensor
from numgrad.variable import Parameter

START = np.array([1.0, -2.0, 3.0, 0.5])


def gradients(n=6):
    return list(np.random.RandomState(0).randn(n, 4))


def run(make, grads=None):
    p = Parameter(tensor(START))
    optimizer = make([p])
    path = []
    for g in gradients() if grads is None else grads:
        p.grad = tensor(g)
        optimizer.step()
        path.append(p.detach().numpy().copy())
    return np.array(path)
