"""Expressions in register tiles as source text, made up by Hypothesis: what a kernel makes of them, and what NumPy does.

`expressions` draws the text of a float32, an int32, a float16 or a bool expression in

    x, y    float32 (64, 64)        r    float32 (64,)      along the columns
    i       int32 (64, 64)          q    float32 (64,)      along the rows: it stands as q[:, None] only
    h       float16 (64, 64)        v    float16 (64,)
    s       float32 number          p    int32 number

reductions along an axis and casts from one layout to the other (`rowsums`, `topmost`, `turned`), and gathered rows. All
are small integers, so that every step is exact in its type and a fused multiply-add changes nothing: a kernel, on any machine,
gives NumPy's bits. `worth` evaluates the same text with NumPy.
"""

from __future__ import annotations

import hashlib
import linecache
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import strategies as st

F16, F32, I32 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.int32)
EXACT = {F16: 2**11, F32: 2**24, I32: 2**24}
SIZE = 64


class Unfit(Exception):
    """A value that its type may not hold exactly."""


def _leaves(kind: str) -> st.SearchStrategy[str]:
    if kind == "f":
        return st.sampled_from(["x", "y", "r", "q[:, None]", "r[None, :]", "s", "2.0", "full(64, s, np.float32)", "gathered"])
    if kind == "h":
        return st.sampled_from(["h", "h", "v", "v[:, None]", "v[None, :]", "full(64, s, np.float16)"])
    return st.sampled_from(["i", "i", "p", "2", "iota(64)", "iota(64)[:, None]", "iota((64, 64), 1)"])


@st.composite
def expressions(draw: st.DrawFn, kind: str, depth: int = 3) -> str:
    """The text of an expression: kind f(loat32), i(nt32), h(alf) or b(ool); depth counts operators on top of each other.

    A literal takes the type of the tile beside it, and is a float32 where there is none, which does not go with a float16: of two
    operands of a half one at most is a literal.
    """
    def part(of: str) -> str:
        return draw(expressions(of, depth - 1))

    def pair() -> tuple[str, str]:
        literal = draw(st.sampled_from([None, None, 0, 1])) if kind == "h" else None
        left, right = ("2.0" if literal == side else part(kind) for side in (0, 1))
        return left, right

    if kind == "b":
        form = draw(st.sampled_from(["compare", "compare", "combine", "not"])) if depth > 1 else "compare"
        if form == "compare":
            of = draw(st.sampled_from("fih"))
            tile = draw(st.sampled_from({"f": ["x", "y", "r", "q[:, None]"], "i": ["i", "iota(64)", "iota((64, 1))"],
                                         "h": ["h", "v", "v[:, None]"]}[of]))
            return f"({tile} {draw(st.sampled_from(['<', '<=', '>', '>=', '==', '!=']))} {part(of)})"
        return f"(~{part('b')})" if form == "not" else f"({part('b')} {draw(st.sampled_from('&|^'))} {part('b')})"
    if depth <= 0:
        return draw(_leaves(kind))
    form = draw(st.sampled_from(["binary", "binary", "extreme", "where", "unary", "convert", "leaf", *["layout"] * (kind == "f"),
                                 *["rounded"] * (kind != "h")]))
    if form == "binary":
        operator = draw(st.sampled_from("+-*&|^" if kind == "i" else "+-*"))
        left, right = pair()
        return f"({left} {operator} {right})"
    if form == "extreme":
        return f"{draw(st.sampled_from(['np.maximum', 'np.minimum', 'max', 'min']))}({', '.join(pair())})"
    if form == "rounded":
        return draw(st.sampled_from([f"({part('i')} // 2)", f"({part('i')} % 3)", f"({part('i')} % -2)"] if kind == "i" else [
            f"np.{name}({part('f')} * 0.5)" for name in ("round", "trunc", "floor")]))
    if form == "where":
        return f"np.where({part('b')}, {', '.join(pair())})"
    if form == "unary":
        return draw(st.sampled_from([f"(-{part(kind)})", f"abs({part(kind)})"]))
    if form == "convert":
        other = draw(st.sampled_from("ih")) if kind == "f" else "f"
        name = {"f": "halff32" if other == "h" else "asf32", "i": "asi32", "h": "asf16"}[kind]
        return f"{name}({part(other)})"
    if form == "layout":
        return f"{draw(st.sampled_from(['rowsums', 'topmost', 'turned']))}({part('f')})"
    return draw(_leaves(kind))


