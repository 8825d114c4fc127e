"""What a file is that is no checkpoint at all: what went wrong on its way here, in words."""


def mishap(start: bytes, size: int) -> str | None:
    """What a file of ``size`` bytes is, from its first 512, if it holds no weights; else None."""
    if size == 0:
        return "the file is empty"
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        return "a git-lfs pointer and not the file itself; fetch that with `git lfs pull`"
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head", b"<body", b"<!--")):
        return "an HTML page; the download gave a web page instead of the file"
    if start.startswith(b"L119547037146038801333356L\n"):  # the magic number of a stream
        return "written with pickle_protocol=0 or 1; save it again without"
    if start.startswith((b"(dp", b"(lp", b"ccopy_reg\n", b"ccollections\n", b"cnumpy")):
        return (
            "a pickle of protocol 0; if you trust it, open it with pickle.load, and save the arrays"
        )
    if start.startswith(b"\x93NUMPY"):
        return "a NumPy array; open it with numpy.load"
    if start.startswith(b"\x89HDF\r\n\x1a\n"):
        return "an HDF5 file (Keras writes those), which numgrad does not read"
    if start.startswith(b"GGUF"):
        return "a GGUF file, which numgrad does not read"
    if start.startswith((b"\x1f\x8b", b"\xfd7zXZ\x00", b"BZh", b"\x28\xb5\x2f\xfd")):
        return "a compressed file; unpack it first"
    if len(start) > 8 and not start.strip(b"\0"):
        return "it begins with nothing but zero bytes; the file was not written to its end"
    if size < 8:
        return f"the file has {size} bytes, fewer than any format begins with"
    return None
