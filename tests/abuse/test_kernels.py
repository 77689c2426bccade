"""Bad values in kernels: each argument of each statement is replaced by an invalid value.

Some of these values are valid in some places (an int for a float). None of them may cause a raw
exception, and every error names the kernel's line. ``tests/misuse`` has the exact texts for the
mistakes that people make.
"""

from __future__ import annotations

import linecache
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe.errors import NumpipeError, SimulationError

CALLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ds": ("numpipe.ds({0}, {1})", ("0", "64")),
    "ref.at": ("numpipe.load_tile(x.at[{0}, {1}])", ("numpipe.ds(0, 64)", "numpipe.ds(0, 64)")),
    "ref[]": ("z = x[{0}, {1}]", ("3", "4")),
    "store": ("y[numpipe.ds(0, 64), numpipe.ds(0, 64)] = {0}", ("tile",)),
    "store[]": ("y[{0}, numpipe.ds(0, 64)] = vec", ("3",)),
    "zeros": ("numpipe.zeros({0}, {1})", ("(64, 64)", "np.float32")),
    "full": ("numpipe.full({0}, {1}, {2})", ("(64, 64)", "1", "np.float32")),
    "iota": ("numpipe.iota({0}, {1})", ("(64, 64)", "0")),
    "astype": ("tile.astype({0})", ("np.float16",)),
    "bitcast": ("numpipe.bitcast({0}, {1})", ("tile", "np.int32")),
    "layout_cast": ("numpipe.layout_cast({0}, {1})", ("tile", "'rows'")),
    "load_tile": (
        "numpipe.load_tile({0}, {1}, {2})",
        ("x.at[numpipe.ds(0, 64), numpipe.ds(0, 64)]", "'coalesced'", "None"),
    ),
    "sum": ("tile.sum(axis={0}, keepdims={1})", ("1", "True")),
    "max": ("tile.max(axis={0})", ("1",)),
    "where": ("np.where({0}, {1}, {2})", ("tile > 0", "tile", "0.0")),
    "exp": ("np.exp({0})", ("tile",)),
    "fma": ("numpipe.fma({0}, {1}, {2})", ("tile", "tile", "tile")),
    "rsqrt": ("numpipe.rsqrt({0})", ("tile",)),
    "add": ("z = tile + {0}", ("tile",)),
    "pow": ("z = tile ** {0}", ("2",)),
    "cmp": ("z = tile > {0}", ("0",)),
    "neg": ("z = -({0})", ("tile",)),
    "and": ("z = (tile > 0) & ({0})", ("(tile > 1)",)),
    "partial_sum": ("numpipe.partial_sum({0})", ("tile",)),
    "scan": ("numpipe.scan({0}, {1}, {2})", ("lambda a, b: a + b", "tile", "1")),
    "cumsum": ("np.cumsum({0}, axis={1})", ("tile", "1")),
    "top_k": ("numpipe.top_k({0}, {1})", ("tile", "1")),
    "map_columns": ("numpipe.map_columns({0}, {1}, {2})", ("lambda c, t: t", "tile", "64")),
    "index": ("x[numpipe.index({0}, mode={1}), numpipe.ds(0, 64)]", ("3", "'clip'")),
    "atomic_add": (
        "numpipe.atomic_add({0}, {1})",
        ("y.at[numpipe.ds(0, 64), numpipe.ds(0, 64)]", "tile"),
    ),
    "wgmma": (
        "acc = numpipe.wgmma_wait(numpipe.wgmma({0}, {1}, {2}))",
        ("numpipe.zeros((64, 64), np.float32)", "half", "half.T"),
    ),
    "wgmma_wait": (
        "acc = numpipe.wgmma_wait({0}, {1})",
        ("numpipe.wgmma(numpipe.zeros((64, 64), np.float32), half, half.T)", "0"),
    ),
    "axis_index": ("numpipe.axis_index({0})", ("'wg'",)),
    "axis_size": ("numpipe.axis_size({0})", ("'wg'",)),
    "program_id": ("numpipe.program_id({0})", ("0",)),
    "num_programs": ("numpipe.num_programs({0})", ("0",)),
    "cdiv": ("numpipe.cdiv({0}, {1})", ("5", "2")),
    "planar_snake": ("numpipe.planar_snake({0}, {1}, {2}, {3})", ("0", "(4, 4)", "1", "2")),
    "scratch": ("numpipe.scratch({0})", ("numpipe.SMEM((64, 64), np.float32)",)),
    "SMEM": ("numpipe.scratch(numpipe.SMEM({0}, {1}))", ("(64, 64)", "np.float32")),
    "Barrier": ("numpipe.scratch(numpipe.Barrier({0}, {1}))", ("1", "1")),
    "run_scoped": (
        "numpipe.run_scoped({0}, {1})",
        ("lambda a: None", "numpipe.SMEM((64, 64), np.float32)"),
    ),
    "barrier_arrive": ("numpipe.barrier_arrive({0})", ("bar",)),
    "barrier_wait": ("numpipe.barrier_arrive(bar)\n    numpipe.barrier_wait({0})", ("bar",)),
    "barrier_test": ("numpipe.barrier_test({0})", ("bar",)),
    "g2s": (
        "numpipe.copy_gmem_to_smem({0}, {1}, {2})\n    numpipe.barrier_wait(bar)",
        ("x.at[numpipe.ds(0, 64), numpipe.ds(0, 64)]", "smem", "bar"),
    ),
    "s2g": (
        "numpipe.commit_smem()\n    numpipe.copy_smem_to_gmem({0}, {1}, reduction_op={2}, "
        "commit_group={3})\n    numpipe.wait_smem_to_gmem(0)",
        ("smem", "y.at[numpipe.ds(0, 64), numpipe.ds(0, 64)]", "None", "True"),
    ),
    "wait_smem": ("numpipe.wait_smem_to_gmem({0}, {1})", ("0", "False")),
    "async_prefetch": (
        "numpipe.async_prefetch({0})",
        ("x.at[numpipe.ds(0, 64), numpipe.ds(0, 64)]",),
    ),
    "set_max_registers": ("numpipe.set_max_registers({0}, action={1})", ("216", "'increase'")),
    "debug_print": ("numpipe.debug_print({0}, {1})", ("'{}'", "3")),
    "device_assert": ("numpipe.device_assert({0}, {1})", ("n > 0", "'no'")),
    "schedule_fence": ("numpipe.schedule_fence(after={0})", ("tile",)),
    "region": ("with numpipe.region({0}):\n        pass", ("'a'",)),
    "turn": ("with numpipe.turn({0}):\n        pass", ("'a'",)),
    "tiles": (
        "for i, j in numpipe.tiles({0}, {1}, order={2}, group={3}):\n        pass",
        ("2", "2", "'row'", "2"),
    ),
    "nd_loop": ("for i, j in numpipe.nd_loop(({0}, {1})):\n        pass", ("2", "2")),
    "range": ("for i in range({0}):\n        pass", ("2",)),
    "split_tiles": (
        "for i, j, part in numpipe.split_tiles({0}, 2, steps={1}, split={2}):\n        pass",
        ("2", "4", "1"),
    ),
    "pipeline": (
        "for (k,), (t,) in numpipe.pipeline(grid=({0},), in_specs=(numpipe.BlockSpec({1}, {2}),), "
        "max_concurrent_steps={3}, delay_release={4})({5}):\n        pass",
        ("1", "(64, 64)", "lambda k: (0, k)", "2", "0", "x"),
    ),
    "pipeline2": (
        "for (k,), (t,) in numpipe.pipeline(grid={0}, in_specs={1})(x):\n        pass",
        ("(1,)", "(numpipe.BlockSpec((64, 64), lambda k: (0, k)),)"),
    ),
    "slice": ("z = tile[{0}, {1}]", ("0:64", "0:32")),
    "reshape": ("vec.reshape({0}, {1})", ("1", "-1")),
    "call": ("{0}(tile)", ("np.exp",)),
    "attr": ("z = ({0}).shape", ("x",)),
    "subscript": ("z = ({0})[0]", ("(1, 2)",)),
    "while": ("while {0}:\n        break", ("n > 0",)),
    "if": ("if {0}:\n        pass", ("n > 0",)),
    "assert": ("assert {0}", ("n > 0",)),
    "min": ("min({0}, {1})", ("n", "2")),
    "int": ("int({0})", ("1.5",)),
    "len": ("len({0})", ("(1, 2)",)),
    "shape": ("z = x.shape[{0}]", ("0",)),
}
"""statements with placeholders for their arguments, and good arguments"""
VALUES = (
    "None",
    "'x'",
    "True",
    "-1",
    "1.5",
    "1 << 70",
    "(64, -8)",
    "{}",
    "ODD",
    "ARRAY",
    "numpipe",
    "(lambda i: i)",
    "tile",
    "bar",
    "x",
)
KERNEL = """
def bad_kernel(x, y, n=3):
    tile = x[numpipe.ds(0, 64), numpipe.ds(0, 64)]
    vec = tile.sum(axis=0)
    tiles = numpipe.SMEM((64, 64), np.float32), numpipe.SMEM((64, 64), np.float16)
    (smem, half), bar = numpipe.scratch((tiles, numpipe.Barrier()))
    smem[...] = tile
    half[...] = tile.astype(np.float16)
    {}
    y[numpipe.ds(0, 64), numpipe.ds(0, 64)] = tile
"""