def arguments(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    small = {name: rng.integers(-3, 4, shape).astype(dtype) for name, shape, dtype in (
        ("x", (SIZE, SIZE), F32), ("y", (SIZE, SIZE), F32), ("i", (SIZE, SIZE), I32), ("r", SIZE, F32), ("q", SIZE, F32),
        ("h", (SIZE, SIZE), F16), ("v", SIZE, F16))}
    return {**small, "s": np.float32(rng.integers(-3, 4)), "p": np.int32(rng.integers(-3, 4))}


class _Exact(np.ndarray):
    """An array whose operations raise `Unfit` where float16, float32 or int32 rounds or overflows."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        plain = [np.asarray(v) if isinstance(v, _Exact) else v for v in inputs]
        found = np.asarray(getattr(ufunc, method)(*plain, **kwargs))
        if found.dtype == bool:
            return found.view(_Exact)
        wide = getattr(ufunc, method)(*[np.asarray(v, np.float64 if found.dtype.kind == "f" else np.int64)
                                        if np.asarray(v).dtype != bool else v for v in plain], **kwargs)
        if np.abs(wide).max(initial=0) > EXACT.get(found.dtype, 2**24) or not (found == wide).all():
            raise Unfit
        return found.view(_Exact)


def worth(text: str, given: dict[str, Any]) -> np.ndarray:
    """What NumPy makes of an expression, as a (64, 64) array; `Unfit` where the machine might not have the same bits."""
    def converted(dtype: np.dtype) -> Any:
        def convert(value: Any) -> Any:
            wide = np.asarray(value)
            if np.abs(wide).max(initial=0) > EXACT[dtype]:
                raise Unfit
            return wide.astype(dtype).view(_Exact)

        return convert

    def iota(shape: Any, axis: int = 0) -> Any:
        index = np.arange(SIZE, dtype=I32)
        return np.broadcast_to(index if isinstance(shape, int) or axis == 1 else index[:, None], shape).view(_Exact)

    def whole(value: Any) -> np.ndarray:
        found = np.broadcast_to(np.asarray(value), (SIZE, SIZE))
        if np.abs(found).sum(dtype=np.float64) > 2**24:  # of the sums of any of them
            raise Unfit
        return found

    scope: dict[str, Any] = {name: np.asarray(value).view(_Exact) for name, value in given.items()}
    numpy = SimpleNamespace(maximum=np.maximum, minimum=np.minimum, round=np.rint, trunc=np.trunc, floor=np.floor,
                            float32=np.float32,
                            where=lambda mask, a, b: np.where(mask, a, b).view(_Exact))
    numpy.float16 = np.float16
    scope |= {"rowsums": lambda v: whole(v).sum(1).view(_Exact), "topmost": lambda v: whole(v).max(0)[:, None].view(_Exact),
              "turned": lambda v: whole(v).min(1)[:, None].view(_Exact),
              "gathered": given["x"][np.arange(SIZE) ^ 5].view(_Exact), "halff32": converted(F32), "asf16": converted(F16)}
    scope |= {"max": np.maximum, "min": np.minimum}
    scope |= {"np": numpy, "asf32": converted(F32), "asi32": converted(I32), "iota": iota,
              "full": lambda n, value, dtype: np.full(n, value, dtype).view(_Exact)}
    with np.errstate(all="ignore"):  # what overflows is unfit
        found = np.asarray(eval(text, scope))
    return np.broadcast_to(found, (SIZE, SIZE))


def kernel(texts: dict[str, str]) -> Any:
    """A kernel that stores expressions, by kind and position, one below the other: float32 to c, int32 to d, float16 to e."""
    none, zero = "iota((64, 64)) * 0", {name: f"full((64, 64), 0.0, np.{name})" for name in ("float32", "float16")}
    lines = ["import numpy as np", "import numpipe", "from numpipe import ds, full, iota, layout_cast", "",
             "@numpipe.function", "def halff32(v):", f"    return (v + {zero['float16']}).astype(np.float32)", "",
             "@numpipe.function", "def asf16(v):", f"    return (v + {zero['float32']}).astype(np.float16)", "",
             "@numpipe.function", "def rowsums(v):", f"    return layout_cast((v + {zero['float32']}).sum(axis=1), 'row')", "",
             "@numpipe.function", "def topmost(v):",
             f"    return layout_cast((v + {zero['float32']}).max(axis=0), 'column')[:, None]", "",
             "@numpipe.function", "def turned(v):",
             f"    return layout_cast(layout_cast((v + {zero['float32']}).min(axis=1), 'row'), 'column')[:, None]", "",
             "@numpipe.function", "def asf32(v):", "    return (v + iota((64, 64)) * 0).astype(np.float32)", "",
             "@numpipe.function", "def asi32(v):", "    return (v + full((64, 64), 0.0, np.float32)).astype(np.int32)", "",
             "@numpipe.kernel(num_compute_wgs=1)", "def expressions(x_in, y_in, i_in, r_in, q_in, h_in, v_in, c, d, e, s, p):",
             *(f"    {n} = {n}_in[ds(0, 64), ds(0, 64)]" for n in "xyih"), *(f"    {n} = {n}_in[ds(0, 64)]" for n in "rqv"),
             "    gathered = x_in[iota(64) ^ 5, ds(0, 64)]"]
    rows = {"f": 0, "i": 0, "h": 0}
    for kind, expression in texts.items():
        target, nothing = {"f": ("c", zero["float32"]), "i": ("d", none), "h": ("e", zero["float16"])}[kind[0]]
        lines.append(f"    {target}[ds({64 * rows[kind[0]]}, 64), ds(0, 64)] = {nothing} + {expression}")
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
    of = {kind: [key for key in texts if key[0] == kind] for kind in "fih"}
    made, results = kernel(texts), {kind: np.zeros((64 * max(1, len(of[kind])), 64), dtype) for kind, dtype in zip(
        "fih", (F32, I32, F16), strict=True)}
    made(*[given[name] for name in "xyirqhv"], *results.values(), given["s"], given["p"], target=target)
    found = {key: results[kind][64 * n:64 * n + 64] for kind, keys in of.items() for n, key in enumerate(keys)}
    return [texts[key] for key in texts if not (found[key] == wanted[key]).all()]


def fits(text: str, given: dict[str, Any]) -> bool:
    """Whether every step of an expression is exact, and it is one of tiles: shapes and types combine."""
    try:
        worth(text, given)
    except Unfit:
        return False
    return True

