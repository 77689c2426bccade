"""The machine code of numpipe's kernels, as users get it: LTO-IR through nvJitLink, no GPU needed.

`numpipe.compile.check.gate` has the rules. Here every shipped kernel, and every other form of a
kernel, passes them, and each rule is shown to fail on a kernel that breaks it.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import gemm as example
import numpipe
from numpipe import ArrayType, BlockSpec, CompilerParams, ds
from numpipe.arch.targets import HOPPER
from numpipe.compile.build import toolchain
from numpipe.compile.built import Built
from numpipe.compile.check import gate
from numpipe.core.op import helper
from numpipe.errors import SpecError
from numpipe.plan import resources
from numpipe.plan.roles import COMPUTE, MEMORY
from tests.kernels.compilers import compiles
from tests.kernels.kernels_for_tests import (
    BF16,
    F16,
    F32,
    Config,
    by_trip_count,
    gemm,
    gemm_by_table,
    nested_gemm,
    product_type,
)

if toolchain() is None:
    from numba import cuda

pytestmark = compiles

T16, TB, T32 = (ArrayType((256, 256), d) for d in (F16, BF16, F32))
TABLE = ArrayType((4, 2), np.int32)


def columns(dtype: np.dtype) -> np.ndarray:
    """Return an array whose first dimension is contiguous."""
    return np.zeros((256, 128), dtype, order="F")


class OddRows:
    """An array on a GPU whose rows of 7 elements TMA cannot address."""

    def __init__(self, dtype: np.dtype) -> None:
        self.__cuda_array_interface__ = {
            "shape": (64, 7),
            "typestr": dtype.str,
            "data": (1 << 20, False),
            "strides": None,
            "version": 3,
        }


@dataclasses.dataclass(frozen=True)
class Case:
    """A kernel, the types of its arguments, and what its code must contain."""

    kernel: Any
    args: tuple[Any, ...]
    cfg: Any
    products: str
    registers: tuple[int, int] = (168, 232)
    """at entry, and per compute lane after setmaxnreg"""
    maps: int = 3
    transposed: str = ""


CASES = {
    "examples/gemm.py f16": Case(example.matmul, (T16, T16), example.Config(), "64x256x16.F32"),
    "examples/gemm.py bf16": Case(example.matmul, (TB, TB), example.Config(), "64x256x16.F32.BF16"),
    "3 slots, f16": Case(gemm(), (T16, T16), Config(slots=3), "64x256x16.F32"),
    "delay_release 1": Case(gemm(), (T16, T16), Config(delay=1), "64x256x16.F32"),
    "a M-major": Case(
        gemm(), (columns(F16), T16), Config(tn=128), "64x128x16.F32", transposed="tnspA"
    ),
    "b N-major": Case(
        gemm(), (TB, columns(BF16)), Config(tn=128), "64x128x16.F32.BF16", transposed="tnspB"
    ),
    "float32 output": Case(gemm(), (TB, TB, T32), Config(), "64x256x16.F32.BF16"),
    "output TMA cannot address": Case(
        gemm(), (T16, T16, OddRows(F16)), Config(tn=128), "64x128x16.F32", maps=2
    ),
    "host table": Case(gemm_by_table(), (T16, T16, TABLE, T16), Config(), "64x256x16.F32"),
    "nested pipelines": Case(nested_gemm(), (T16, T16), Config(tn=128, slots=2), "64x128x16.F32"),
    "trip counts by tile": Case(
        by_trip_count(), (T16, T16, TABLE, T32), Config(tn=64), "64x64x16.F32"
    ),
    "1 compute warpgroup": Case(
        gemm(1), (T16, T16), Config(tm=64, tn=128), "64x128x16.F32", (255, 256)
    ),
    "3 compute warpgroups": Case(
        gemm(3), (T16, T16), Config(tm=192, tn=128), "64x128x16.F32", (128, 152)
    ),
}


POOL = ThreadPoolExecutor(1)


@functools.cache
def built(name: str) -> Built:
    case = CASES[name]
    return case.kernel.compiled(*case.args, cfg=case.cfg)


@functools.cache
def disassembly(name: str) -> Future[str]:
    return POOL.submit(lambda: built(name).sass)


def sass_text(name: str) -> str:
    return disassembly(name).result()


@pytest.fixture(scope="module", autouse=True)
def compiled_ahead(request):
    """Compile the next kernel while one is disassembled: nvdisasm takes nearly as long as a
    compile."""
    asked = [
        item.callspec.params.get("name")
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    for name in dict.fromkeys(asked):
        if name in CASES:
            disassembly(name)


@functools.cache
def sass(name: str) -> gate.Sass:
    return gate.Sass(sass_text(name), HOPPER)


@functools.cache
def ptx(name: str) -> str:
    return built(name).ptx


SOAK = ("examples/gemm.py bf16", "3 slots, f16", "delay_release 1")
"""the others here are bfloat16; test_covering_array.py compiles slots and delays"""
each_kernel = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak) if name in SOAK else name for name in CASES]
)
# small, and compiled anyway: the basis of the tests of broken code
PLAIN = "1 compute warpgroup"


# ---- every kernel --------------------------------------------------------------------------------
@pytest.mark.variants(1, thorough=4)
@each_kernel
def test_kernel_passes_the_build_gate(name):
    sass_text(name)
    assert gate.findings(built(name)) == ()


@pytest.mark.variants(2, thorough=3)
@each_kernel
def test_kernel_uses_the_registers_it_says(name):
    case, kernel = CASES[name], built(name)
    used = kernel.image.resources
    assert used.clean and (used.registers, used.compute_registers, used.memory_registers) == (
        *case.registers,
        40,
    )
    memory = gate.highest_register(gate.role_code(sass(name), MEMORY))
    assert 0 < memory <= 24, f"the memory role needs {memory} registers: it used to do with 16"
    assert f"USETMAXREG.DEALLOC.CTAPOOL {40:#x}" in sass_text(name)
    assert f"USETMAXREG.TRY_ALLOC.CTAPOOL UP0, {case.registers[1]:#x}" in sass_text(name)


@pytest.mark.variants(2)
@each_kernel
def test_kernel_loads_multiplies_and_stores_with_the_units_of_the_sm(name):
    case, code = CASES[name], sass(name)
    memory, compute = gate.role_code(code, MEMORY), gate.role_code(code, COMPUTE)
    products = [i for i in compute if i.opcode.startswith("HGMMA")]
    assert {i.opcode for i in products} == {f"HGMMA.{case.products}"}
    assert {" ".join(re.findall("tnsp.", i.text)) for i in products} == {case.transposed}
    assert any(i.opcode.startswith("UTMALDG.2D") for i in memory)
    assert any(i.opcode.startswith("SYNCS.ARRIVE") for i in memory) and any(
        i.opcode.startswith("SYNCS.ARRIVE") for i in compute
    )
    by_tma = case.maps == 3
    assert any(i.opcode.startswith("UTMASTG.2D") for i in compute) == by_tma
    assert any(i.opcode.startswith("STG") for i in compute) != by_tma
    assert not any(re.match(r"HGMMA|WARPGROUP|ST[GSL]|RED|ATOM", i.opcode) for i in memory)


@pytest.mark.thorough
def test_an_output_that_tma_cannot_address_is_written_by_rows():
    """Each lane of 64 x 128 has two panels of 16 rows, which an instruction writes whole, in pairs,
    or by halves.

    Nothing is written in the accumulator's layout.
    """
    name = "output TMA cannot address"
    stores = Counter(
        i.opcode
        for i in gate.role_code(sass(name), COMPUTE)
        if re.match(r"ST[GS]|UTMASTG", i.opcode)
    )
    assert stores == {"STG.E": 2 * 16, "STG.E.U16": 2 * 32, "STSM.16.M88.4": 2 * (2 * 4)}


@pytest.mark.variants(2)
@each_kernel
def test_kernel_takes_its_tensor_maps_in_one_parameter(name):
    assert re.findall(r"\.param \.align 64 \.b8 \w+\[(\d+)\]", ptx(name)) == [
        str(128 * CASES[name].maps)
    ]
    assert ".local" not in ptx(name)


@pytest.mark.parametrize("name", ["3 slots, f16", "examples/gemm.py f16"])
def test_slots_are_divided_by_a_constant(name):
    """A division by a run-time value is a call or a chain of 20 instructions; neither role's loops
    have any."""
    assert "div.u64" not in ptx(name) and "div.s64" not in ptx(name)
    assert not sass(name).find(r"CALL")


def test_inspect_shows_what_the_gate_finds():
    case = CASES[PLAIN]
    assert case.kernel.inspect("gate", *case.args, cfg=case.cfg) == ()


# ---- every rule, broken --------------------------------------------------------------------------
@helper
def nothing():
    pass


def simple(statement: Callable[[], Any] = nothing) -> Any:
    """Return a kernel that does something extra in each step."""

    @numpipe.kernel(out_type=product_type)
    def kernel(a, b, c):
        acc = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(
            grid=(a.shape[1],),
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
        )
        for (k,), (a_tile, b_tile) in pipe(a, b):
            acc = numpipe.wgmma(acc, a_tile, b_tile.T)
            statement()
        c[ds(0, 64), ds(0, 64)] = acc.astype(c.dtype)

    return kernel


def broken(
    built_: Built, *, sass_: str | None = None, ptx_: str | None = None, log: str | None = None
) -> Built:
    """Return a compiled kernel with another text for its code."""
    used = resources.of(built_.unit, built_.log if log is None else log, 0, {})
    copy = dataclasses.replace(built_, image=dataclasses.replace(built_.image, resources=used))
    copy.sass = sass_text(PLAIN) if sass_ is None else sass_
    copy.ptx = ptx(PLAIN) if ptx_ is None else ptx_
    return copy


@numpipe.kernel(
    grid=(1,), num_compute_wgs=2, compiler_params=CompilerParams(allow_serialized_wgmma=True)
)
def two_accumulators(a, b, c, d):
    """Each accumulator fits a lane's registers, both together do not."""
    wg = numpipe.axis_index("wg")
    left, right = numpipe.zeros((64, 256), np.float32), numpipe.zeros((64, 256), np.float32)
    pipe = numpipe.pipeline(
        grid=(4,),
        in_specs=(BlockSpec((128, 64), lambda k: (0, k)), BlockSpec((256, 64), lambda k: (0, k))),
    )
    for (k,), (a_tile, b_tile) in pipe(a, b):
        left = numpipe.wgmma(left, a_tile.at[ds(wg * 64, 64), :], b_tile.T)
        right = numpipe.wgmma(right, a_tile.at[ds(64 - wg * 64, 64), :], b_tile.T)
    c[ds(wg * 64, 64), ds(0, 256)] = left
    d[ds(wg * 64, 64), ds(0, 256)] = right


