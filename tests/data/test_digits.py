"""The embedded digits are the published ones, and their split is the same everywhere."""

import hashlib

import numpy as np
import pytest

from numgrad.data import load_digits, split_digits


def sha256(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def test_shapes_and_dtypes():
    images, labels = load_digits()
    assert images.shape == (1797, 64) and images.dtype == np.float32
    assert labels.shape == (1797,) and labels.dtype == np.int64
    assert images.flags.c_contiguous and images.flags.writeable and labels.flags.writeable
    assert images.min() == 0 and images.max() == 1


def test_checksums():
    images, labels = load_digits()
    pixels = images * 16  # exact: the values are multiples of 1/16
    assert np.array_equal(pixels, pixels.astype(np.uint8))
    assert sha256(pixels.astype(np.uint8)) == (
        "8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3"
    )
    assert sha256(labels.astype(np.uint8)) == (
        "8ba4f891220f5e4c9c819638d1602d74b83618f167043c6da52a2a247841ddf0"
    )


def test_class_counts():
    _, labels = load_digits()
    counts = np.bincount(labels).tolist()
    assert counts == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_equals_scikit_learn():
    datasets = pytest.importorskip("sklearn.datasets")
    expected = datasets.load_digits()
    images, labels = load_digits()
    assert np.array_equal(images * 16, expected.data)
    assert np.array_equal(labels, expected.target)


def test_calls_share_nothing():
    images, labels = load_digits()
    images[:] = -1
    labels[:] = -1
    again, labels_again = load_digits()
    assert again.min() == 0 and labels_again.min() == 0


def test_split_has_every_digit_once():
    train_images, train_labels, test_images, test_labels = split_digits()
    assert train_images.shape == (1437, 64) and train_labels.shape == (1437,)
    assert test_images.shape == (360, 64) and test_labels.shape == (360,)
    assert train_images.dtype == test_images.dtype == np.float32
    assert train_labels.dtype == test_labels.dtype == np.int64

    def rows(images, labels):
        return [image.tobytes() + bytes([label]) for image, label in zip(images, labels)]

    train, test = rows(train_images, train_labels), rows(test_images, test_labels)
    assert not set(train) & set(test)  # no two pictures of the data set are equal
    assert sorted(train + test) == sorted(rows(*load_digits()))


def test_split_is_deterministic():
    first, second = split_digits(3), split_digits(3)
    assert all(np.array_equal(a, b) for a, b in zip(first, second))
    assert not np.array_equal(split_digits(4)[3], first[3])
    # The default split, wherever it is made: figures told of the demo depend on it.
    _, _, test_images, test_labels = split_digits()
    assert sha256((test_images * 16).astype(np.uint8)) == (
        "3e513a101193c0514d97a60d151570d7d1ab8837d20c6d5a76ad044e42edf840"
    )
    assert sha256(test_labels.astype(np.uint8)) == (
        "2afb26f01c4ab83cd8bfb3c55e54cc7568449a914de2d2369dc3aeb6168fcd64"
    )


def test_split_leaves_the_global_generator_alone():
    np.random.seed(0)
    expected = np.random.rand()
    np.random.seed(0)
    split_digits(7)
    assert np.random.rand() == expected


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_split_errors(seed):
    with pytest.raises(ValueError, match=r"split_digits: expected 0 <= seed < 2\*\*32 for seed"):
        split_digits(seed)
