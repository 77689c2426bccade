"""Each intrinsic, in a plain Numba kernel, compiles to the PTX statement that it is named after.

All of them share two kernels, generated from the table below: one calls them by position, one by
keyword.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numba.cuda", reason="compiling needs numba-cuda, which exists for Linux only")
pytest.importorskip("cuda.bindings.nvjitlink")

from numpipe import intrinsics
from numpipe.arch.targets import HOPPER
from numpipe.core import numba as nb
from numpipe.core.op import Op
from numpipe.errors import SpecError
from numpipe.intrinsics import (
    cp_async_bulk,
    elect,
    fence,
    mbarrier,
    setmaxnreg,
    special,
    stmatrix,
    wgmma,
)

R, RD, F = r"%r\d+", r"%rd\d+", r"%f\d+"
FAMILIES = {name: getattr(intrinsics, name) for name in intrinsics.__all__}
#: what the kernels below may name: their parameters (run-time values)
PARAMETERS = {
    "out": nb.types.int64[::1],
    "outf": nb.types.float32[::1],
    "addr": nb.types.int32,
    "bar": nb.types.int32,
    "i": nb.types.int32,
    "big": nb.types.int64,
    "tmap": nb.types.uint64,
    "ptr": nb.types.int64,
    "x": nb.types.float32,
    "y": nb.types.float64,
}


@dataclass(frozen=True)
class Case:
    operation: str
    arguments: tuple[str, ...]
    ptx: str

    @property
    def op(self) -> Any:
        family, name = self.operation.split(".")
        return getattr(FAMILIES[family], name)

    def call(self, keywords: bool) -> str:
        names = inspect.signature(self.op.function).parameters
        given = [
            f"{name}={value}" if keywords else value
            for name, value in zip(names, self.arguments, strict=False)
        ]
        return f"{self.operation}({', '.join(given)})"


def wait_loop(name: str) -> str:
    return (
        rf"mbarrier\.{name}\.parity\.shared::cta\.b64 done, \[{R}\], {R}; selp\.b32 {R}, 1, 0, "
        r"done;"
    )


def load(rank: int, coords: str) -> str:
    return (
        rf"cp\.async\.bulk\.tensor\.{rank}d\.shared::cluster\.global\.mbarrier::complete_tx::bytes "
        rf"\[{R}\], \[{RD}, {{{coords}}}\], \[{R}\];"
    )


def store(rank: int, coords: str) -> str:
    return (
        rf"cp\.async\.bulk\.tensor\.{rank}d\.global\.shared::cta\.bulk_group \[{RD}, "
        rf"{{{coords}}}\], \[{R}\];"
    )


def regs(n: int) -> str:
    return rf"{{{', '.join([R] * n)}}}"


CASES = [
    Case("mbarrier.init", ("addr", "12"), rf"mbarrier\.init\.shared::cta\.b64 \[{R}\], {R};"),
    Case("mbarrier.init", ("addr + 8", "big"), rf"mbarrier\.init\.shared::cta\.b64 \[{R}\], {R};"),
    Case("mbarrier.inval", ("addr",), rf"mbarrier\.inval\.shared::cta\.b64 \[{R}\];"),
    Case("mbarrier.arrive", ("addr",), rf"mbarrier\.arrive\.shared::cta\.b64 _, \[{R}\];"),
    Case(
        "mbarrier.arrive_remote", ("addr",), rf"mbarrier\.arrive\.shared::cluster\.b64 _, \[{R}\];"
    ),
    Case(
        "mbarrier.arrive_remote_release",
        ("addr",),
        rf"mbarrier\.arrive\.release\.cluster\.shared::cluster\.b64 _, \[{R}\];",
    ),
    Case(
        "mbarrier.wait_cluster",
        ("addr", "i - 1", "i"),
        rf"{{ \.reg \.pred done; \.reg \.b32 parity; and\.b32 parity, {R}, 1; WAIT: "
        rf"mbarrier\.try_wait\.parity\.acquire\.cluster\.shared::cta\.b64 done, \[{R}\], parity; "
        rf"@!done bra WAIT; }}",
    ),
    Case(
        "mbarrier.arrive_expect_tx_remote",
        ("addr", "i"),
        rf"mbarrier\.arrive\.expect_tx\.shared::cluster\.b64 _, \[{R}\], {R};",
    ),
    Case(
        "mbarrier.arrive_count",
        ("addr", "3"),
        rf"mbarrier\.arrive\.shared::cta\.b64 _, \[{R}\], {R};",
    ),
    Case(
        "mbarrier.arrive_expect_tx",
        ("addr", "i"),
        rf"mbarrier\.arrive\.expect_tx\.shared::cta\.b64 _, \[{R}\], {R};",
    ),
    Case("mbarrier.try_wait", ("addr", "i"), wait_loop("try_wait")),
    Case("mbarrier.test_wait", ("addr", "i"), wait_loop("test_wait")),
    Case(
        "mbarrier.wait",
        ("addr", "i - 1", "i"),
        rf"{{ \.reg \.pred done; \.reg \.b32 parity; and\.b32 parity, {R}, 1; WAIT: "
        rf"mbarrier\.try_wait\.parity\.shared::cta\.b64 done, \[{R}\], parity; @!done bra WAIT; }}",
    ),
    Case("fence.proxy_async", (), r"fence\.proxy\.async\.shared::cta;"),
    Case("fence.proxy_async_global", (), r"fence\.proxy\.async\.global;"),
    Case("fence.mbarrier_init", (), r"fence\.mbarrier_init\.release\.cluster;"),
    Case("barrier.sync", ("1", "256"), rf"bar\.sync {R}, {R};"),
    Case("barrier.warp_sync", (), r"bar\.warp\.sync 0xffffffff;"),
    Case("barrier.arrive", ("i", "256"), rf"bar\.arrive {R}, {R};"),
    Case("cp_async_bulk.load", ("addr", "tmap", "(i,)", "bar"), load(1, R)),
    Case("cp_async_bulk.load", ("addr", "tmap", "(7, i)", "bar"), load(2, rf"{R}, {R}")),
    Case("cp_async_bulk.load", ("addr", "tmap", "(i, big, 7)", "bar"), load(3, ", ".join([R] * 3))),
    Case(
        "cp_async_bulk.load", ("addr", "tmap", "(i, i, i, i)", "bar"), load(4, ", ".join([R] * 4))
    ),
    Case(
        "cp_async_bulk.load",
        ("addr", "tmap", "(1, 2, 3, 4, 5)", "bar"),
        load(5, ", ".join([R] * 5)),
    ),
    Case(
        "cp_async_bulk.load_bytes",
        ("addr", "tmap", "i", "bar"),
        rf"cp\.async\.bulk\.shared::cluster\.global\.mbarrier::complete_tx::bytes \[{R}\], "
        rf"\[{RD}\], {R}, \[{R}\];",
    ),
    Case("cluster.map_shared", ("addr", "i"), rf"mapa\.shared::cluster\.u32 {R}, {R}, {R};"),
    Case("cluster.arrive", (), r"barrier\.cluster\.arrive\.release;"),
    Case("cluster.wait", (), r"barrier\.cluster\.wait\.acquire;"),
    Case(
        "cp_async_bulk.multicast",
        ("addr", "tmap", "(7, i)", "bar", "3"),
        r"cvt\.u16\.u32 mask, %r\d+; "
        r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global\.mbarrier::complete_tx::bytes"
        rf"\.multicast::cluster \[{R}\], \[{RD}, {{{R}, {R}}}\], \[{R}\], mask;",
    ),
    Case(
        "cp_async_bulk.multicast",
        ("addr", "tmap", "(i,)", "bar", "i", "'evict_last'"),
        r"cp\.async\.bulk\.tensor\.1d\.shared::cluster\.global\.mbarrier::complete_tx::bytes"
        rf"\.multicast::cluster\.L2::cache_hint \[{R}\], \[{RD}, {{{R}}}\], \[{R}\], mask, policy;",
    ),
    Case("cp_async_bulk.store", ("tmap", "(i,)", "addr"), store(1, R)),
    Case("cp_async_bulk.store", ("tmap", "(i, big)", "addr"), store(2, rf"{R}, {R}")),
    Case(
        "cp_async_bulk.store", ("tmap", "(0, 0, i, big, i)", "addr"), store(5, ", ".join([R] * 5))
    ),
    Case("cp_async_bulk.load", ("addr", "tmap", "(7, i)", "bar", "None"), load(2, rf"{R}, {R}")),
    Case(
        "cp_async_bulk.load",
        ("addr", "tmap", "(7, i)", "bar", "'evict_last'"),
        r"createpolicy\.fractional\.L2::evict_last\.b64 policy, 1\.0; "
        r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global\.mbarrier::complete_tx::bytes"
        rf"\.L2::cache_hint \[{R}\], \[{RD}, {{{R}, {R}}}\], \[{R}\], policy;",
    ),
    Case(
        "cp_async_bulk.store",
        ("tmap", "(i, 0)", "addr", "'evict_first'"),
        r"createpolicy\.fractional\.L2::evict_first\.b64 policy, 1\.0; "
        r"cp\.async\.bulk\.tensor\.2d\.global\.shared::cta"
        rf"\.bulk_group\.L2::cache_hint \[{RD}, {{{R}, {R}}}\], \[{R}\], policy;",
    ),
    Case(
        "cp_async_bulk.reduce",
        ("tmap", "(i, 0)", "addr", "'add'"),
        rf"cp\.reduce\.async\.bulk\.tensor\.2d\.global\.shared::cta\.add\.bulk_group \[{RD}, "
        rf"{{{R}, {R}}}\], \[{R}\];",
    ),
    Case(
        "cp_async_bulk.reduce",
        ("tmap", "(i, 0, big)", "addr", "'xor'"),
        rf"cp\.reduce\.async\.bulk\.tensor\.3d\.global\.shared::cta\.xor\.bulk_group \[{RD}, "
        rf"{{{R}, {R}, {R}}}\], \[{R}\];",
    ),
    Case(
        "cp_async_bulk.prefetch",
        ("tmap", "(i, big)"),
        rf"cp\.async\.bulk\.prefetch\.tensor\.2d\.L2\.global \[{RD}, {{{R}, {R}}}\];",
    ),
    Case("cp_async_bulk.commit_group", (), r"cp\.async\.bulk\.commit_group;"),
    Case("cp_async_bulk.wait_group", ("0",), r"cp\.async\.bulk\.wait_group 0;"),
    Case("cp_async_bulk.wait_group_read", ("3",), r"cp\.async\.bulk\.wait_group\.read 3;"),
    Case("cp_async_bulk.prefetch_tensormap", ("tmap",), rf"prefetch\.tensormap \[{RD}\];"),
    Case("wgmma.fence", (), r"wgmma\.fence\.sync\.aligned;"),
    Case("wgmma.commit_group", (), r"wgmma\.commit_group\.sync\.aligned;"),
    Case("wgmma.wait_group", ("1",), r"wgmma\.wait_group\.sync\.aligned 1;"),
    Case(
        "wgmma.descriptor",
        ("0x18400", "16", "1024", "128"),
        str(wgmma.descriptor(0x18400, 16, 1024, 128)),
    ),
    Case(
        "wgmma.descriptor",
        ("2048", "4096", "512", "64"),
        str(wgmma.descriptor(2048, 4096, 512, 64)),
    ),
    Case(
        "wgmma.descriptor", ("2048", "128", "256", "32"), str(wgmma.descriptor(2048, 128, 256, 32))
    ),
    Case(
        "wgmma.descriptor", ("2048", "128", "1008", "0"), str(wgmma.descriptor(2048, 128, 1008, 0))
    ),
    Case("setmaxnreg.inc", ("240",), r"setmaxnreg\.inc\.sync\.aligned\.u32 240;"),
    Case("setmaxnreg.dec", ("24",), r"setmaxnreg\.dec\.sync\.aligned\.u32 24;"),
    Case(
        "elect.elect_sync", (), rf"elect\.sync _\|chosen, 0xffffffff; selp\.b32 {R}, 1, 0, chosen;"
    ),
    Case(
        "stmatrix.store_x1",
        ("addr", "i"),
        rf"stmatrix\.sync\.aligned\.m8n8\.x1\.shared\.b16 \[{R}\], {regs(1)};",
    ),
    Case(
        "stmatrix.store_x2",
        ("addr", "i", "i"),
        rf"stmatrix\.sync\.aligned\.m8n8\.x2\.shared\.b16 \[{R}\], {regs(2)};",
    ),
    Case(
        "stmatrix.store_x4",
        ("addr", "i", "i", "i", "i"),
        rf"stmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16 \[{R}\], {regs(4)};",
    ),
    Case(
        "stmatrix.store_x1_trans",
        ("addr", "i"),
        rf"stmatrix\.sync\.aligned\.m8n8\.x1\.trans\.shared\.b16 \[{R}\], {regs(1)};",
    ),
    Case(
        "stmatrix.store_x2_trans",
        ("addr", "i", "i"),
        rf"stmatrix\.sync\.aligned\.m8n8\.x2\.trans\.shared\.b16 \[{R}\], {regs(2)};",
    ),
    Case(
        "stmatrix.store_x4_trans",
        ("addr", "i", "i", "i", "i"),
        rf"stmatrix\.sync\.aligned\.m8n8\.x4\.trans\.shared\.b16 \[{R}\], {regs(4)};",
    ),
    *(
        Case(
            f"ldmatrix.load_x{n}{'_trans' * t}",
            ("addr",),
            rf"ldmatrix\.sync\.aligned\.m8n8\.x{n}{'[.]trans' * t}\.shared\.b16 {regs(n)}, "
            rf"\[{R}\];",
        )
        for t in (False, True)
        for n in (1, 2, 4)
    ),
    Case("convert.pack_bf16x2", ("x", "y"), rf"cvt\.rn\.bf16x2\.f32 {R}, {F}, {F};"),
    Case("convert.pack_f16x2", ("x", "y"), rf"cvt\.rn\.f16x2\.f32 {R}, {F}, {F};"),
    Case("convert.permute_bytes", ("i", "i", "i"), rf"prmt\.b32 {R}, {R}, {R}, {R};"),
    Case("special.thread_index", (), rf"mov\.u32\s+{R}, %tid\.x;"),
    Case("special.warpgroup_index", (), rf"shr\.u32\s+{R}, {R}, 7;"),
    Case("special.smem_base", (), rf"mov\.u64\s+{RD}, numpipe_smem;"),
    Case("special.lane_index", (), rf"mov\.u32 {R}, %laneid;"),
    *(Case(f"special.cta_index_{d}", (), rf"mov\.u32 {R}, %ctaid\.{d};") for d in "xyz"),
    *(Case(f"special.grid_size_{d}", (), rf"mov\.u32 {R}, %nctaid\.{d};") for d in "xyz"),
    Case("special.cluster_rank", (), rf"mov\.u32 {R}, %cluster_ctarank;"),
    Case("special.sm_id", (), rf"mov\.u32 {R}, %smid;"),
    Case("special.clock64", (), rf"mov\.u64 {RD}, %clock64;"),
    Case("special.globaltimer", (), rf"mov\.u64 {RD}, %globaltimer;"),
    Case("memory.store_word", ("addr", "i"), rf"st\.volatile\.shared\.b32 \[{R}\], {R};"),
    Case("memory.load_word", ("addr",), rf"ld\.volatile\.shared\.b32 {R}, \[{R}\];"),
    Case("memory.store_global_b32", ("ptr", "i"), rf"st\.global\.b32 \[{RD}\], {R};"),
    Case("memory.ld_acquire_gpu_b32", ("ptr",), rf"ld\.acquire\.gpu\.global\.b32 {R}, \[{RD}\];"),
    Case(
        "memory.await_each_acquire_gpu_b32",
        ("ptr", "ptr", "i", "i"),
        r"WAIT: ld\.acquire\.gpu\.global\.b32 seen, \[at\];.*@!set bra WAIT;.*bra NEXT;",
    ),
    Case(
        "memory.red_release_sys_add",
        ("ptr", "i"),
        rf"red\.release\.sys\.global\.add\.s32 \[{RD}\], {R};",
    ),
    Case(
        "memory.st_release_gpu_b32", ("ptr", "i"), rf"st\.release\.gpu\.global\.b32 \[{RD}\], {R};"
    ),
    Case("griddep.wait", (), r"griddepcontrol\.wait;"),
    Case("griddep.launch_dependents", (), r"griddepcontrol\.launch_dependents;"),
]
#: their operand is an accumulator: see the wgmma kernel
WGMMA = {"wgmma.accumulators", "wgmma.fence_accumulators", "wgmma.mma_async", "wgmma.wait"}
FLOATS = tuple(f"convert.unpack_{t}_{h}" for t in ("f16", "bf16") for h in ("lo", "hi"))


def compiled(source: str, parameters: dict[str, Any], threads: int = 128) -> Any:
    names: dict[str, Any] = dict(FAMILIES)
    exec(
        f"def kernel({', '.join(parameters)}):\n"
        + "\n".join(f"    {line}" for line in source.splitlines()),
        names,
    )
    return nb.compile_kernel(
        names["kernel"], tuple(parameters.values()), threads=threads, target=HOPPER
    )._codelibrary


@cache
def table_kernel(keywords: bool) -> Any:
    lines = []
    for place, case in enumerate(CASES):
        call = case.call(keywords)
        returns = inspect.signature(case.op.function).return_annotation not in ("None", "NoReturn")
        array = "outf" if case.operation in FLOATS else "out"
        several = "[0]" if re.match(r"ldmatrix\.load_x[24]", case.operation) else ""
        lines.append(f"{array}[{place}] = {call}{several}" if returns else call)
    return compiled("\n".join(lines), PARAMETERS)


@cache
def table_ptx(keywords: bool) -> str:
    return nb.to_ptx(table_kernel(keywords), HOPPER)


def name_of(case: Case) -> str:
    return f"{case.operation}({', '.join(case.arguments)})"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_operation_is_its_ptx_statement(case: Case) -> None:
    assert re.search(case.ptx, table_ptx(False)), case


def test_every_operation_is_in_the_table() -> None:
    public = {
        f"{family}.{name}"
        for family, module in FAMILIES.items()
        for name, value in vars(module).items()
        if isinstance(value, Op)
    }
    assert public == {case.operation for case in CASES} | WGMMA


def test_keyword_calls_are_the_same_statements() -> None:
    def statements(ptx: str) -> list[str]:
        blocks = re.findall(r"// begin inline asm\n\s*(.*?)\n\s*// end inline asm", ptx, re.DOTALL)
        return [re.sub(r"(%\w*?)\d+", r"\1", block) for block in blocks]

    assert len(statements(table_ptx(False))) > 50
    assert statements(table_ptx(True)) == statements(table_ptx(False))


def test_ptxas_assembles_every_statement() -> None:
    cubin, _ = nb.link(nb.to_ltoir(table_kernel(False), HOPPER), "table", HOPPER)
    assert cubin[:4] == b"\x7fELF"


def test_coordinates_reach_ptx_innermost_first() -> None:
    ptx = nb.to_ptx(
        compiled(
            "cp_async_bulk.load(addr, tmap, (11, i, 33), bar)\n"
            "cp_async_bulk.store(tmap, (44, 55), addr)",
            PARAMETERS,
        ),
        HOPPER,
    )
    value = dict(re.findall(rf"(?:mov|ld\.param)\.u32\s+({R}), (\d+|\[)", ptx))
    loaded = re.search(rf"bytes \[{R}\], \[{RD}, {{({R}), ({R}), ({R})}}\]", ptx)
    stored = re.search(rf"bulk_group \[{RD}, {{({R}), ({R})}}\]", ptx)
    assert loaded and stored
    assert [value[r] for r in loaded.groups()] == ["33", "[", "11"]
    assert [value[r] for r in stored.groups()] == ["55", "44"]


def test_wait_may_be_unrolled() -> None:
    """Its label is local to its braces, so copies of the statement in one function do not
    collide."""
    library = compiled(
        "for step in range(4):\n    mbarrier.wait(addr + 8 * step, step, step)", PARAMETERS
    )
    assert nb.to_ptx(library, HOPPER).count("bra WAIT;") == 4
    nb.link(nb.to_ltoir(library, HOPPER), "waits", HOPPER)


def test_thread_index_folds() -> None:
    """LLVM knows that %tid.x does not change, so nothing remains of a guard inside the opposite
    guard."""
    ptx = nb.to_ptx(
        compiled(
            "if special.warpgroup_index() == 1:\n    mbarrier.inval(addr)\n"
            "    if special.thread_index() >> 7 == 0:\n        mbarrier.arrive(addr)",
            PARAMETERS,
        ),
        HOPPER,
    )
    assert "mbarrier.inval" in ptx
    assert "mbarrier.arrive" not in ptx


# ---- wgmma ---------------------------------------------------------------------------------------
MAINLOOP = """
acc = wgmma.accumulators({n})
a = wgmma.descriptor(addr, 16, 1024, 128)
b = wgmma.descriptor(bar, 16, 1024, 128)
for step in range(i):
    mbarrier.wait(addr - 8, step, step)
    acc = wgmma.fence_accumulators(acc)
    for k in range(4):
        acc = wgmma.mma_async(
            acc, a + 2 * k, b + 2 * k, dtype="{dtype}", a_major="{a_major}", b_major="{b_major}"
        )
    wgmma.commit_group()
    acc = wgmma.wait(acc, n=0)