@pytest.mark.thorough
def test_spills_are_found():
    found = gate.findings(two_accumulators.compiled(T16, T16, T32, T32))
    assert any(
        re.match(r"[1-9]\d* bytes of spills, [1-9]\d* bytes of stack", line) for line in found
    )
    assert any("C7511" in line for line in found)
    assert any(line.startswith("local memory: ") and "STL" in line for line in found)
    assert any(
        re.match(r"waits that leave 0 groups .*: 8, 4 in the PTX: .*WARPGROUP\.DEPBAR", line)
        for line in found
    )
    assert any(
        re.match(r"beginnings of groups .*: 8, 2 in the PTX: .*WARPGROUP\.ARRIVE", line)
        for line in found
    )


@pytest.mark.parametrize(
    ("line", "instead", "finding"),
    [
        (
            "WARPGROUP.DEPBAR.LE gsb0, 0x0 ;",
            "{0}\n{0}",
            "waits that leave 0 groups of products in flight: 4, 3 in the PTX: ",
        ),
        (
            "WARPGROUP.DEPBAR.LE gsb0, 0x0 ;",
            "WARPGROUP.DEPBAR.LE gsb0, 0x2 ;",
            "waits that leave 2 groups of products in flight: 1, 0 in the PTX: ",
        ),
        ("WARPGROUP.ARRIVE ;", "{0}\n{0}", "beginnings of groups of products: 2, 1 in the PTX: "),
    ],
    ids=["one more", "another one", "a group more"],
)
def test_a_wait_for_products_that_were_not_issued_is_found(line, instead, finding):
    whole = next(whole for whole in sass_text(PLAIN).splitlines() if line in whole)
    new = instead.format(whole) if "{0}" in instead else whole.replace(line, instead)
    found = gate.findings(broken(built(PLAIN), sass_=sass_text(PLAIN).replace(whole, new, 1)))
    assert [each.partition("among them")[0] for each in found] == [finding]


