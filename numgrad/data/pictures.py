"""Pictures from files, and what networks trained on ImageNet take of them.

Pillow opens the files: ``pip install "numgrad-jit[vision]"``. It is imported at the first use.
"""

import os
import warnings
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np

from ..checkpoint.source import open_file
from ..graph.errors import RangeError, expected, shown
from ..ops.attributes import integer

__all__ = ["MEAN", "STD", "PictureError", "find", "imagenet_input", "open_picture"]

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""Of red, green and blue over ImageNet's training pictures, values from 0 to 1."""

SUFFIXES = (
    ".jpg",
    ".jpeg",
    ".jpe",
    ".jfif",
    ".png",
    ".webp",
    ".gif",
    ".bmp",
    ".tif",
    ".tiff",
    ".avif",
    ".jp2",
    ".ppm",
    ".pgm",
    ".pbm",
    ".pnm",
)
"""What `find` takes from folders, in small letters or capitals."""

# Not all that Pillow reads: PostScript, for one, would be run by an interpreter.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM")
SIXTEEN_BITS = ("I", "I;16", "I;16L", "I;16B", "I;16N")
LARGEST = 1 << 14
"""Pixels of a shorter side: a strip of that takes 50 GB."""
STRIP = 64
"""Sides longer than so many times the shorter one are cut to it before the picture is resized."""


class PictureError(ValueError):
    """A file or folder that no picture can be read from; the text names it and says why.

    ``path`` and ``reason``, which follows on the path as in "is empty; …", are attributes.
    """

    def __init__(self, op: str, what: str, operand: str, path: str, reason: str, way_out: str):
        super().__init__(op, what, operand, path, reason, way_out)
        self.path, self.reason = path, f"{reason}; {way_out}"

    def __str__(self) -> str:
        op, what, operand, path, reason, way_out = self.args
        return expected(op, what, operand, f"{path}, which {reason}", way_out)


def find(paths: Iterable["str | os.PathLike[str]"]) -> list[str]:
    """The pictures that paths of files and folders name.

    Args:
        paths: a file is taken as it is, whatever its name and whether or not it exists; of a folder
            and the folders in it, the files whose names end as those of pictures do, sorted.
            Hidden ones (their names begin with a dot) are left out.

    Raises:
        PictureError: a folder without pictures, or that may not be listed. TypeError: one path.
    """
    if isinstance(paths, (str, bytes, os.PathLike)):
        raise TypeError(expected("find", "a list of paths", "paths", shown(paths), "write [path]"))
    found: list[str] = []
    for given in paths:
        path = os.fsdecode(given)
        if not os.path.isdir(path):
            found.append(path)
            continue
        inside = sorted(_pictures_in(path))
        if not inside:
            _bad_folder(path, "has no pictures", "their names end in .jpg, .png, .gif, .tif …")
        found += inside
    return found


def _bad_folder(path: str, reason: str, way_out: str) -> NoReturn:
    raise PictureError("find", "a folder with pictures", "paths", path, reason, way_out)


def _pictures_in(folder: str) -> Iterable[str]:
    def refuse(error: OSError) -> NoReturn:  # without it, os.walk takes the folder as empty
        _bad_folder(os.fsdecode(error.filename), *_unread(error))

    for parent, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                yield os.path.join(parent, name)


def open_picture(path: "str | os.PathLike[str]") -> Any:
    """Read a picture whole, as a ``PIL.Image.Image`` of mode RGB; the file is closed again.

    A photo is turned upright where its EXIF data say how the camera was held (torchvision leaves it
    lying). Of an animation the first frame is taken. Transparency is dropped, as torchvision's
    loader does: the colour below is seen. Grey pictures of 16 bits are scaled to 8.

    Raises:
        PictureError: no such file, or one that is damaged, no picture, a pipe or a device, or over
            Pillow's limit ``PIL.Image.MAX_IMAGE_PIXELS`` (a small file may hold a picture that
            fills the memory).
        ImportError: Pillow is not installed. MemoryError: the picture does not fit.
    """
    image = _pillow()
    path = os.fsdecode(path)
    image.init()
    formats = [name for name in FORMATS if name in image.OPEN]  # older Pillows have no AVIF
    try:
        # Warnings of odd metadata are for those who make pictures; that of the size is an error.
        with warnings.catch_warnings(), open_file(path) as file:
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", image.DecompressionBombWarning)
            with image.open(file, formats=formats) as opened:
                opened.load()
                return _rgb(_upright(opened), image)
    except (image.DecompressionBombWarning, image.DecompressionBombError):
        reason = f"has more than {image.MAX_IMAGE_PIXELS} pixels"
        way_out = "make it smaller, or raise PIL.Image.MAX_IMAGE_PIXELS if you trust it"
    except _Unscaled as kind:
        reason, way_out = f"holds {kind}", "save it with 8 or 16 bits a colour"
    except image.UnidentifiedImageError:
        reason = "is no picture" if os.path.getsize(path) else "is empty"
        way_out = "give a file in one of the formats " + ", ".join(formats)
    except IsADirectoryError:
        reason, way_out = "is a folder", "find([folder]) lists the pictures in it"
    except MemoryError:  # the picture may be sound
        raise
    except Exception as error:  # Pillow's readers raise errors of any kind for damaged files
        if isinstance(error, OSError) and error.errno is not None:  # the system's, not Pillow's
            reason, way_out = _unread(error)
        else:
            reason = f"is damaged ({' '.join(str(error).split()) or type(error).__name__})"
            way_out = "get it whole"
    raise PictureError("open_picture", "a picture", "path", path, reason, way_out) from None


