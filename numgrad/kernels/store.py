"""The kernel store: folders of compiled kernels, and the only place where Numba compiles for us.

Numba's own cache keys a function by its bytecode, signature and CPU, and stamps it with the content
of its *own* source file. It does not see an edited helper in another file, an edited intrinsic, or
changed options. So whatever decides the machine code is made part of the *name*:

* a **generated** kernel is one module file with one function and one signature, named by the hash
  of its text; the text carries its options and the fingerprint of the intrinsics it imports;
* a **handwritten** kernel (decorated with :func:`kernel`) is kept below a folder named by the hash
  of the sources of all kernel modules.

Each kernel has a folder of its own below ``<root>/<versions, CPU and settings>/``::

    generated/k_1f…/k_1f….py                  the source of a generated kernel
    generated/k_1f…/<hash of path>/*.nbi *.nbc    Numba's index and machine code
    generated/k_1f…/<hash of path>/*.seal         an empty file named by the hash of those two

A kernel is loaded only if a seal fits the files beside it: damage that still unpickles would run as
machine code. A seal is written last, and there may be several, so processes need no lock: whoever
writes last seals what is there then. A damaged or unwritable folder costs a recompile and one
warning, never an error.
"""

import contextlib
import dataclasses
import functools
import gc
import hashlib
import logging  # noqa: F401
import os
import pathlib
import platform
import sys
import tempfile
import threading
import time
import types as pytypes
import uuid
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from . import progress

_LOCK = threading.RLock()
"""Held while a kernel is compiled or loaded: Numba's compiler is not re-entrant over threads."""
_PACKAGE = pathlib.Path(__file__).parent


def _before_fork() -> None:
    global _held_for_fork
    _held_for_fork = _LOCK.acquire(timeout=60)  # rather a child that may hang than no child at all


def _after_fork() -> None:
    if _held_for_fork:
        _LOCK.release()


_held_for_fork = False
# A child must not inherit a compiler, with its locks, that another thread is in the middle of. What
# is registered first is called last before a fork: `logging`, imported above, takes its own lock
# then, for which a compilation may wait.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )


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


# ------------------------------------------------------------------------------------- the folders


def root() -> pathlib.Path:
    """The user's kernel folder: ``$NUMGRAD_CACHE``, else ``numgrad`` in the user's cache folder."""
    named = os.environ.get("NUMGRAD_CACHE")
    if named:
        return pathlib.Path(named).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(base) / "numgrad" / "kernels"


def _digest(*parts: str | bytes) -> str:
    hashed = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hashed.update(b"%d:" % len(data) + data)
    return hashed.hexdigest()[:20]


def _read_sources() -> dict[str, bytes]:
    return {str(f.relative_to(_PACKAGE)): f.read_bytes() for f in sorted(_PACKAGE.rglob("*.py"))}


# Taken at import: a file that is edited later must not name what this process still has in memory.
_SOURCES = _read_sources()
_SOURCES_DIGEST = _digest(*(part for name in _SOURCES for part in (name, _SOURCES[name])))
"""Names the folder of the handwritten kernels: an edited helper or intrinsic is another folder."""
_NATIVE_DIGEST = _digest(_SOURCES["native.py"])
"""Stands in every generated source: the only module of ours that it imports."""
del _SOURCES

_SETTINGS = (
    "OPT",
    "LOOP_VECTORIZE",
    "SLP_VECTORIZE",
    "BOUNDSCHECK",
    "CPU_NAME",
    "CPU_FEATURES",
    "ENABLE_AVX",
    "DISABLE_INTEL_SVML",
    "DEBUGINFO_DEFAULT",
    "LLVM_REFPRUNE_PASS",
    "LLVM_REFPRUNE_FLAGS",
)
"""Numba's settings that change machine code and are not in the key of its cache."""


