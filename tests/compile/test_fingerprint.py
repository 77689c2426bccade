"""The key of a kernel in the disk cache: it changes with anything that the AST pass may read, and
is equal in every process."""

from __future__ import annotations

import copy
import functools
import linecache
import math
import os
import pickle
import re
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

import numpipe
from numpipe import launch
from numpipe.compile import compilers, fingerprint
from numpipe.compile.build import toolchain
from numpipe.compile.fingerprint import Fingerprint
from numpipe.kernels.variants import Variant
from tests.compile.edited_sources import INTEGERS, NAMES, X, lifted, load, variant
from tests.compile.test_cache import code
from tests.kernels import jit_kernels

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NUMPIPE_CACHE_DIR", str(tmp_path / "cache"))
    yield
    for name in ("helpers", "kernels"):
        sys.modules.pop(name, None)


# ---- different keys
@pytest.mark.variants(5)
@pytest.mark.parametrize("name", NAMES)
def test_each_constant_that_a_kernel_reads_is_in_its_key(name: str, tmp_path: Path) -> None:
    before = variant(load(tmp_path))
    text, key = lifted(before), before.digest
    assert key is not None and before._digest() == key, "rewriting reads properties that are kept"
    other = variant(load(tmp_path, **{name: INTEGERS.get(name, 0) + 1}))
    assert other.digest not in (key, None)
    assert (lifted(other) != text) is (name not in ("class_method", "factory", "frozen"))
    assert variant(load(tmp_path)).digest == key


def test_the_reason_why_tma_cannot_address_an_array_is_not_in_the_key(tmp_path: Path) -> None:
    """Shapes share a variant: a rank that read its source for the first shape, and one that did
    not, must have the same key for the second."""
    kernel, keys = load(tmp_path), []
    for columns in (61, 63):
        narrow = launch.info_of_zeros((128, columns), np.dtype(np.float32))._replace(kind="torch")
        found = kernel.variant((X, narrow), {})
        assert f"(128, {columns})" in found.obstacles[1]
        keys += [found._digest(), found.digest]
        lifted(found)
    assert len(set(keys)) == 1 and keys[0] is not None


@pytest.mark.parametrize(
    "one, other",
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (1.0, np.float32(1)),
        (np.float32(1), np.float64(1)),
        (math.nan, -math.nan),
        (1, "1"),
        (b"1", "1"),
        ((1, 2), [1, 2]),
        ((1,), (1.0,)),
        ((True,), (1,)),
        ({"a": 1}, {"a": True}),
        ({1: 2}, {True: 2}),
        ({1, 2}, frozenset({1, 2})),
        ((1, (2, 3)), ((1, 2), 3)),
        ("a, b", ("a", "b")),
        (np.dtype("f4"), "float32"),
        (np.float32, np.dtype("f4")),
        (None, "None"),
        (slice(1, 2), slice(1, 2, 1)),
        (range(3), range(4)),
        (2**70, 2.0**70),
        (np.arange(3), np.arange(3.0)),
        (1j, -1j),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (functools.partial(max, 1), functools.partial(max, 2)),
        ({"a": 1}.get, {"a": 2}.get),
        (staticmethod(len), classmethod(len)),
        (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2)),
        (..., NotImplemented),
    ],
)
def test_values_that_are_not_the_same_have_other_texts(one: Any, other: Any) -> None:
    keys = [
        Fingerprint(
            type("C", (), {"__m__": value})
            if isinstance(value, staticmethod | classmethod)
            else value
        ).key()
        for value in (one, other, one, other)
    ]
    assert keys[0] != keys[1] and None not in keys
    assert keys[:2] == keys[2:]