t = special.thread_index()
for column in range({n} // 2):
    outf[128 * column + t] = acc[column]
"""
VARIANTS = [
    (8, "bf16", "k", "k"),
    (64, "f16", "k", "mn"),
    (192, "bf16", "mn", "k"),
    (256, "f16", "mn", "mn"),
]


@cache
def mainloop(n: int, dtype: str, a_major: str, b_major: str) -> Any:
    return compiled(MAINLOOP.format(n=n, dtype=dtype, a_major=a_major, b_major=b_major), PARAMETERS)


@pytest.mark.variants(1)
@pytest.mark.parametrize(("n", "dtype", "a_major", "b_major"), VARIANTS)
def test_wgmma_statement(n: int, dtype: str, a_major: str, b_major: str) -> None:
    ptx = nb.to_ptx(mainloop(n, dtype, a_major, b_major), HOPPER)
    flags = f"1, 1, 1, {int(a_major == 'mn')}, {int(b_major == 'mn')}"
    found = re.findall(
        rf"wgmma\.mma_async\.sync\.aligned\.m64n{n}k16\.f32\.{dtype}\.{dtype} "
        rf"{{([^}}]*)}}, {RD}, {RD}, {flags};",
        ptx,
    )
    assert len(found) >= 4
    assert all(len(set(registers.split(", "))) == n // 2 for registers in found)


@pytest.mark.variants(1)
@pytest.mark.parametrize(("n", "dtype", "a_major", "b_major"), VARIANTS)
def test_wgmma_loop_is_neither_serialised_nor_spilled(
    n: int, dtype: str, a_major: str, b_major: str
) -> None:
    _, log = nb.link(nb.to_ltoir(mainloop(n, dtype, a_major, b_major), HOPPER), "mainloop", HOPPER)
    assert "C75" not in log and "Potential Performance Loss" not in log, log
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log, log


def test_missing_wait_is_what_the_link_log_reports() -> None:
    """Shows that the check above works: without the wait, ptxas inserts one and reports it."""
    source = MAINLOOP.format(n=64, dtype="bf16", a_major="k", b_major="k").replace(
        "acc = wgmma.wait(acc, n=0)", "pass"
    )
    _, log = nb.link(nb.to_ltoir(compiled(source, PARAMETERS), HOPPER), "unwaited", HOPPER)
    assert "C75" in log


def test_descriptor_of_a_runtime_address_keeps_its_constant_fields() -> None:
    ptx = nb.to_ptx(compiled("out[0] = wgmma.descriptor(addr, 16, 1024, 128)", PARAMETERS), HOPPER)
    assert str(wgmma.descriptor(0, 16, 1024, 128)) in ptx


# ---- errors --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "setmaxnreg.inc(i)",
            r"setmaxnreg\.inc: n must be a compile-time constant, not a run-time int32",
        ),
        (
            "cp_async_bulk.wait_group(i)",
            r"cp_async_bulk\.wait_group: n must be a compile-time constant",
        ),
        (
            "cp_async_bulk.wait_group_read(i + 1)",
            "wait_group_read: n must be a compile-time constant, not .* int64",
        ),
        ("wgmma.wait_group(i)", r"wgmma\.wait_group: n must be a compile-time constant"),
        ("wgmma.accumulators(i)", r"wgmma\.accumulators: n must be a compile-time constant"),
        ("wgmma.wait(wgmma.accumulators(8), i)", r"wgmma\.wait: n must be a compile-time constant"),
        (
            "wgmma.descriptor(addr, 16, 1024, i)",
            r"wgmma\.descriptor: swizzle must be a compile-time constant",
        ),
    ],
)
def test_immediate_must_be_a_compile_time_constant(call: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        compiled(call, PARAMETERS)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("setmaxnreg.inc(100)", "multiple of 8 registers in 24 … 256, got 100: use 96"),
        ("setmaxnreg.dec(16)", "got 16: use 24"),
        ("cp_async_bulk.wait_group(-1)", "got -1"),
        (
            "cp_async_bulk.reduce(tmap, (0, 0), addr, 'mul')",
            "operation must be one of add, min, max.*, got 'mul'",
        ),
        (
            "cp_async_bulk.load(addr, tmap, (0, 0, 0, 0, 0, 0), bar)",
            "expected 1 … 5 coordinates, got 6",
        ),
        ("cp_async_bulk.load(addr, tmap, i, bar)", r"coords must be a tuple .*, got int32"),
        (
            "cp_async_bulk.store(tmap, (0, x), addr)",
            r"coords must be a tuple of 1 … 5 integers, .* got Tuple.*float32",
        ),
        ("wgmma.wait_group(8)", "in 0 … 7, .* got 8"),
        ("wgmma.accumulators(260)", "multiple of 8 in 8 … 256 for bf16, got 260"),
        ("wgmma.wait(x, 0)", r"wgmma\.wait: acc must be an accumulator .*, got float32"),
        (
            "wgmma.mma_async(wgmma.accumulators(8), big, big, 's16', 'k', 'k')",
            "element type must be .*'bf16'.*, got 's16'",
        ),
        (
            "wgmma.mma_async(wgmma.accumulators(8), big, big, 'f16', 'row', 'k')",
            "a_major must be 'k' .* or 'mn', got 'row'",
        ),
        (
            "wgmma.descriptor(addr, 16, 1000, 128)",
            "stride_bytes must be a multiple of 16 bytes .*, got 1000",
        ),
        ("wgmma.descriptor(addr, 16, 1024, 48)", "swizzle must be 0 .*, got 48"),
    ],
)
def test_illegal_operand_is_an_error_at_compile_time(call: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        compiled(call, PARAMETERS)


# ---- plain Numba kernels -------------------------------------------------------------------------
SLOT = 8192


def hand_written(out: Any, source: int, target: int, tiles: int) -> None:
    """A kernel without numpipe's pipelines: one slot, loaded by one lane, stored by TMA."""
    base = special.smem_base()
    ready = base + 2 * SLOT
    leader = special.thread_index() < 32 and elect.elect_sync()
    if leader:
        mbarrier.init(ready, 1)
        fence.mbarrier_init()
    nb.cuda.syncthreads()
    for tile in range(tiles):
        if leader:
            mbarrier.arrive_expect_tx(ready, SLOT)
            cp_async_bulk.load(base, source, (64 * tile, 0), ready)
        while not mbarrier.try_wait(ready, tile & 1):
            pass
        stmatrix.store_x1(base + SLOT + 16 * special.thread_index(), special.thread_index())
        fence.proxy_async()
        nb.cuda.syncthreads()
        if leader:
            cp_async_bulk.store(target, (64 * tile, 0), base + SLOT)
            cp_async_bulk.commit_group()
            cp_async_bulk.wait_group(0)


def test_numba_without_numpipe_compiles_them() -> None:
    signature = nb.types.void(nb.types.int32[::1], nb.types.int64, nb.types.int64, nb.types.int32)
    ptx, _ = nb.cuda.compile(
        hand_written, signature, device=False, cc=HOPPER.capability, abi="numba", output="ptx"
    )
    for word in (
        "mbarrier.init",
        "cp.async.bulk.tensor.2d.shared",
        "mbarrier.try_wait",
        "stmatrix",
        "fence.proxy.async",
        "cp.async.bulk.wait_group 0",
    ):
        assert word in ptx


def test_kernel_of_the_documentation_compiles(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "intrinsics.md").read_text(
        encoding="utf8"
    )
    (code,) = re.findall(r"^```python no-run\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    file = tmp_path / "page.py"
    file.write_text(code, encoding="utf8")
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, str(file), "exec"), names)
    types = (nb.types.int32[:, ::1], nb.types.int64, nb.types.int32)
    library = nb.compile_kernel(
        names["tile_words"].py_func, types, threads=128, target=HOPPER
    )._codelibrary
    _, log = nb.link(nb.to_ltoir(library, HOPPER), "page", HOPPER)
    assert "0 bytes spill stores" in log


def test_a_constant_of_the_module_is_an_immediate() -> None:
    def kernel() -> None:
        setmaxnreg.inc(REGISTERS)

    assert "setmaxnreg.inc.sync.aligned.u32 232;" in nb.to_ptx(
        nb.compile_kernel(kernel, (), threads=384, target=HOPPER)._codelibrary, HOPPER
    )


REGISTERS = 232