def test_an_unrolled_loop_has_its_waits_as_often_as_its_products():
    once = [line for line in sass_text(PLAIN).splitlines() if re.search(r"HGMMA|WARPGROUP", line)]
    assert list(gate.waits(gate.Sass("\n".join(once * 2), HOPPER), ptx(PLAIN))) == []
    waits = [line for line in once if "DEPBAR" in line]
    assert len(list(gate.waits(gate.Sass("\n".join(once * 2 + waits), HOPPER), ptx(PLAIN)))) == 1


def test_a_kernel_without_launch_bounds_is_found(monkeypatch):
    from numpipe.core.numba import kernel_compiler

    jit = kernel_compiler.cuda.jit
    monkeypatch.setattr(
        kernel_compiler,
        "cuda",
        types.SimpleNamespace(jit=lambda f, launch_bounds, **options: jit(f, **options)),
    )
    kernel = simple().compiled(T16, T16)
    assert any("C7508" in line for line in gate.resources(kernel))
    assert any(
        line.startswith("launch bounds: .maxntid missing, expected 256")
        for line in gate.launch_bounds(kernel, kernel.ptx)
    )
    assert "the roles are not there: no setmaxnreg in the code" in gate.findings(kernel)


@pytest.mark.thorough
def test_a_lone_commit_is_found():
    from numpipe.intrinsics import wgmma

    found = gate.findings(simple(wgmma.commit_group).compiled(T16, T16))
    assert any("a product nobody asked for" in line and "HGMMA.64x8x16" in line for line in found)


