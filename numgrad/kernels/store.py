"""The kernel store: folders of compiled kernels, and the only place where Numba compiles for us.

Numba's own cache keys a function by its bytecode, signature and CPU, and stamps it with the content
of its *own* source file. It does not see an edited helper in another file, an edited intrinsic, or
changed options. So whatever decides the machine code is made part of the *name*:

* a **generated** kernel is one module file with one function and one signature, named by the hash
  of its text; the text carries its options and the fingerprint of the intrinsics it imports;
* a **handwritten** kernel (decorated with :func:`kernel`) is cached in a folder named by the hash of
  the sources of all kernel modules.

Both live under ``<root>/<versions and CPU>/``. A damaged or unwritable folder costs a recompile and
one warning, never an error.
"""

import contextlib
import dataclasses
import hashlib
import importlib.util
import os
import pathlib
import platform
import sys
import tempfile
import threading
import time
import types as pytypes
import warnings
from collections.abc import Callable, Iterator
from typing import Any

_LOCK = threading.RLock()
_PACKAGE = pathlib.Path(__file__).parent


@dataclasses.dataclass
class Stats:
    """What the store did in this process."""

    compiled: int = 0
    """Kernels compiled by Numba."""
    hits: int = 0
    """Kernels loaded from the folder."""
    seconds: float = 0.0
    """Time spent compiling, in seconds."""


stats = Stats()


class StoreWarning(UserWarning):
    """The kernel folder is damaged or cannot be written; kernels are compiled again."""


_warned = False


def _warn_once(text: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(text, StoreWarning, stacklevel=2)


def root() -> pathlib.Path:
    """The user's kernel folder: ``$NUMGRAD_CACHE``, else ``numgrad`` in the user's cache folder."""
    named = os.environ.get("NUMGRAD_CACHE")
    if named:
        return pathlib.Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(base) / "numgrad" / "kernels"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def _numba_settings() -> str:
    from numba.core import config

    names = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "CPU_NAME", "CPU_FEATURES")
    return repr([(name, getattr(config, name, None)) for name in names])


def _folder() -> pathlib.Path:
    """The folder of this environment: versions, CPU and the settings that change machine code."""
    global _folder_cached
    key = os.environ.get("NUMGRAD_CACHE")
    if _folder_cached is None or _folder_cached[0] != key:
        import llvmlite.binding as llvm
        import numba
        import numpy

        cpu = llvm.get_host_cpu_name()
        versions = (
            f"numba {numba.__version__} llvm {llvm.llvm_version_info} numpy {numpy.__version__}"
        )
        decides = _digest(
            versions, sys.version, platform.machine(), cpu, _features(), _numba_settings()
        )
        name = f"numba-{numba.__version__}-py{sys.version_info[0]}{sys.version_info[1]}-{cpu}"
        _folder_cached = (key, root() / f"{name}-{decides[:8]}")
    return _folder_cached[1]


_folder_cached: tuple[str | None, pathlib.Path] | None = None


def _features() -> str:
    import llvmlite.binding as llvm

    return llvm.get_host_cpu_features().flatten()


def _sources_digest() -> str:
    """Hash of every kernel source file, so that an edited helper or intrinsic names a new folder."""
    global _sources_cached
    if _sources_cached is None:
        files = sorted(_PACKAGE.rglob("*.py"))
        _sources_cached = _digest(*(f.read_text(encoding="utf-8") for f in files))
    return _sources_cached


_sources_cached: str | None = None


def _native_digest() -> str:
    global _native_cached
    if _native_cached is None:
        _native_cached = _digest((_PACKAGE / "native.py").read_text(encoding="utf-8"))
    return _native_cached


_native_cached: str | None = None