@functools.cache
def _host() -> tuple[str, str]:
    import llvmlite.binding as llvm

    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def _folder() -> pathlib.Path:
    """The folder of this environment: versions, CPU and the settings that change machine code."""
    import llvmlite.binding as llvm
    import numba
    import numpy
    from numba.core import config

    config.reload_config()  # the compiler would do so anyway, and then use what we did not see
    cpu, features = _host()
    decides = _digest(
        f"numba {numba.__version__} llvm {llvm.llvm_version_info} numpy {numpy.__version__}",
        f"{sys.version} {platform.machine()} {cpu} {features}",
        repr([getattr(config, name, None) for name in _SETTINGS]),
        os.environ.get("NUMGRAD_CPU", ""),
    )
    name = f"numba-{numba.__version__}-py{sys.version_info[0]}{sys.version_info[1]}-{cpu}"
    return root() / f"{name}-{decides[:8]}"


def _usable(folder: pathlib.Path) -> bool:
    """Whether ``folder``, made if need be, can be written; warns if not."""
    try:
        if not folder.is_absolute():
            raise OSError("this user has no home folder")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError as error:
        _warn_unwritable(folder, error)
        return False


def _warn_unwritable(folder: pathlib.Path, error: Exception) -> None:
    _warn_once(
        f"numgrad cannot write kernels to {folder} ({error}): they are compiled again in every "
        "process; set NUMGRAD_CACHE to a folder you may write"
    )


_usable_cached: dict[pathlib.Path, bool] = {}


def _kernel_folder(kind: str, name: str) -> pathlib.Path | None:
    """The folder of one kernel; None where kernels cannot be kept."""
    folder = _folder() / kind
    if folder not in _usable_cached:
        _usable_cached[folder] = _usable(folder)
    return folder / name if _usable_cached[folder] else None


# ---------------------------------------------------------------------------------------- compiling


@contextlib.contextmanager
def _numba_cache_dir(folder: pathlib.Path | None) -> Iterator[None]:
    """Point Numba's cache, and nothing else of it, at ``folder``; the user's own stays put.

    Held only while a cache object is made, never while compiling: other threads may decorate
    functions of the user's meanwhile.
    """
    from numba.core import config

    ours = {"CACHE_DIR": str(folder), "CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator"}
    before = {name: getattr(config, name, "") for name in ours}
    vars(config).update(ours)
    try:
        yield
    finally:
        vars(config).update(before)


_Build = Callable[[pathlib.Path | None], tuple[Any, int]]


def _callback(function: Callable[..., Any], signature: Any, options: dict[str, Any]) -> _Build:
    """Compile ``function`` as a C callback; the pair of it and its cache hits."""

    def build(folder: pathlib.Path | None) -> tuple[Any, int]:
        from numba.core.ccallback import CFunc
        from numba.core.sigutils import normalize_signature

        compiled = CFunc(function, normalize_signature(signature), locals={}, options=options)
        if folder is not None:
            with _numba_cache_dir(folder):
                compiled.enable_caching()
        compiled.compile()
        return compiled, compiled.cache_hits

    return build


def _dispatcher(function: Callable[..., Any], signature: Any, options: dict[str, Any]) -> _Build:
    """Compile ``function`` as one called from Python; the pair of its dispatcher and cache hits."""

    def build(folder: pathlib.Path | None) -> tuple[Any, int]:
        from numba import njit

        compiled = njit(**options)(function)
        if folder is not None:
            with _numba_cache_dir(folder):
                compiled.enable_caching()
        compiled.compile(signature)
        return compiled, sum(compiled.stats.cache_hits.values())

    return build


def _cached_digests(folder: pathlib.Path) -> dict[pathlib.Path, str]:
    """The folders in ``folder`` that hold files of Numba's cache, with the hash of these."""
    found: dict[pathlib.Path, list[str | bytes]] = {}
    for file in sorted(folder.glob("*/*.nb[ic]")):
        with contextlib.suppress(OSError):
            found.setdefault(file.parent, []).extend((file.name, file.read_bytes()))
    return {place: _digest(*parts) for place, parts in found.items()}


def _seal(folder: pathlib.Path) -> None:
    for place, digest in _cached_digests(folder).items():
        (place / f"{digest}.seal").touch()


def _discard_unsealed(folder: pathlib.Path) -> bool:
    """Remove cached files that no seal fits; whether any had been sealed, and so is damaged."""
    damaged = False
    for place, digest in _cached_digests(folder).items():
        if not (place / f"{digest}.seal").exists():
            damaged = any(place.glob("*.seal")) or damaged
            for file in place.glob("*.nb[ic]"):
                with contextlib.suppress(OSError):
                    file.unlink()
    return damaged


