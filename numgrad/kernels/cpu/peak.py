"""What this CPU can do at most, as kernels: multiply-adds in registers, and a triad over memory.

Measurements stand beside these (``numgrad bench speed``). Nothing else uses them.
"""

import numpy as np
from numba import types
from numba.extending import intrinsic

from ..native import load_i64
from . import vector as v
from .vector import for_this_cpu

CHAINS = 12
"""Sums that do not wait for each other: two units with a latency of four or five need ten."""
BASE, COUNT = 0, 1
OUT, X, Y, LENGTH, BLOCK = 0, 1, 2, 3, 4


@intrinsic
def _multiply_adds(typingctx, t, base, count):
    """``count`` times a multiply-add on each of ``CHAINS`` vectors; their sum goes to ``base``."""

    def codegen(context, builder, signature, args):
        type_, align = v.vector_type(t), t.bitwidth // 8
        start = v.pointer(builder, args[1], v.element_type(t))
        x = v.load_vector(builder, start, type_, align)
        before = builder.block
        loop, after = builder.append_basic_block("loop"), builder.append_basic_block("after")
        builder.branch(loop)
        builder.position_at_end(loop)
        i = builder.phi(v.I64)
        i.add_incoming(v.i64(0), before)
        sums = [builder.phi(type_) for _ in range(CHAINS)]
        new = [v.multiply_add_value(builder, s, x, x) for s in sums]
        for old, following in zip(sums, new):
            old.add_incoming(x, before)
            old.add_incoming(following, loop)
        following = builder.add(i, v.i64(1))
        i.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, args[2]), loop, after)
        builder.position_at_end(after)
        total = new[0]
        for one in new[1:]:
            total = builder.fadd(total, one)
        v.store_vector(builder, total, start, align)
        return context.get_dummy_value()

    return types.void(t, types.int64, types.int64), codegen


@for_this_cpu
def multiply_adds_float32(args, lo, hi, worker):
    """Each item: COUNT rounds of CHAINS vector multiply-adds on 64 bytes at BASE + 64 * item."""
    t = np.float32(0)
    for item in range(lo, hi):
        _multiply_adds(t, load_i64(args, BASE) + 64 * item, load_i64(args, COUNT))


@for_this_cpu
def triad_float32(args, lo, hi, worker):
    """``out = x + 3 * y``; an item is BLOCK of the LENGTH elements, whole vectors all of them."""
    t = np.float32(0)
    out, x, y = load_i64(args, OUT), load_i64(args, X), load_i64(args, Y)
    three, size = v.splat(np.float32(3)), v.lanes(t)
    block = load_i64(args, BLOCK)
    for i in range(lo * block, v.least(hi * block, load_i64(args, LENGTH)), size):
        v.store(out, i, v.multiply_add(v.load(t, y, i), three, v.load(t, x, i)))
