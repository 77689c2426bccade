"""Exported kernels: a loaded kernel launches the same as the original. Driver and compiler are
fakes."""

from __future__ import annotations

import dataclasses
import enum
import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import numpipe
from numpipe import (
    ArrayType,
    BlockSpec,
    ImageError,
    SpecError,
    TargetError,
    Workspace,
    cdiv,
    launch,
)
from numpipe.kernels.variants import Variant
from tests.kernels import export_kernels
from tests.kernels.export_fakes import Noting, Torch, did, fakes, same


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Noting]:
    monkeypatch.chdir(tmp_path)
    with fakes(monkeypatch) as fake:
        yield fake


# ---- calls
ONE = np.float64(1)


def plain(x, y):
    y[...] = x[...]


def test_a_loaded_kernel_launches_the_same_on_arrays_of_numpy_and_of_torch(fake: Noting) -> None:
    k = numpipe.kernel(
        grid=lambda x: (cdiv(x.shape[0], 64), x.shape[1] // 64),
        out_type=lambda x: ArrayType(x.shape, x.dtype),
    )(plain)
    x = np.ones((128, 64), np.float32)
    y = np.zeros((128, 64), np.float32)
    t = Torch(4096, (192, 64))
    u = Torch(1 << 20, (192, 64))
    loaded = same(
        fake,
        k,
        [(x,)],
        [
            lambda k: k(x),
            lambda k: k(x=x),
            lambda k: k(x, y),
            lambda k: k(x, out=y),
            lambda k: k(y=y, x=x),
            lambda k: k(x[:100]),
            lambda k: k(t),
            lambda k: k(t, u),
            lambda k: k(t, out=u),
            lambda k: k(t, u, stream=7),
            lambda k: k(x[:0]),
            lambda k: k(x, y, y),
            lambda k: k(),
            lambda k: k(x, z=1),
            lambda k: k(x, out=y[:1]),
            lambda k: k[1](x),
            lambda k: k("x"),
            lambda k: k(t, x),
            lambda k: k(Torch(1 << 20, (64, 64), "complex64")),
            lambda k: k.bind(x, out=y)(),
            lambda k: k.bind(t, u)(stream=3),
        ],
    )
    assert len(loaded.archive.manifest.entries) == 1 and "of k.numpipe" in repr(loaded)
    bound = loaded.bind(t, out=u)
    bound(), bound.update(x=Torch(8192, (192, 64))), bound(stream=9)
    assert [seen[1] for seen in fake.seen[-2:]] == [4096, 8192] and fake.named("launch")[-1][1] == 9
    assert loaded(t, out=u) is u


def test_scalars(fake: Noting) -> None:
    @numpipe.kernel(
        grid=lambda a, n: (a.shape[0] + n,), out_type=lambda a: ArrayType(a.shape, a.dtype)
    )
    def k(a, c, scale=2.0, n=3, *, flag, last=ONE):
        c[...] = a[...]

    x = np.zeros((64, 64), np.float32)
    c = np.zeros_like(x)
    same(
        fake,
        k,
        [((x,), {"flag": True}), ((x,), {"flag": True, "n": np.int64(1)})],
        [
            lambda k: k(x, flag=False),
            lambda k: k(x, flag=True, scale=3),
            lambda k: k(x, c, 4.5, 7, flag=True),
            lambda k: k(x, flag=True, n=np.int64(9)),
            lambda k: k(x, flag=True, last=np.float64(0.1)),
            lambda k: k(x),
            lambda k: k(x, flag=True, n=1 << 40),
            lambda k: k(x, flag=True, scale="2"),
            lambda k: k(x, c, 1.0, 2, 3, flag=True),
            lambda k: k.bind(x, c, flag=True).update(scale=5),
        ],
    )
    with pytest.raises(
        ImageError,
        match=r"code for a float32 2d, c float32 2d, scale float32, n int32, flag int32, last "
        r"float64; it holds\n    a float32 2d, c float32 2d, scale float32, n int32, flag bool",
    ):
        numpipe.load("k.numpipe")(x, flag=1)


def test_an_argument_may_be_a_scalar_where_another_call_has_an_array(fake: Noting) -> None:
    @numpipe.kernel(
        out_type=lambda a, b: ArrayType((a.shape[0], 64), a.dtype),
        grid=lambda b: (math.ceil(b) + 1,) if isinstance(b, (int, float)) else (b.shape[0],),
    )
    def k(a, b, c):
        c[...] = a[...]

    x, t = np.zeros((64, 64), np.float32), Torch(4096, (64, 64))
    same(
        fake,
        k,
        [(x, x), (x, 1), (x, 1.5)],
        [
            lambda k: k(x, x),
            lambda k: k(x, 4),
            lambda k: k(x, 2.5),
            lambda k: k(t, 3),
            lambda k: k(t, 4),
        ],
    )


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    m: int
    n: Any


@dataclasses.dataclass(frozen=True)
class Tile:
    tm: int = 64
    more: Any = None


Other = dataclasses.make_dataclass("Tile", [("tm", int, 64), ("more", Any, None)], frozen=True)

STATICS: list[tuple[Any, Any]] = [
    (1, 2),
    (1, True),
    (1.0, 1),
    (0, False),
    ("a", "b"),
    (np.dtype("float16"), np.dtype("float32")),
    (np.float32(1), np.float64(1)),
    (Colour.RED, Colour.BLUE),
    (Pair(1, 2), (1, 2)),
    (Pair(1, 2), Pair(1, True)),
    (Tile(), Tile(32)),
    (float("inf"), float("-inf")),
    (Tile(more=(Tile(1), Colour.RED, np.float16)), Tile(more=(Tile(2), Colour.RED, np.float16))),
    (None, 0),
    ((), ((),)),
    (export_kernels.twice, export_kernels.thrice),
    (1 << 70, 1),
    (np.longlong(1), np.int64(2)),
]


def kind(value: Any) -> str:
    """Return a test's id, which must not contain the address of an object.

    All pytest processes must spell it alike.
    """
    return (
        ", ".join(f"{name} {kind(v)}" for name, v in value.items())
        if isinstance(value, dict)
        else type(value).__name__
    )


@pytest.mark.variants(6, thorough=6)
@pytest.mark.parametrize(("one", "other"), STATICS, ids=kind)
def test_statics(fake: Noting, one: Any, other: Any) -> None:
    """`one` is the default; calls with either value find their machine code, and a third value has
    none."""

    @numpipe.kernel(out_type=lambda x, s: ArrayType((x.shape[0], 64 if s == one else 32), x.dtype))
    def k(x, y, *, s: numpipe.Static = one):
        y[...] = x[...]

    x = Torch(4096)
    loaded = same(
        fake,
        k,
        [(x,), ((x,), {"s": other})],
        [lambda k: k(x), lambda k: k(Torch(8192), s=one), lambda k: k(x, s=other)],
    )
    assert len(fake.named("load")) == 0 and len(loaded._variants) == 2
    with pytest.raises(
        ImageError, match=r"holds no machine code for x float32 2d, s='neither'; it holds"
    ):
        loaded(x, s="neither")
    with pytest.raises(ImageError, match="holds no machine code"):
        loaded(x, s=object())
    with pytest.raises(SpecError, match="hashable"):
        loaded(x, s=[])


def test_a_class_of_the_same_name_and_fields_is_the_same_constant(fake: Noting) -> None:
    @numpipe.kernel
    def k(x, y, *, cfg: numpipe.Static = Tile(128)):
        y[...] = x[...]

    x, y = Torch(4096), Torch(1 << 20)
    k.export("k.numpipe", (x, y))
    loaded = numpipe.load("k.numpipe")
    loaded(x, y), loaded(x, y, cfg=Other(128)), loaded(x, y, cfg=Tile(128))
    assert len(fake.seen) == 3
    with pytest.raises(
        ImageError,
        match=r"y float32 2d, cfg=Tile\(tm=64.*it holds\n    x float32 2d, y float32 2d, "
        r"cfg=Tile\(tm=128, more=None\)\nexport it for this call too: k.export\('k.numpipe'",
    ):
        loaded(x, y, cfg=Other())
    with pytest.raises(
        SpecError, match=r"have the same text in a file, .* give the classes different names"
    ):
        k.export("k.numpipe", (x, y), ((x, y), {"cfg": Other(128)}))


def local():
    @numpipe.function
    def inner(value):
        return value

    return inner


@pytest.mark.parametrize(
    "value",
    [
        object(),
        lambda: 0,
        local(),
        frozenset({1}),
        bytes,
        complex(1),
        np.dtype(">f4"),
        slice,
        Tile(more=BlockSpec((64, 64), lambda i: (i, 0))),
    ],
    ids=kind,
)
def test_a_static_that_no_file_describes_is_refused_by_name(fake: Noting, value: Any) -> None:
    @numpipe.kernel
    def k(x, y, *, cfg: numpipe.Static = value):
        y[...] = x[...]

    with pytest.raises(
        SpecError, match=r"kernel k: export: 'cfg' is .*, which a file cannot describe"
    ):
        k.export("k.numpipe", (Torch(4096), Torch(1 << 20)))
    assert not list(Path().iterdir())


def test_parameters_that_are_left_out_grids_of_numbers_and_signatures(fake: Noting) -> None:
    def f(x, bias, y, *, alpha, n: numpipe.Static = 1):
        y[...] = x[...]

    x, y = Torch(4096, (64, 64)), Torch(1 << 20, (64, 64))
    k = numpipe.kernel(
        grid=(3, 2),
        grid_names=("i", "j"),
        signature="(m,k)->(m,k)",
        without=("bias", "alpha"),
        out_type=lambda x, bias: ArrayType(x.shape, x.dtype),
    )(f)
    same(
        fake,
        k,
        [(x,)],
        [
            lambda k: k(x),
            lambda k: k(x, y),
            lambda k: k(x, Torch(1 << 20, (128, 64))),
            lambda k: k(x, bias=y),
            lambda k: k(x, bias=None),
            lambda k: k(x, alpha=1),
        ],
    )


@pytest.mark.variants(5)
@pytest.mark.parametrize(
    "options",
    [
        {"grid": numpipe.persistent()},
        {"grid": numpipe.persistent(7)},
        {"grid": 4, "cluster": 2},
        {"grid": 9, "cooperative": True},
        {"grid": (4, 2), "cluster": (2, 2), "cluster_names": ("p", "q")},
        {"grid": numpipe.persistent(), "cluster": 2},
        {"grid": lambda x: x.shape[0], "cluster": 2},
        {"grid": lambda x: 5000, "cooperative": True},
        {"programmatic": False},
        {"workspace": Workspace((64, 64))},
        {"workspace": Workspace((64, 64), 3)},
        {"workspace": Workspace((64, 64), split=None)},
        {"workspace": lambda x, n: Workspace((64, 64), n, slots=x.shape[0])},
    ],
    ids=kind,
)
def test_grids_clusters_and_workspaces(fake: Noting, options: Any) -> None:
    def two(x, y, *, n: numpipe.Static = 2):
        y[...] = x[...]

    def three(x, y, work, *, n: numpipe.Static = 2):
        y[...] = x[...]

    k = numpipe.kernel(out_type=lambda x: ArrayType(x.shape, x.dtype), **options)(
        three if "workspace" in options else two
    )
    x, t = np.zeros((64, 128), np.float32), Torch(4096, (65, 64))
    loaded = same(
        fake,
        k,
        [(x,)],
        [
            lambda k: k(x),
            lambda k: k(t),
            lambda k: k(t, Torch(1 << 20, (65, 64)), stream=3),
            lambda k: k.bind(t)(),
        ],
    )
    did(fake, loaded, lambda k: k(t, Torch(1 << 20, (65, 64))))
    assert (
        loaded.options.attributes
        == k.options.attributes
        == getattr(fake, "attributes", k.options.attributes)
    )


def test_kernels_over_tiles_pass_themselves_the_sizes_of_sequential_dimensions(
    fake: Noting,
) -> None:
    x, t = np.zeros((128, 192), np.float32), Torch(4096, (64, 320))
    loaded = same(
        fake, export_kernels.scaled, [(x,)], [lambda k: k(x), lambda k: k(t), lambda k: k.bind(t)()]
    )
    did(fake, loaded, lambda k: k(t))
    assert fake.seen[-1][-1] == 5 and "np__" not in str(loaded.archive)


def test_the_types_of_a_call_choose_the_functions_of_shapes(fake: Noting) -> None:
    def out(x, s):
        if x.dtype == np.float16:
            return ArrayType((x.shape[0], s), np.float32)
        return ArrayType(x.shape[:1] * x.ndim, x.dtype)

    @numpipe.kernel(out_type=out, grid=lambda x: (x.ndim * x.shape[-1],))
    def k(x, y, *, s: numpipe.Static = 64):
        y[...] = x[...]

    h, x = np.zeros((16, 64), np.float16), np.zeros((32, 64), np.float32)
    loaded = same(
        fake,
        k,
        [(h,), (x,), (ArrayType((2, 3, 4), "float32"),), ((h,), {"s": 32})],
        [
            lambda k: k(h),
            lambda k: k(x),
            lambda k: k(np.zeros((3, 64, 64), np.float32)),
            lambda k: k(h, s=32),
            lambda k: k(Torch(4096, (9, 8), "float16")),
            lambda k: k(Torch(4096, (8, 64))),
        ],
    )
    for wrong in (
        lambda: loaded(x.T),
        lambda: loaded(x, s=32),
        lambda: loaded(x[0]),
        lambda: loaded(x.astype(np.int32)),
    ):
        with pytest.raises(
            ImageError, match="holds no machine code for x .*; it holds\n.*\n.*\n.*\n.*\nexport it"
        ):
            wrong()


def test_a_layout_that_tma_cannot_address_is_another_signature(fake: Noting) -> None:
    k = numpipe.kernel(plain)
    x, odd = Torch(4096), Torch(4100)
    k.export("k.numpipe", (x, Torch(1 << 20)))
    loaded = numpipe.load("k.numpipe")
    with pytest.raises(
        ImageError,
        match=r"x float32 2d, which TMA cannot address, y float32 2d \(argument 'x' .*\); it "
        r"holds\n    x float32 2d, y float32 2d\n",
    ):
        loaded(odd, Torch(1 << 20))
    with pytest.raises(ImageError, match="y float32 2d, with rows that TMA cannot store"):
        loaded(x, Torch(1 << 20, (64, 63), strides=(64, 1)))
    same(
        fake,
        k,
        [(x, Torch(1 << 20)), (odd, Torch(1 << 20))],
        [lambda k: k(x, Torch(1 << 20)), lambda k: k(odd, Torch(1 << 20))],
    )


# ---- choose
def chooses(s: Any = 1) -> Any:
    @numpipe.kernel(out_type=lambda x: ArrayType(x.shape, x.dtype), grid=lambda x, s: (s,))
    def k(x, y, *, s: numpipe.Static = s, t: numpipe.Static = "t"):
        y[...] = x[...]

    return k


def test_choose_decides_by_shapes_and_types(fake: Noting) -> None:
    k = chooses()

    def choose(x):
        if x.dtype == np.float16:
            return {"s": 5}
        return {"s": 2} if x.shape[0] > 100 else {"s": 3, "t": "u"}

    x, large = np.zeros((64, 64), np.float32), ArrayType((128, 64), np.float32)
    k.export("k.numpipe", (large,), (x,), (x.astype(np.float16),), choose=choose)
    loaded = numpipe.load("k.numpipe")
    assert [dict(entry.statics) for entry in loaded.archive.manifest.entries] == [
        {"s": "2", "t": "'t'"},
        {"s": "3", "t": "'u'"},
        {"s": "5", "t": "'t'"},
    ]
    for array, grid in (
        (x, 3),
        (np.zeros((128, 64), np.float32), 2),
        (x.astype(np.float16), 5),
        (Torch(4096, (200, 64)), 2),
    ):
        for _ in range(2):
            loaded(array)
            assert fake.named("launch")[-1][0] == (grid, 1, 1)
    loaded(x, s=2)
    assert fake.named("launch")[-1][0] == (2, 1, 1)
    assert loaded.inspect("resources", x) == k.inspect("resources", x, s=3, t="u")
    with pytest.raises(ImageError, match=r"s=2, t='u'"):
        loaded(x, s=2, t="u")
    with pytest.raises(ImageError, match=r"s=1, t='t'"):
        loaded(x, t="t")


def test_a_choice_that_no_signature_led_to_is_not_in_the_file(fake: Noting) -> None:
    x = np.zeros((64, 64), np.float32)
    chooses().export("k.numpipe", (x,), choose=lambda x: {"s": x.shape[0] // 64})
    loaded = numpipe.load("k.numpipe")
    loaded(x)
    with pytest.raises(ImageError, match=r"no machine code for x float32 2d, .*s=2, t='t'"):
        loaded(np.zeros((128, 64), np.float32))


def test_choose_and_signatures_that_name_statics(fake: Noting) -> None:
    k, x = chooses(numpipe.kernel and 1), np.zeros((64, 64), np.float32)
    k.export(
        "k.numpipe",
        ((x,), {"s": 2}),
        (x,),
        (np.zeros((0, 64), np.float32),),
        ((x,), {"s": True}),
        choose=lambda x: {"s": 2 if x.shape[0] else 1},
    )
    loaded = numpipe.load("k.numpipe")
    assert [dict(entry.statics)["s"] for entry in loaded.archive.manifest.entries] == [
        "2",
        "1",
        "True",
    ]
    loaded(x)
    assert fake.named("launch")[-1][0] == (2, 1, 1)


@pytest.mark.parametrize(
    "choose",
    [
        lambda x: 3,
        lambda x: {},
        lambda x: {"z": 1},
        lambda x: None,
        lambda x: {"s": object()},
        lambda y: {"s": 1},
        lambda x: {"s": print(x)},
        lambda x: {"s": x.shape[9]},
        3,
    ],
)
def test_a_choice_that_is_none_is_refused(fake: Noting, choose: Any) -> None:
    with pytest.raises(
        SpecError,
        match=r"kernel k: .*choose|'s' is .* cannot describe|cannot be inspected|"
        "export: choose must be a function",
    ):
        chooses().export("k.numpipe", (np.zeros((64, 64), np.float32),), choose=choose)
    assert not list(Path().iterdir())


def test_a_static_without_a_default_is_chosen(fake: Noting) -> None:
    @numpipe.kernel(out_type=lambda x, s: ArrayType((x.shape[0], s), x.dtype))
    def k(x, y, n=1, *, s: numpipe.Static):
        y[...] = x[...]

    x = np.zeros((64, 64), np.float32)
    k.export("k.numpipe", (x,), ((x,), {"n": 7}), choose=lambda x, n: {"s": 32 if n > 3 else 64})
    loaded = numpipe.load("k.numpipe")
    assert [loaded(x, n=n).shape[1] for n in (1, 7)] == [64, 32]
    k.export("k.numpipe", ((x,), {"s": 8}))
    with pytest.raises(SpecError, match="the Static 's' has no default: pass s="):
        numpipe.load("k.numpipe")(x)


# ---- loaded kernels
def test_a_call_never_compiles_and_is_never_refused(fake: Noting) -> None:
    k, t = numpipe.kernel(plain), Torch(4096)
    k.export("k.numpipe", (t, Torch(1 << 20)))
    loaded = numpipe.load("k.numpipe")
    with numpipe.jit("error"):
        loaded(t, Torch(1 << 20)), loaded.bind(t, Torch(1 << 20))()
    [used] = numpipe.warmup([(loaded, (t, Torch(1 << 20)))])
    assert (
        used
        == loaded.inspect("resources", t, Torch(1 << 20))
        == k.inspect("resources", t, Torch(1 << 20))
    )


def test_what_needs_the_source_says_so(fake: Noting) -> None:
    k = numpipe.kernel(plain)
    x = np.zeros((64, 64), np.float32)
    y = np.zeros((64, 64), np.float32)
    k.export("k.numpipe", (x, y))
    loaded = numpipe.load("k.numpipe")
    for wants in (
        lambda: loaded(x, y, target="sim"),
        lambda: loaded.simulate(x, y),
        lambda: loaded.compiled(x, y),
        lambda: loaded.inspect("ptx", x, y),
        lambda: loaded.inspect("source", x, y),
        lambda: loaded.inspect("gate", x, y),
        lambda: loaded.inspect("llvm", x, y),
        lambda: loaded.export("other", (x, y)),
        lambda: numpipe.verify(loaded, x, y),
        lambda: numpipe.explain(loaded, x, y),
        lambda: loaded.bind(x, y, target="sim")(),
    ):
        with pytest.raises(
            TargetError,
            match="kernel plain: it was loaded from k.numpipe, which holds machine code and no "
            "source",
        ):
            wants()
    with pytest.raises(SpecError, match="inspect"):
        loaded.inspect("words", x, y)


def test_it_is_pickled_as_its_file(
    fake: Noting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    k, t = numpipe.kernel(plain), Torch(4096)
    k.export("k.numpipe", (t, Torch(1 << 20)))
    data = pickle.dumps(numpipe.load("k.numpipe"))
    monkeypatch.chdir("/")
    pickle.loads(data)(t, Torch(1 << 20))
    assert len(fake.seen) == 1


def test_the_same_images_make_the_same_file(fake: Noting) -> None:
    k, t = numpipe.kernel(plain), Torch(4096)
    for name in ("a", "b"):
        k.export(name, (t, Torch(1 << 20)))
    assert Path("a").read_bytes() == Path("b").read_bytes()


# ---- what export rejects
def test_functions_that_no_file_holds_are_refused_with_their_line(fake: Noting) -> None:
    def out(x):
        sizes = []
        for n in x.shape:
            sizes.append(n)
        return ArrayType(tuple(sizes), x.dtype)

    k = numpipe.kernel(out_type=out)(plain)
    with pytest.raises(
        SpecError, match=r"test_export.py:\d+: kernel plain: out_type cannot be kept in a file"
    ) as caught:
        k.export("k.numpipe", (np.zeros((64, 64), np.float32),))
    assert f"test_export.py:{out.__code__.co_firstlineno + 2}" in str(caught.value)


@pytest.mark.parametrize(
    ("signatures", "message"),
    [
        ((), "give at least one signature"),
        ((np.zeros(3),), r"got ndarray: write export\(path, \(a, b\)\)"),
        ((3,), "got int"),
        (((),), "pass all of x, y|takes 2 arguments"),
        (((np.zeros((4, 4)), 1, 2),), "takes"),
        (("ab",), "got str"),
        (((object(),),), "x"),
        ((((np.zeros((4, 4)),), {"z": 1}),), "unexpected argument 'z'"),
    ],
)
def test_bad_signatures_are_refused(fake: Noting, signatures: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        numpipe.kernel(plain).export("k.numpipe", *signatures)
    assert not list(Path().iterdir())


def test_a_folder_that_is_missing_is_found_before_the_compile(
    fake: Noting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Variant, "_build", lambda self: pytest.fail("compiled"))
    with pytest.raises(
        FileNotFoundError, match="kernel plain: export: there is no such folder: 'nowhere'"
    ):
        numpipe.kernel(plain).export("nowhere/k.numpipe", (np.zeros((4, 4)),))
    with pytest.raises(FileNotFoundError, match=r"k\.numpipe"):
        numpipe.load("k.numpipe")


def test_a_file_is_replaced_in_one_step(fake: Noting, monkeypatch: pytest.MonkeyPatch) -> None:
    k, t = numpipe.kernel(plain), Torch(4096)
    k.export("k.numpipe", (t, Torch(1 << 20)))
    before = Path("k.numpipe").read_bytes()
    with monkeypatch.context() as broken, pytest.raises(OSError, match="full"):
        broken.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
        k.export("k.numpipe", (t, Torch(1 << 20)), (Torch(4096, (2, 2), "float16"), Torch(1 << 20)))
    assert Path("k.numpipe").read_bytes() == before and len(list(Path().iterdir())) == 1
    loaded = numpipe.load("k.numpipe")
    k.export("k.numpipe", (Torch(4096, (64, 64), "float16"), Torch(1 << 20)))
    loaded(t, Torch(1 << 20))  # what was loaded remains
    with pytest.raises(ImageError, match="x float16"):
        numpipe.load("k.numpipe")(t, Torch(1 << 20))


def test_without_a_gpu_it_says_why(monkeypatch: pytest.MonkeyPatch, fake: Noting) -> None:
    x = np.zeros((64, 64), np.float32)
    numpipe.kernel(plain).export("k.numpipe", (x, x))
    fake.gpus = [("NVIDIA A100", (8, 0))]
    launch.current_gpu.gpu_state.cache_clear()
    with pytest.raises(TargetError, match="kernel plain: .*A100"):
        numpipe.load("k.numpipe")(x, x.copy())
