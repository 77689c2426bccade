"""`scaled_dot_product_attention`, which is called like PyTorch's: its masks as functions of
`numpipe.ops.attention`, and its layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...core.functions import function
from ...diagnostics.errors import SpecError
from ...ops import attention as declared
from .dispatch import check_tensors
from .torch_ops import torch_op

NAME = "scaled_dot_product_attention"
attention = torch_op(declared).front


@function
def added(score, batch, head, query, key, bias):  # type: ignore[no-untyped-def]
    return score + bias[batch, head, query, key].astype(np.float32)


@function
def shown(batch, head, query, key, visible):  # type: ignore[no-untyped-def]
    return visible[batch, head, query, key] != 0


@function
def shown_in_heads(batch, head, query, key, visible):  # type: ignore[no-untyped-def]
    return visible[batch, query, key] != 0


@function
def shown_in_all(batch, head, query, key, visible):  # type: ignore[no-untyped-def]
    return visible[query, key] != 0


def _functions_of(attn_mask: Any, query: Any, key: Any) -> dict[str, Any]:
    """Return the `score` or `mask` option for a mask of PyTorch. Heads that share a mask share its
    list of blocks, and so do batches."""
    shape, adds = (*query.shape[:-1], key.shape[-2]), attn_mask.is_floating_point()
    try:
        x = (attn_mask if adds else attn_mask.byte()).expand(shape)
    except RuntimeError as error:
        raise SpecError(
            f"{NAME}: attn_mask {tuple(attn_mask.shape)} cannot be broadcast to {shape}; fix: give "
            "it the shape (…, heads, queries, keys), or 1 where it is the same for all"
        ) from error
    x = x.unsqueeze(1) if x.ndim == 3 else x.flatten(0, -4)
    if adds:
        return {"score": (added, x)}
    if x.stride(1):
        return {"mask": (shown, x)}
    return {"mask": (shown_in_heads, x[:, 0]) if x.stride(0) else (shown_in_all, x[0, 0])}


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Return ``softmax(scale * query @ key.T) @ value`` for each head, as
    `torch.nn.functional.scaled_dot_product_attention` does.

    query       (…, Hq, L, E) of float16 or bfloat16, E up to 256; three dimensions (N, L, E) mean a
                single head
    key, value  (…, H, S, E) of the query's type; Hq must be H, or with enable_gqa a multiple of H
    attn_mask   of a shape that can be broadcast to (…, Hq, L, S): bool, whether a query sees a
                key, or floating point, added to the scores
    dropout_p   probability of dropping a weight; PyTorch's generator of the device gives the seed
    is_causal   row i of the query sees keys 0 to i
    scale       by default 1 / sqrt(E)
    enable_gqa  allow each head of key and value to serve Hq / H heads of the query

    The call is a single node in graphs of `torch.compile` and `torch.export` and runs on the
    current stream. There are gradients of query, key and value, but not of attn_mask. A query that
    sees no key gives 0. Raises SpecError for an attn_mask that requires a gradient, and if shapes,
    types or devices do not match. Source: PyTorch's documentation of the function,
    `numpipe.ops.attention`.

    >>> q = torch.randn(2, 8, 100, 64).bfloat16()
    >>> scaled_dot_product_attention(
    ...     q, q[:, :2], q[:, :2], is_causal=True, enable_gqa=True
    ... ).shape
    torch.Size([2, 8, 100, 64])
    """
    try:
        batch = -3 if query.ndim > 3 else -2
        if (
            not query.ndim == key.ndim >= 3
            or query.shape[:batch] != key.shape[:batch]
            or key.shape != value.shape
            or query.shape[-1] != key.shape[-1]
        ):
            raise SpecError(
                f"{NAME}: query is {tuple(query.shape)}, key {tuple(key.shape)}, value "
                f"{tuple(value.shape)}: all must have the same number of dimensions, three or "
                "more, (…, heads, length, depth), batches and depths must be equal, and key and "
                "value must have one shape; fix: expand(), transpose() or pad the arrays before "
                "the call"
            )
        heads, shared = query.shape[-3], key.shape[-3]
        if query.ndim > 3 and heads != shared and not enable_gqa:
            raise SpecError(
                f"{NAME}: query has {heads} heads, key {shared}; fix: pass "
                "enable_gqa=True if each key head serves several query heads"
            )
        q, k, v = (x.unsqueeze(1) if x.ndim == 3 else x.flatten(0, -4) for x in (query, key, value))
        given = {} if attn_mask is None else _functions_of(attn_mask, query, key)
        if dropout_p:
            seed = torch.randint(1 << 31, (1,), dtype=torch.int32, device=query.device)
            given |= {"dropout": dropout_p, "seed": seed}
        # the result and the gradients have the query's memory layout, so callers need no copies
        heads_inside = q.stride(1) < q.stride(2)
        if heads_inside:
            (q, k, v), given["layout"] = (x.transpose(1, 2) for x in (q, k, v)), "bshd"
        made = attention(q, k, v, causal=is_causal, scale=scale, **given)
        made = made.transpose(1, 2) if heads_inside else made
        return made if query.ndim == 4 else made.reshape(query.shape)
    except Exception:
        # report user errors in PyTorch's terms first
        check_tensors(NAME, query=query, key=key, value=value)
        raise