@pytest.mark.thorough
def test_a_memory_barrier_beyond_the_cta_is_found():
    @helper
    def fence():
        cuda.threadfence()

    found = gate.findings(simple(fence).compiled(T16, T16))
    assert any(
        re.match(r"a memory barrier beyond the CTA: .*MEMBAR\.\w+\.GPU", line) for line in found
    )


def sass_of(kernel: Any) -> str:
    """Return the code of a function of a tensor map and a number, as Numba compiles it."""
    from numpipe.core import numba as nb

    library = nb.compile_kernel(
        kernel, (nb.types.int64, nb.types.int32), threads=256, target=HOPPER
    )._codelibrary
    return nb.disassemble(nb.link(nb.to_ltoir(library, HOPPER), "kernel", HOPPER)[0])


def test_a_lane_elected_by_its_number_is_found():
    """ptxas cannot know that one lane is left, and loops over all of them."""
    from numpipe.intrinsics import cp_async_bulk, mbarrier

    def kernel(tensor_map, steps):
        if cuda.threadIdx.x % 128 == 0:
            for step in range(steps):
                mbarrier.arrive_expect_tx(1024 + 8 * step, 8192)
                cp_async_bulk.load(2048 + 8192 * step, tensor_map, (0, step), 1024 + 8 * step)

    code = gate.Sass(sass_of(kernel), HOPPER)
    assert code.find("UTMALDG")
    assert any("BRA.U.ANY" in line for line in gate.waterfalls(code))


def test_converging_lanes_are_not_a_loop_but_a_local_copy_is():
    """If lanes may diverge, ptxas has them converge off the main path.

    The code is WARPSYNC.COLLECTIVE, the instruction, ENDCOLLECTIVE.
    """

    def kernel(tensor_map, steps):
        lane = cuda.threadIdx.x
        for step in range(steps):
            if lane + step < steps:
                if cuda.all_sync(0xFFFFFFFF, lane < step):
                    cuda.syncthreads()
                if cuda.shfl_down_sync(0xFFFFFFFF, lane, 1) == step:
                    cuda.syncwarp(0xFFFFFFFF)

    text = sass_of(kernel)
    code = gate.Sass(text, HOPPER)
    met = {
        code.instructions[code.instructions.index(each) + 1].opcode
        for each in code.find("WARPSYNC.COLLECTIVE")
    }
    # NOP: the lanes have converged, which is all that bar.warp.sync does
    assert met == {"VOTE.ALL", "SHFL.DOWN", "NOP"}
    assert list(gate.waterfalls(code)) == []
    looped = gate.Sass(text.replace("VOTE.ALL P0, P0 ;", "UTMALDG.2D [UR12], [UR10] ;", 1), HOPPER)
    [found] = gate.waterfalls(looped)
    assert found.startswith("a loop over the active lanes: ") and "WARPSYNC.COLLECTIVE" in found


@pytest.mark.variants(1)
@pytest.mark.parametrize("how", ["a copy", "a pointer"])
def test_tensor_maps_outside_the_parameters_are_found(how, monkeypatch):
    from numpipe.core import numba as nb

    marked = nb.grid_constant

    def unmarked(builder: Any, value: Any, align: int = 64) -> Any:
        if how == "a copy":  # by value, but not constant: NVVM copies it to local memory
            marked(builder, value, align)
            builder.module.namedmetadata["nvvm.annotations"].operands.pop()
        return value

    monkeypatch.setattr(nb, "grid_constant", unmarked)
    kernel = simple().compiled(T16, T16)
    found = list(gate.tensor_maps(kernel, kernel.ptx))
    expected = {
        "a copy": "a copy's tensor map %rd|tensor maps are read: ld.param",
        "a pointer": "tensor maps: expected one parameter",
    }
    assert any(re.match(expected[how], line) for line in found), found


