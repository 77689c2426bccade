"""What profilers show of a kernel: the name of its machine code, and the user's line of each
instruction."""

from __future__ import annotations

import dataclasses
import inspect
import re
import struct
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gemm
import numpipe
from numpipe import ArrayType, BlockSpec, CompilerParams, cdiv, ds
from numpipe.arch.dtypes import BY_DTYPE
from numpipe.compile.build import front_end
from numpipe.compile.entry_name import LONGEST
from numpipe.core.numba import lines
from tests.kernels import helper_of_lines
from tests.kernels.compilers import compiles
from tests.kernels.helper_of_lines import doubled

pytestmark = compiles

A, C = ArrayType((64, 128), np.float16), ArrayType((64, 64), np.float32)
SQUARE = ArrayType((1024, 1024), np.float16)


@dataclasses.dataclass(frozen=True)
class Config:
    columns: int = 64
    slots: int = 2


def sums(a, c, *, cfg: numpipe.Static = Config()):
    acc = numpipe.zeros((64, cfg.columns), np.float32)
    pipe = numpipe.pipeline(
        grid=(cdiv(a.shape[1], cfg.columns),),
        max_concurrent_steps=cfg.slots,
        in_specs=(BlockSpec((64, cfg.columns), lambda k: (0, k)),),
    )
    for _, (tile,) in pipe(a):
        acc = acc + doubled(tile[...].astype(np.float32))
    c[ds(0, 64), ds(0, cfg.columns)] = acc


def kernel(function: Callable[..., None] = sums, name: str = "sums", **options: Any) -> Any:
    copy = types.FunctionType(
        function.__code__, function.__globals__, name, None, function.__closure__
    )
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, function.__annotations__
    return numpipe.kernel(copy, num_compute_wgs=1, **options)


def named(made: Any, *args: Any, **given: Any) -> str:
    """Return the name of a kernel's machine code, which is known before NVVM runs."""
    variant = made.variant(args, given)
    return str(front_end(variant.unit(), variant.lifted, variant._typed)[0].entry_name)


def line_of(text: str, file: str = __file__) -> int:
    """Return the number of the first line of a file that contains this text."""
    return next(
        n
        for n, line in enumerate(Path(file).read_text(encoding="utf8").splitlines(), 1)
        if text in line
    )


# ---- the name ------------------------------------------------------------------------------------
def test_a_name_has_function_tiles_and_types() -> None:
    compiled = gemm.matmul.compiled(SQUARE, SQUARE)
    assert compiled.image.entry == "matmul_128x64_256x64_s3_f16_f16_f16"
    assert (
        b"\0.text." + compiled.image.entry.encode() + b"\0" in compiled.image.cubin
        and b"_ZN" not in compiled.image.cubin
    )
    assert ".entry matmul_128x64_256x64_s3_f16_f16_f16(" in compiled.ptx


@pytest.mark.thorough
def test_two_tiles_and_two_depths_have_names_of_their_own() -> None:
    made = kernel()
    names = [named(made, A, C, cfg=cfg) for cfg in (Config(), Config(32), Config(64, 3))]
    assert names == ["sums_64x64_s2_f16_f32", "sums_64x32_s2_f16_f32", "sums_64x64_s3_f16_f32"]


@pytest.mark.thorough
def test_a_variant_has_one_name() -> None:
    assert named(kernel(), A, C) == named(kernel(), ArrayType((64, 640), np.float16), C)


@pytest.mark.thorough
def test_column_major_arrays_clusters_and_schedules_are_in_the_name() -> None:
    assert (
        named(kernel(), np.zeros((64, 128), np.float16, order="F"), C) == "sums_64x64_s2_f16col_f32"
    )
    clustered = kernel(cluster=2, cluster_names="pair", grid=(2,))
    assert named(clustered, A, C) == "sums_64x64_s2_c2x1x1_f16_f32"


def test_types_are_short() -> None:
    short = [record.short for record in BY_DTYPE.values()]
    assert short == [
        "bool",
        "i8",
        "i16",
        "i32",
        "i64",
        "u8",
        "u16",
        "u32",
        "u64",
        "f16",
        "f32",
        "f64",
        "bf16",
        "e4m3",
        "e5m2",
    ]


def nothing(c):
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)


@pytest.mark.variants(3)
@pytest.mark.parametrize(
    "name, spelled",
    [
        ("größe", "gr_c3_b6_c3_9fe_f32"),
        ("gemm[64]", "gemm_5b64_5d_f32"),
        ("2nd", "_2nd_f32"),
        ("", "__f32"),
        ("add", "add_f32"),
        ("$x.y", "_24x_2ey_f32"),
        ("x" * 500, "x" * 60 + "_f32_b5b3b02e"),
    ],
)
def test_any_name_becomes_an_identifier(name: str, spelled: str) -> None:
    found = named(kernel(nothing, name), C)
    assert (
        found == spelled
        and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", found)
        and len(found) <= LONGEST
    )


def test_long_names_that_differ_at_the_end_stay_different_and_keep_their_length() -> None:
    names = {named(kernel(nothing, "x" * 500 + last), C) for last in "ab"}
    assert len(names) == 2 and max(map(len, names)) <= LONGEST


def test_a_kernel_without_arrays_is_none_of_the_functions_that_it_calls() -> None:
    def vprintf(n):
        numpipe.debug_print("{}", n)

    assert numpipe.kernel(vprintf, grid=(1,)).compiled(3).image.entry == "vprintf_kernel"


