"""Data that come with the package.

The digits are the test part of the data set "Optical Recognition of Handwritten Digits" of the UCI
Machine Learning Repository, by E. Alpaydin and C. Kaynak, 1998 (doi:10.24432/C50P49), under the
licence CC BY 4.0; numgrad/data/DIGITS.md says more.
"""

from pathlib import Path

import numpy as np

__all__ = ["load_digits", "split_digits"]

_DIGITS = Path(__file__).with_name("digits.npz")
_TEST_SIZE = 360  # a fifth of 1797, so that accuracy is told in steps of 1/360


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Load 1797 handwritten digits of 8 × 8 pixels.

    Returns:
        images: float32 (1797, 64), C-contiguous; each row is a picture, row by row from the top,
            0 for paper and 1 for ink. The values are multiples of 1/16, so they are exact.
        labels: int64 (1797,), the digit shown, 0 to 9.

    The arrays are new at each call: the caller may write to them.

    Notes: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine
        Learning Repository, 1998, doi:10.24432/C50P49, CC BY 4.0; the test part, scaled by 1/16.

    >>> images, labels = load_digits()
    >>> images.shape, labels[:5].tolist()
    ((1797, 64), [0, 1, 2, 3, 4])
    """
    with np.load(_DIGITS, allow_pickle=False) as archive:
        pixels, labels = archive["pixels"], archive["labels"]
    images = pixels.astype(np.float32) / np.float32(16)
    return images, labels.astype(np.int64)


def split_digits(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Load the digits, shuffled and split in a training part and a test part.

    Args:
        seed: which shuffle; the same seed gives the same split, on every machine and with every
            version of NumPy.

    Returns:
        train_images: float32 (1437, 64), values as in `load_digits`.
        train_labels: int64 (1437,).
        test_images: float32 (360, 64).
        test_labels: int64 (360,).

    Raises:
        ValueError: seed is negative or does not fit in 32 bits.

    Notes: the shuffle is that of `numpy.random.RandomState`, whose stream NumPy has frozen. The
        classes are not balanced on purpose: any split has about 36 of each in its test part.

    >>> train_images, train_labels, test_images, test_labels = split_digits()
    >>> len(train_images), len(test_images)
    (1437, 360)
    """
    if not 0 <= seed < 2**32:
        raise ValueError(
            f"split_digits: expected 0 <= seed < 2**32 for seed, got {seed}; "
            "any such number names one split"
        )
    images, labels = load_digits()
    order = np.random.RandomState(seed).permutation(len(images))
    train, test = order[:-_TEST_SIZE], order[-_TEST_SIZE:]
    return images[train], labels[train], images[test], labels[test]