def _unread(error: OSError) -> tuple[str, str]:
    """Why a file cannot be read, in the system's words, and the way out."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return "does not exist", "check the path"
    if isinstance(error, PermissionError):
        return "may not be read", "change its permissions"
    return f"cannot be read ({error.strerror})", "check the path"


class _Unscaled(Exception):
    """Numbers that no scale is known for."""


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise ImportError('install "numgrad-jit[vision]" to open pictures') from None
    return Image


def _upright(picture: Any) -> Any:
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(picture)
    except Exception:  # EXIF data that cannot be read say nothing; the picture is there
        return picture


def _rgb(picture: Any, image: Any) -> Any:
    if picture.mode in SIXTEEN_BITS:  # convert would clip at 255: most pictures would be white
        values = np.asarray(picture)
        if values.size and (values.min() < 0 or values.max() > 65535):
            raise _Unscaled("integers of more than 16 bits")
        picture = image.fromarray(np.round(values / 257).astype(np.uint8))
    elif picture.mode == "F":
        raise _Unscaled("floating-point numbers")
    picture.info.pop("transparency", None)  # convert would keep a colour of it, or warn
    return picture.convert("RGB")


def imagenet_input(picture: Any, resize: int = 256, crop: int = 224) -> np.ndarray:
    """A picture as networks trained on ImageNet take it: torchvision's steps of evaluation.

    The shorter side is resized to ``resize`` pixels and the longer one in proportion, rounded down
    (bilinear; over all pixels that fall on one where it shrinks, as Pillow does); the middle is cut
    out; values from 0 to 255 are divided by 255, then normalised with `MEAN` and `STD`.

    Args:
        picture: a ``PIL.Image.Image``; `open_picture` reads one.
        resize: pixels of the shorter side.
        crop: height and width of what is cut out.

    Returns:
        float32 (3, crop, crop), C-contiguous: red, green, blue, row by row from the top.

    Raises:
        TypeError: no ``PIL.Image.Image``, or sizes that are no integers.
        ValueError: the picture has no pixels, ``crop`` is not from 1 to ``resize``, or that is not
            from 1 to 16384.

    Bit by bit what torchvision gives for the same picture, save for strips over 64 times as long as
    wide: their ends, which the cut drops anyway, are dropped before the resizing.
    """
    image = _pillow()
    if not isinstance(picture, image.Image):
        way_out = "open_picture reads one, PIL.Image.fromarray makes one"
        raise TypeError(
            expected("imagenet_input", "a PIL.Image", "picture", shown(picture), way_out)
        )
    if not 1 <= integer("imagenet_input", "resize", resize) <= LARGEST:
        raise RangeError(
            expected("imagenet_input", f"1 to {LARGEST}", "resize", resize, "take less")
        )
    if not 1 <= integer("imagenet_input", "crop", crop) <= resize:
        raise RangeError(
            expected("imagenet_input", f"1 to resize = {resize}", "crop", crop, "cut less out")
        )
    if 0 in picture.size:
        raise RangeError(
            expected(
                "imagenet_input",
                "pixels",
                "picture",
                "{} × {}".format(*picture.size),
                "give another one",
            )
        )
    picture = _middle(picture.convert("RGB"))
    width, height = picture.size
    short = min(width, height)
    size = int(resize * width / short), int(resize * height / short)
    picture = picture.resize(size, image.Resampling.BILINEAR)
    left, top = (round((side - crop) / 2.0) for side in size)
    picture = picture.crop((left, top, left + crop, top + crop))
    values = np.asarray(picture, np.float32) / np.float32(255)
    values = (values - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1))


def _middle(picture: Any) -> Any:
    """The middle of a strip: resized whole, one of 1 × 10000 pixels would take gigabytes."""
    width, height = picture.size
    most = STRIP * min(width, height)
    left, top = (max(0, side - most) // 2 for side in (width, height))
    if left == top == 0:
        return picture
    return picture.crop((left, top, width - left, height - top))
