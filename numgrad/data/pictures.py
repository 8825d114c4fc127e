"""Pictures from files, and what networks trained on ImageNet take of them.

Pillow opens the files: ``pip install "numgrad-jit[vision]"``. It is imported at the first use.
"""

import os
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..graph.errors import RangeError, expected

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
STRIP = 64
"""Sides longer than so many times the shorter one are cut to it before the picture is resized."""


class PictureError(ValueError):
    """A file or folder that no picture can be read from; the text names it and says why."""


def find(paths: Iterable["str | os.PathLike[str]"]) -> list[str]:
    """The pictures that paths of files and folders name.

    Args:
        paths: a file is taken as it is, whatever its name and whether or not it exists; of a folder
            and the folders in it, the files whose names end as those of pictures do, sorted.
            Hidden ones (their names begin with a dot) are left out.

    Raises:
        PictureError: a folder without pictures.
    """
    found: list[str] = []
    for given in paths:
        path = os.fspath(given)
        if not os.path.isdir(path):
            found.append(path)
            continue
        inside = sorted(_pictures_in(path))
        if not inside:
            raise PictureError(
                expected(
                    "find",
                    "a folder with pictures",
                    "paths",
                    f"{path}, which has none",
                    "names of pictures end in .jpg, .png, .webp, .gif, .bmp, .tif …",
                )
            )
        found += inside
    return found


def _pictures_in(folder: str) -> Iterable[str]:
    for parent, folders, files in os.walk(folder):
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
        PictureError: no such file, or one that is damaged, no picture, or over Pillow's limit
            ``PIL.Image.MAX_IMAGE_PIXELS`` (a small file may hold a picture that fills the memory).
        ImportError: Pillow is not installed.
    """
    image = _pillow()
    path = os.fspath(path)
    image.init()
    formats = [name for name in FORMATS if name in image.OPEN]  # older Pillows have no AVIF
    try:
        # Warnings of odd metadata are for those who make pictures; that of the size is an error.
        with warnings.catch_warnings(), open(path, "rb") as file:
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", image.DecompressionBombWarning)
            with image.open(file, formats=formats) as opened:
                opened.load()
                return _rgb(_upright(opened), image)
    except (image.DecompressionBombWarning, image.DecompressionBombError):
        reason = f"which has more than {image.MAX_IMAGE_PIXELS} pixels"
        way_out = "make it smaller, or raise PIL.Image.MAX_IMAGE_PIXELS if you trust it"
    except _Unscaled as kind:
        reason, way_out = f"which holds {kind}", "save it with 8 or 16 bits a colour"
    except image.UnidentifiedImageError:
        reason = "which is no picture" if os.path.getsize(path) else "which is empty"
        way_out = "give a file in one of the formats " + ", ".join(formats)
    except (FileNotFoundError, NotADirectoryError):
        reason, way_out = "which does not exist", "check the path"
    except IsADirectoryError:
        reason, way_out = "which is a folder", "find([folder]) lists the pictures in it"
    except PermissionError:
        reason, way_out = "which you may not read", "change its permissions"
    except Exception as error:  # Pillow's readers raise errors of any kind for damaged files
        reason = f"which is damaged ({' '.join(str(error).split()) or type(error).__name__})"
        way_out = "get it whole"
    raise PictureError(
        expected("open_picture", "a picture", "path", f"{path}, {reason}", way_out)
    ) from None


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
        ValueError: the picture has no pixels, or ``crop`` is not from 1 to ``resize``.

    Bit by bit what torchvision gives for the same picture, save for strips over 64 times as long as
    wide: their ends, which the cut drops anyway, are dropped before the resizing.
    """
    if not 1 <= crop <= resize:
        raise RangeError(
            expected("imagenet_input", f"1 to resize = {resize}", "crop", crop, "cut less out")
        )
    image = _pillow()
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
