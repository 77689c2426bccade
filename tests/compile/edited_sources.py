"""A kernel in two modules that reads constants in every possible way, each of which a test may
edit."""

from __future__ import annotations

import importlib.util
import linecache
import sys
from pathlib import Path
from typing import Any

import numpy as np

import numpipe
from numpipe import ArrayType
from numpipe.kernels.variants import Variant

X = ArrayType((128, 128), np.float32)
KERNELS = '''
import enum, functools, types
import numpy as np
import numpipe
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple
from numpipe import ArrayType, BlockSpec, ds
import helpers
import helpers as alias
from helpers import imported, Base

SCALE = {scale}
TABLE = {{"a": {table}, "b": 1}}
NESTED = ([{nested}], {{"x": ({tuple},)}})
NUMPY = np.float32({numpy})
SHAPED = np.zeros({shaped})
FROZEN = frozenset([{frozen}, 7, "z", None])
FACTORY = defaultdict(lambda: {factory}, new=3)
READONLY = types.MappingProxyType({{"a": {mapping}}})
NAN = float("nan")

class Mode(enum.Enum):
    A = {enumeration}
    B = 77

class Kind(enum.IntEnum):
    A = {int_enum}

class Pair(NamedTuple):
    first: float = {named_default}
    second: float = 2

PAIR = Pair(second={named_value})

class Holder:
    shared = {class_attribute}

    def __init__(self):
        self.own = {instance_attribute}

    @property
    def computed(self):
        return self.own + {property} + Holder.offset()

    @staticmethod
    def offset():
        return {static_method}

    @classmethod
    def made(cls):
        return cls.shared + {class_method}

HOLDER = Holder()

class Slotted:
    __slots__ = ("kept",)

    def __init__(self):
        self.kept = {slot}

SLOTTED = Slotted()

class Hiding:
    """Pickled, it would not tell all that it has."""

    def __init__(self):
        self.hidden = {hidden}

    def __getstate__(self):
        return {{}}

HIDING = Hiding()

class Described:
    def __get__(self, instance, owner):
        return {descriptor}

class Dynamic(Base):
    field = Described()

    def __getattr__(self, name):
        return {{"dynamic": {getattr_method}}}[name]

DYNAMIC = Dynamic()

@dataclass(frozen=True)
class Config:
    tm: int = {field}
    hidden: float = field(default={hidden_field}, compare=False, repr=False)
    made: float = field(default_factory=lambda: {field_factory})

    @property
    def twice(self):
        return 2 * self.tm + helpers.OF_PROPERTY

    @functools.cached_property
    def kept(self):
        return self.tm + {cached}

class Several(float):
    pass

SEVERAL = Several(1.5)
SEVERAL.more = {of_float}

@numpipe.function
def first(v):
    return v + {of_tuple}

@numpipe.function
def constant(n):
    return n + Config(tm=n).twice + {evaluated}

first.block = {function_attribute}
FUNCTIONS = first, constant

def make(captured, default):
    @numpipe.function
    def shifted(v, by={default}, *, also={keyword_default}):
        return v + by * captured + also

    @numpipe.kernel(out_type=lambda x: ArrayType(x.shape, x.dtype))
    def kernel(
        x,
        y,
        *,
        slots: numpipe.Static = {slots},
        cfg: numpipe.Static = Config(),
        mode: numpipe.Static = Mode.A,
    ):
        spec = BlockSpec((64, 64), lambda k: (0, k))
        pipe = numpipe.pipeline(grid=(2,), max_concurrent_steps=slots, in_specs=(spec,))
        for (k,), (tile,) in pipe(x):
            v = shifted(tile[...] * SCALE) + TABLE["a"] + NESTED[0][0] + NESTED[1]["x"][0]
            v = v + NUMPY + SHAPED.shape[0]
            v = v + Mode.A.value + Kind.A + PAIR.first + PAIR.second + Pair().first
            v = v + FACTORY["new"] + READONLY["a"]
            v = v + HOLDER.own + HOLDER.computed + Holder.shared + SLOTTED.kept + HIDING.hidden
            v = v + DYNAMIC.dynamic + DYNAMIC.field
            v = v + cfg.tm + cfg.hidden + cfg.made + cfg.twice + cfg.kept + Config().hidden
            v = v + SEVERAL.more + first.block + DYNAMIC.inherited + alias.THROUGH_ALIAS
            v = v + helpers.sub.SUB + getattr(helpers, "BY_NAME"){with_getattr}
            v = FUNCTIONS[0](v) + constant(5) + imported
            if {in_frozen} in FROZEN:
                v = v + 100
            if mode is Mode.A and NAN != 3:
                v = v + {text}
            y[ds(0, 64), ds(k * 64, 64)] = helpers.inner(v)
    return kernel

kernel = make({captured}, {default})
'''.replace(' + getattr(helpers, "BY_NAME"){with_getattr}', "")
HELPERS = """
import types
import numpy as np
import numpipe
OFFSET = {offset}
THROUGH_ALIAS = {alias}
OF_PROPERTY = {of_property}
imported = {imported}
sub = types.SimpleNamespace(SUB={namespace})

class Meta(type):
    @property
    def of_meta(cls):
        return {meta}

class Base(metaclass=Meta):
    inherited = {inherited}

@numpipe.function
def deepest(v):
    return v - OFFSET + {deepest} + Base.of_meta

@numpipe.function
def inner(v):
    return deepest(v) * {factor}
"""
INTEGERS = {"slots": 2, "shaped": 3, "in_frozen": 7, "frozen": 3, "int_enum": 4, "field": 8}
"""constants that must be integers, and their values"""
NAMES = sorted(
    {
        part.split("}")[0]
        for text in (KERNELS, HELPERS)
        for part in text.replace("{{", "").split("{")[1:]
    }
)
VALUES: dict[str, Any] = {
    name: INTEGERS.get(name, number + 1.5) for number, name in enumerate(NAMES)
}


def load(folder: Path, **values: Any) -> numpipe.Kernel:
    """Return the kernel with these values, given as Python or as text, from modules in one
    folder."""
    texts = {
        name: value if isinstance(value, str) else repr(value)
        for name, value in (VALUES | values).items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("helpers", HELPERS), ("kernels", KERNELS)):
        file = folder / f"{name}.py"
        file.write_text(text.format(**texts), encoding="utf8")
        linecache.checkcache(str(file))
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        exec(compile(file.read_text(encoding="utf8"), str(file), "exec"), vars(module))
    found: numpipe.Kernel = module.kernel
    return found


def variant(of: numpipe.Kernel, *args: Any, **named: Any) -> Variant:
    return of.variant(args or (X,), named)


def lifted(of: Variant) -> str:
    """Return the rewritten source with its constants, or the error of the rewrite."""
    try:
        return of.lifted.text
    except Exception as error:
        return f"{type(error).__name__}: {error}"
