"""Creation and conversion: values, shapes, dtypes, what shares memory, and what is refused."""

import numpy as np
import pytest

import numgrad
from numgrad import (
    DoubleTensor,
    FloatTensor,
    LongTensor,
    Size,
    Tensor,
    Variable,
    arange,
    as_tensor,
    empty,
    empty_like,
    eye,
    from_numpy,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    tensor,
    zeros,
    zeros_like,
)

DTYPES = ["float32", "float64", "int32", "int64", "uint8", "bool"]


@pytest.mark.parametrize(
    "data, dtype, shape",
    [
        (1.5, "float32", ()),
        (3, "int64", ()),
        (True, "bool", ()),
        ([1, 2], "int64", (2,)),
        ([1, 2.5], "float32", (2,)),
        ([[True], [False]], "bool", (2, 1)),
        ([], "float32", (0,)),
        ([[], []], "float32", (2, 0)),
        (((1, 2), (3, 4)), "int64", (2, 2)),
        (range(3), "int64", (3,)),
        (np.float64(2), "float64", ()),
        (np.arange(3, dtype=np.int32), "int32", (3,)),
        (np.ones((2, 3))[:, ::2], "float64", (2, 2)),
        (np.ones(2, ">f4"), "float32", (2,)),
        ([tensor(1.0), tensor(2.0)], "float32", (2,)),
        (tensor([1, 2]), "int64", (2,)),
    ],
)
def test_tensor(data, dtype, shape):
    x = tensor(data)
    assert type(x) is Tensor and str(x.dtype) == dtype and x.shape == shape
    plain = (
        [t.item() for t in data]
        if isinstance(data, list) and data and isinstance(data[0], Tensor)
        else data
    )
    plain = plain.tolist() if isinstance(plain, Tensor) else plain
    assert x.tolist() == np.asarray(plain).tolist()


def test_tensor_copies():
    array = np.zeros(3)
    x = tensor(array)
    y = tensor(x)
    array += 1
    x.fill_(5)
    assert x.tolist() == [5] * 3 and y.tolist() == [0] * 3
    assert tensor([1.0], requires_grad=True).requires_grad
    assert not tensor(tensor([1.0], requires_grad=True)).requires_grad


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype):
    kind = getattr(numgrad, dtype)
    for x in (
        tensor([0, 1], dtype=kind),
        zeros(2, dtype=dtype),
        ones(2, dtype=kind),
        empty(2, dtype=kind),
        full((2,), 1, dtype=kind),
        arange(2, dtype=kind),
        eye(2, dtype=kind),
        zeros_like(ones(2), dtype=kind),
        from_numpy(np.ones(2, dtype)),
    ):
        assert x.dtype == kind and str(x.dtype) == dtype
    assert tensor([0, 1], dtype=kind).tolist() == [0, 1]
    assert eye(2, 3, dtype=kind).tolist() == np.eye(2, 3).tolist()


def test_sizes():
    for x in (
        zeros(2, 3),
        zeros((2, 3)),
        zeros([2, 3]),
        zeros(Size((2, 3))),
        zeros(np.int64(2), 3),
    ):
        assert x.shape == (2, 3) and x.tolist() == [[0] * 3] * 2
    assert ones().shape == () and ones(()).item() == 1 and empty(0, 3).shape == (0, 3)
    assert full(3, 2.5).tolist() == [2.5] * 3 and full((), 7).dtype == numgrad.int64
    assert full((2,), True).dtype == numgrad.bool
    x = ones(2, 3, dtype=numgrad.float64)
    for like in (zeros_like(x), ones_like(x), empty_like(x), full_like(x, 3)):
        assert like.shape == (2, 3) and like.dtype == numgrad.float64
    assert (
        full_like(x, 3).tolist() == [[3] * 3] * 2 and ones_like(x, requires_grad=True).requires_grad
    )
    assert Size((2, 3)).numel() == 6 and repr(x.size()) == "numgrad.Size([2, 3])"


@pytest.mark.parametrize(
    "args",
    [
        (5,),
        (2, 5),
        (5, 2, -1),
        (0, 1, 0.25),
        (0, 1, 0.1),
        (3, 3),
        (1.5, 4),
        (-3, 3, 2),
        (2**53, 2**53 + 3),
    ],
)
def test_arange(args):
    x, want = arange(*args), np.arange(*args)
    assert x.shape == want.shape
    assert x.dtype == (numgrad.int64 if want.dtype.kind == "i" else numgrad.float32)
    np.testing.assert_allclose(x.numpy(), want, rtol=1e-6)


def test_linspace_and_eye():
    assert linspace(0, 1, 5).tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert linspace(3, 3, 1).tolist() == [3] and linspace(0, 1, 0).shape == (0,)
    assert linspace(0, 1, 3, dtype=numgrad.float64, requires_grad=True).requires_grad
    for n, m in ((3, None), (2, 4), (4, 2), (0, 3), (1, 1)):
        assert eye(n, m).tolist() == np.eye(n, m).tolist()


def test_as_tensor_and_from_numpy_share():
    array = np.zeros((2, 3), np.float32)
    x, y = from_numpy(array), as_tensor(array)
    array[0, 0] = 5
    assert x[0, 0].item() == y[0, 0].item() == 5
    x.t()[1, 1] = 7
    assert array[1, 1] == 7
    assert as_tensor(x) is x and as_tensor(x, dtype=numgrad.float64).dtype == numgrad.float64
    assert (
        as_tensor([1.0]).tolist() == [1]
        and as_tensor(array, dtype="float64").data_ptr() != x.data_ptr()
    )
    view = from_numpy(array[::-1, ::2])
    view.fill_(9)
    assert (array[:, ::2] == 9).all() and array[0, 1] == 0
    frozen = np.zeros(2, np.float32)
    frozen.flags.writeable = False
    as_tensor(frozen).fill_(1)
    assert not frozen.any()


