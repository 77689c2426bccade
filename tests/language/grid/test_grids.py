"""Grids of any number of dimensions: none, or more than a GPU's three, which the launch
flattens."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, CompileError, CompilerParams, SpecError, ds
from tests.kernels.compilers import compiles

ROOM = (2, 3, 2, 4, 2)


@numpipe.function
def place_in(d):
    """Return the axes of the calling kernel, by name and by number."""
    return numpipe.axis_index("d") * 10 + numpipe.program_id(0) * numpipe.num_programs(4) - d * 10


def visited(grid: Any, names: Any = tuple("abcde")) -> Any:
    @numpipe.kernel(grid=grid, grid_names=names)
    def visits(out):
        a = numpipe.axis_index("a")
        b = numpipe.axis_index("b")
        c = numpipe.axis_index("c")
        d = numpipe.axis_index("d")
        e = numpipe.axis_index("e")
        by_number = (
            numpipe.program_id(0) == a
            and numpipe.program_id(1) == b
            and numpipe.program_id(2) == c
            and numpipe.program_id(3) == d
            and numpipe.program_id(4) == e
        )
        sizes = (
            ((numpipe.axis_size("a") * 10 + numpipe.num_programs(1)) * 10 + numpipe.num_programs(2))
            * 100
            + numpipe.axis_size("d") * 10
            + numpipe.num_programs(4)
        )
        number = (
            ((a * numpipe.num_programs(1) + b) * numpipe.num_programs(2) + c)
            * numpipe.num_programs(3)
            + d
        ) * numpipe.num_programs(4) + e
        if by_number and place_in(d) == a * numpipe.axis_size("e"):
            out[number, ds(0, 64), ds(0, 8)] = numpipe.full((64, 8), 1.0, np.float32) * sizes

    return visits


@pytest.fixture(autouse=True)
def simulated_only(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip compiling what is simulated, except in tests whose name mentions compiling; saves a
    second each."""
    if "compile" not in request.node.name:
        monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@pytest.fixture
def seen() -> np.ndarray:
    return np.zeros((np.prod(ROOM), 64, 8), np.float32)


@pytest.mark.variants(1)
@pytest.mark.parametrize("grid", [ROOM, lambda out: ROOM], ids=["constant", "function"])
def test_each_cta_has_its_place_along_every_axis(grid: Any, seen: np.ndarray) -> None:
    visited(grid).simulate(seen, seed=1)
    assert (seen == 23242).all()


@numpipe.kernel(grid=(2, 3, 4), grid_names=tuple("abc"))
def three(out):
    number = (numpipe.axis_index("a") * 3 + numpipe.axis_index("b")) * 4 + numpipe.program_id(2)
    out[number, ds(0, 64), ds(0, 8)] = numpipe.full((64, 8), 1.0, np.float32)