def test_a_read_of_a_tensor_map_is_found():
    table = re.search(r"\.param .*\.b8 (\w+)\[", ptx(PLAIN))
    assert table is not None
    text = ptx(PLAIN).replace(
        "\tmov.u32 ", f"\tld.param.u64 \t%rd99, [{table[1]}+8];\n\tmov.u32 ", 1
    )
    found = list(gate.tensor_maps(built(PLAIN), text))
    assert len(found) == 1 and found[0].startswith("tensor maps are read: ld.param.u64")


def test_swapped_roles_are_found():
    swapped = (
        sass_text(PLAIN)
        .replace("TRY_ALLOC", "?")
        .replace("DEALLOC", "TRY_ALLOC")
        .replace("?", "DEALLOC")
    )
    found = gate.findings(broken(built(PLAIN), sass_=swapped))
    assert any(
        re.match(r"the memory role needs \d+ registers, it keeps 40", line) for line in found
    )
    assert any(
        line.startswith("not the memory role's business: ") and "HGMMA" in line for line in found
    )
    assert any(
        line.startswith("not the compute role's business: ") and "UTMALDG" in line for line in found
    )
    assert any(line.startswith("setmaxnreg DEALLOC of [256], expected one of 40") for line in found)


@pytest.mark.parametrize(
    ("unit", "finding"),
    [
        ("UTMALDG", "no UTMALDG in the memory role"),
        ("UTMASTG", "no UTMASTG or UTMAREDG in the compute role"),
        ("HGMMA", "no HGMMA 64x128x16, although the PTX has it"),
        ("SYNCS.PHASECHK", "no SYNCS.PHASECHK in the memory role"),
    ],
)
def test_a_missing_unit_of_the_sm_is_found(unit, finding):
    code = re.sub(re.escape(unit), "NOP.", sass_text(PLAIN))
    assert any(re.match(finding, line) for line in gate.findings(broken(built(PLAIN), sass_=code)))


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        (
            "Used 255 registers",
            "Used 168 registers",
            "168 registers at entry; 256 threads share the register file at 255",
        ),
        ("0 bytes spill stores", "8 bytes spill stores", "8 bytes of spills, 0 bytes of stack"),
        ("0 bytes stack", "16 bytes stack", "0 bytes of spills, 16 bytes of stack"),
        (
            "ptxas info    : Used",
            "ptxas info : (C7514) Potential Performance Loss: wgmma\nUsed",
            "C7514",
        ),
    ],
)
def test_every_line_of_the_compilers_log_is_read(old, new, finding):
    log = built(PLAIN).log
    assert log.count(old) == 1 and built(PLAIN).image.resources.clean
    bad = broken(built(PLAIN), log=log.replace(old, new))
    assert any(finding in line for line in gate.findings(bad))
    assert bad.image.resources.clean == ("at entry" in finding)


def test_accumulators_that_no_lane_can_hold_are_a_spec_error():
    kernel = numpipe.kernel(
        out_type=product_type, num_compute_wgs=3, wg_axis="wg", memory_registers=32
    )(gemm(3).function)
    with pytest.raises(
        SpecError, match="matmul: register budget: its 512 threads start with 128 registers each"
    ):
        kernel.compiled(T16, T16, cfg=Config(tm=192, slots=3))


# ---- the reader of SASS --------------------------------------------------------------------------
FLOW = """
        /*0000*/                   USETMAXREG.DEALLOC.CTAPOOL 0x28 ;
        /*0010*/              @!P0 BRA `(.L_x_2) ;
        /*0020*/                   CALL.REL.NOINC `(helper) ;
        /*0030*/                   BRA.U UP0, `(.L_x_3) ;
        /*0040*/                   EXIT ;
.L_x_1:
        /*0050*/                   MOV R90, R2 ;
        /*0060*/                   EXIT ;
.L_x_2:
        /*0070*/               @P0 EXIT ;
        /*0080*/                   BRA `(.L_x_2) ;
.L_x_3:
        /*0090*/                   LDG.E.64 R6, desc[UR4][R8.64] ;
        /*00a0*/                   EXIT ;
helper:
        /*00b0*/                   MOV R10, R12 ;
        /*00c0*/                   RET.REL.NODEC R4 `(.L_x_1) ;
"""


