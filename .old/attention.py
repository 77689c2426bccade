"""`numpipe.torch.scaled_dot_product_attention`: `numpipe.ops.attention` as an op, called as
PyTorch's is."""

from __future__ import annotations

from typing import Any

import torch

from ... import ops
from ...diagnostics.errors import SpecError
from .dispatch import check_tensors, define, differentiated, direct, under_autocast, under_autograd

__all__ = ["scaled_dot_product_attention"]

_NAME = "scaled_dot_product_attention"
_LIBRARY = torch.library.Library("numpipe", "FRAGMENT")


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
    """Return ``softmax(scale * query @ key.T) @ value`` of each head, as
    `torch.nn.functional.scaled_dot_product_attention` does.

    query       (…, Hq, L, E), of float16 or of bfloat16, E up to 256; with three dimensions (N, L,
                E) there is one head
    key, value  (…, H, S, E), of the query's type; Hq is H, or with enable_gqa a multiple of it
    attn_mask   only None
    dropout_p   only 0
    is_causal   row i of the query sees the keys 0 to i
    scale       by default 1 / sqrt(E)
    enable_gqa  a head of key and value serves Hq / H heads of the query

    It stands in one graph of `torch.compile` and `torch.export` and runs on the current stream.
    Raises SpecError for what it does not have, masks, dropout and gradients, and for shapes, types
    and devices that do not fit. Source: PyTorch's documentation of the function,
    `numpipe.ops.attention`.

    >>> q = torch.randn(2, 8, 100, 64).bfloat16()
    >>> scaled_dot_product_attention(
    ...     q, q[:, :2], q[:, :2], is_causal=True, enable_gqa=True
    ... ).shape
    torch.Size([2, 8, 100, 64])
    """
    if attn_mask is not None:
        raise SpecError(
            f"{_NAME}: attn_mask is given, which it does not take: pass is_causal=True for a "
            f"causal one, else call torch.nn.functional.{_NAME}"
        )
    if dropout_p != 0:
        raise SpecError(
            f"{_NAME}: dropout_p = {dropout_p}, which it does not have: pass dropout_p=0.0, as "
            f"evaluation does, else call torch.nn.functional.{_NAME}"
        )
    if (
        direct(query, key, value)
        and not differentiated(query, key, value)
        and query.ndim == key.ndim == 4
        and (enable_gqa or query.shape[1] == key.shape[1])
    ):
        try:
            return ops.attention(query, key, value, causal=is_causal, scale=scale)
        except Exception:
            # what is wrong may be PyTorch's
            check_tensors(_NAME, query=query, key=key, value=value)
            _shape(query, key, value)
            raise
    check_tensors(_NAME, query=query, key=key, value=value)
    if (
        query.ndim > 3
        and not enable_gqa
        and key.ndim == query.ndim
        and query.shape[-3] != key.shape[-3]
    ):
        raise SpecError(
            f"{_NAME}: query has {query.shape[-3]} heads, key {key.shape[-3]}: pass "
            "enable_gqa=True if each of these serves several of those"
        )
    return torch.ops.numpipe.attention.default(query, key, value, is_causal, scale)


# ---- the op
def _run(
    query: Any, key: Any, value: Any, is_causal: bool = False, scale: float | None = None
) -> Any:
    shape = _shape(query, key, value)
    arrays = [_with_heads(tensor) for tensor in (query, key, value)]
    return ops.attention(*arrays, causal=is_causal, scale=scale).reshape(shape)


def _fake(
    query: Any, key: Any, value: Any, is_causal: bool = False, scale: float | None = None
) -> Any:
    check_tensors(_NAME, query=query, key=key, value=value)
    return query.new_empty(_shape(query, key, value))


def _with_heads(tensor: Any) -> Any:
    """Return a tensor with four dimensions: batch, head, row, column."""
    return (
        tensor.unsqueeze(1)
        if tensor.ndim == 3
        else tensor
        if tensor.ndim == 4
        else tensor.flatten(0, -4)
    )


def _shape(query: Any, key: Any, value: Any) -> tuple[Any, ...]:
    """Return the result's shape. Raises SpecError for shapes and types that do not fit, in
    PyTorch's words."""
    shapes = f"query is {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if not query.ndim == key.ndim == value.ndim >= 3:
        raise SpecError(
            f"{_NAME}: {shapes}: all must have the same three dimensions or more, (…, heads, "
            "length, depth)"
        )
    if (
        query.dtype not in (torch.float16, torch.bfloat16)
        or not query.dtype == key.dtype == value.dtype
    ):
        raise SpecError(
            f"{_NAME}: query is {query.dtype}, key {key.dtype}, value {value.dtype}: all must be "
            "torch.float16 or all torch.bfloat16; convert them, or run under torch.autocast"
        )
    batch = -3 if query.ndim > 3 else -2
    if (
        query.shape[:batch] != key.shape[:batch]
        or key.shape != value.shape
        or query.shape[-1] != key.shape[-1]
    ):
        raise SpecError(
            f"{_NAME}: {shapes}: batches must be equal, key and value of one shape, all of the "
            "same depth; expand(), transpose() or pad them before the call"
        )
    if batch == -3 and query.shape[-3] % key.shape[-3]:
        raise SpecError(
            f"{_NAME}: {shapes}: the heads of the query, {query.shape[-3]}, must be a multiple of "
            f"the key's, {key.shape[-3]}"
        )
    return tuple(query.shape)


def _refused(*args: Any) -> None:
    raise SpecError(
        f"{_NAME}: an argument requires a gradient, and this op has no backward pass yet: call it "
        f"under torch.no_grad() or torch.inference_mode(), or torch.nn.functional.{_NAME}, which "
        "has one"
    )


def _over_batch(info: Any, in_dims: Any, query: Any, key: Any, value: Any, *rest: Any) -> Any:
    """The op along one more dimension, which is another batch."""
    tensors = [
        tensor.movedim(dim, 0) if dim is not None else tensor.expand(info.batch_size, *tensor.shape)
        for tensor, dim in zip((query, key, value), in_dims, strict=False)
    ]
    if tensors[0].ndim == 4:  # of three dimensions the first is no head
        return _op(*(tensor.unsqueeze(2) for tensor in tensors), *rest).squeeze(2), 0
    return _op(*tensors, *rest), 0


_op = define(
    _LIBRARY,
    "attention(Tensor query, Tensor key, Tensor value, bool is_causal=False, float? scale=None) "
    "-> Tensor",
    _run,
    _fake,
)
under_autograd(_LIBRARY, _op, _refused)
under_autocast(_LIBRARY, _op)
torch.library.register_vmap("numpipe::attention", _over_batch, lib=_LIBRARY)
