"""`numpipe.mma`: products by mma.sync and of float64, simulated and compiled; which elements the
lanes load."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import SMEM, Barrier, BlockSpec, CompilerParams, PipelineRace, SpecError, ds
from numpipe.arch.products import MMA_SYNC, MMA_SYNC_F64, Product
from numpipe.arch.targets import HOPPER
from numpipe.compile.check import gate
from numpipe.language.tiles import fragments
from numpipe.plan.layout import Layout, swizzled
from tests.kernels.compilers import compiles
from tests.kernels.product_kernels import (
    CASES,
    TYPES,
    arrays,
    by_mma_sync,
    by_wgmma,
    is_right,
    preferred,
)

MADE = {
    "float16": "HMMA.16816.F32",
    "bfloat16": "HMMA.16816.F32.BF16",
    "float32": "HMMA.1688.F32.TF32",
    "float64": "DMMA.16x8x16",
    "int8": "IMMA.16832.S8.S8",
    "uint8": "IMMA.16832.U8.U8",
    "float8_e4m3fn": "HMMA.16816.F32",
}


def _id(case: tuple[Any, ...]) -> str:
    return "-".join(map(str, case))


# ---- numbers
@pytest.mark.parametrize("case", CASES, ids=_id)
def test_products_are_numpys(case: tuple[str, bool, bool, bool]) -> None:
    name, a_by_k, b_by_k, moved = case
    assert is_right(name, (136, 72, 144), a_by_k, b_by_k, moved=moved, target="sim")


def test_the_error_bound_sees_a_product_left_out() -> None:
    def partly(a, b, c, **statics):
        a = a.copy()
        a[:, -1] = 0
        by_mma_sync.simulate(a, b, c, **statics)

    assert not is_right("float16", (128, 64, 64), kernel=partly)


def test_the_preferred_product_is_wgmma_where_it_takes_the_type() -> None:
    assert HOPPER.product_of(np.dtype(np.float16)) is HOPPER.products[0]
    assert HOPPER.product_of(np.dtype(np.float64)) is MMA_SYNC_F64
    for name in ("float16", "float64"):
        assert is_right(name, (128, 64, 64), kernel=preferred, target="sim")


# ---- code
@compiles
@pytest.mark.variants(3, thorough=len(CASES))
@pytest.mark.parametrize("case", CASES, ids=_id)
def test_machine_code_has_the_product(case: tuple[str, bool, bool, bool]) -> None:
    """The gate, which counts products, spills and local memory, finds nothing; operands come by
    ldmatrix, or by loads of 16 bytes."""
    name, a_by_k, b_by_k, moved = case
    tk = 128 // np.dtype(TYPES[name]).itemsize
    statics = dict(tm=128, tn=64, tk=tk, a_by_k=a_by_k, b_by_k=b_by_k, moved=moved)
    built = by_mma_sync.compiled(*arrays(name, 128, 64, tk, a_by_k, b_by_k)[0], **statics)
    assert gate.findings(built) == ()
    opcodes = set(re.findall(r"\b(?:[HID]MMA|[HIQ]GMMA|LDSM|LDS|STL|LDL)\.[\w.]+", str(built.sass)))
    assert MADE[name] in opcodes
    loads = {opcode for opcode in opcodes if opcode.startswith(("LDSM", "LDS."))}
    orders = {True: "LDSM.16.M88.4", False: "LDSM.16.MT88.4"}
    assert loads == ({"LDS.128"} if name == "float64" else {orders[a_by_k], orders[b_by_k]})


@compiles
def test_by_wgmma_it_compiles_to_wgmma() -> None:
    statics = dict(tm=128, tn=64, tk=64, a_by_k=True, b_by_k=True)
    built = by_wgmma.compiled(*arrays("float16", 128, 64, 64)[0], **statics)
    assert "HGMMA" in str(built.sass) and "HMMA" not in str(built.sass)


def test_the_gate_reports_another_product() -> None:
    """`Product.expected` of a statement differs for each shape and type."""
    assert MMA_SYNC.expected("16", "8", "16", "f16") == "HMMA 16816"
    assert MMA_SYNC.expected("16", "8", "8", "tf32") == "HMMA 1688"
    assert MMA_SYNC.expected("16", "8", "32", "s8") == "IMMA 16832"
    assert MMA_SYNC_F64.expected("16", "8", "16", "f64") == "DMMA 16x8x16"


# ---- fragments
LANE = np.arange(128)
FORMS = [
    (itemsize, width, inner, side)
    for itemsize, width, inner in (
        (2, 128, 1), (2, 64, 1), (2, 32, 1), (2, 128, 0), (2, 64, 0),
        (4, 128, 1), (1, 128, 1), (8, 128, 1),
    )
    for side in ("a", "b")
]  # fmt: skip


def _layout(itemsize: int, width: int, inner: int) -> Layout:
    """A tile of 128 rows along M or N, and at least two panels along K where it is K-major."""
    per = width // itemsize
    shape = (128, max(2 * per, 32)) if inner == 1 else (128, 32)
    stride = shape[1 - inner] * width
    return Layout(shape, itemsize, inner, width, stride)


def _elements(layout: Layout) -> np.ndarray:
    """The (row, column) of the element at each swizzled byte offset, in units of elements."""
    rows, columns = np.indices(layout.shape)
    offsets = layout.offset(rows, columns)
    panel = offsets // layout.panel_stride * layout.panel_stride
    at = panel + swizzled(offsets - panel, layout.width)
    found = np.full((layout.nbytes // layout.itemsize, 2), -1)
    found[at.ravel() // layout.itemsize] = np.stack([rows.ravel(), columns.ravel()], 1)
    return found


def _loaded(layout: Layout, side: Any, product: Product, row: int, column: int) -> np.ndarray:
    """(128 lanes, registers, elements of a register, 2): what `fragments` says that lanes load, by
    the instructions' own rules."""
    elements, size = _elements(layout), layout.itemsize
    start = fragments.start(layout, side, product.loads, LANE)

    def address(row: int, column: int) -> np.ndarray:
        xor, add = fragments.moved(layout, row, column)
        return (start ^ xor) + add

    if product.loads != "ldmatrix":
        downs = (0, 8) if side == "a" else (0,)
        parts = [
            [
                elements[address(row + down, column + half) // 8 + i]
                for half in (0, 2)
                for i in (0, 1)
            ]
            for down in downs
        ]
        return np.array(parts).reshape(-1, 128, 1, 2).swapaxes(0, 1)
    lines = address(row, column).reshape(4, 4, 8)  # warp, matrix, row
    chunk = elements[lines[..., None] // size + np.arange(16 // size)]  # (4, 4, 8, per chunk, 2)
    if layout.inner == 0:
        chunk = chunk.swapaxes(2, 3)
    per = 4 // size
    found = chunk.reshape(4, 4, 8, 4, per, 2).transpose(0, 2, 3, 1, 4, 5)
    return found.reshape(128, 4, per, 2)


def _expected(itemsize: int, side: str, row: int, column: int) -> np.ndarray:
    """The fragments of PTX ISA, "Matrix Fragments for mma.m16n8k16" and its siblings of 32 bytes
    along K."""
    per, lane, warp = 4 // itemsize, LANE % 32, LANE // 32
    found = np.zeros((128, 4, per, 2), int)
    for register in range(4):
        down, right = (
            (register % 2, register // 2) if side == "a" else (register // 2, register % 2)
        )
        found[:, register, :, 0] = (row + 16 * warp * (side == "a") + lane // 4 + 8 * down)[:, None]
        found[:, register, :, 1] = (
            column + (lane % 4 * per + 16 // itemsize * right)[:, None] + np.arange(per)
        )
    return found


@pytest.mark.parametrize("form", [*FORMS, (8, 64, 1, "a"), (8, 32, 1, "b")], ids=_id)
def test_lanes_load_the_fragments_of_the_instruction(form: tuple[int, int, int, str]) -> None:
    itemsize, width, inner, side = form
    layout = _layout(itemsize, width, inner)
    product = MMA_SYNC_F64 if itemsize == 8 else MMA_SYNC
    step, down = product.k_bytes // itemsize, 64 if side == "a" else 16
    for row, column in ((0, 0), (down, 0), (0, step), (down, step)):
        found = _loaded(layout, side, product, row, column)
        if itemsize < 8:
            np.testing.assert_array_equal(found, _expected(itemsize, side, row, column))
            continue
        # the order along K may be any, but one: lane t has 4 t … 4 t + 3
        slots = np.arange(4)[None] + 4 * (LANE % 4)[:, None] + column
        rows = row + LANE % 32 // 4 + 16 * (LANE // 32) * (side == "a")
        for half, part in enumerate(np.split(found[:, :, 0], len(found[0]) // 4, axis=1)):
            np.testing.assert_array_equal(part[..., 1], slots)
            np.testing.assert_array_equal(
                part[..., 0], np.broadcast_to((rows + 8 * half)[:, None], (128, 4))
            )


def _conflicts(addresses: np.ndarray, nbytes: int) -> int:
    """The most lanes of a phase that meet in a bank: phases move 128 bytes."""
    per = 128 // nbytes
    phases = addresses.reshape(-1, per)
    banks = (phases[..., None] + np.arange(0, nbytes, 4)) // 4 % 32
    return max(int(np.bincount(phase.ravel()).max()) for phase in banks)


@pytest.mark.parametrize("form", FORMS, ids=_id)
def test_no_two_lanes_meet_in_a_bank(form: tuple[int, int, int, str]) -> None:
    itemsize, width, inner, side = form
    loads = MMA_SYNC_F64.loads if itemsize == 8 else MMA_SYNC.loads
    assert _conflicts(fragments.start(_layout(itemsize, width, inner), side, loads, LANE), 16) == 1


def test_without_a_swizzle_they_would() -> None:
    for itemsize, loads in ((2, MMA_SYNC.loads), (8, MMA_SYNC_F64.loads)):
        plain = Layout((128, 16), itemsize, 1, 16 * itemsize, 128 * 16 * itemsize)
        start = fragments.start(plain, "b", loads, LANE)
        # what the swizzle moved goes back
        assert _conflicts(swizzled(start, plain.width), 16) > 1


# ---- hazards
def _loaded_by_hand(x, y, *, fixed: numpipe.Static):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
    if fixed:
        numpipe.barrier_wait(landed)
    acc = numpipe.mma(None, tile, tile)
    if not fixed:
        numpipe.barrier_wait(landed)
    y[ds(0, 64), ds(0, 64)] = acc


def _stored_by_other_warps(x, y, *, fixed: numpipe.Static):
    tile = numpipe.scratch(SMEM((64, 64), np.float16))
    tile[...] = x[ds(0, 64), ds(0, 64)]
    y[ds(0, 64), ds(0, 64)] = numpipe.mma(None, tile, tile)


def _run(function: Any, fixed: bool, unsafe: bool = False) -> np.ndarray:
    params = CompilerParams(product="mma.sync", unsafe_no_auto_barriers=unsafe)
    kernel = numpipe.kernel(grid=1, warp_specialized=False, compiler_params=params)(function)
    x, y = np.eye(64, dtype=np.float16), np.full((64, 64), np.nan, np.float32)
    for seed in (None, 1, 2):
        kernel.simulate(x, y, fixed=fixed, **({} if seed is None else {"seed": seed}))
    return y


def test_a_product_of_a_block_that_has_not_landed_is_a_race() -> None:
    with pytest.raises(PipelineRace, match="mma, a"):
        _run(_loaded_by_hand, fixed=False)
    np.testing.assert_array_equal(_run(_loaded_by_hand, fixed=True), np.eye(64))


def test_a_product_of_what_other_warps_store_needs_the_automatic_barrier() -> None:
    with pytest.raises(PipelineRace, match="mma, b"):
        _run(_stored_by_other_warps, fixed=False, unsafe=True)
    np.testing.assert_array_equal(_run(_stored_by_other_warps, fixed=True), np.eye(64))


# ---- errors
def _error(kernel: Any, name: str, changes: dict[str, Any], **orders: bool) -> str:
    given, _ = arrays(name, 128, 64, 128, **orders)
    statics = dict(tm=128, tn=64, tk=64, a_by_k=True, b_by_k=True) | orders | changes
    with pytest.raises(SpecError) as error:
        kernel.simulate(*given, **statics)
    assert "product_kernels.py:" in str(error.value)
    return str(error.value)


def test_errors_say_what_the_target_takes() -> None:
    text = _error(by_wgmma, "float64", {"tk": 16})
    assert "but wgmma of sm_90a multiplies only " in text
    assert "fix: leave out CompilerParams(product='wgmma'), mma.sync multiplies float64" in text
    assert "K a multiple of 16" in _error(by_mma_sync, "float64", {"tk": 8})
    assert "must be K-major" in _error(by_mma_sync, "float64", {"tk": 16}, b_by_k=False)
    assert "must be K-major" in _error(by_mma_sync, "int8", {"tk": 64}, b_by_k=False)


def test_wgmma_is_refused_where_another_product_is_named() -> None:
    @numpipe.kernel(compiler_params=CompilerParams(product="mma.sync"))
    def short(a, b, c):
        pipe = numpipe.pipeline(
            grid=(1,),
            in_specs=(BlockSpec((64, 64), lambda k: (0, 0)), BlockSpec((64, 64), lambda k: (0, 0))),
        )
        acc = numpipe.zeros((64, 64), np.float32)
        for (_,), (a_tile, b_tile) in pipe(a, b):
            acc = numpipe.wgmma(acc, a_tile, b_tile.T)
        c[numpipe.ds(0, 64), numpipe.ds(0, 64)] = acc

    given, _ = arrays("float16", 64, 64, 64)
    with pytest.raises(SpecError, match=r"fix: write numpipe\.mma\(acc, a, b\)"):
        short.simulate(*given)


def test_an_unknown_product_is_refused() -> None:
    with pytest.raises(SpecError, match="product must be '', 'wgmma' or 'mma.sync'"):
        CompilerParams(product="hmma")
