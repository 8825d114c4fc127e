import pytest

import numgrad
from numgrad.kernels import winograd


def test_switch_and_flags():
    cpu = numgrad.backends.cpu
    assert cpu.allow_winograd is True
    with cpu.flags(allow_winograd=False):
        assert not cpu.allow_winograd and not winograd.enabled
        with cpu.flags(allow_winograd=True):
            assert winograd.enabled
        assert not winograd.enabled
    with pytest.raises(KeyError), cpu.flags(allow_winograd=False):
        raise KeyError
    assert winograd.enabled
    cpu.allow_winograd = False
    assert not winograd.enabled
    cpu.allow_winograd = True


@pytest.mark.parametrize("value", [1, None, "no"])
def test_bad_input(value):
    with pytest.raises(TypeError, match=r"backends\.cpu: expected a bool for allow_winograd, got"):
        numgrad.backends.cpu.allow_winograd = value
    assert numgrad.backends.cpu.allow_winograd is True
