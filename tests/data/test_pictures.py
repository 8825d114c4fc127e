"""Pictures from files, and torchvision's preprocessing, against a twin written here."""

import errno
import gc
import os
import pickle
import struct
import sys
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image, ImageFile

from numgrad.data import pictures
from numgrad.data.pictures import MEAN, STD, PictureError, find, imagenet_input, open_picture


def noise(height, width, channels=3, seed=0):
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def smooth(height, width):
    """A picture that JPEG changes little."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / 7 + c) + np.cos(y / (5 + c)) for c in range(3)]
    return np.stack([np.round(127 + 50 * w) for w in waves], -1).astype(np.uint8)


def pixels(path):
    picture = open_picture(path)
    assert picture.mode == "RGB"
    return np.asarray(picture)


# ------------------------------------------------------------------------------------ which files


def test_find(tmp_path):
    names = ["b.JPG", "a.png", "c.txt", ".hidden.png", "sub/d.webp", "sub/e.md", ".git/f.png"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    inside = [str(tmp_path / name) for name in ("a.png", "b.JPG", "sub/d.webp")]
    assert find([tmp_path]) == inside
    # A file is taken as it is given, in its place, there or not; a folder may come twice.
    given = [str(tmp_path / "c.txt"), tmp_path, "missing.jpg", tmp_path / "sub"]
    assert find(given) == [given[0], *inside, "missing.jpg", inside[2]]
    assert find([]) == []


def test_find_without_pictures(tmp_path):
    (tmp_path / "notes.txt").touch()
    said = r"find: expected a folder with pictures for paths, got .*, which has no pictures; their"
    with pytest.raises(PictureError, match=said) as caught:
        find([tmp_path])
    assert caught.value.path == str(tmp_path)
    assert caught.value.reason.startswith("has no pictures; their names end in ")
    again = pickle.loads(pickle.dumps(caught.value))  # as a process of workers sends it
    assert (str(again), again.path) == (str(caught.value), str(tmp_path))


def test_find_in_a_folder_that_may_not_be_listed(tmp_path, monkeypatch):
    (tmp_path / "shut").mkdir()
    (tmp_path / "a.png").touch()
    real = os.scandir

    def scandir(path):
        if str(path).endswith("shut"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PictureError, match=r"shut, which may not be read; change its permissions"):
        find([tmp_path])


def test_find_refuses_one_path(tmp_path):
    for one in ("pictures", b"pictures", tmp_path):
        with pytest.raises(TypeError, match=r"find: expected a list of paths for paths, got"):
            find(one)
    (tmp_path / "a.png").touch()
    assert find([os.fsencode(tmp_path)]) == [str(tmp_path / "a.png")]


# ----------------------------------------------------------------------------------- open_picture


@pytest.mark.parametrize("suffix", ["png", "bmp", "tif", "ppm", "webp", "gif", "jpg"])
def test_formats(tmp_path, suffix):
    path = tmp_path / f"x.{suffix}"
    original = smooth(20, 30)
    options = {"webp": {"lossless": True}, "jpg": {"quality": 95, "subsampling": 0}}
    Image.fromarray(original).save(path, **options.get(suffix, {}))
    error = np.abs(pixels(path).astype(int) - original).max()
    assert error <= {"jpg": 8, "gif": 60}.get(suffix, 0)


def test_name_is_not_trusted(tmp_path):
    Image.fromarray(smooth(8, 9)).save(tmp_path / "x.png")
    os.rename(tmp_path / "x.png", tmp_path / "x.jpg")
    np.testing.assert_array_equal(pixels(tmp_path / "x.jpg"), smooth(8, 9))


def test_modes(tmp_path):
    grey = noise(5, 7, 1)
    red = np.stack([np.full_like(grey, 255), np.zeros_like(grey), np.zeros_like(grey)], -1)
    thrice = np.stack([grey] * 3, -1)
    cases = {
        "grey": (Image.fromarray(grey), thrice),
        "grey with alpha": (Image.fromarray(noise(5, 7, 2)), None),
        "one bit": (Image.fromarray(grey > 127), np.where(thrice > 127, 255, 0)),
        "alpha": (Image.fromarray(noise(5, 7, 4)), noise(5, 7, 4)[..., :3]),
        "palette": (Image.fromarray(red).quantize(4), red),
    }
    for name, (picture, wanted) in cases.items():
        picture.save(tmp_path / "x.png")
        found = pixels(tmp_path / "x.png")
        if wanted is None:
            wanted = np.stack([np.asarray(picture)[..., 0]] * 3, -1)
        np.testing.assert_array_equal(found, wanted, err_msg=name)


def test_palette_with_transparency(tmp_path):
    picture = Image.fromarray(noise(4, 4)).quantize(8)
    wanted = np.asarray(picture.convert("RGB"))
    picture.save(tmp_path / "x.png", transparency=bytes([0, 80, 255]))  # convert warns of it
    np.testing.assert_array_equal(pixels(tmp_path / "x.png"), wanted)
    assert "transparency" not in open_picture(tmp_path / "x.png").info


def test_cmyk(tmp_path):
    picture = Image.fromarray(smooth(16, 16)).convert("CMYK")
    picture.save(tmp_path / "x.jpg", quality=95)
    found = pixels(tmp_path / "x.jpg").astype(int)
    assert np.abs(found - np.asarray(picture.convert("RGB"))).max() <= 12


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_sixteen_bits(tmp_path, suffix):
    values = np.array([[0, 128, 129, 257, 25700, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / f"x.{suffix}")
    found = pixels(tmp_path / f"x.{suffix}")
    np.testing.assert_array_equal(found, np.array([[[v] * 3 for v in (0, 0, 1, 1, 100, 255)]]))


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.array([[0.5, 300.0]], np.float32), "which holds floating-point numbers"),
        (np.array([[0, 1 << 20]], np.int32), "which holds integers of more than 16 bits"),
    ],
)
def test_numbers_without_a_scale(tmp_path, array, text):
    Image.fromarray(array).save(tmp_path / "x.tif")
    with pytest.raises(PictureError, match=text):
        open_picture(tmp_path / "x.tif")


def test_first_frame(tmp_path):
    frames = [Image.new("RGB", (6, 5), color) for color in ("red", "blue")]
    for name in ("x.gif", "x.tif", "x.png"):
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
        assert (pixels(tmp_path / name) == (255, 0, 0)).all(), name


TURNS = {  # how the stored rows and columns lie, by EXIF's table: 0th row / 0th column
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a[::-1].swapaxes(0, 1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: a[:, ::-1].swapaxes(0, 1),
}


@pytest.mark.parametrize("orientation", [*TURNS, 0, 9])
def test_orientation(tmp_path, orientation):
    stored = noise(3, 5)
    picture = Image.fromarray(stored)
    exif = picture.getexif()
    exif[0x0112] = orientation
    picture.save(tmp_path / "x.png", exif=exif)
    upright = TURNS.get(orientation, TURNS[1])(stored)
    np.testing.assert_array_equal(pixels(tmp_path / "x.png"), upright)


def test_broken_exif_does_not_matter(tmp_path):
    Image.fromarray(smooth(8, 8)).save(tmp_path / "x.png", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    np.testing.assert_array_equal(pixels(tmp_path / "x.png"), smooth(8, 8))


def test_refused(tmp_path):
    def refused(name, text, content=None):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(PictureError) as caught:
            open_picture(tmp_path / name)
        message = str(caught.value)
        assert message.startswith(
            f"open_picture: expected a picture for path, got {tmp_path / name}"
        )
        assert f", which {text}" in message and "\n" not in message
        assert message.count("; ") == 1

    refused("missing.jpg", "does not exist; check the path")
    refused("", "is a folder; ")
    refused("empty.jpg", "is empty; ", b"")
    refused("notes.jpg", "is no picture; ", b"Notes\n")
    refused("page.png", "is no picture; ", b"<!DOCTYPE html><title>404</title>")
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    refused("x.eps", "is no picture; ", script)  # Pillow would have Ghostscript run it
    refused("x.jpg/y.jpg", "does not exist; ")
    refused("notes.jpg/y.jpg", "does not exist; ")


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "gif", "bmp", "tif", "ppm"])
def test_truncated(tmp_path, suffix):
    """Cut anywhere: an error of ours, or the picture where only a trailer is missing."""
    path = tmp_path / f"x.{suffix}"
    Image.fromarray(noise(24, 24)).save(path)
    whole, content = pixels(path), path.read_bytes()
    refused = 0
    for cut in range(0, len(content), max(1, len(content) // 60)):
        path.write_bytes(content[:cut])
        try:
            found = pixels(path)
        except PictureError as error:
            assert str(path) in str(error)
            refused += 1
        else:
            assert cut > len(content) // 2 and found.shape == whole.shape
    assert refused >= 30


def test_damaged(tmp_path):
    """Any byte changed: an error of ours, or a picture."""
    path = tmp_path / "x.png"
    Image.fromarray(noise(6, 6)).save(path)
    content = bytearray(path.read_bytes())
    refused = 0
    for at in range(len(content)):
        content[at] ^= 0xFF
        path.write_bytes(content)
        content[at] ^= 0xFF
        try:
            pixels(path)
        except PictureError:
            refused += 1
    assert refused > len(content) // 2


def chunk(kind, data):
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


@pytest.mark.parametrize(
    "side", [10_000, 60_000]
)  # Pillow warns of the first, raises at the second
def test_bomb(tmp_path, side):
    path = tmp_path / "x.png"
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IEND", b""))
    with pytest.raises(PictureError, match=r"which has more than 89478485 pixels; make it smaller"):
        open_picture(path)


def test_unreadable(tmp_path, monkeypatch):
    (tmp_path / "x.png").touch()

    def refuse(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(PictureError, match="which may not be read; change its permissions"):
        open_picture(tmp_path / "x.png")


def test_what_is_no_file(tmp_path):
    """Pipes are not waited for; the system's own words for what it cannot open."""
    os.mkfifo(tmp_path / "pipe.png")
    os.symlink("loop.png", tmp_path / "loop.png")
    long = "n" * 300 + ".png"
    for name, says in (
        ("pipe.png", r"a pipe or a device, not a file"),
        ("/dev/zero", r"a pipe or a device, not a file"),
        ("loop.png", os.strerror(errno.ELOOP)),
        (long, os.strerror(errno.ENAMETOOLONG)),
        ("nul\0.png", "a path with a NUL in it"),
    ):
        said = rf"which cannot be read \({says}\); check the path"
        with pytest.raises(PictureError, match=said):
            open_picture(tmp_path / name)


