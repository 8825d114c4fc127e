"""No silent gaps: every entry of the op table and every public function is compared somewhere."""

from typing import Any

import pytest

import numgrad
import numgrad.nn
from numgrad.graph.op import OPS
from tests_compare import (
    test_convolution,
    test_creation,
    test_elementwise,
    test_in_place,
    test_layers,
    test_losses,
    test_movement,
    test_normalization,
    test_optim,
    test_pooling,
    test_products,
    test_random,
    test_reductions,
)

CASES = [
    *test_elementwise.CASES,
    *test_in_place.CASES,
    *test_reductions.CASES,
    *test_products.CASES,
    *test_movement.CASES,
    *test_movement.INDEXED,
    *test_losses.CASES,
    *test_convolution.CASES,
    *test_pooling.CASES,
    *test_normalization.CASES,
]
OPS_ELSEWHERE: dict[str, Any] = {"dropout_at": test_random.test_dropout}
"""Entries that a test of another form runs (and asserts that it ran)."""

FUNCTIONS_ELSEWHERE: dict[str, Any] = {
    **dict.fromkeys(
        [
            *("tensor", "as_tensor", "from_numpy", "zeros", "ones", "full", "zeros_like"),
            *("ones_like", "full_like", "arange", "linspace", "eye"),
        ],
        test_creation.test_creation,
    ),
    **dict.fromkeys(["empty", "empty_like"], test_creation.test_empty_has_shape_and_dtype),
    **dict.fromkeys(
        ["rand", "randn", "rand_like", "randn_like", "bernoulli"],
        test_random.test_uniform_and_normal,
    ),
    "normal": test_random.test_normal_of_tensors,
    "randint": test_random.test_integers,
    "randperm": test_random.test_permutations,
    "dropout": test_random.test_dropout,
    **dict.fromkeys(
        ["manual_seed", "initial_seed", "get_rng_state", "set_rng_state", "Generator"],
        test_random.test_a_second_call_draws_other_numbers_and_a_seed_repeats,
    ),
    **dict.fromkeys(["mse_loss", "l1_loss"], test_products.test_regression_losses),
    **dict.fromkeys(["nll_loss", "cross_entropy"], test_products.test_classification_losses),
}

NAMES = {"add_scaled": "add", "add_product": "addcmul", "add_quotient": "addcdiv"}
"""Cases named by their entry, with the public name."""


@pytest.mark.parametrize("name", OPS)
def test_op_is_compared(name: str) -> None:
    """A case names the entry among those it must run; ``checks.check`` asserts that it did."""
    by_cases = {op for case in CASES for op in ([case.name] if case.ops is None else case.ops)}
    assert name in by_cases or name in OPS_ELSEWHERE, (
        f"the op {name} has no comparison with PyTorch; add a case that runs it"
    )


@pytest.mark.parametrize("name", numgrad.ops.__all__)
def test_function_is_compared(name: str) -> None:
    compared = {NAMES.get(case.name, case.name) for case in CASES}
    assert name in compared or callable(FUNCTIONS_ELSEWHERE.get(name)), (
        f"the function {name} has no comparison with PyTorch; add a case"
    )


# ------------------------------------------------------------------------------ layers and losses

NO_LAYERS: dict[str, Any] = {
    "Module": numgrad.nn.Module,
    "Parameter": numgrad.nn.Parameter,
    "StateDictError": numgrad.nn.StateDictError,
    "functional": numgrad.nn.functional,
    "init": test_layers.test_initial_values,
    "utils": test_optim.test_clip_grad_norm,
    **dict.fromkeys(
        ("ModuleList", "ModuleDict", "ParameterList", "ParameterDict"), test_layers.test_containers
    ),
    "Dropout2d": test_losses.test_channel_dropout,
}
"""Public names of ``nn`` that make no call of their own, or that a test of another form runs."""


def layers_made() -> set[str]:
    """The classes of the modules that the cases of layers make, whatever they are called there."""
    found = set()
    tables: list[dict[str, Any]] = [
        test_layers.LAYERS,
        test_convolution.LAYERS,
        test_normalization.LAYERS,
        test_pooling.LAYERS,
    ]
    for table in tables:
        for makes, *_ in table.values():
            for make in makes if isinstance(makes, list) else [makes]:
                found |= {type(module).__name__ for module in make(numgrad.nn).modules()}
    losses = {*test_layers.REGRESSION, *test_layers.CLASSIFICATION}
    return found | losses | {name for name, _ in test_losses.LAYERS}


def test_every_layer_is_compared() -> None:
    assert set(numgrad.nn.__all__) - layers_made() == set(NO_LAYERS)


def test_every_function_of_nn_is_compared() -> None:
    functional = numgrad.nn.functional
    names = {
        name
        for name, value in vars(functional).items()
        if callable(value) and getattr(value, "__module__", "").startswith(functional.__name__)
    }
    compared = {case.name for case in CASES} | set(test_layers.FUNCTIONAL)
    elsewhere = {"dropout2d"}  # a layer's: ``test_losses.test_channel_dropout``
    assert {name for name in names if name[0] != "_"} - compared == elsewhere
