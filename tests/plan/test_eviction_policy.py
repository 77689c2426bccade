"""The eviction policy of a BlockSpec: an L2 hint on the copies of that operand, and on no
others."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, BlockSpec, CompilerParams, ds

LOAD = r"cp\.async\.bulk\.tensor\.2d\.shared::cluster"
STORE = r"cp\.async\.bulk\.tensor\.2d\.global\.shared::cta"


@numpipe.kernel
def in_loop_form(
    a,
    b,
    o,
    *,
    first: numpipe.Static = None,
    second: numpipe.Static = None,
    stored: numpipe.Static = None,
):
    """Compute o = a + b, three operands with a policy each."""
    pipe = numpipe.pipeline(
        grid=(a.shape[1] // 64,),
        in_specs=(
            BlockSpec((64, 64), lambda k: (0, k), eviction_policy=first),
            BlockSpec((64, 64), lambda k: (0, k), eviction_policy=second),
        ),
        out_specs=(BlockSpec((64, 64), lambda k: (0, k), eviction_policy=stored),),
    )
    for _, (x, y, z) in pipe(a, b, o):
        z[...] = x[...] + y[...]


def over_tiles(first: Any, second: Any, out: Any) -> Any:
    """The same with the specs on the kernel."""

    def column(policy: Any) -> BlockSpec:
        return BlockSpec((64, 64), lambda k: (0, k), eviction_policy=policy)

    @numpipe.kernel(
        grid=lambda x, y: (x.shape[1] // 64,),
        in_specs=(column(first), column(second)),
        out_specs=(column(out),),
        out_type=lambda x, y: ArrayType(x.shape, x.dtype),
        compiler_params=CompilerParams(dimension_semantics=("sequential",)),
    )
    def add(x, y, z):
        z[...] = x[...] + y[...]

    return add


def ptx_of(form: str, policies: tuple[Any, Any, Any]) -> str:
    a = np.zeros((64, 128), np.float32)
    if form == "loop":
        return in_loop_form.inspect(
            "ptx", a, a, a, **dict(zip(("first", "second", "stored"), policies, strict=True))
        )
    return over_tiles(*policies).inspect("ptx", a, a)


def hints(ptx: str, statement: str) -> list[str]:
    """Return the policy of each copy of a kind, "" if it has none.

    A block of 64 x 64 float32 is two copies.
    """
    lines = [line for line in ptx.splitlines() if re.search(statement, line)]
    found = [
        re.search(
            r"createpolicy\.fractional\.L2::(\w+)\.b64 policy, 1\.0;.*\.L2::cache_hint .*, policy;",
            line,
        )
        for line in lines
    ]
    assert all(
        match or ("policy" not in line and "hint" not in line)
        for line, match in zip(lines, found, strict=True)
    )
    return [match[1] if match else "" for match in found]


@pytest.mark.variants(1)
@pytest.mark.parametrize("form", ["loop", "tiles"])
@pytest.mark.parametrize(
    "policies", [("evict_last", None, "evict_first"), ("evict_first", "evict_last", None)]
)
def test_each_copy_has_the_policy_of_its_block_in_ptx(
    form: str, policies: tuple[Any, Any, Any]
) -> None:
    ptx = ptx_of(form, policies)
    first, second, out = (policy or "" for policy in policies)
    assert hints(ptx, LOAD) == [first, first, second, second]
    # the last block's stores may be separate from the loop's
    assert hints(ptx, STORE) in ([out] * 2, [out] * 4)


def test_it_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    a, b = (np.random.default_rng(seed).standard_normal((64, 192), np.float32) for seed in (0, 1))
    o = np.zeros_like(a)
    in_loop_form.simulate(a, b, o, first="evict_first", second="evict_last", stored="evict_first")
    np.testing.assert_array_equal(o, a + b)
    np.testing.assert_array_equal(
        over_tiles("evict_last", None, "evict_first").simulate(a, b), a + b
    )


@pytest.mark.parametrize("policy", ["no_allocate", 1, ("evict_last",)])
def test_a_bad_policy_is_refused_where_the_spec_is_made(policy: Any) -> None:
    with pytest.raises(
        numpipe.SpecError,
        match=r"BlockSpec: eviction_policy must be 'evict_first', 'evict_last' or None, got",
    ):
        BlockSpec((64, 64), lambda k: (0, k), eviction_policy=policy)


@pytest.mark.variants(1)
@pytest.mark.parametrize("policy", [None, "evict_first"])
def test_stores_of_register_tiles_have_the_policy_of_the_kernel(policy: Any) -> None:
    @numpipe.kernel(compiler_params=CompilerParams(store_eviction_policy=policy))
    def zero(o):
        o[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    o = np.ones((64, 64), np.float32)
    assert hints(zero.inspect("ptx", o), STORE) == [policy or ""] * 2
    zero.simulate(o)
    assert not o.any()