_unwritable = False


@contextlib.contextmanager
def _compiling(title: str) -> Iterator[None]:
    """Tell of the compilation, and collect no garbage meanwhile: collections look through all that
    Numba makes again and again, for a tenth of the time. No thread forks now: the lock is held."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with progress.compiling(title):
            yield
    finally:
        if collects:
            gc.enable()


def _compile(build: _Build, folder: pathlib.Path | None, title: str) -> Any:
    """What ``build`` makes, from the cache in ``folder`` if it is sealed there, else compiled.

    Raises:
        RuntimeError: ``NUMBA_DISABLE_JIT`` is set.
        numba.core.errors.NumbaError: the function does not compile.
    """
    global _unwritable
    from numba.core import config
    from numba.core.errors import NumbaError

    if vars(config)["DISABLE_JIT"]:
        raise RuntimeError(
            "numgrad: expected Numba to compile, got NUMBA_DISABLE_JIT=1; its kernels are machine "
            "code and have no form in Python: unset NUMBA_DISABLE_JIT"
        )
    started = time.perf_counter()
    compiled, hits, failed = None, 0, None
    if folder is not None:
        try:
            if _discard_unsealed(folder):
                _warn_once(f"numgrad found a damaged kernel in {folder} and compiles it again")
            there = any(folder.glob("*/*.nbi"))
            if there or not _unwritable:
                with contextlib.nullcontext() if there else _compiling(title):
                    compiled, hits = build(folder)
                if not hits:
                    _seal(folder)
        except (NumbaError, StoreWarning):
            raise
        except Exception as error:
            failed = error  # of the cache or of the compilation: without a cache we shall know
    if compiled is None:
        with _compiling(title):
            compiled, hits = build(None)
    if failed is not None:
        _unwritable = True
        assert folder is not None
        _warn_unwritable(folder, failed)
    stats.hits += bool(hits)
    stats.compiled += not hits
    stats.seconds += 0.0 if hits else time.perf_counter() - started
    return compiled


class Kernel:
    """A compiled kernel: its ``name``, its ``address``, and what keeps the machine code alive.

    ``card`` and ``slots`` are the launcher's (``launch._card``).
    """

    __slots__ = ("address", "card", "name", "owner", "slots")

    def __init__(self, name: str, address: int, owner: Any) -> None:
        self.name, self.address, self.owner = name, address, owner
        self.card = 0
        self.slots: Any = None


# -------------------------------------------------------------------------------- generated kernels

_generated: dict[str, Any] = {}
GENERATED_OPTIONS: dict[str, Any] = {"error_model": "numpy"}


def _write(path: pathlib.Path, text: str) -> None:
    """Put ``text`` into ``path``, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_source(path: pathlib.Path, text: str) -> bool:
    """Keep a generated source, which Numba's cache needs as a file; whether it is kept."""
    try:
        current = path.read_bytes() if path.exists() else None
        if current != text.encode():
            if current is not None:
                _warn_once(f"numgrad found a damaged kernel source {path} and writes it again")
            _write(path, text)
    except OSError as error:
        _warn_unwritable(path.parent, error)
        return False
    return True


def _load_generated(
    text: str, how: Callable[..., _Build], signature: Any, options: dict[str, Any]
) -> tuple[str, Any]:
    """``(name, what is compiled)`` of the function ``kernel`` of a generated module."""
    stamp = f"{how.__name__} {signature}; options {sorted(options.items())}"
    text = f"# intrinsics {_NATIVE_DIGEST}; {stamp}\n{text}"
    name = f"k_{_digest(text)}"
    with _LOCK:
        compiled = _generated.get(name)
        if compiled is None:
            folder = _kernel_folder("generated", name)
            file = f"<{name}>"
            if folder is not None:
                if _write_source(folder / f"{name}.py", text):
                    file = str(folder / f"{name}.py")
                else:
                    folder = None
            module = pytypes.ModuleType(f"numgrad_generated.{name}")
            sys.modules[module.__name__] = module  # by this name loaded code finds its globals
            exec(compile(text, file, "exec"), module.__dict__)
            title = (module.__doc__ or name).splitlines()[0].rstrip(".")
            compiled = _compile(how(module.__dict__["kernel"], signature, options), folder, title)
            _generated[name] = compiled
        return name, compiled