def kernel(statement: str) -> Any:
    text, name = KERNEL.format(statement), f"<{statement}>"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    names: dict[str, Any] = {"numpipe": numpipe, "np": np, "ODD": object(), "ARRAY": np.ones(3)}
    exec(compile(text, name, "exec"), names)
    return numpipe.kernel(names["bad_kernel"])


def wrong(name: str, every: int = 1) -> Iterator[str]:
    """Return the statement with each of its arguments replaced by each bad value.

    With several arguments, neighbors get different parts of the bad values.
    """
    form, good = CALLS[name]
    every = every if len(good) > 1 else 1
    for place in range(len(good)):
        for value in VALUES[place % every :: every]:
            yield form.format(*good[:place], value, *good[place + 1 :])


def refuses(statement: str, call: Callable[[Any], Any]) -> bool:
    """Return whether calling the kernel raises an error, which must be numpipe's and name the
    statement."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(kernel(statement))
    except NumpipeError as error:
        assert "kernel bad_kernel" in str(error) or isinstance(error, SimulationError), statement
        # also as "called at", below a line of numpipe.planar_snake
        assert f"<{statement}>:" in str(error), str(error)
        return True
    return False


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "every",
    [pytest.param(1, marks=pytest.mark.soak), pytest.param(4, marks=pytest.mark.variants(4))],
)
@pytest.mark.parametrize("name", CALLS)
def test_bad_values_are_refused_at_the_kernels_line(
    name: str, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    x, y = np.ones((64, 64), np.float32), np.zeros((64, 64), np.float32)
    refused = sum(
        refuses(statement, lambda k: k.simulate(x, y)) for statement in wrong(name, every)
    )
    assert refused >= 3 * len(CALLS[name][1]) // every


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_compiled_bad_values_are_refused_at_the_kernels_line_too(name: str) -> None:
    x, y = np.ones((64, 64), np.float32), np.zeros((64, 64), np.float32)
    assert any([refuses(statement, lambda k: k.compiled(x, y)) for statement in wrong(name)])


def test_a_module_as_an_argument_is_refused_and_leaves_later_compiles_alone() -> None:
    x, y = np.ones((64, 64), np.float32), np.zeros((64, 64), np.float32)
    form, good = CALLS["tiles"]
    for _ in range(2):
        assert refuses(form.format("numpipe", *good[1:]), lambda k: k.compiled(x, y))
    assert not refuses(form.format(*good), lambda k: k.compiled(x, y))
