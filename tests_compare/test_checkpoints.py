"""Checkpoint files both ways: PyTorch and safetensors write and numgrad reads, and vice versa.

What is compared: values bit by bit, dtypes, shapes, strides, which tensors share memory,
``requires_grad``, the kinds and the order of everything around the tensors.
"""

import io
import warnings
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import numgrad
from numgrad import models
from numgrad.checkpoint import CheckpointError, load, save
from tests_compare import torch_networks

FORMATS = ("zip", "stream")
DTYPES = ("float32", "float64", "int32", "int64", "uint8", "bool")
WIDENED = {
    "float16": "float32",
    "bfloat16": "float32",
    "int8": "int32",
    "int16": "int32",
    "uint16": "int32",
    "uint32": "int64",
}
SHAPES = [(), (1,), (0,), (0, 3), (2, 3, 4)]


def torch_file(obj: Any, form: str, **how: Any) -> bytes:
    """The bytes of what PyTorch saves in a format."""
    file = io.BytesIO()
    torch.save(obj, file, _use_new_zipfile_serialization=form == "zip", **how)
    return file.getvalue()


def from_torch(obj: Any, form: str = "zip") -> Any:
    """What numgrad makes of a file of PyTorch."""
    return load(io.BytesIO(torch_file(obj, form)))