def module(name: str, text: str, folder: Path) -> types.ModuleType:
    """Return a module from a file of its own, run anew."""
    (folder / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf8")
    found = types.ModuleType(name)
    found.__file__ = str(folder / f"{name}.py")
    exec(
        compile((folder / f"{name}.py").read_text(encoding="utf8"), found.__file__, "exec"),
        vars(found),
    )
    return found


def test_attributes_set_from_outside_are_read_too(tmp_path: Path) -> None:
    """A test or tool may change an attribute of a module, class, instance, function or enum
    member."""
    keys = {variant(load(tmp_path)).digest}
    for statement in (
        "helpers.OFFSET = 9",
        "kernels.Holder.offset = staticmethod(lambda: 9)",
        "kernels.HOLDER.own = 9",
        "kernels.first.block = 9",
        "kernels.Mode.A.extra = 9",
        "kernels.DYNAMIC.more = 9",
        "helpers.sub.SUB = 9",
        "kernels.NESTED[0].append(9)",
        "kernels.Config.tm = 9",
        "del kernels.SCALE",
        "kernels.getattr = 9",
        "helpers.deepest.function.__defaults__ = (9,)",
    ):
        of = load(tmp_path)
        exec(statement, {name: sys.modules[name] for name in ("kernels", "helpers")})
        keys.add(variant(of).digest)
    assert len(keys) == 12, "a global that nobody reads is not in it"
    assert None not in keys


@pytest.mark.parametrize(
    "body",
    [
        "return globals()['TILE'] + n",
        "return eval('TILE') + n",
        "return __import__('helpers').OFFSET + n",
        "return find(other, 'T' + 'ILE') + n",
        "import helpers; return helpers.OFFSET + n",
        "from .math import TILE; return TILE + n",
        "return len(open('/dev/null').read()) + n",
        "return time.time() + n",
        "return random.random() + n",
        "return others.attrgetter('TILE')(other) + n",
        "return vars(other)['TILE']",
        "return int.__doc__ is n",
        "return n.__globals__",
    ],
)
def test_code_that_may_read_anything_has_no_key(body: str, tmp_path: Path) -> None:
    """It is compiled in each process."""
    found = module(
        "anything",
        f"""
        import random, time
        import operator as others
        import types
        TILE, find, other = 3, getattr, types.ModuleType("other")
        def function(n):
            {body}
        """,
        tmp_path,
    )
    assert Fingerprint(found.function).key() is None


def test_a_class_from_text_without_a_module_name_is_not_a_builtin() -> None:
    """Python reports that such a class belongs to the module builtins."""
    keys = set()
    for number in (1, 2):
        names: dict[str, Any] = {}
        exec(f"class Config:\n    __tile__ = {number}\n", names)
        assert names["Config"].__module__ == "builtins"
        keys.add(Fingerprint(names["Config"]).key())
    assert len(keys) == 2 and None not in keys


def test_methods_that_no_code_names_do_not_matter(tmp_path: Path) -> None:
    text = """
        class Config:
            def load(path):
                return open(path).read() + "{}"
            def kept(self):
                return {}
        def function(config=Config()):
            return {}
        """
    bodies = [
        (1, 2, "config.kept()"),
        (2, 2, "config.kept()"),
        (1, 3, "config.kept()"),
        (1, 2, "getattr(config, 'k' + 'ept')()"),
    ]
    keys = [
        Fingerprint(module("methods", text.format(*body), tmp_path).function).key()
        for body in bodies
    ]
    assert keys[0] == keys[1] != keys[2] and keys[0] is not None
    assert keys[3] is None, "it may call all of them, and one opens a file"


def test_names_that_only_unreached_code_has_are_read(tmp_path: Path) -> None:
    """The search for outputs looks inside ``if 0:``, which has no bytecode."""
    text = """
        import numpipe
        from numpipe import ds
        @numpipe.function
        def fill(a, b):
            {target}[ds(0, 64)] = 0.0
        @numpipe.kernel()
        def kernel(x, y):
            '''fill'''
            if 0:
                fill(x, y)
        """
    (tmp_path / "unreached.py").write_text("")
    keys = set()
    for target in "ab":
        file = tmp_path / "unreached.py"
        file.write_text(textwrap.dedent(text.format(target=target)), encoding="utf8")
        linecache.checkcache(str(file))
        names: dict[str, Any] = {"__name__": "unreached"}
        exec(compile(file.read_text(encoding="utf8"), str(file), "exec"), names)
        assert names["kernel"].definition.stores["all"] == [{"a": "x", "b": "y"}[target]]
        keys.add(names["kernel"].definition.fingerprint().key())
    assert len(keys) == 2 and None not in keys


def test_an_equal_static_of_another_process_has_the_same_key() -> None:
    config = jit_kernels.Config(64)
    of = jit_kernels.times.definition
    assert (
        of.fingerprint().key(config)
        == of.fingerprint().key(copy.copy(config))
        == of.fingerprint().key(pickle.loads(pickle.dumps(config)))
        != of.fingerprint().key(jit_kernels.Config(32))
    )


def test_a_constant_that_holds_itself_or_too_much_has_no_key() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert Fingerprint(loop).key() is None
    assert Fingerprint(list(range(fingerprint._MOST + 1))).key() is None
    assert Fingerprint(np.zeros(fingerprint._MOST_BYTES + 1, np.uint8)).key() is None
    deep: Any = ()
    for _ in range(5000):
        deep = (deep,)
    assert Fingerprint(deep).key() is None


TILED = """
import numpipe
from numpipe import ArrayType, BlockSpec, CompilerParams
STEP, LEFT = {step}, {left}

@numpipe.function
def negated(v):
    return -v * {passed}

def mapped(m, n):
    return (m + {defined}, n)

def make(captured):
    first = BlockSpec(({rows}, 64), lambda m, n: (m * STEP + captured, n))

    @numpipe.kernel(
        grid=(2, {grid}),
        in_specs=(first, BlockSpec((64, 64), mapped)),
        out_specs=BlockSpec(({rows}, 64), lambda m, n: (m, n + {text})),
        out_type=lambda a: ArrayType(a.shape, a.dtype),
        compiler_params=CompilerParams(
            dimension_semantics=("parallel", "{semantics}"), approx_math={math}
        ),
    )
    def kernel(
        a, b, c, *, of: numpipe.Static = negated, pair: numpipe.Static = (negated, {static})
    ):
        c[...] = of(a[...]) * LEFT + pair[1]
    return kernel

kernel = make({captured})
"""


@pytest.mark.parametrize(
    "edited",
    [
        {"step": 2},
        {"left": 2.5},
        {"passed": 2},
        {"defined": 1},
        {"grid": 3, "semantics": "sequential"},
        {"rows": 128},
        {"text": 1},
        {"math": True},
        {"static": 8},
        {"captured": 1},
    ],
    ids=lambda edited: "-".join(edited),
)
def test_all_that_makes_a_kernel_over_tiles_is_in_its_key(
    edited: dict[str, Any], tmp_path: Path
) -> None:
    values = {
        "step": 1,
        "left": 1.5,
        "passed": 1,
        "defined": 0,
        "grid": 2,
        "semantics": "parallel",
        "rows": 64,
        "text": 0,
        "math": False,
        "static": 7,
        "captured": 0,
    }
    keys, texts = [], []
    for each in (values, values | edited, values):
        linecache.checkcache(str(tmp_path / "tiled.py"))
        of = variant(module("tiled", TILED.format(**each), tmp_path).kernel, X, X)
        keys.append(of.digest)
        texts.append(lifted(of))
    assert keys[0] == keys[2] != keys[1] and None not in keys
    assert (
        texts[0] == texts[2]
        and "Error" not in texts[0]
        and (texts[0] != texts[1] or "math" in edited or "rows" in edited)
    )


# ---- equal keys in every process
KEYS = """
import importlib, sys
import numpy as np
import numpipe
from numpipe.kernels.kernel import Kernel

X = numpipe.ArrayType((128, 128), np.float32)

def keys():
    import kernels
    yield "kernels", kernels.kernel.variant((X,), {}).digest

for _ in range(2):
    print(sorted(keys()))
    importlib.reload(sys.modules["helpers"])
    importlib.reload(sys.modules["kernels"])
"""
EXAMPLES = """
import importlib, sys
from pathlib import Path
from numpipe.kernels.kernel import Kernel

sys.path.insert(0, "examples")
made = []
begin = Kernel.__init__
Kernel.__init__ = lambda self, *args, **named: (begin(self, *args, **named), made.append(self))[0]
for path in sorted(Path("examples").glob("*.py")):
    # these need PyTorch, and have no kernels
    if path.stem not in ("tensor_parallel_block", "torch_model", "train_transformer"):
        importlib.import_module(path.stem)
import attention_ladder, gemm_ladder, gemm_tuned, w4a16
from importlib import import_module
# numpipe.ops has the functions under the names of their modules
modules = {
    name: import_module(f"numpipe.ops.{name}")
    for name in (
        "all_gather",
        "all_gather_matmul",
        "all_to_all",
        "matmul_reduce_scatter",
        "reduce_scatter",
    )
}
from numpipe.ops.attention import Config, Form, kernel
kernel(Config(), Form(128))
kernel(Config(64, 1, alone=True), Form(64))
from tests.kernels.attention_function_cases import documents, soft_cap
of_functions = Form(64, score=soft_cap, mask=documents, arrays=(0, 1), dropout=0.125)
kernel(Config(), of_functions)
from numpipe.ops.attention_gradients import of_keys, prepare
of_keys(of_functions)
from numpipe.ops.attention_varlen import plan
plan(128, True, True), kernel(Config(), Form(128, ranges=True))
prepare(Form(64)), of_keys(Form(64), True), of_keys(Form(256))
from tests.kernels.op_calls import run_ops_over_rows
run_ops_over_rows()
import numpy as np
from numpipe import ops
x = np.ones((2, 40), np.float32)
ops.softmax(x, target="sim")
ops.cross_entropy(x, np.zeros(2, np.int32), target="sim")
attention_ladder.kernel(attention_ladder.Config(), 128, True)
gemm_ladder.kernel(gemm_ladder.Config())
gemm_tuned.kernel(gemm_tuned.Config())
w4a16.kernel(w4a16.Config())
for name, module in modules.items():
    module.kernel(*([64] if name == "reduce_scatter" else []))
for kernel in made:
    print(kernel.__module__, kernel.name, kernel.definition.fingerprint().key())
"""


def said(program: str, folder: Path, *options: str, **environment: str) -> str:
    run = subprocess.run(
        [sys.executable, *options, "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", **environment},
    )
    assert not run.returncode, run.stderr
    return run.stdout


def test_a_key_is_the_same_in_each_process(tmp_path: Path) -> None:
    """For any hash seed, modules compiled or from .pyc files, and modules imported again."""
    load(tmp_path, frozen='"s", "t", (1, "u"), 2.5')
    answers = [
        said(
            KEYS, tmp_path, PYTHONHASHSEED=seed, PYTHONDONTWRITEBYTECODE=off, PYTHONPYCACHEPREFIX=""
        )
        for seed, off in ("11", ("2", ""), ("3", ""))
    ]
    assert len({line for answer in answers for line in answer.splitlines()}) == 1, answers
    assert "None" not in answers[0] and list((tmp_path / "__pycache__").glob("kernels*.pyc"))


def test_all_kernels_of_the_examples_have_a_key_that_is_the_same_in_each_process() -> None:
    first, second = (
        said(EXAMPLES, ROOT, PYTHONHASHSEED=seed, NUMPIPE_COMPILE_CHECK="0") for seed in "12"
    )
    assert first == second and "None" not in first
    assert {line.split()[0] for line in first.splitlines()} == {
        prefix + path.stem
        for prefix, folder in (("", "examples"), ("numpipe.ops.", "numpipe/ops"))
        for path in (ROOT / folder).glob("*.py")
        if re.search(
            r"^ *((@|return )numpipe[._]kernel|@(kernel|rows|tile\.kernel))\(",
            path.read_text(encoding="utf8"),
            re.MULTILINE,
        )
    }


def test_the_cell_of_a_notebook_has_a_key_that_its_process_is_not_in() -> None:
    keys = set()
    for name in (
        "/tmp/ipykernel_12/345.py",
        "/tmp/ipykernel_67/345.py",
        "/tmp/ipykernel_67/346.py",
    ):
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile("def function(n): return n", name, "exec"), names)
        keys.add(Fingerprint(names["function"]).key())
    assert len(keys) == 2 and None not in keys


