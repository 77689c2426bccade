"""Bad arguments of host functions: a good call of each public function, and the kind of each
parameter.

A parameter's `kind` names its bad values in `BAD`; each bad value replaces a good one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, BlockSpec, bench, model, ops, orders, sim, testing

ROOT = Path(__file__).parents[2]
NAN, HUGE = float("nan"), 10**30


class Odd:
    """A value of a class that numpipe does not know."""

    def __repr__(self) -> str:
        return "<odd>"


def numbers() -> Iterator[int]:
    yield 64


X, H = np.ones((64, 64), np.float32), np.ones((64, 64), np.float16)
TABLE = np.zeros((1, 2), np.int32)
NO_INT = (True, 1.5, NAN, "3", [], Odd(), X)
BAD: dict[str, tuple[Any, ...]] = {
    "count": (*NO_INT, 0, -1, None),
    "count?": (*NO_INT, 0, -1),
    "size": (*NO_INT, -1, None),
    "size?": (*NO_INT, -1),
    "int": (*NO_INT, None),
    "int?": NO_INT,
    "number": (NAN, float("inf"), "1", True, [], None, Odd(), X, 1j),
    "positive?": (NAN, float("inf"), "1", True, [], -1.0, 0, X),
    "number?": (NAN, float("inf"), "1", True, [], X),
    "flag": (1, "yes", None, [], X),
    "flag?": (2, "yes", [], X),
    "word": ("no such", "", b"gpu", 3, [], {}, X, None),
    "word?": ("no such", b"gpu", 3, [], {}, X),
    "path": (3, b"run.json", "", "a\0b", "\ud800", [], Odd(), None),
    "path?": (3, "", "a\0b", "\ud800", [], Odd()),
    "function": (3, "f", [], X, Odd()),
    "function?": (3, "f", [], X),
    "shape": ("x", -1, (-1, 64), (1.5, 64), (True,), (None,), numbers(), X, {}),
    "sides": (
        "x",
        64,
        (64.0, 64),
        (0, 64),
        (HUGE, 64),
        (64,) * 6,
        (),
        [64, 64],
        (None, None),
        (True, 64),
    ),
    "dtype": ("floaty", "\ud800", 3, [], object(), X),
    "element": ("floaty", "\ud800", 3, object(), X),
    "array": (
        "x",
        3,
        None,
        [[1.0]],
        np.ma.masked_array(X),
        np.array([[None]]),
        X.astype(complex),
        np.array([["a"]]),
        np.zeros(1, "M8[s]"),
        np.zeros(4, "i4,f4"),
        numbers(),
        Odd(),
    ),
    "kernel": (None, 3, "k", len, numpipe.Kernel, X),
    "object": (None, 3, "x", [], X),
    "object?": (3, "x", [], X),
    "names": (3, ("a", "a"), (1,), None, X),
    "words": (3, [1], X),
    "words?": (3, [1], X),
    "list": (3, None, X, "x"),
    "trace": (3, X, "run.csv", b"run.json", ["run.json"]),
    "cta": ("x", True, 1.5, (0,), (0, 0, "x"), X, {}),
    "specs": (3, "x", X, (3,)),
}
"""values that a parameter of a kind cannot have; with a question mark, None is allowed"""


@dataclass(frozen=True)
class Good:
    """A correct call.

    kinds  of its parameters by name or position; ``"list -1"`` excludes bad value number 1, which
           is valid here
    said   other words by which an error may name a parameter
    """

    name: str
    call: Callable[..., Any]
    kinds: Mapping[str, str]
    args: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    said: Mapping[str, str] = field(default_factory=dict)

    def made(self) -> Any:
        return self.call(*self.args, **self.named)

    def bad(self) -> Iterator[Bad]:
        for where, kind in self.kinds.items():
            kind, *fine = kind.split(" -")
            for number, value in enumerate(BAD[kind]):
                if str(number) not in fine:
                    yield Bad(self, where, number, value)


@dataclass(frozen=True)
class Bad:
    """A call with one bad value, for the parameter `where`: a name, or the position if it is
    positional."""

    good: Good
    where: str
    number: int
    value: Any

    def __call__(self) -> Any:
        args, named = list(self.good.args), dict(self.good.named)
        if self.where.isdigit():
            args[int(self.where)] = self.value
        else:
            named[self.where] = self.value
        return self.good.call(*args, **named)

    @property
    def said(self) -> str:
        return self.good.said.get(self.where, self.where)

    def __str__(self) -> str:
        return f"{self.good.name}-{self.where}-{self.number}"


@numpipe.kernel
def doubled(x, y, s=2.0, *, n: numpipe.Static = 1):
    y[numpipe.ds(0, 64), numpipe.ds(0, 64)] = x[numpipe.ds(0, 64), numpipe.ds(0, 64)] * s


@numpipe.kernel(out_type=lambda x: ArrayType(x.shape, np.float32))
def made(x, y):
    y[numpipe.ds(0, 64), numpipe.ds(0, 64)] = x[numpipe.ds(0, 64), numpipe.ds(0, 64)] + 1


def plain(x, y):
    y[...] = x[...]


def option(name: str, value: Any = None) -> Any:
    return numpipe.kernel(**({} if value is None else {name: value}))(plain)


def with_options(**options: Any) -> Any:
    return numpipe.kernel(**options)(plain)


@functools.cache
def trace() -> numpipe.Trace:
    filled = numpipe.Trace()
    with pytest.MonkeyPatch.context() as patch:  # this runs while tests are collected
        patch.setenv("NUMPIPE_COMPILE_CHECK", "0")
        doubled.simulate(X, X.copy(), trace=filled)
    return filled


@functools.cache
def result() -> bench.Result:
    return bench.read(next((ROOT / "docs" / "results").glob("gemm*.json")))


def goods(folder: Path) -> list[Good]:
    """Return all calls; files are written to `folder`."""
    x, y = X.copy(), np.zeros_like(X)
    simulated = functools.partial(doubled.simulate, x, y)
    traced = trace()
    kernel_options = {
        "grid": "shape",
        "grid_names": "names -3",
        "out_type": "function?",
        "num_compute_wgs": "count?",
        "wg_axis": "int?",
        "memory_registers": "count?",
        "warp_specialized": "flag -2",
        "in_specs": "specs",
        "out_specs": "specs",
        "compiler_params": "object?",
        "target": "word?",
        "cluster": "shape",
        "cluster_names": "names -3",
        "cooperative": "flag -2",
        "programmatic": "flag?",
        "schedule": "word -7",
        "without": "names -3",
        "workspace": "object?",
    }
    kernel_options["wg_axis"] = "names -3"
    call = {"target": "word?"}
    return [
        Good(
            "ArrayType",
            ArrayType,
            {"0": "shape", "1": "element"},
            (X.shape, np.float16),
            said={"0": "shape", "1": "dtype"},
        ),
        Good("Barrier", numpipe.Barrier, {"num_arrivals": "count", "num_barriers": "count"}),
        Good(
            "ClusterBarrier",
            numpipe.ClusterBarrier,
            {"0": "object -0 -2", "leader_tracked": "flag"},
            ("c",),
            said={"0": "collective_axes"},
        ),
        Good("Element", numpipe.Element, {"size": "count"}),
        Good(
            "BlockSpec",
            BlockSpec,
            {
                "0": "sides",
                "index_map": "function?",
                "memory_space": "object?",
                "transforms": "object",
                "delay_release": "int?",
                "oob_fill": "word",
                "buffer_count": "count?",
                "eviction_policy": "word?",
                "mode": "word?",
            },
            ((64, 64),),
            said={"0": "block_shape"},
        ),
        Good(
            "SMEM",
            numpipe.SMEM,
            {"0": "sides -4 -5 -7", "1": "element", "transforms": "object"},
            ((64, 64), np.float16),
            said={"0": "SMEM", "1": "dtype"},
        ),
        Good("SwizzleTransform", numpipe.SwizzleTransform, {"swizzle": "count"}),
        Good("TilingTransform", numpipe.TilingTransform, {"tiling": "sides"}),
        Good("TransposeTransform", numpipe.TransposeTransform, {"permutation": "sides"}),
        Good(
            "CompilerParams",
            numpipe.CompilerParams,
            {
                "approx_math": "flag",
                "dimension_semantics": "words?",
                "max_concurrent_steps": "count?",
                "delay_release": "int?",
                "unsafe_no_auto_barriers": "flag",
                "profile_space": "size",
                "profile_dir": "object",
                "lowering_semantics": "object",
                "store_slots": "size",
                "store_eviction_policy": "word?",
                "drain": "flag",
                "asserts": "flag",
                "allow_serialized_wgmma": "flag",
                "debug": "flag",
                "lineinfo": "flag",
                "jitter": "int?",
            },
        ),
        Good("CompilerParams", numpipe.CompilerParams().replace, {"debug": "flag"}),
        Good(
            "Workspace",
            numpipe.Workspace,
            {"0": "sides -4 -7", "slots": "count?"},
            ((64, 64),),
            said={"0": "tile"},
        ),
        Good("persistent", numpipe.persistent, {"ctas": "count?"}),
        Good(
            "fit_slots",
            numpipe.fit_slots,
            {"0": "list", "store_slots": "size", "num_compute_wgs": "count", "other_bytes": "size"},
            (((64, 64), np.float16),),
            said={"0": "blocks"},
        ),
        Good(
            "pinned_empty",
            numpipe.pinned_empty,
            {"0": "shape", "1": "dtype -3"},
            ((4,), np.float32),
            {"target": "sim"},
            said={"0": "shape", "1": "dtype"},
        ),
        Good(
            "argument",
            numpipe.to_device,
            {"0": "array"},
            (X,),
            {"target": "sim"},
            said={"0": "array"},
        ),
        Good("target", numpipe.to_device, {"target": "word?"}, (X,)),
        Good("ascontiguous", numpipe.ascontiguous, {"0": "array"}, (X,), said={"0": "x"}),
        Good(
            "show_layout",
            numpipe.show_layout,
            {"0": "sides -1", "1": "dtype", "along": "word", "layout": "word", "warp": "size"},
            ((64, 64), np.float32),
            said={"0": "show_layout", "1": "dtype"},
        ),
        Good(
            "cdiv",
            numpipe.cdiv,
            {"0": "array -1", "1": "array -1"},
            (5, 2),
            said={"0": "cdiv", "1": "cdiv"},
        ),
        Good("function", numpipe.function, {"0": "function"}, (plain,), said={"0": "function"}),
        Good("jit", numpipe.jit, {"policy": "word"}, said={"policy": "jit"}),
        *(
            Good(
                "kernel plain",
                functools.partial(option, name),
                {"value": kind},
                said={"value": name.removeprefix("num_")},
            )
            for name, kind in kernel_options.items()
        ),
        Good(
            "signature",
            functools.partial(option, "signature"),
            {"value": "word?"},
            said={"value": "gufunc"},
        ),
        Good(
            "kernel doubled",
            functools.partial(doubled, target="sim"),
            {"0": "array -1", "1": "array -1", "s": "object -1"},
            (x, y),
            said={"0": "x", "1": "y"},
        ),
        Good("kernel doubled", functools.partial(doubled, x, y), call, named={"target": "sim"}),
        Good(
            "kernel made",
            functools.partial(made.simulate, x),
            {"out": "specs -2 -3"},
            said={"out": "y"},
        ),
        Good(
            "kernel doubled",
            doubled.bind,
            {"0": "array -1", "target": "word?"},
            (x, y),
            {"target": "sim"},
            said={"0": "x"},
        ),
        Good("kernel doubled", simulated, {"seed": "int?", "ctas": "count?"}),
        Good("trace", simulated, {"trace": "trace"}),
        Good(
            "kernel doubled",
            doubled.inspect,
            {"0": "word"},
            ("resources", x, y),
            said={"0": "inspect"},
        ),
        Good(
            "export",
            doubled.export,
            {"0": "path", "choose": "function?"},
            (folder / "k.numpipe", (x, y)),
            said={"0": "path"},
        ),
        Good("load", numpipe.load, {"path": "path"}, named={"path": folder / "k.numpipe"}),
        Good(
            "verify",
            numpipe.verify,
            {"0": "kernel", "schedules": "count", "seed": "size?", "partial": "words"},
            (doubled, x, y),
            {"schedules": 1, "partial": "y"},
            said={"0": "kernel"},
        ),
        Good(
            "check",
            testing.check,
            {"0": "kernel", "rtol": "number?", "atol": "number?", "gpu": "flag?"},
            (doubled, x, y),
            {"schedules": 1, "reference": lambda x: x * 2, "gpu": False},
            said={"0": "kernel"},
        ),
        Good(
            "mutate",
            testing.mutate,
            {"0": "kernel", "schedules": "count", "seed": "size?"},
            (doubled, x, y),
            {"schedules": 1},
            said={"0": "kernel"},
        ),
        Good("tolerance", testing.tolerance, {"dtype": "dtype"}, named={"dtype": np.float16}),
        Good(
            "explain",
            numpipe.explain,
            {
                "0": "kernel",
                "measured": "positive?",
                "device": "object",
                "clock": "word -3",
                "compiled": "flag?",
            },
            (doubled, x, y),
            {"compiled": False},
            said={"0": "kernel"},
        ),
        Good(
            "autotune",
            numpipe.autotune,
            {
                "measure": "function?",
                "plan": "object?",
                "workers": "int?",
                "again": "flag",
                "progress": "flag",
            },
            (option, {"a": "target"}, x),
        ),
        Good(
            "warmup",
            numpipe.warmup,
            {"0": "list", "workers": "int?", "progress": "flag?"},
            ([],),
            said={"0": "calls"},
        ),
        Good("trace", numpipe.timeline, {"0": "trace -2"}, (traced,), said={"0": "file name"}),
        Good(
            "timeline",
            numpipe.timeline,
            {
                "path": "path?",
                "rows": "words?",
                "titles": "words?",
                "start": "number?",
                "end": "number?",
                "width": "count",
            },
            (traced,),
        ),
        Good("trace", numpipe.timeline, {"cta": "cta"}, (traced,)),
        Good(
            "timeline",
            traced.timeline,
            {"width": "count", "start": "number?", "end": "number?", "wanted": "function"},
        ),
        Good("trace", traced.summary, {"cta": "cta"}),
        Good(
            "trace",
            traced.save,
            {"path": "path"},
            named={"path": folder / "run.json"},
            said={"path": "file name"},
        ),
        Good(
            "trace",
            numpipe.Trace.load,
            {"path": "path"},
            named={"path": folder / "run.json"},
            said={"path": "file name"},
        ),
        Good("Trace", numpipe.Trace, {"clock": "word"}),
        Good(
            "matmul",
            ops.matmul,
            {
                "0": "array",
                "1": "array",
                "bias": "specs",
                "alpha": "number",
                "beta": "number",
                "activation": "word?",
                "batch_invariant": "flag",
                "config": "object?",
                "out": "specs",
            },
            (H, H),
            said={"0": "a", "1": "b"},
        ),
        Good(
            "attention",
            ops.attention,
            {
                "0": "array",
                "1": "array",
                "2": "array",
                "causal": "flag",
                "diagonal": "int",
                "scale": "positive?",
                "layout": "word",
                "exact": "flag",
                "return_lse": "flag",
                "config": "object?",
                "out": "specs",
            },
            (H[None, None],) * 3,
            said={"0": "q", "1": "k", "2": "v"},
        ),
        Good(
            "copy",
            ops.copy,
            {"0": "array", "out": "specs -2"},
            (X,),
            said={"0": "a"},
        ),
        Good("order", orders.named, {"0": "word"}, ("grouped", 4), said={"0": "name"}),
        Good("Snake", orders.named, {"group": "count"}, ("snake",)),
        Good("Grouped", orders.Grouped, {"group": "count"}),
        Good("Table", orders.Table, {"0": "array"}, (TABLE,), said={"0": "table"}),
        Good(
            "row",
            orders.Row().table,
            {"0": "shape"},
            ((2, 2),),
            said={"0": "shape"},
        ),
        Good(
            "row",
            orders.Row().bytes,
            {
                "tile": "sides -4 -7",
                "k": "count",
                "itemsize": "count",
                "ctas": "count",
            },
            ((2, 2),),
            {"tile": (64, 64), "k": 64},
        ),
        Good(
            "Plan",
            bench.Plan,
            {"idle": "number", "burst_count": "count", "rounds": "count", "work": "number"},
        ),
        Good(
            "rotation_sets",
            bench.rotation_sets,
            {"0": "count", "1": "size"},
            (100, 100),
            said={"0": "bytes_per_call", "1": "l2_bytes"},
        ),
        Good("figure", bench.figure, {"ratios": "list"}, named={"ratios": [1.0, 2.0]}),
        Good(
            "bench",
            bench.read,
            {"path": "path"},
            named={"path": next((ROOT / "docs" / "results").glob("gemm*.json"))},
        ),
        Good(
            "table",
            bench.table,
            {"0": "list", "unit": "object -2"},
            (result().rows,),
            {"unit": "us"},
            said={"0": "rows"},
        ),
        Good(
            "default_registers",
            sim.default_registers,
            {"0": "count", "target": "object"},
            (3,),
            said={"0": "warpgroups"},
        ),
        Good("target", numpipe.launch.choose_target, {"target": "word?"}, named={"target": "sim"}),
    ]


PUBLIC: tuple[ModuleType, ...] = (numpipe, ops, orders, testing, model, bench, sim)