_kernels: dict[str, Kernel] = {}


def generated(text: str, signature: Any) -> Kernel:
    """Compile (or load) the function ``kernel`` of a generated module as a C callback.

    ``text`` is the whole source of the module; ``signature`` a Numba signature. Equal text is
    compiled once, ever, and is one Kernel.
    """
    name, compiled = _load_generated(text, _callback, signature, GENERATED_OPTIONS)
    return _kernels.setdefault(name, Kernel(name, compiled.address, compiled))


def entry_point(
    text: str, signature: Any, options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile (or load) ``kernel`` of a generated module; return Numba's raw C entry point.

    The entry point is a builtin that unboxes its arguments without checking them: the caller
    guarantees their types.
    """
    options = {**GENERATED_OPTIONS, **(options or {})}
    _, dispatcher = _load_generated(text, _dispatcher, signature, options)
    entry: Callable[..., Any] = dispatcher.get_overload(dispatcher.signatures[0])
    return entry


# ------------------------------------------------------------------------------ handwritten kernels


class Handwritten:
    """A ranged kernel written by hand; ``address`` compiles or loads it when first asked for."""

    def __init__(self, function: Callable[..., None], options: dict[str, Any]) -> None:
        self.function, self.options = function, {"error_model": "numpy", **options}
        self.name = function.__name__
        self.__doc__ = function.__doc__
        self.loaded = 0
        """The address, or 0 while it has not been asked for."""
        self._owner: Any = None

    @property
    def address(self) -> int:
        return self.loaded or self._load()

    def _load(self) -> int:
        with _LOCK:
            if not self.loaded:
                from .native import RANGED_SIGNATURE

                name = f"{self.function.__module__}.{self.function.__qualname__}"
                folder = _kernel_folder(f"handwritten-{_SOURCES_DIGEST}", name)
                build = _callback(self.function, RANGED_SIGNATURE, self.options)
                self._owner = _compile(build, folder, self.name)
                self.loaded = self._owner.address
            return self.loaded


_declared: set[tuple[str, str]] = set()


def kernel(**options: Any) -> Callable[[Callable[..., None]], Handwritten]:
    """Declare a handwritten ranged kernel ``f(args, lo, hi, worker)``.

    Nothing is compiled until ``.address`` is read. Helpers it calls are plain ``@njit`` functions
    without ``cache`` in any module of ``numgrad.kernels``: all of them enter the folder's hash.
    ``options`` are Numba's (``fastmath={...}``), ``error_model`` is ``"numpy"`` unless given.

    Raises:
        ValueError: another kernel of the module has the name; they would share their files.
    """

    def declare(function: Callable[..., None]) -> Handwritten:
        key = (function.__module__, function.__qualname__)
        if key in _declared:
            raise ValueError(
                f"kernel: expected a name of its own for each kernel, got {key[1]!r} twice in "
                f"{key[0]}; set __name__ and __qualname__ of what a factory makes"
            )
        _declared.add(key)
        return Handwritten(function, options)

    return declare


def named(name: str, function: Callable[..., None], **options: Any) -> Handwritten:
    """Declare a factory's ``function`` as the kernel ``name``: the cache keeps it by its name."""
    function.__name__ = function.__qualname__ = name
    return kernel(**options)(function)


def describe() -> dict[str, Any]:
    """Where kernels are kept and how many there are, for ``numgrad env``."""
    folder = _folder()
    handwritten = folder / f"handwritten-{_SOURCES_DIGEST}"
    return {
        "folder": str(folder),
        "generated": sum(1 for _ in folder.glob("generated/*/*/*.nbi")),
        "handwritten": sum(1 for _ in handwritten.glob("*/*/*.nbi")),
        "bytes": sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()),
        "compiled_now": stats.compiled,
        "loaded_now": stats.hits,
    }