def to_torch(obj: Any) -> Any:
    """What PyTorch makes of a file of numgrad."""
    file = io.BytesIO()
    save(obj, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


def values_of(x: Any) -> np.ndarray:
    return x.detach().numpy()


def same(ours: Any, theirs: Any) -> None:
    """Assert that both are the same; numgrad may have a wider dtype only where it says so."""
    if isinstance(theirs, torch.Tensor):
        kinds = {torch.nn.Parameter: numgrad.nn.Parameter, torch.Tensor: numgrad.Tensor}
        assert type(ours) is kinds[type(theirs)]
        assert ours.requires_grad == theirs.requires_grad and ours.is_leaf
        assert tuple(ours.shape) == tuple(theirs.shape)
        assert ours.stride() == theirs.stride() or not ours.numel()
        a, b = values_of(ours), values_of(theirs)
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()
    elif isinstance(theirs, torch.Size):
        assert type(ours) is numgrad.Size and tuple(ours) == tuple(theirs)
    elif isinstance(theirs, torch.dtype):
        assert str(theirs) == f"torch.{ours.name}"
    elif isinstance(theirs, torch.device):
        assert type(ours) is numgrad.device and str(ours) == str(theirs)
    elif isinstance(theirs, dict):
        assert type(ours) is type(theirs) and list(ours) == list(theirs)
        for key in theirs:
            same(ours[key], theirs[key])
    elif isinstance(theirs, (list, tuple)):
        assert type(ours) is type(theirs) and len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            same(a, b)
    else:
        assert type(ours) is type(theirs) and (ours == theirs or ours != ours)


def numbers(shape: Any, dtype: str) -> torch.Tensor:
    """Some of every size, and the extremes."""
    generator = torch.Generator().manual_seed(sum(shape))
    if dtype == "bool":
        return torch.randint(0, 2, shape, generator=generator).bool()
    kind = getattr(torch, dtype)
    if kind.is_floating_point:
        x = torch.randn(shape, generator=generator, dtype=torch.float64).to(kind)
        if x.numel() > 4:
            x.view(-1)[:4] = torch.tensor([float("nan"), float("-inf"), -0.0, 1e-7], dtype=kind)
        return x
    x = torch.randint(0, 100, shape, generator=generator).to(kind)
    if x.numel() > 2:
        flat = x.to(torch.int64).view(-1)
        flat[:2] = torch.tensor([torch.iinfo(kind).min, torch.iinfo(kind).max])
        x = flat.view(shape).to(kind)
    return x


# ---------------------------------------------------------------------------------- every dtype


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_of_torch(dtype: str, form: str) -> None:
    tensors = [numbers(shape, dtype) for shape in SHAPES]
    same(from_torch(tensors, form), tensors)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dtype", WIDENED)
def test_dtypes_that_numgrad_has_not(dtype: str, form: str) -> None:
    tensors = [numbers(shape, dtype) for shape in SHAPES]
    wide = [x.to(getattr(torch, WIDENED[dtype])) for x in tensors]
    with pytest.warns(UserWarning, match=f"5 tensors of {dtype} came as {WIDENED[dtype]}"):
        got = from_torch(tensors, form)
    for ours, theirs in zip(got, wide, strict=True):
        assert ours.stride() == theirs.stride() or not ours.numel()
        assert values_of(ours).dtype == values_of(theirs).dtype
        np.testing.assert_array_equal(values_of(ours), values_of(theirs))


UNSUPPORTED = {
    "complex": lambda: torch.ones(2, dtype=torch.complex64),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
    "sparse": lambda: torch.eye(2).to_sparse(),
    "uint64": lambda: torch.ones(2, dtype=torch.uint64),
    "float8_e5m2": lambda: torch.ones(2).to(torch.float8_e5m2),
    "meta": lambda: torch.ones(2, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
    "conjugate": lambda: torch.ones(2, dtype=torch.complex64).conj(),
    "Linear": lambda: torch.nn.Linear(1, 1),
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", UNSUPPORTED)
@pytest.mark.filterwarnings("ignore")  # PyTorch's, of what is old or new
def test_unsupported_kinds_are_refused_by_name(name: str, form: str) -> None:
    data = torch_file({"x": UNSUPPORTED[name]()}, form)
    with pytest.raises(CheckpointError, match="complex" if name == "conjugate" else name):
        load(io.BytesIO(data))


ALL_DTYPES = sorted({str(x) for x in vars(torch).values() if isinstance(x, torch.dtype)})


@pytest.mark.parametrize("form", FORMATS)
def test_every_dtype_as_a_value(form: str) -> None:
    values = [getattr(torch, name.removeprefix("torch.")) for name in ALL_DTYPES]
    got = from_torch(values, form)
    for ours, theirs in zip(got, values, strict=True):
        if str(theirs).removeprefix("torch.") in DTYPES:
            same(ours, theirs)
        else:
            assert ours == str(theirs)
    assert len(got) > 20


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("protocol", range(2, 6))
def test_values_that_only_python_has(form: str, protocol: int) -> None:
    values = [bytearray(range(256)), bytearray(), 1.5 - 2j, np.arange(6.0).reshape(2, 3).T]
    data = torch_file([*values, torch.strided], form, pickle_protocol=protocol)
    *got, layout = load(io.BytesIO(data))
    assert got[:3] == values[:3] and [type(v) for v in got] == [type(v) for v in values]
    assert np.array_equal(got[3], values[3]) and layout == "torch.strided"
    assert to_torch(values[:3]) == values[:3]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_of_numgrad(dtype: str) -> None:
    tensors = [numgrad.tensor(numbers(shape, dtype).numpy()) for shape in SHAPES]
    got = to_torch(tensors)
    same(tensors, got)
    assert [str(x.dtype) for x in got] == [f"torch.{dtype}"] * len(SHAPES)


# -------------------------------------------------------------------------- geometry and sharing


def geometries(t: Any) -> dict[str, Any]:
    """Views of one storage, in either library."""
    whole = t.arange(60.0)
    x = whole.view(3, 4, 5)
    return {
        "whole": whole,
        "x": x,
        "transposed": x.transpose(0, 2),
        "row": x[1],
        "step": whole[1:50:7],
        "expanded": whole[3:7].view(4, 1).expand(4, 6),
        "one": x[2, 3, 4],
        "empty": whole[5:5],
        "parameter": t.nn.Parameter(x[0]),
        "leaf": t.ones(3).requires_grad_(),
        "computed": t.ones(3).requires_grad_() * 2,
        "detached": x.detach(),
    }


def sharing(state: dict[str, Any]) -> set[str]:
    """Which tensors change when the first is zeroed."""
    before = {name: values_of(x).copy() for name, x in state.items()}
    state["whole"].zero_()
    return {name for name, x in state.items() if not np.array_equal(values_of(x), before[name])}


@pytest.mark.parametrize("form", FORMATS)
def test_views_of_torch(form: str) -> None:
    theirs = geometries(torch)
    ours = from_torch(theirs, form)
    theirs["computed"] = theirs["computed"].detach().requires_grad_()  # as PyTorch loads it
    same(ours, theirs)
    assert sharing(ours) == sharing(theirs) == set(theirs) - {"leaf", "computed", "empty"}


def test_views_of_numgrad() -> None:
    ours = geometries(numgrad)
    theirs = to_torch(ours)
    ours["computed"] = ours["computed"].detach().requires_grad_()
    same(ours, theirs)
    assert sharing(theirs) == sharing(ours) == set(ours) - {"leaf", "computed", "empty"}


def test_a_view_brings_its_whole_storage() -> None:
    """Neither library saves less than the memory that a view belongs to."""
    theirs, ours = torch.arange(100000.0)[:3], numgrad.arange(100000.0)[:3]
    assert len(to_torch(ours).untyped_storage()) == theirs.untyped_storage().nbytes() == 400000
    loaded = from_torch(theirs)
    assert loaded.tolist() == [0, 1, 2] and loaded.storage.nbytes == 400000


shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@settings(max_examples=60, deadline=None, database=None)
@given(st.data(), shapes, st.sampled_from(DTYPES), st.booleans())
def test_any_geometry(data: Any, shape: Any, dtype: str, writes_torch: bool) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    slices = tuple(
        slice(data.draw(st.integers(0, n)), None, data.draw(st.integers(1, 3))) for n in shape
    )
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    if writes_torch:
        theirs = torch.from_numpy(array.copy())[slices].permute(order)
        ours = from_torch([theirs, theirs], data.draw(st.sampled_from(FORMATS)))[0]
    else:
        ours = numgrad.tensor(array)[slices].permute(*order) if shape else numgrad.tensor(array)
        theirs = to_torch([ours, ours])[0]
    assert values_of(ours).tobytes() == array[slices].transpose(order).tobytes()
    same(ours, theirs)


# ------------------------------------------------------------------------- what is around tensors


def nested(t: Any) -> Any:
    """Everything but tensors that both libraries save."""
    numbers = [0, 255, 256, 65535, 65536, -1, 2**31 - 1, -(2**31), 2**31, 2**63, -(2**200), 2**2000]
    return {
        "numbers": numbers,
        "floats": (0.1, -0.0, 1e-310, float("inf"), float("nan")),
        "constants": [None, True, False],
        "texts": ["", "重み", "a\nb\0", "\ud800", "x" * 300],
        "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
        "bytes": [b"", b"\x00\xff" * 10, "重み".encode()],
        "ordered": OrderedDict([("z", 1), ("a", OrderedDict())]),
        "counter": Counter({30: 2, 60: 1}),
        "empty": [[], {}, ()],
        "size": t.Size([2, 3]),
        "dtypes": [t.float32, t.float64, t.int32, t.int64, t.uint8, t.bool],
        "devices": [t.device("cpu"), t.device("cuda", 1), t.device("cuda")],
        "many": {f"key {i}": [i] for i in range(2500)},
        1: "one",
        0.5: "half",
        None: "none",
    }


@pytest.mark.parametrize("form", FORMATS)
def test_objects_of_torch(form: str) -> None:
    same(from_torch(nested(torch), form), nested(torch))


def test_objects_of_numgrad() -> None:
    theirs = to_torch(nested(numgrad))
    same(nested(numgrad), theirs)
    same(from_torch(theirs), nested(torch))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("form", FORMATS)
def test_pickle_protocols(form: str, protocol: int) -> None:
    obj = {"w": torch.ones(2), "重み": [b"x", 2**70, {"a": (1, 2)}]}
    same(load(io.BytesIO(torch_file(obj, form, pickle_protocol=protocol))), obj)


def test_arrays_of_numpy() -> None:
    """`load` reads those of both; torch.load needs weights_only=False for them."""
    arrays = {"a": np.arange(6, dtype=np.int16).reshape(2, 3).T, "s": np.float64(2.5)}
    for form in FORMATS:
        got = from_torch(arrays, form)
        assert np.array_equal(got["a"], arrays["a"]) and got["a"].dtype == np.int16
        assert got["s"] == 2.5
    file = io.BytesIO()
    save(arrays, file)
    got = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    assert np.array_equal(got["a"], arrays["a"]) and got["a"].dtype == np.int16
    assert type(got["s"]) is float and got["s"] == 2.5


# -------------------------------------------------------------------------------- whole programs


def trained(t: Any, optimizer: str, **options: Any) -> Any:
    """A small module and its optimizer after a few steps."""
    model = t.nn.Sequential(t.nn.Linear(3, 2), t.nn.BatchNorm1d(2), t.nn.Linear(2, 1))
    with t.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(t.arange(float(p.numel())).reshape(p.shape) / 7 - i / 3)
    stepper = getattr(t.optim, optimizer)(model.parameters(), lr=0.01, **options)
    steps(t, model, stepper)
    return model, stepper


def steps(t: Any, model: Any, optimizer: Any, count: int = 3) -> list[float]:
    x = t.tensor(np.sin(np.arange(12, dtype=np.float32)).reshape(4, 3))
    losses = []
    for i in range(count):
        optimizer.zero_grad()
        loss = (model(x * (i + 1)) ** 2).sum()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [("SGD", {"momentum": 0.9}), ("Adam", {}), ("AdamW", {"amsgrad": True}), ("RMSprop", {})],
)
@pytest.mark.parametrize("form", [*FORMATS, "numgrad"])
def test_training_goes_on_in_the_other_library(optimizer: str, options: Any, form: str) -> None:
    """A checkpoint of model, optimizer and step: the losses that follow are the same."""
    writer, reader = (numgrad, torch) if form == "numgrad" else (torch, numgrad)
    model, stepper = trained(writer, optimizer, **options)
    state = {"model": model.state_dict(), "optimizer": stepper.state_dict(), "epoch": 3}
    loaded = to_torch(state) if form == "numgrad" else from_torch(state, form)
    assert list(loaded) == ["model", "optimizer", "epoch"] and loaded["epoch"] == 3
    other, its = trained(reader, optimizer, **options)
    steps(reader, other, its)  # somewhere else
    other.load_state_dict(loaded["model"])
    its.load_state_dict(loaded["optimizer"])
    np.testing.assert_allclose(steps(reader, other, its), steps(writer, model, stepper), rtol=1e-4)


# ------------------------------------------------------------------------------------ safetensors


def test_safetensors_of_torch() -> None:
    state = {f"{dtype} {shape}": numbers(shape, dtype) for dtype in DTYPES for shape in SHAPES}
    state["重み"] = torch.arange(6.0).view(2, 3).t().contiguous()
    ours = load(io.BytesIO(safetensors.torch.save(state)))
    assert set(ours) == set(state)
    for name, theirs in state.items():
        same(ours[name], theirs)
    halves = {
        dtype: numbers((2, 3, 4), dtype) for dtype in ("float16", "bfloat16", "int8", "int16")
    }
    with pytest.warns(UserWarning) as notes:
        ours = load(io.BytesIO(safetensors.torch.save(halves)))
    text = " ".join(str(note.message) for note in notes)
    assert all(f"1 tensor of {dtype} came as {WIDENED[dtype]}" in text for dtype in halves)
    for name, x in halves.items():
        wide = x.to(getattr(torch, WIDENED[name]))
        np.testing.assert_array_equal(values_of(ours[name]), values_of(wide))


def test_safetensors_of_numgrad(tmp_path: Any) -> None:
    state = {
        f"{dtype} {shape}": numgrad.tensor(numbers(shape, dtype).numpy())
        for dtype in DTYPES
        for shape in SHAPES
    }
    state["t"] = numgrad.arange(6.0).view(2, 3).t()
    save(state, tmp_path / "x.safetensors")
    theirs = safetensors.torch.load_file(tmp_path / "x.safetensors")
    state["t"] = state["t"].contiguous()
    assert set(theirs) == set(state)
    for name, x in theirs.items():
        same(state[name], x)


# ------------------------------------------------------------------------------- one whole network


def test_one_resnet18_in_every_format(tmp_path: Any) -> None:
    """Identical arrays and identical logits, whatever file the weights went through."""
    torch.manual_seed(5)
    network = torch_networks.resnet18().eval()
    state = network.state_dict()
    files = {form: torch_file(state, form) for form in FORMATS}
    files["safetensors"] = safetensors.torch.save(dict(state))
    for name in ("again.pth", "again.safetensors"):
        save(load(io.BytesIO(files["stream"])), tmp_path / name)
        files[name] = (tmp_path / name).read_bytes()
    x = np.random.default_rng(3).standard_normal((1, 3, 64, 64)).astype(np.float32)
    with torch.no_grad():
        expected = network(torch.from_numpy(x)).numpy()
    logits = {}
    for form, data in files.items():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ours = load(io.BytesIO(data))
        assert set(ours) == set(state)
        for name, theirs in state.items():
            same(ours[name], theirs)
        model = models.resnet18().eval()
        model.load_state_dict(ours)
        with numgrad.no_grad():
            logits[form] = model(numgrad.from_numpy(x)).numpy()
        assert np.array_equal(logits[form], logits["zip"])
    error = np.abs(logits["zip"] - expected).max() / np.abs(expected).max()
    assert error < 1e-4, error
    theirs = torch.load(tmp_path / "again.pth", weights_only=True)
    network.load_state_dict(theirs)
    with torch.no_grad():
        assert np.array_equal(network(torch.from_numpy(x)).numpy(), expected)