def test_reachable_code_follows_branches_and_calls_and_nothing_else():
    code = gate.role_code(gate.Sass(FLOW, HOPPER), MEMORY)
    assert [i.address for i in code] == [
        0x00,
        0x10,
        0x20,
        0x30,
        0x40,
        0x70,
        0x80,
        0x90,
        0xA0,
        0xB0,
        0xC0,
    ]
    assert gate.highest_register(code) == 13


# ---- Numba's kernel, and concurrent compiles -------------------------------------------------
def test_a_compiled_kernel_is_shown_without_its_machine_code_and_source():
    shown = repr(built(PLAIN))
    assert shown.startswith(f"Built(image=Image(name={built(PLAIN).image.name!r}")
    for text in ("cubin=", "log=", "source=", r"\x7fELF"):
        assert text not in shown


def test_numbas_kernel_object_is_there_with_its_own_inspect_methods():
    kernel = built(PLAIN).kernel
    assert f".entry {built(PLAIN).image.entry}" in kernel.inspect_lto_ptx((9, 0))
    assert "target triple" in kernel.inspect_llvm()
    (signature,) = kernel.dispatcher.overloads
    assert len(signature) == len(kernel.argument_types) > 3
    assert kernel.dispatcher.inspect_llvm()[signature] == kernel.inspect_llvm()


def normal(built_: Built, text: str) -> str:
    return text.replace(built_.image.entry, "ENTRY")


@pytest.mark.thorough
def test_compiling_again_gives_the_same_code_at_once_and_after_other_kernels():
    def again() -> Built:
        return gemm.__wrapped__(1).compiled(*CASES[PLAIN].args, cfg=CASES[PLAIN].cfg)

    first = built(PLAIN)
    second = again()
    for last in ("1", "2", "3"):  # each with one more grid axis, which this kernel does not have
        by_axes("n", "m", last).compiled(T16)
    for other in (second, again()):
        assert other is not first and other.unit.serial != first.unit.serial
        assert normal(other, other.ptx) == normal(first, ptx(PLAIN))
        assert other.image.resources == first.image.resources


@helper
def row_of_this_cta():
    return numpipe.axis_index("m")


@functools.cache
def by_axes(*names: str) -> Any:
    @numpipe.kernel(
        out_type=lambda a: ArrayType((256, 256), a.dtype),
        grid=(2, 4, 1)[: len(names)],
        grid_names=names,
    )
    def kernel(a, c):
        tile = numpipe.zeros((64, 64), np.float32) + 1.0
        c[ds(row_of_this_cta() * 64, 64), ds(numpipe.axis_index("n") * 64, 64)] = tile.astype(
            c.dtype
        )

    return kernel


@pytest.mark.variants(1)
@pytest.mark.parametrize(("names", "register"), [(("m", "n"), "x"), (("n", "m"), "y")])
def test_a_shared_helper_reads_the_axis_of_the_kernel_it_is_called_from(names, register):
    """An axis is a symbol that each kernel's entry defines; the row is the last coordinate in
    PTX."""
    text = by_axes(*names).compiled(T16).ptx
    row = re.search(r"\{%r\d+, (%r\d+)\}\], \[%r\d+\];", text[text.index("cp.async.bulk.tensor") :])
    assert row is not None
    defined = dict(re.findall(r"^\s*\S+\s+(%r\d+), ([^;]+);", text, re.MULTILINE))
    value = defined[row[1]]
    while not value.startswith("%ctaid"):
        value = defined[value.split(",")[0]]
    assert value == f"%ctaid.{register}"
    rows, columns_ = (2, 4) if register == "x" else (4, 2)
    c = by_axes(*names).simulate(np.zeros((1, 8), F16))
    assert (
        (c[: 64 * rows, : 64 * columns_] == 1).all()
        and np.isnan(c[64 * rows :]).all()
        and np.isnan(c[:, 64 * columns_ :]).all()
    )


def test_the_indices_of_a_step_take_no_division() -> None:
    @numpipe.kernel(grid=(1,))
    def copy(x, y):
        pipe = numpipe.pipeline(
            grid=(x.shape[0] // 64, x.shape[1] // 64),
            in_specs=(BlockSpec((64, 64), lambda i, j: (i, j)),),
        )
        for (i, j), (tile,) in pipe(x):
            y[ds(i * 64, 64), ds(j * 64, 64)] = tile[...]

    assert not re.search(r"\b(div|rem)\.", copy.inspect("ptx", T16, T16))
