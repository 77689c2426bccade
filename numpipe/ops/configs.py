"""Configs of `numpipe.ops.matmul`, and the choice of one by the sizes of a product.

`choose` returns the config that is predicted to be the fastest; `space` returns the best-ranked
ones, for `numpipe.autotune` to measure. The predictions come from `numpipe.ops.choice`.
"""

from .choice.ranking import choose, space
from .choice.ways import Config

__all__ = ["Config", "choose", "space"]