@compiles
def test_the_compiled_kernel_divides_the_index_along_x_by_sizes_that_it_is_given(
    seen: np.ndarray,
) -> None:
    """The sizes are parameters, so one compile serves grids of all sizes; a grid of three
    dimensions has none."""
    kernel = visited(lambda out: (2, 3, 2, 4, out.shape[0] // 48))
    ptx = kernel.inspect("ptx", seen)
    assert len(re.findall(r"(?:div|rem)\.[su]32", ptx)) >= 2 and "st.volatile.shared" in ptx
    assert kernel.inspect("gate", seen) == ()
    assert kernel.inspect("ptx", seen[:48]) == ptx
    assert "volatile.shared" not in three.inspect("ptx", seen)


def test_a_cluster_is_along_the_first_dimensions_of_any_grid() -> None:
    @numpipe.kernel(
        grid=(2, 1, 1, 3, 2), cluster=2, cluster_names="pair", grid_names=tuple("abcde")
    )
    def paired(x, out):
        a, d, e = numpipe.axis_index("a"), numpipe.axis_index("d"), numpipe.axis_index("e")
        pipe = numpipe.pipeline(
            grid=(1,),
            in_specs=(BlockSpec((64, 32), lambda k: (3 * e + d, k), collective_axes="pair"),),
        )
        for _, (tile,) in pipe(x):
            out[ds(((e * 3 + d) * 2 + a) * 64, 64), ds(0, 32)] = tile[...] + (
                numpipe.axis_index("pair") - a
            )

    x = np.random.default_rng(0).standard_normal((6 * 64, 32)).astype(np.float32)
    out = np.zeros((12 * 64, 32), np.float32)
    paired.simulate(x, out)
    np.testing.assert_array_equal(
        out.reshape(6, 2, 64, 32), np.repeat(x.reshape(6, 1, 64, 32), 2, 1)
    )


@pytest.mark.parametrize("grid", [(), lambda out: (), []], ids=["constant", "function", "list"])
def test_a_grid_of_no_dimensions_is_one_cta(grid: Any) -> None:
    @numpipe.kernel(grid=grid)
    def once(out):
        out[ds(0, 64), ds(0, 8)] = numpipe.full((64, 8), 1.0, np.float32) * (
            numpipe.num_programs(0) + numpipe.program_id(2)
        )

    out = np.zeros((64, 8), np.float32)
    once.simulate(out)
    assert (out == 1).all()


def over_tiles(grid: Any, index_map: Any, **options: Any) -> Any:
    block = BlockSpec((None, 64, 32), index_map)

    @numpipe.kernel(grid=grid, in_specs=block, out_specs=block, **options)
    def doubled(x, y):
        y[...] = x[...] + x[...]

    return doubled


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    "grid, index_map, options",
    [
        ((), lambda: (0, 0, 0), {}),
        ((2, 2, 1, 3), lambda i, j, k, m: ((i * 2 + j) * 3 + m, 0, k), {}),
        (lambda x: (2, 1, 2, x.shape[0] // 4), lambda i, j, k, m: ((i * 2 + k) * 3 + m, 0, j), {}),
        (
            lambda x: (2, 1, 1, 2, x.shape[0] // 4),
            lambda i, j, k, m, n: ((i * 2 + m) * 3 + n, j, k),
            {
                "compiler_params": CompilerParams(
                    dimension_semantics=("parallel",) * 4 + ("sequential",)
                )
            },
        ),
    ],
    ids=["none", "constant", "function", "steps"],
)
def test_a_kernel_over_tiles_may_have_no_dimensions_or_more_than_three(
    grid: Any, index_map: Any, options: Any
) -> None:
    x = (
        np.random.default_rng(0)
        .standard_normal((1 if grid == () else 12, 64, 32))
        .astype(np.float32)
    )
    y = np.zeros_like(x)
    over_tiles(grid, index_map, **options).simulate(x, y)
    np.testing.assert_array_equal(y, x + x)


@pytest.mark.parametrize(
    "options, text",
    [
        (
            {"grid": (2, 3, 4, -1)},
            "grid must be a tuple of non-negative ints, got (2, 3, 4, -1): dimension 3 is -1",
        ),
        (
            {"grid": (2, 3, 4, 1.0), "grid_names": tuple("abcd")},
            "got (2, 3, 4, 1.0): dimension 3 ('d') is 1.0",
        ),
        (
            {"grid": (1,) * 33},
            "grid must have at most 32 dimensions, got 33: merge several of them into one",
        ),
        (
            {"grid": (1 << 20, 1, 1, 1 << 12)},
            "4294967296 CTAs along dimensions 0, 3, which are launched along x together, at most "
            "2147483647 are possible: loop over numpipe.tiles",
        ),
        (
            {"grid": (1, 1 << 16, 1, 1), "grid_names": tuple("abcd")},
            "65536 CTAs along dimension 1 ('b'), at most 65535 are possible",
        ),
        (
            {"grid": (1, 1, 1, 1), "grid_names": tuple("abc")},
            "grid_names ('a', 'b', 'c') name 3 dimensions, but the grid (1, 1, 1, 1)",
        ),
        (
            {"grid": (), "cluster": 2},
            "the grid () has 0 dimensions, but a cluster (2, 1, 1) needs 1",
        ),
        (
            {"grid": (3, 1, 1, 2), "cluster": 2},
            "the grid has 3 CTAs along x, not a multiple of the 2 of a cluster",
        ),
    ],
)
def test_an_invalid_grid_is_refused_with_its_dimension(options: Any, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        numpipe.kernel(**options)(lambda_free)
    assert text in str(caught.value)


def lambda_free(out):
    out[ds(0, 64), ds(0, 8)] = numpipe.full((64, 8), 1.0, np.float32)


def test_a_function_that_returns_more_than_three_dimensions_has_a_name_for_each() -> None:
    text = (
        r"the grid \(1, 1, 1, 2\) has 4 dimensions, .* give the kernel grid_names=\('d0', 'd1', "
        r"'d2', 'd3'\)"
    )
    out = np.zeros((64, 8), np.float32)
    with pytest.raises(SpecError, match=text):
        numpipe.kernel(grid=lambda out: (1, 1, 1, 2))(lambda_free).simulate(out)
    with pytest.raises(SpecError, match="name 4 dimensions, but the grid"):
        numpipe.kernel(grid=lambda out: (1, 1), grid_names=("d0", "d1", "d2", "d3"))(
            lambda_free
        ).simulate(out)
    numpipe.kernel(grid=lambda out: (1, 1, 1, 1), grid_names=("d0", "d1", "d2", "d3"))(
        lambda_free
    ).simulate(out)
    assert (out == 1).all()


def test_a_dimension_that_the_grid_has_not_is_refused_at_its_line() -> None:
    @numpipe.kernel(grid=(1, 1, 1, 2))
    def beyond(out):
        out[ds(0, 64), ds(0, 8)] = numpipe.full((64, 8), 1.0, np.float32) * numpipe.program_id(4)

    out = np.zeros((64, 8), np.float32)
    for run in (beyond.simulate, beyond.compiled):
        with pytest.raises(
            CompileError,
            match=r"test_grids.py:\d+: kernel beyond: program_id\(4\): the grid has 4 dimensions",
        ):
            run(out)


def test_explain_counts_the_work_of_all_ctas(seen: np.ndarray) -> None:
    explained = numpipe.explain(visited(ROOM), seen)
    assert np.prod(explained.grid) == np.prod(ROOM) and explained.grid == (16, 3, 2)


# ---- several axes
def numbered(names: Any, rest: Any) -> Any:
    @numpipe.kernel(
        grid=(3, 2),
        grid_names=("m", "n"),
        cluster=(1, 2),
        cluster_names=("row", "pair"),
        num_compute_wgs=2,
    )
    def numbers(out):
        place = numpipe.axis_index(names) * numpipe.axis_size(rest) + numpipe.axis_index(rest)
        out[ds(place * 64, 64), ds(0, 8)] = numpipe.full(
            (64, 8), 1.0, np.float32
        ) * numpipe.axis_size(names)

    return numbers


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    "names, rest, size",
    [
        (("m", "n"), "wg", 6),
        (("wg", "n"), "m", 4),
        (("n", "wg", "m"), (), 12),
        ((), ("m", "pair", "wg"), 1),
        (("wg", "pair"), ("m",), 4),
    ],
    ids=str,
)
def test_the_index_over_several_axes_counts_each_place_once(
    names: Any, rest: Any, size: int, target: str
) -> None:
    out = np.zeros((12 * 64, 8), np.float32)
    numbered(names, rest)(out, target=target)
    assert (out == size).all()


def test_the_first_of_several_axes_is_the_slowest() -> None:
    @numpipe.kernel(grid=(3, 2), grid_names=("m", "n"))
    def places(out):
        m, n = numpipe.program_id(0), numpipe.program_id(1)
        rows = 64 // numpipe.axis_size(("wg",))  # known at compile time
        out[ds((m * 2 + n) * 64, rows), ds(0, 8)] = numpipe.full(
            (64, 8), 1.0, np.float32
        ) * numpipe.axis_index(("m", "n")) * 10 + numpipe.axis_index(("n", "m"))

    out = np.zeros((6 * 64, 8), np.float32)
    places.simulate(out)
    assert out[::64, 0].tolist() == [0, 13, 21, 34, 42, 55]


@pytest.mark.parametrize(
    "names, text",
    [
        (("m", "z"), "unknown axis 'z': the grid's axes are named 'm', 'n'"),
        (("m", "m"), r"each axis may be named only once, got \('m', 'm'\)"),
        (
            ("m", 1),
            "the name of an axis must be a compile-time string, or a tuple of them, got names",
        ),
    ],
)
def test_invalid_axes_are_refused_at_their_line(names: Any, text: str) -> None:
    @numpipe.kernel(grid=(3, 2), grid_names=("m", "n"))
    def refused(out):
        out[ds(0, 64), ds(0, 8)] = numpipe.full((64, 8), 1.0, np.float32) * numpipe.axis_index(
            names
        )

    for run in (refused.simulate, refused.compiled):
        with pytest.raises(CompileError, match=rf"test_grids.py:\d+: kernel refused: {text}"):
            run(np.zeros((64, 8), np.float32))