def test_optimized_code_has_another_key() -> None:
    program = "from numpipe.compile.compilers import compiler; print(compiler())"
    assert said(program, ROOT) != said(program, ROOT, "-O")


# ---- the compilers
def test_which_of_two_versions_is_imported_is_part_of_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = set()
    for order in ("ab", "ba"):
        for folder, version in zip("ab", ("1.0", "2.0"), strict=True):
            (tmp_path / folder / f"numba-{version}.dist-info").mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(sys, "path", [str(tmp_path / folder) for folder in order])
        keys.add(compilers._found.__wrapped__())
    assert len(keys) == 2
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])  # a folder without the package
    assert compilers._found.__wrapped__() in keys


def test_a_library_that_is_replaced_in_its_place_is_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    keys = set()
    for number in range(3):
        (tmp_path / "libnvvm.so.4").write_bytes(b"x" * number)
        keys.add(compilers._found.__wrapped__())
    assert len(keys) == 3


def test_a_file_of_numpipe_that_was_edited_is_another_key(tmp_path: Path) -> None:
    (tmp_path / "language").mkdir()
    file, digests = tmp_path / "language" / "ring.py", set()
    for text in ("1", "2", "1"):
        file.write_text(text)
        digests.add(compilers._sources(str(tmp_path)))
    file.rename(tmp_path / "language" / "turns.py")
    assert len({*digests, compilers._sources(str(tmp_path))}) == 3


