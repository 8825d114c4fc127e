"""Subroutines of handwritten kernels: functions that several kernels have in their own modules."""

import inspect
from typing import Any

import llvmlite.binding as llvm
from numba import types
from numba.core import compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic


def subroutine(function):
    """Let kernels call ``function``, which returns nothing; no ``njit`` and no Python wrapper.

    A helper made by ``njit`` is optimised as a library of its own, turned into machine code that
    nobody runs, and optimised again in each caller, so that what is nested three deep is done four
    times; and again for arguments that happen to be literals. This one is lowered once and becomes
    a function of the kernel's own module, which alone is optimised.
    """

    def call(typingctx, *args):
        def codegen(context, builder, signature, values):
            key = (function, signature.args)
            if key not in _lowered:
                _lowered[key] = _lower(context, function, signature)
            lowered = _lowered[key]
            _take_in(context.active_code_library, lowered.library)
            context.call_internal_no_propagate(builder, lowered.fndesc, signature, values)
            return context.get_dummy_value()

        return types.void(*(types.unliteral(arg) for arg in args)), codegen

    own = inspect.signature(function)
    first = inspect.Parameter("typingctx", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    call.__signature__ = own.replace(parameters=[first, *own.parameters.values()])
    call.__name__, call.__doc__ = function.__name__, function.__doc__
    return intrinsic(call)


_lowered: dict[Any, Any] = {}
"""The result of each function, for the types of its arguments."""


def _lower(context, function, signature):
    """``function`` as LLVM's intermediate code, in a library that is never finished."""
    flags = compiler.Flags()
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    with global_compiler_lock:
        library = context.codegen().create_library(function.__name__)
        return compiler.compile_internal(
            context.typing_context,
            context,
            library,
            function,
            signature.args,
            signature.return_type,
            flags,
            locals={},
        )


def _take_in(library, part) -> None:
    """Copy the functions of ``part`` into the module of ``library``."""
    assert not part._finalized, "a subroutine was compiled on its own: this Numba is too new"
    module = part._final_module.clone()
    for found in module.functions:
        if not found.is_declaration and found.linkage == llvm.Linkage.external:
            # Several callers may bring it along. Not linkonce: who calls it is not in the module
            # yet, so it would be dropped, and found in another kernel, of this process only.
            found.linkage = llvm.Linkage.weak_odr
            found.add_function_attribute("noinline")
    library._final_module.link_in(module)
    for other in part._linking_libraries:
        library.add_linking_library(other)
