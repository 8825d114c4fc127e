"""No silent gaps: every entry of the op table and every public function is compared somewhere."""

from typing import Any

import pytest

import numgrad
from numgrad.graph.op import OPS
from tests_compare import (
    test_convolution,
    test_creation,
    test_elementwise,
    test_in_place,
    test_losses,
    test_movement,
    test_normalization,
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