# ---- random edits
TEXTS = [
    "0",
    "1",
    "2",
    "True",
    "1.0",
    "0.0",
    "-0.0",
    "2.5",
    "np.float32(2.5)",
    "1e400 - 1e400",
    "1 + 1",
    "'a'",
    "None",
    "(1, 2)",
]
EDITS = st.tuples(
    st.dictionaries(
        st.sampled_from([name for name in NAMES if name not in INTEGERS]),
        st.sampled_from(TEXTS),
        max_size=3,
    ),
    st.dictionaries(st.sampled_from(sorted(INTEGERS)), st.integers(1, 4), max_size=2),
).map(lambda both: both[0] | both[1])
SHARDS = [
    pytest.param(number, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])
    for number in range(1, 11)
]
"""each of these is a tenth of the long run, and differs from the short one"""


def each_edit(
    folder: Path, shard: int, few: int, many: int, check: Callable[[Variant, Variant], None]
) -> None:
    """Call `check` with the variants of many edits; each is loaded twice."""

    @seed(shard)
    @settings(max_examples=many if shard else few, deadline=None, database=None)
    @given(EDITS)
    def run(edit: dict[str, Any]) -> None:
        try:
            loaded = [variant(load(folder, **edit)) for _ in range(2)]
        except Exception:  # the edit gives no module, or an invalid call
            return
        check(loaded[0], loaded[1])

    run()