def test_a_disk_that_fails(tmp_path, monkeypatch):
    """An error of the system while the picture is read is no damage of the picture."""
    Image.fromarray(noise(4, 4)).save(tmp_path / "x.png")

    def fail(self):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(ImageFile.ImageFile, "load", fail)
    with pytest.raises(PictureError, match=r"cannot be read \(Input/output error\)"):
        open_picture(tmp_path / "x.png")


def test_no_memory_is_no_damage(tmp_path, monkeypatch):
    Image.fromarray(noise(4, 4)).save(tmp_path / "x.png")

    def fail(self):
        raise MemoryError

    monkeypatch.setattr(ImageFile.ImageFile, "load", fail)
    with pytest.raises(MemoryError):
        open_picture(tmp_path / "x.png")


def test_files_are_closed(tmp_path):
    Image.fromarray(noise(24, 24)).save(tmp_path / "x.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "x.png").read_bytes()[:-300])
    (tmp_path / "notes.png").write_text("notes")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
        kept = [open_picture(tmp_path / "x.png") for _ in range(3)]
        for name in ("cut.png", "notes.png"):
            with pytest.raises(PictureError):
                open_picture(tmp_path / name)
        gc.collect()
        if sys.platform == "linux":
            assert len(os.listdir("/proc/self/fd")) == before
    assert [np.asarray(picture).shape for picture in kept] == [(24, 24, 3)] * 3


def test_without_pillow(tmp_path, monkeypatch):
    Image.fromarray(noise(4, 4)).save(tmp_path / "x.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r'install "numgrad-jit\[vision\]" to open pictures'):
        open_picture(tmp_path / "x.png")


# ---------------------------------------------------------------------------------- imagenet_input


def twin(picture, resize, crop):
    """torchvision's Resize(resize), CenterCrop(crop), ToTensor(), Normalize(…), as documented."""
    w, h = picture.size
    short, long = (w, h) if w <= h else (h, w)
    new_short, new_long = resize, int(resize * long / short)
    new_w, new_h = (new_short, new_long) if w <= h else (new_long, new_short)
    picture = picture.resize((new_w, new_h), Image.BILINEAR)
    array = np.asarray(picture)
    crop_top = int(round((new_h - crop) / 2.0))  # noqa: RUF046
    crop_left = int(round((new_w - crop) / 2.0))  # noqa: RUF046
    array = array[crop_top : crop_top + crop, crop_left : crop_left + crop]
    out = np.empty((3, crop, crop), np.float32)
    for c in range(3):
        out[c] = array[:, :, c]
        out[c] /= np.float32(255)
        out[c] -= np.float32(MEAN[c])
        out[c] /= np.float32(STD[c])
    return out


SIZES = [(400, 600), (451, 300), (224, 224), (256, 256), (1, 1), (2, 3), (37, 1), (333, 500)]
SIZES += [(255, 257), (640, 427), (50, 3200), (641, 10)]


@pytest.mark.parametrize("height, width", SIZES)
def test_input_is_torchvisions(height, width):
    picture = Image.fromarray(noise(height, width))
    found = imagenet_input(picture)
    assert found.dtype == np.float32 and found.shape == (3, 224, 224)
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, twin(picture, 256, 224))


@pytest.mark.parametrize("resize, crop", [(33, 32), (32, 32), (40, 11), (9, 2), (1, 1)])
def test_input_sizes(resize, crop):
    for height, width in ((50, 61), (61, 50), (7, 20)):
        picture = Image.fromarray(noise(height, width))
        found = imagenet_input(picture, resize=resize, crop=crop)
        np.testing.assert_array_equal(found, twin(picture, resize, crop))


def triangle(size, new):
    """(new, size) weights of the triangle filter, as wide as one new pixel where it shrinks."""
    scale = size / new
    reach = max(scale, 1.0)
    centres = (np.arange(new)[:, None] + 0.5) * scale
    weights = np.maximum(0, 1 - np.abs(np.arange(size)[None] + 0.5 - centres) / reach)
    return weights / weights.sum(1, keepdims=True)


def test_resize_averages_what_shrinks():
    """The resizing against its formula in float64: all pixels count, not two a side."""
    array = noise(90, 60)
    found = imagenet_input(Image.fromarray(array), resize=20, crop=20)
    resized = np.einsum("yi,xj,ijc->cyx", triangle(90, 30), triangle(60, 20), array)
    wanted = (resized[:, 5:25] / 255 - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
    # Pillow rounds to whole levels after each of its two passes.
    assert np.abs(found - wanted).max() <= 1.01 / 255 / min(STD)


@pytest.mark.parametrize("height, width", [(2, 300), (300, 4), (3, 301), (501, 3)])
def test_strips(height, width, monkeypatch):
    """What is cut off a strip before the resizing is cut off after it, too."""
    picture = Image.fromarray(noise(height, width))
    found = imagenet_input(picture)
    monkeypatch.setattr(pictures, "STRIP", 10**9)
    whole = imagenet_input(picture)
    # One level of 255; where the new size is rounded, a shift by less than a resized pixel, too.
    levels = 4 if min(height, width) == 3 else 1
    assert np.abs(found - whole).max() <= 1.01 * levels / 255 / min(STD)
    assert np.ptp(whole) > 100 / 255 / min(STD)


def test_long_strip_takes_little_memory():
    asked = []
    resize = Image.Image.resize

    def counting(self, size, *args, **kwargs):
        asked.append(size)
        return resize(self, size, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image.Image, "resize", counting)
        for size in ((1, 20_000), (20_000, 1)):
            assert imagenet_input(Image.new("RGB", size, "red")).shape == (3, 224, 224)
    assert asked == [(256, 256 * 64), (256 * 64, 256)]


def test_input_of_other_modes():
    grey = Image.fromarray(noise(8, 8, 1))
    np.testing.assert_array_equal(
        imagenet_input(grey, 8, 8), imagenet_input(grey.convert("RGB"), 8, 8)
    )


def test_input_refused():
    picture = Image.fromarray(noise(4, 4))
    for crop in (0, -1, 257):
        with pytest.raises(ValueError, match=r"expected 1 to resize = 256 for crop, got"):
            imagenet_input(picture, crop=crop)
    for resize in (0, -1, 16385, 10**6):
        with pytest.raises(ValueError, match=r"expected .* for resize, got"):
            imagenet_input(picture, resize=resize)
    for wrong in ({"resize": "a"}, {"resize": 300.0}, {"crop": True}, {"crop": 224.0}):
        with pytest.raises(TypeError, match=r"imagenet_input: expected an integer for "):
            imagenet_input(picture, **wrong)
    for wrong in (None, noise(4, 4), "x.png"):
        with pytest.raises(TypeError, match=r"expected a PIL.Image for picture, got .*; open_pict"):
            imagenet_input(wrong)
    with pytest.raises(ValueError, match="expected pixels for picture, got 0 × 5"):
        imagenet_input(Image.new("RGB", (0, 5)))
