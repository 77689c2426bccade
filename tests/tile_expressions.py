"""Expressions in register tiles as source text, made up by Hypothesis: what a kernel makes of them, and what NumPy does.

`expressions` draws the text of a float32, an int32 or a bool expression in

    x, y    float32 (64, 64)        r    float32 (64,)      along the columns
    i       int32 (64, 64)          q    float32 (64,)      along the rows: it stands as q[:, None] only
    s       float32 number          p    int32 number

All are small integers, so that every step is exact in float32 and a fused multiply-add changes nothing: a kernel, on whichever
machine, gives NumPy's bits. `worth` evaluates the same text with NumPy.
"""

from __future__ import annotations

import hashlib
import linecache
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import strategies as st

F32, I32 = np.dtype(np.float32), np.dtype(np.int32)
SIZE = 64


class Unfit(Exception):
    """A value that float32 or int32 may not hold exactly."""


def _leaves(kind: str) -> st.SearchStrategy[str]:
    if kind == "f":
        return st.sampled_from(["x", "y", "r", "q[:, None]", "r[None, :]", "s", "2.0", "full(64, s, np.float32)"])
    return st.sampled_from(["i", "i", "p", "2", "iota(64)", "iota(64)[:, None]", "iota((64, 64), 1)"])


@st.composite
def expressions(draw: st.DrawFn, kind: str, depth: int = 3) -> str:
    """The text of an expression: kind f(loat32), i(nt32) or b(ool); depth counts operators on top of each other."""
    def part(of: str) -> str:
        return draw(expressions(of, depth - 1))

    if kind == "b":
        form = draw(st.sampled_from(["compare", "compare", "combine", "not"])) if depth > 1 else "compare"
        if form == "compare":
            of = draw(st.sampled_from("fi"))
            tile = draw(st.sampled_from(["x", "y", "r", "q[:, None]"] if of == "f" else ["i", "iota(64)", "iota((64, 1))"]))
            return f"({tile} {draw(st.sampled_from(['<', '<=', '>', '>=', '==', '!=']))} {part(of)})"
        return f"(~{part('b')})" if form == "not" else f"({part('b')} {draw(st.sampled_from('&|^'))} {part('b')})"
    if depth <= 0:
        return draw(_leaves(kind))
    form = draw(st.sampled_from(["binary", "binary", "extreme", "where", "unary", "convert", "leaf"]))
    if form == "binary":
        operator = draw(st.sampled_from("+-*" if kind == "f" else "+-*&|^"))
        return f"({part(kind)} {operator} {part(kind)})"
    if form == "extreme":
        return f"np.{draw(st.sampled_from(['maximum', 'minimum']))}({part(kind)}, {part(kind)})"
    if form == "where":
        return f"np.where({part('b')}, {part(kind)}, {part(kind)})"
    if form == "unary":
        return draw(st.sampled_from([f"(-{part(kind)})", f"abs({part(kind)})"]))
    if form == "convert":
        other = "i" if kind == "f" else "f"
        return f"as{'f32' if kind == 'f' else 'i32'}({part(other)})"
    return draw(_leaves(kind))


