"""Simulated CUDA threads as greenlets: many times quicker than the simulator's OS threads.

``install`` replaces how Numba's simulator runs a block. The threads of a block take turns: each
runs until it ends or reaches ``syncthreads``. Their order is another one after every barrier, so
that a missing barrier gives wrong numbers. A barrier that some threads of a block do not reach is
an error; the stock simulator passes over it.
"""

import random
import threading

import greenlet
import numpy as np

launched = {"blocks": 0, "barriers": 0}
"""What ran so far."""


class SimulatedThread(greenlet.greenlet):
    """One CUDA thread; has what the simulator looks up on the current thread."""

    def __init__(self, run, block_index, thread_index, block_dim, dim3):
        super().__init__(run)
        self.blockIdx, self.threadIdx = dim3(*block_index), dim3(*thread_index)
        x, y, z = thread_index
        self.thread_id = x + block_dim[0] * (y + block_dim[1] * z)

    def syncthreads(self):
        self.parent.switch()


def run_block(manager, grid_point, args, dim3):
    """Run all threads of one block to their end."""
    order = random.Random(0)
    block_dim = (*manager._block_dim, 1, 1)[:3]
    waiting = [
        SimulatedThread(lambda: manager._f(*args), grid_point, point, block_dim, dim3)
        for point in np.ndindex(*block_dim)
    ]
    launched["blocks"] += 1
    while waiting:
        order.shuffle(waiting)
        for thread in waiting:
            thread.switch()
        still = [thread for thread in waiting if not thread.dead]
        if still and len(still) != len(waiting):
            raise RuntimeError(
                f"syncthreads: {len(still)} threads of a block wait, {len(waiting) - len(still)} "
                "have ended without reaching the barrier"
            )
        launched["barriers"] += bool(still)
        waiting = still


class _Threading:
    """The module ``threading`` with greenlets for the current thread."""

    current_thread = staticmethod(greenlet.getcurrent)

    def __getattr__(self, name):
        return getattr(threading, name)


def install():
    """Run all simulated kernels of this process so from now on."""
    from numba.cuda.simulator import kernel, kernelapi

    def run(self, grid_point, *args):
        run_block(self, grid_point, args, kernelapi.Dim3)

    kernel.BlockManager.run = run
    kernelapi.threading = _Threading()