def _usable(folder: pathlib.Path) -> pathlib.Path | None:
    """``folder``, made if need be; None (and one warning) where it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            with tempfile.TemporaryFile(dir=folder):
                return folder
    except OSError:
        pass
    _warn_once(
        f"numgrad cannot write kernels to {folder}: they are compiled again in every process; "
        "set NUMGRAD_CACHE to a folder you may write"
    )
    return None


_usable_cached: dict[pathlib.Path, pathlib.Path | None] = {}


def _cache_folder(name: str) -> pathlib.Path | None:
    folder = _folder() / name
    if folder not in _usable_cached:
        _usable_cached[folder] = _usable(folder)
    return _usable_cached[folder]


@contextlib.contextmanager
def _numba_cache_dir(folder: pathlib.Path | None) -> Iterator[None]:
    """Point Numba's cache at ``folder`` while a function is decorated; the user's own stay put."""
    from numba.core import config

    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before


def _compile(
    decorate: Callable[[bool], Any],
    hits: Callable[[Any], int],
    folder: pathlib.Path | None,
    name: str,
) -> Any:
    """Run ``decorate(cache)``, with the cache in ``folder``; recompile over damaged files."""
    from numba.core.errors import NumbaError

    started = time.perf_counter()
    compiled, damaged = None, False
    for _ in range(2 if folder is not None else 0):
        try:
            with _numba_cache_dir(folder):
                compiled = decorate(True)
            break
        except NumbaError:
            raise
        except Exception:
            # Reading or writing the cache failed, or compiling did; without a cache we shall know.
            damaged = True
            _remove_cached(folder, name)
    hit = hits(compiled) if compiled is not None else 0
    if compiled is None:
        compiled = decorate(False)
    if damaged:
        _warn_once(f"numgrad found a damaged kernel cache in {folder} and compiles again")
    stats.hits += bool(hit)
    stats.compiled += not hit
    stats.seconds += 0.0 if hit else time.perf_counter() - started
    return compiled


def _remove_cached(folder: pathlib.Path, name: str) -> None:
    for pattern in (f"**/*{name}-*.nbi", f"**/*{name}-*.nbc"):
        for file in folder.glob(pattern):
            with contextlib.suppress(OSError):
                file.unlink()


class Kernel:
    """A compiled kernel: its ``name``, its ``address``, and what keeps the machine code alive."""

    __slots__ = ("address", "name", "owner")

    def __init__(self, name: str, address: int, owner: Any) -> None:
        self.name, self.address, self.owner = name, address, owner


# ------------------------------------------------------------------------------ generated kernels

_generated: dict[str, pytypes.ModuleType] = {}
GENERATED_OPTIONS: dict[str, Any] = {"error_model": "numpy"}


def _write(path: pathlib.Path, text: str) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def _module(text: str, folder: pathlib.Path | None, name: str) -> pytypes.ModuleType:
    """The module of a generated source, from its file (which Numba's cache needs) if it may be."""
    if folder is not None:
        path = folder / f"{name}.py"
        try:
            current = path.read_text(encoding="utf-8", errors="replace") if path.exists() else None
            if current != text:
                if current is not None:
                    _warn_once(f"numgrad found a damaged kernel source {path} and writes it again")
                _write(path, text)
        except OSError:
            _warn_once(f"numgrad cannot write kernels to {folder}: they are compiled again")
        else:
            spec = importlib.util.spec_from_file_location(f"numgrad_generated.{name}", path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            exec(compile(text, str(path), "exec"), module.__dict__)
            return module
    module = pytypes.ModuleType(f"numgrad_generated.{name}")
    sys.modules[module.__name__] = module
    exec(compile(text, f"<{name}>", "exec"), module.__dict__)
    return module


def _stamped(text: str, options: dict[str, Any]) -> tuple[str, str]:
    text = f"# intrinsics {_native_digest()}; options {sorted(options.items())}\n{text}"
    return text, f"k_{_digest(text)}"


def generated(text: str, signature: Any) -> Kernel:
    """Compile (or load) the function ``kernel`` of a generated module as a C callback.

    ``text`` is the whole source of the module; ``signature`` a Numba signature. Equal text is
    compiled once, ever.
    """
    text, name = _stamped(text, GENERATED_OPTIONS)
    with _LOCK:
        if name not in _generated:
            from numba import cfunc

            folder = _cache_folder("generated")
            module = _module(text, folder, name)

            def decorate(cache: bool) -> Any:
                return cfunc(signature, cache=cache, **GENERATED_OPTIONS)(module.kernel)

            compiled = _compile(decorate, lambda c: c.cache_hits, folder, f"{name}.kernel")
            module.__dict__["compiled"] = Kernel(name, compiled.address, compiled)
            _generated[name] = module
        found: Kernel = _generated[name].__dict__["compiled"]
        return found


def entry_point(
    text: str, signature: Any, options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile (or load) ``kernel`` of a generated module; return Numba's raw C entry point.

    The entry point is a builtin that unboxes its arguments without checking them: the caller
    guarantees their types.
    """
    options = {**GENERATED_OPTIONS, **(options or {})}
    text, name = _stamped(text, options)
    with _LOCK:
        if name not in _generated:
            from numba import njit

            folder = _cache_folder("generated")
            module = _module(text, folder, name)

            def decorate(cache: bool) -> Any:
                return njit(signature, cache=cache, **options)(module.kernel)

            def hits(dispatcher: Any) -> int:
                return sum(dispatcher.stats.cache_hits.values())

            compiled = _compile(decorate, hits, folder, f"{name}.kernel")
            module.__dict__["compiled"] = compiled
            _generated[name] = module
        dispatcher = _generated[name].__dict__["compiled"]
        return dispatcher.get_overload(dispatcher.signatures[0])


# ---------------------------------------------------------------------------- handwritten kernels


class Handwritten:
    """A ranged kernel written by hand; ``address`` compiles or loads it when first asked for."""

    def __init__(self, function: Callable[..., None], options: dict[str, Any]) -> None:
        self.function, self.options = function, {"error_model": "numpy", **options}
        self.name = function.__name__
        self.__doc__ = function.__doc__
        self._address = 0
        self._owner: Any = None

    @property
    def address(self) -> int:
        return self._address or self._load()

    def _load(self) -> int:
        with _LOCK:
            if not self._address:
                from numba import cfunc

                from .native import RANGED_SIGNATURE

                folder = _cache_folder(f"handwritten-{_sources_digest()}")

                def decorate(cache: bool) -> Any:
                    return cfunc(RANGED_SIGNATURE, cache=cache, **self.options)(self.function)

                self._owner = _compile(decorate, lambda c: c.cache_hits, folder, self.name)
                self._address = self._owner.address
            return self._address


def kernel(**options: Any) -> Callable[[Callable[..., None]], Handwritten]:
    """Declare a handwritten ranged kernel ``f(args, lo, hi, worker)``.

    Nothing is compiled until ``.address`` is read. Helpers it calls are plain ``@njit`` functions
    without ``cache`` in any module of ``numgrad.kernels``: all of them enter the folder's hash.
    ``options`` are Numba's (``fastmath={...}``), ``error_model`` is ``"numpy"`` unless given.
    """

    def declare(function: Callable[..., None]) -> Handwritten:
        return Handwritten(function, options)

    return declare


def describe() -> dict[str, Any]:
    """Where kernels are kept and how many there are, for ``numgrad env``."""
    folder = _folder()
    generated_files = list((folder / "generated").glob("k_*.py")) if folder.exists() else []
    handwritten = list(folder.glob(f"handwritten-{_sources_digest()}/**/*.nbi"))
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) if folder.exists() else 0
    return {
        "folder": str(folder),
        "generated": len(generated_files),
        "handwritten": len(handwritten),
        "bytes": size,
        "compiled_now": stats.compiled,
        "loaded_now": stats.hits,
    }