@pytest.mark.thorough
@pytest.mark.parametrize("shard", [0, *SHARDS])
def test_whatever_is_edited_another_source_has_another_key(shard: int, tmp_path: Path) -> None:
    """Two different rewritten sources never share a key, and a module that is run again has the
    same key."""
    seen: dict[str, str] = {}

    def check(one: Variant, again: Variant) -> None:
        key, text = one.digest, lifted(again)
        assert key is not None and key == again.digest == again._digest()
        assert seen.setdefault(key, text) == text

    each_edit(tmp_path, shard, 40, 500, check)
    assert len(seen) > 30


@pytest.mark.thorough
@pytest.mark.skipif(toolchain() is not None, reason=f"no compiler: {toolchain()}")
@pytest.mark.parametrize("shard", [0, *SHARDS])
def test_whatever_is_edited_an_image_of_the_cache_equals_a_fresh_compile(
    shard: int, tmp_path: Path
) -> None:
    """The edits share a folder: some images come from the cache, and each is compared with a fresh
    compile."""

    def check(one: Variant, again: Variant) -> None:
        try:
            one.image  # noqa: B018
        except numpipe.NumpipeError as error:
            with pytest.raises(type(error)):
                again._build()
        else:
            assert again.find() is not None and code(again.image) == code(again._build().image)

    each_edit(tmp_path, shard, 2, 30, check)