# ---- lines ---------------------------------------------------------------------------------------
def sections(cubin: bytes) -> dict[str, bytes]:
    """Return the sections of an ELF file that have contents, by name."""
    (first,), (count, names) = (
        struct.unpack_from("<Q", cubin, 40),
        struct.unpack_from("<HH", cubin, 60),
    )
    headers = [struct.unpack_from("<IIQQQQ", cubin, first + 64 * number) for number in range(count)]
    # NOBITS
    return {
        cubin[headers[names][4] + name :].split(b"\0")[0].decode(): cubin[at : at + size]
        for name, kind, _, _, at, size in headers
        if kind != 8
    }


def code(built: Any) -> bytes:
    found = sections(built.image.cubin)[f".text.{built.image.entry}"]
    assert len(found) > 1000
    return found


WITH = CompilerParams(lineinfo=True)


@pytest.fixture(scope="module")
def lined() -> Any:
    return kernel(compiler_params=WITH).compiled(A, C)


def test_the_machine_code_is_the_same_with_lines(lined: Any) -> None:
    plain = kernel().compiled(A, C)
    assert code(plain) == code(lined) and plain.image.entry == lined.image.entry
    assert dataclasses.replace(
        plain.image.resources, cubin_bytes=0, seconds=()
    ) == dataclasses.replace(lined.image.resources, cubin_bytes=0, seconds=())
    tables = {".debug_line", ".nv_debug_line_sass"}
    assert tables <= sections(lined.image.cubin).keys() and tables.isdisjoint(
        sections(plain.image.cubin)
    )


def files_and_lines(ptx: str) -> set[tuple[str, int]]:
    files = dict(re.findall(r'\.file\s+(\d+) "(.*?)"', ptx))
    return {
        (files[number], int(line))
        for number, line in re.findall(r"\.loc\s+(\d+) (\d+)", ptx)
        if line != "0"
    }


def test_all_lines_are_the_kernels_and_its_helpers(lined: Any) -> None:
    found = files_and_lines(lined.ptx)
    first, last = line_of("def sums("), line_of("c[ds(0, 64), ds(0, cfg.columns)] = acc")
    assert {file for file, _ in found} == {__file__, helper_of_lines.__file__}
    assert {line for file, line in found if file == helper_of_lines.__file__} == {
        line_of("return x + x", helper_of_lines.__file__)
    }
    own = {line for file, line in found if file == __file__}
    assert (
        own <= set(range(first, last + 1)) and {line_of("for _, (tile,) in pipe(a)"), last} <= own
    )


def lines_of(sass: str, opcode: str) -> set[tuple[tuple[str, int], ...]]:
    """Return the positions of instructions with this opcode: file and line, then the calls inlined
    from."""
    found, chain, last = set(), [], ""
    for line in sass.splitlines():
        if where := re.search(r'## File "(.*?)", line (\d+)', line):
            chain = [*chain * ("## File" in last), (where[1], int(where[2]))]
        elif re.search(rf"\*/ +(?:@\S+ )?{opcode}\b", line):
            found.add(tuple(chain))
        last = line
    return found


def test_machine_code_is_shown_with_the_lines_that_it_is_of(lined: Any) -> None:
    definition, loop, call = (
        line_of(text) for text in ("def sums(", "for _, (tile,) in pipe(a)", "acc = acc + doubled(")
    )
    assert {chain[0] for chain in lines_of(lined.sass, "UTMALDG")} == {(__file__, loop)}
    inner = helper_of_lines.__file__, line_of("return x + x", helper_of_lines.__file__)
    outer = (__file__, call), (__file__, definition)
    assert lines_of(lined.sass, "FADD") == {(inner, *outer), outer}
    assert ".debug_line" not in lined.sass


@pytest.mark.variants(0, thorough=2)
@pytest.mark.parametrize(
    "options", [{"debug": True}, {"jitter": 1}, {"asserts": True, "drain": True}], ids=str
)
def test_code_is_the_same_with_lines_in_kernels_with_other_options(options: dict[str, Any]) -> None:
    plain, found = (
        kernel(compiler_params=CompilerParams(lineinfo=lined, **options)).compiled(A, C)
        for lined in (False, True)
    )
    assert code(plain) == code(found)


def products(a, b, c):
    acc = numpipe.zeros((64, 64), np.float32)
    for _, (x, y) in numpipe.pipeline(
        grid=(cdiv(a.shape[1], 64),),
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
    )(a, b):
        acc = numpipe.wgmma(acc, x, y.T)
    c[ds(0, 64), ds(0, 64)] = acc


@pytest.mark.thorough
def test_a_product_has_the_same_code_and_its_wgmma_its_line() -> None:
    plain, found = (
        kernel(products, compiler_params=CompilerParams(lineinfo=on)).compiled(A, A, C)
        for on in (False, True)
    )
    assert code(plain) == code(found)
    assert {chain[0] for chain in lines_of(found.sass, "HGMMA")} == {
        (__file__, line_of("numpipe.wgmma(acc, x, y.T)"))
    }


def test_a_kernel_of_a_file_with_quotes_in_its_name_compiles(tmp_path: Path) -> None:
    file = tmp_path / 'a "file".py'
    text = "\n".join(["import numpipe, numpy as np", *inspect.getsource(nothing).splitlines(), ""])
    file.write_text(text, encoding="utf8")
    namespace: dict[str, Any] = {"ds": ds}
    exec(compile(text, str(file), "exec"), namespace)
    found = files_and_lines(
        numpipe.kernel(namespace["nothing"], compiler_params=WITH).compiled(C).ptx
    )
    assert {name for name, _ in found} == {str(tmp_path / "a 'file'.py")}


@pytest.mark.thorough
def test_without_the_mapping_lines_would_be_in_the_rewritten_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        lines,
        "replacements",
        lambda place, of=lines.replacements: of(
            lambda file, line: (file, line) if place(file, line) else None
        ),
    )
    found = files_and_lines(kernel(compiler_params=WITH).compiled(A, C).ptx)
    assert max(line for _, line in found) > 1_000_000
