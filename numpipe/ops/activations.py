"""Activation functions that a product's epilogue applies to the float32 sums while they are in
registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.functions import function
from ..diagnostics.argument_checks import NONE, Rule, word
from ..language.tiles.mathematics import sigmoid


@function
def relu(x):  # type: ignore[no-untyped-def]
    """Return max(x, 0)."""
    return np.maximum(x, 0.0)


@function
def silu(x):  # type: ignore[no-untyped-def]
    """Return x * sigmoid(x)."""
    return x * sigmoid(x)


@function
def gelu(x):  # type: ignore[no-untyped-def]
    """Return the tanh approximation of x * Phi(x)."""
    return 0.5 * x * (1.0 + np.tanh(0.7978845608 * x * (1.0 + 0.044715 * x * x)))


ACTIVATIONS: dict[Any, Callable] = {"relu": relu, "silu": silu, "gelu": gelu}
"""activations by name"""
ACTIVATION = NONE | word(*ACTIVATIONS) | Rule(("a numpipe.function of a float32 tile",), callable)
"""accepted values of `activation=`"""