def test_typed_constructors():
    assert FloatTensor(2, 3).shape == (2, 3) and FloatTensor().shape == (0,)
    x = LongTensor([1, 2])
    assert x.dtype == numgrad.int64 and isinstance(x, LongTensor) and not isinstance(x, FloatTensor)
    assert DoubleTensor(Size((2, 2))).shape == (2, 2) and FloatTensor([[1]]).tolist() == [[1.0]]
    assert FloatTensor(np.ones(2)).dtype == numgrad.float32
    assert Tensor([1, 2]).dtype == numgrad.float32 and Tensor(2, 3).shape == (2, 3)
    assert Tensor(Size((4,))).shape == (4,) and Tensor().shape == (0,)
    assert Tensor([1.0], requires_grad=True).requires_grad
    assert (
        isinstance(Variable(ones(2)), FloatTensor)
        and repr(FloatTensor) == "<class 'numgrad.FloatTensor'>"
    )

    class Mine(Tensor):
        pass

    assert type(Mine([1, 2])) is Mine and (Mine([1, 2]) * 2).tolist() == [2, 4]


def test_default_dtype():
    numgrad.set_default_dtype(numgrad.float64)
    try:
        for x in (
            tensor(1.0),
            zeros(2),
            ones(2),
            eye(2),
            linspace(0, 1, 2),
            arange(1.5),
            Tensor(2),
            full((2,), 0.5),
        ):
            assert x.dtype == numgrad.float64 == numgrad.get_default_dtype()
    finally:
        numgrad.set_default_dtype(numgrad.float32)
    with pytest.raises(TypeError, match=r"^set_default_dtype: expected float32 or float64"):
        numgrad.set_default_dtype(numgrad.int64)


def test_requires_grad_and_device_of_every_creation():
    for make in (
        lambda **k: tensor([1.0], **k),
        lambda **k: zeros(2, **k),
        lambda **k: ones(2, **k),
        lambda **k: empty(2, **k),
        lambda **k: full((2,), 1.5, **k),
        lambda **k: arange(2.0, **k),
        lambda **k: eye(2, **k),
        lambda **k: linspace(0, 1, 3, **k),
        lambda **k: numgrad.rand(2, **k),
        lambda **k: numgrad.randn(2, **k),
    ):
        x = make(requires_grad=True, device="cpu")
        assert x.requires_grad and x.is_leaf and make(device="cpu:0").device == "cpu"
        with pytest.raises(ValueError, match=r"^device: expected 'cpu' or"):
            make(device="tpu")


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: tensor([[1], [1, 2]]), ValueError, "tensor: expected lists of equal lengths"),
        (lambda: tensor("abc"), TypeError, "tensor: expected numbers"),
        (lambda: tensor([None]), TypeError, "tensor: expected numbers"),
        (lambda: tensor(1j), TypeError, "tensor: expected numbers"),
        (lambda: tensor(np.ones(2, np.float16)), TypeError, "tensor: expected one of float32"),
        (lambda: tensor([1], dtype="float16"), TypeError, "tensor: expected one of float32"),
        (
            lambda: tensor([1], requires_grad=True),
            RuntimeError,
            "requires_grad_: expected a floating",
        ),
        (lambda: zeros(-1), ValueError, "zeros: expected non-negative lengths"),
        (lambda: zeros(2, 1.5), TypeError, "zeros: expected integers for size"),
        (lambda: ones("a"), TypeError, "ones: expected integers for size"),
        (lambda: empty(True), TypeError, "empty: expected integers for size"),
        (lambda: full((2,), "a"), TypeError, "full: expected a number for fill_value"),
        (lambda: full((2,), ones(2)), TypeError, "full: expected a number for fill_value"),
        (lambda: arange(0, 5, 0), ValueError, "arange: expected a step that leads"),
        (lambda: arange(0, 5, -1), ValueError, "arange: expected a step that leads"),
        (lambda: arange("a"), TypeError, "arange: expected a number for end"),
        (lambda: arange(float("inf")), ValueError, "arange: expected a step"),
        (
            lambda: linspace(0, 1, -1),
            ValueError,
            "linspace: expected a non-negative integer for steps",
        ),
        (lambda: linspace("a", 1, 2), TypeError, "linspace: expected a number for start"),
        (lambda: eye(-1), ValueError, "eye: expected a non-negative integer for n"),
        (lambda: eye(2, 1.5), ValueError, "eye: expected a non-negative integer for m"),
        (lambda: zeros_like([1]), TypeError, "zeros_like: expected a Tensor for x"),
        (lambda: full_like(3, 1), TypeError, "full_like: expected a Tensor for x"),
        (lambda: from_numpy([1]), TypeError, "from_numpy: expected an ndarray"),
        (lambda: from_numpy(np.ones(2, np.int8)), TypeError, "from_numpy: expected one of float32"),
        (lambda: from_numpy(np.ones(2, ">f4")), TypeError, "from_numpy: expected one of float32"),
        (
            lambda: from_numpy(np.broadcast_to(np.ones(1), 3)),
            ValueError,
            "from_numpy: expected a wri",
        ),
        (
            lambda: from_numpy(np.ones(9, "u1")[1:].view("u1")[:8].view("f8")),
            ValueError,
            "from_numpy",
        ),
        (
            lambda: FloatTensor([1], [2]),
            TypeError,
            "Tensor: expected sizes, or data as one argument",
        ),
        (lambda: FloatTensor(2.5, 3), TypeError, "Tensor: expected sizes, or data"),
    ],
)
def test_bad_input(call, error, text):
    with pytest.raises(error, match=f"^{text}"):
        call()
