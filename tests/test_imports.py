"""Imports point one way, and `import numgrad` needs Numba and NumPy alone.

The same order stands in pyproject.toml for import-linter; here it needs nothing but `ast`.
"""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = [  # top to bottom; numgrad itself, which re-exports everything, stands above them all
    {"__main__"},
    {"cli"},
    {"models", "summary"},
    {"nn", "optim", "distributions", "data", "checkpoint"},
    {"tensor", "variable", "typed", "ops", "function", "autograd", "memory", "cuda", "backends"},
    {"graph"},
    {"kernels"},
    {"errors", "version"},
]
DEPTH = {name: depth for depth, layer in enumerate(LAYERS) for name in layer}
ALLOWED = {"numgrad", "numba", "llvmlite", "numpy", "__future__"} | set(sys.stdlib_module_names)
MAX_LINES = 600

MODULES = {}  # "numgrad.graph.op" -> its path
for path in sorted((ROOT / "numgrad").rglob("*.py")):
    parts = path.relative_to(ROOT).with_suffix("").parts
    MODULES[".".join(parts).removesuffix(".__init__")] = path


def imports(module, path):
    """Yield (line, imported module, whether the import runs when this module is imported)."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]

    def visit(node, lazy):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.orelse:
                yield from visit(child, lazy)
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, lazy
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                start = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*start, base]).rstrip(".")
            for alias in node.names:  # `from numgrad import graph` imports a module, too
                yield node.lineno, f"{base}.{alias.name}", lazy
        lazy = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            yield from visit(child, lazy)

    yield from visit(ast.parse(path.read_text(encoding="utf-8"), str(path)), False)


@pytest.mark.parametrize("module", MODULES)
def test_layers(module):
    if module == "numgrad":
        return
    own = module.split(".")[1]
    assert own in DEPTH, f"numgrad.{own} has no place: add it to LAYERS and to pyproject.toml"
    for line, target, _ in imports(module, MODULES[module]):
        if target.split(".")[0] != "numgrad":
            continue
        name = target.split(".")[1] if "." in target else ""
        where = f"{MODULES[module].relative_to(ROOT)}:{line} imports {target}"
        if own != "cli":  # the command line is a user like any other
            assert name in DEPTH, f"{where}: import from the module that defines it"
            assert DEPTH[own] <= DEPTH[name], f"{where}, which stands above numgrad.{own}"


@pytest.mark.parametrize("module", MODULES)
def test_module_level_imports(module):
    for line, target, lazy in imports(module, MODULES[module]):
        where = f"{MODULES[module].relative_to(ROOT)}:{line} imports {target}"
        assert lazy or target.split(".")[0] in ALLOWED, f"{where}: do so in the function"
        if target.startswith("numba.cuda"):
            assert module.startswith("numgrad.kernels.cuda"), f"{where} outside kernels/cuda"


@pytest.mark.parametrize("module", MODULES)
def test_length(module):
    length = len(MODULES[module].read_text(encoding="utf-8").splitlines())
    assert length <= MAX_LINES, f"{MODULES[module].relative_to(ROOT)} has {length} lines: split it"


def test_import_linter_has_the_same_layers():
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = tables["tool"]["importlinter"]["contracts"]
    layers = [{name.strip(" ()") for name in layer.split(":")} for layer in contract["layers"]]
    assert layers == LAYERS


def test_planted_violations(tmp_path):
    source = "if TYPE_CHECKING:\n    import torch\nfrom ..nn import functional\n"
    source += "try:\n    import scipy\nexcept ImportError:\n    pass\n"
    source += "def f():\n    from numgrad import tensor\n"
    path = tmp_path / "op.py"
    path.write_text(source)
    assert list(imports("numgrad.graph.op", path)) == [
        (3, "numgrad.nn.functional", False),
        (5, "scipy", False),
        (9, "numgrad.tensor", True),
    ]


# ------------------------------------------------------------------------------------------ circles

CIRCLES = {
    # A DeviceArray is assigned to by a kernel, and a kernel is launched on DeviceArrays.
    ("numgrad.kernels.cuda.array", "numgrad.kernels.cuda.launch"),
    # Results are of classes that the methods of those classes make.
    ("numgrad.autograd", "numgrad.tensor", "numgrad.variable"),
}
"""Modules that need each other, by imports that wait in functions. There shall be no others."""


def circles(graph):
    """The sets of more than one module that reach each other (Tarjan 1972), as sorted tuples."""
    order, low, stack, found = {}, {}, [], set()

    def visit(module):
        order[module] = low[module] = len(order)
        stack.append(module)
        for target in graph[module]:
            if target not in order:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], order[target])
        if low[module] == order[module]:
            at = stack.index(module)
            members = stack[at:]
            del stack[at:]
            if len(members) > 1:
                found.add(tuple(sorted(members)))

    for module in graph:
        if module not in order:
            visit(module)
    return found


def test_circles():
    graph = {}
    for module, path in MODULES.items():
        targets = set()
        for _, target, _ in imports(module, path):
            while target and target not in MODULES:
                target = target.rpartition(".")[0]
            targets.add(target)
        graph[module] = targets - {module, ""}
    assert circles(graph) == CIRCLES
    assert circles({"a": "bc", "b": "c", "c": "a", "d": "a"}) == {("a", "b", "c")}
