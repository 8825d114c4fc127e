"""Devices: the stories of ``tests/cuda_sim/test_device*.py`` in Numba's simulator, and what is said
where there is no GPU."""

from tests.cuda_sim.runs import simulate, without_gpu

CALLS = """
import sys
BLOCKED = {blocked!r}
if BLOCKED:
    sys.modules["numba_cuda"] = None
import numgrad
from numgrad import cuda, nn
assert not cuda.is_available() and cuda.device_count() == 0
if BLOCKED:
    assert not any(name.startswith("numba.cuda") for name in sys.modules)
x = numgrad.ones(2)
for call in (
    lambda: x.cuda(),
    lambda: x.cuda(0),
    lambda: x.to("cuda:1"),
    lambda: x.to(numgrad.device("cuda"), numgrad.float64),
    lambda: x.type(cuda.FloatTensor),
    lambda: x.type("torch.cuda.FloatTensor"),
    lambda: cuda.FloatTensor(2, 3),
    lambda: nn.Linear(2, 2).cuda(),
    lambda: nn.Linear(2, 2).to("cuda"),
    lambda: nn.Linear(2, 2).type(cuda.FloatTensor),
    lambda: nn.Linear(2, 2, device="cuda"),
    lambda: numgrad.zeros(2, device="cuda"),
    lambda: numgrad.tensor([1.0], device="cuda"),
    lambda: numgrad.arange(3, device="cuda"),
    lambda: numgrad.eye(3, device="cuda"),
    lambda: numgrad.randn(3, device="cuda"),
    lambda: numgrad.randperm(3, device="cuda"),
    lambda: cuda.current_device(),
    lambda: cuda.synchronize(),
    lambda: cuda.get_device_properties(0),
    lambda: cuda.memory_allocated(),
    lambda: numgrad.memory.stats("cuda"),
):
    try:
        call()
    except RuntimeError as error:
        print(error)
    else:
        raise AssertionError("no error")
"""


def test_stories_of_a_device():
    parts = ("test_device", "test_device_graph", "test_device_modules")
    assert simulate(*(f"tests/cuda_sim/{part}.py" for part in parts)) >= 27


def test_without_a_driver():
    """Each call says in one sentence that the driver is missing and the simulator is off."""
    lines = without_gpu(CALLS.format(blocked=False)).splitlines()
    assert len(lines) == 22
    for line in lines:
        op, _, rest = line.partition(": ")
        assert op and rest == (
            "expected a CUDA device, got none; the NVIDIA driver or the GPU is missing, and "
            "Numba's simulator is not on: stay on the CPU, or set NUMBA_ENABLE_CUDASIM=1 before "
            "Python starts"
        )
    assert lines[0].startswith("cuda: ") and lines[-1].startswith("memory.stats: ")


def test_without_the_package():
    """Each call names the extra to install; nothing of numba.cuda was imported to find out."""
    lines = without_gpu(CALLS.format(blocked=True)).splitlines()
    assert len(lines) == 22
    for line in lines:
        assert line.endswith(
            ": expected a CUDA device, got none; the package numba-cuda is not installed: "
            "pip install 'numgrad-jit[cuda]'"
        )


BROKEN = """
import sys
sys.modules["cuda"] = None  # NVIDIA's bindings, which numba-cuda needs
import numgrad
assert not numgrad.cuda.is_available() and numgrad.cuda.device_count() == 0
try:
    numgrad.ones(2).cuda()
except numgrad.cuda.NoDeviceError as error:
    print(error)
"""


def test_without_the_bindings():
    """What numba-cuda raises when it is imported is told, and no reason to end."""
    line = without_gpu(BROKEN)
    assert line.startswith(
        "cuda: expected a CUDA device, got none; numba-cuda cannot be imported (ImportError: "
    )
    assert line.endswith("): pip install 'numgrad-jit[cuda]' again\n")


def test_import_leaves_cuda_alone():
    out = without_gpu(
        "import sys, numgrad; numgrad.ones(2).exp(); "
        "print([n for n in sys.modules if n.startswith(('numba.cuda', 'numba_cuda', 'cuda'))])"
    )
    assert [n for n in eval(out) if "redirector" not in n] == []