def arguments(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    small = {name: rng.integers(-3, 4, shape).astype(dtype) for name, shape, dtype in (
        ("x", (SIZE, SIZE), F32), ("y", (SIZE, SIZE), F32), ("i", (SIZE, SIZE), I32), ("r", SIZE, F32), ("q", SIZE, F32))}
    return {**small, "s": np.float32(rng.integers(-3, 4)), "p": np.int32(rng.integers(-3, 4))}


class _Exact(np.ndarray):
    """An array whose operations raise `Unfit` where float32 or int32 rounds or overflows."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        plain = [np.asarray(v) if isinstance(v, _Exact) else v for v in inputs]
        found = np.asarray(getattr(ufunc, method)(*plain, **kwargs))
        if found.dtype == bool:
            return found.view(_Exact)
        wide = getattr(ufunc, method)(*[np.asarray(v, np.float64 if found.dtype.kind == "f" else np.int64)
                                        if np.asarray(v).dtype != bool else v for v in plain], **kwargs)
        if np.abs(wide).max(initial=0) > 2**24 or not (found == wide).all():
            raise Unfit
        return found.view(_Exact)


def worth(text: str, given: dict[str, Any]) -> np.ndarray:
    """What NumPy makes of an expression, as a (64, 64) array; `Unfit` where the machine might not have the same bits."""
    def converted(dtype: np.dtype) -> Any:
        def convert(value: Any) -> Any:
            wide = np.asarray(value)
            if np.abs(wide).max(initial=0) > 2**24:
                raise Unfit
            return wide.astype(dtype).view(_Exact)

        return convert

    def iota(shape: Any, axis: int = 0) -> Any:
        index = np.arange(SIZE, dtype=I32)
        return np.broadcast_to(index if isinstance(shape, int) or axis == 1 else index[:, None], shape).view(_Exact)

    scope: dict[str, Any] = {name: np.asarray(value).view(_Exact) for name, value in given.items()}
    numpy = SimpleNamespace(maximum=np.maximum, minimum=np.minimum, float32=np.float32,
                            where=lambda mask, a, b: np.where(mask, a, b).view(_Exact))
    scope |= {"np": numpy, "asf32": converted(F32), "asi32": converted(I32), "iota": iota,
              "full": lambda n, value, dtype: np.full(n, value, dtype).view(_Exact)}
    found = np.asarray(eval(text, scope))
    return np.broadcast_to(found, (SIZE, SIZE))


def kernel(texts: dict[str, str]) -> Any:
    """A kernel that stores expressions, by kind and position, one below the other: float32 to c, int32 to d."""
    lines = ["import numpy as np", "import numpipe", "from numpipe import ds, full, iota", "",
             "@numpipe.function", "def asf32(v):", "    return (v + iota((64, 64)) * 0).astype(np.float32)", "",
             "@numpipe.function", "def asi32(v):", "    return (v + full((64, 64), 0.0, np.float32)).astype(np.int32)", "",
             "@numpipe.kernel(num_compute_wgs=1)", "def expressions(x_in, y_in, i_in, r_in, q_in, c, d, s, p):",
             *(f"    {n} = {n}_in[ds(0, 64), ds(0, 64)]" for n in "xyi"), *(f"    {n} = {n}_in[ds(0, 64)]" for n in "rq")]
    rows = {"f": 0, "i": 0}
    for kind, expression in texts.items():
        target, zero = ("c", "full((64, 64), 0.0, np.float32)") if kind[0] == "f" else ("d", "iota((64, 64)) * 0")
        lines.append(f"    {target}[ds({64 * rows[kind[0]]}, 64), ds(0, 64)] = {zero} + {expression}")
        rows[kind[0]] += 1
    text = "\n".join(lines) + "\n"
    filename = f"<tiles {hashlib.sha1(text.encode()).hexdigest()[:12]}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": filename}
    exec(compile(text, filename, "exec"), namespace)
    return namespace["expressions"]


def wrong(texts: dict[str, str], given: dict[str, Any], target: str = "sim") -> list[str]:
    """The expressions of which a kernel makes something else than NumPy does."""
    wanted = {key: worth(text, given) for key, text in texts.items()}
    floats, ints = ([key for key in texts if key[0] == kind] for kind in "fi")
    c, d = np.zeros((64 * max(1, len(floats)), 64), F32), np.zeros((64 * max(1, len(ints)), 64), I32)
    made = kernel(texts)
    made(*[given[name] for name in "xyirq"], c, d, given["s"], given["p"], target=target)
    found = {**{k: c[64 * n:64 * n + 64] for n, k in enumerate(floats)}, **{k: d[64 * n:64 * n + 64] for n, k in enumerate(ints)}}
    return [texts[key] for key in texts if not (found[key] == wanted[key]).all()]


def fits(text: str, given: dict[str, Any]) -> bool:
    """Whether every step of an expression is exact, and it is one of tiles: shapes and types combine."""
    try:
        worth(text, given)
    except Unfit:
        return False
    return True

