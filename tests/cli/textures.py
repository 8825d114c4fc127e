"""Pictures of two classes, striped and dotted, for the fine-tuning demo.

As a program: ``python tests/cli/textures.py FOLDER COUNT SIZE`` writes COUNT pictures a class.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image


def stripes(rng, size, period):
    """Between 0 and 1, (size, size): waves in one direction."""
    angle, phase = rng.uniform(0, np.pi), rng.uniform(0, 2 * np.pi)
    y, x = np.mgrid[:size, :size]
    return (np.sin(2 * np.pi / period * (x * np.cos(angle) + y * np.sin(angle)) + phase) + 1) / 2


def dots(rng, size, period):
    """Between 0 and 1, (size, size): round spots on a grid that is turned and shaken."""
    angle, radius = rng.uniform(0, np.pi), period * rng.uniform(0.2, 0.35)
    y, x = np.mgrid[:size, :size]
    u = x * np.cos(angle) + y * np.sin(angle) + rng.uniform(0, period)
    v = y * np.cos(angle) - x * np.sin(angle) + rng.uniform(0, period)
    distance = np.hypot(*((w + period / 2) % period - period / 2 for w in (u, v)))
    return np.clip(radius - distance + 0.5, 0, 1)


KINDS = {"dots": dots, "stripes": stripes}


def picture(rng, kind, size):
    """One of a kind, in two colours, of any coarseness, with noise."""
    pattern = KINDS[kind](rng, size, size * rng.uniform(0.06, 0.2))[..., None]
    one, other = rng.uniform(0, 255, (2, 3))
    while np.abs(one - other).sum() < 150:
        one, other = rng.uniform(0, 255, (2, 3))
    values = one + (other - one) * pattern + rng.normal(0, rng.uniform(2, 20), (size, size, 3))
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))


def write(folder, count, size, seed=0):
    """Write ``count`` pictures of each kind into folders of their names."""
    rng = np.random.default_rng(seed)
    for kind in KINDS:
        below = Path(folder) / kind
        below.mkdir(parents=True)
        for i in range(count):
            picture(rng, kind, size).save(below / f"{i:03}.png")


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
