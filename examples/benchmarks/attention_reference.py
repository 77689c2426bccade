"""References for attention: cuDNN, and an exact softmax in float64."""

from __future__ import annotations

import math
import random
from typing import Any

REFERENCE = "cuDNN"


class Cudnn:
    """cuDNN through torch's scaled_dot_product_attention, on sets of (q, k, v); it allocates
    results.

    Each group of `sharing` query heads has the same keys. Keys and values are copied for each head
    if torch has no kernel that shares them.
    """

    def __init__(self, sets: list[Any], causal: bool, sharing: int) -> None:
        self.sets, self.causal, self.shares = sets, causal, sharing > 1
        self.outs: list[Any] = [None] * len(sets)
        if self.shares:
            try:
                self(0)
            except RuntimeError as error:
                print(f"{REFERENCE}: k and v of shared heads are copied: {str(error)[:100]}")
                self.shares = False
                self.sets = [
                    (q, *(x.repeat_interleave(sharing, 1) for x in (k, v))) for q, k, v in sets
                ]

    def __call__(self, i: int) -> object:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        i %= len(self.sets)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            self.outs[i] = scaled_dot_product_attention(
                *self.sets[i], is_causal=self.causal, enable_gqa=self.shares
            )
        return self.outs[i]

    def poison(self) -> None:
        self.outs = [None] * len(self.outs)


def relative_error(
    q: Any, k: Any, v: Any, o: Any, causal: bool, *, rows: int = 64, heads: int = 8
) -> float:
    """Return ``|o - exact| / |exact|`` in the Frobenius norm, for samples of `rows` rows and
    `heads` heads."""
    import torch

    draw, above, below = random.Random(0), 0.0, 0.0
    every = [(batch, head) for batch in range(q.shape[0]) for head in range(q.shape[1])]
    order = torch.randperm(q.shape[2], generator=torch.Generator().manual_seed(0))
    chosen = order[:rows].to(q.device)
    for batch, head in draw.sample(every, min(heads, len(every))):
        shared = head // (q.shape[1] // k.shape[1])
        keys, values = (x[batch, shared].double() for x in (k, v))
        scores = q[batch, head, chosen].double() @ keys.T * q.shape[3] ** -0.5
        if causal:
            later = torch.arange(len(keys), device=q.device) > chosen[:, None]
            scores.masked_fill_(later, -math.inf)
        exact = torch.softmax(scores, dim=1) @ values
        above += float(((o[batch, head, chosen].double() - exact) ** 2).sum())
        below += float((exact**2).sum())
    return math.sqrt(above / below)
