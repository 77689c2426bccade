"""Calls of ops on several GPUs: what a caller passes for each GPU of the mesh, and what it gets
back.

Under `Mesh.simulated` and `Mesh.local`, each array argument is a list with one array per GPU; under
`Mesh.torch`, each rank passes and gets its own array. A repeated call is launched again without the
preparation, as for kernels: checking layouts, choosing a config and finding a workspace takes as
long as the kernel of a small call.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import launch
from ..arch.dimensions import Ints, Names
from ..arch.dtypes import ELEMENTS
from ..core.functions import function
from ..diagnostics.argument_checks import NONE, POSITIVE, Rule, a, as_tuple, require, told
from ..diagnostics.errors import SpecError
from ..kernels.kernel import Kernel
from ..kernels.noted_calls import imagined, noted, taken
from ..language.memory.copies import wait_smem_to_gmem
from ..launch.array_info import ArrayInfo, dense_strides, tma_addressable
from ..launch.launcher import Launch
from ..launch.mesh import Mesh
from ..launch.peer_access import Together
from ..launch.repeats import MeshSeries, OpRepeats
from ..launch.windows import strided
from ..plan.context import axis_index, axis_size
from ..plan.specs import ArrayType
from .declaration import Op, P, by_name
from .op_outputs import allocated, delivered, tell_copied
from .operands import copied, laid, move

COPIED = tuple(ELEMENTS)
"""element types that are copied unchanged"""
_WORD, _CHUNK = np.dtype(np.int32), 16
OnGpus = list[ArrayInfo]
"""arrays, one for each GPU of this process"""


class ShardedOp(Op[P]):
    """A declared op on the GPUs of a mesh. Its operands and results are lists with one array for
    each GPU of this process, or single arrays under `Mesh.torch`.

    Result functions receive the operands of the first GPU and, by name, ``gpus``, the number of
    GPUs. The ``launch`` function receives ``shards``, the `Shards` of the call.
    """

    sharded = True
    place: Names = ("out", "mesh", "stream")

    def call(
        self,
        arrays: tuple,
        options: tuple,
        out: Any = None,
        mesh: Any = None,
        stream: Any = None,
    ) -> Any:
        done, found = self._repeats.again(arrays, options, out, stream, mesh)
        if done:
            return found
        # free the outputs allocated for a repeat that did not match, so that the allocator can
        # return the same addresses below
        del found
        values = self.checked(options)
        shards = Shards(self, mesh, stream)
        infos = shards.described(self.given(arrays))
        on_first = {name: each[0] for name, each in infos.items()}
        wanted = self.result_types(on_first, values | {"gpus": shards.size})
        like = next(iter(infos.values()))
        if out is None:
            results = {name: shards.made(like, kind) for name, kind in wanted.items()}
        else:
            results = shards.outputs(out, wanted, infos)
        if any(math.prod(kind.shape) for kind in wanted.values()):
            absent = dict.fromkeys([*self.operands, *self.results])
            controls = shards.mesh.controls
            # calls of other threads use the same workspaces
            with contextlib.nullcontext() if controls is None else controls.launching:
                by_name(self.launch, absent | infos | results | values | {"shards": shards})
        if out is None:
            made = tuple(shards.delivered(like, each) for each in results.values())
            out = made[0] if len(made) == 1 else made
        shards.learn(self._repeats, arrays, options, out)
        return out


def sharded_op(
    kind: type[ShardedOp] = ShardedOp, **declared: Any
) -> Callable[[Callable[P, Any]], ShardedOp[P]]:
    """Declare an op on several GPUs; arguments are those of `numpipe.op`."""
    return lambda stub: noted(kind(stub, **declared))


class Shards:
    """A call of an op on a mesh. Its methods take and return lists with one array for each GPU of
    this process."""

    def __init__(self, op: ShardedOp, mesh: Any, stream: Any = None) -> None:
        """Raises SpecError if `mesh` is not a Mesh."""
        if not isinstance(mesh, Mesh):
            raise SpecError(
                f"{op.name}: mesh must be a numpipe.Mesh: Mesh.simulated(2), Mesh.local() or "
                f"Mesh.torch(), got {told(mesh)}"
            )
        self.declared, self.op, self.mesh, self.stream = op, op.name, mesh, stream
        self.place = {"target": "sim" if mesh.gpus is None else None, "stream": stream}
        self.size = mesh.size
        self._infos: list[OnGpus] = []
        """arrays that were passed or allocated, by GPU"""
        self._made = 0
        self._launches: list[Launch | Together | None] = []
        """the call's launches, or None for one that cannot be repeated"""

    @property
    def single(self) -> bool:
        """Whether an argument is one array rather than a list: under `Mesh.torch`, and in a call
        that is only recorded, where one GPU stands for all."""
        return self.mesh.rank is not None or taken() is not None

    def described(self, given: dict[str, Any]) -> dict[str, OnGpus]:
        """Describe the operands that are `given`.

        Raises SpecError for an argument that is not a list of one array per GPU, for other element
        types, and if shapes or types differ between GPUs.
        """
        listed = {name: self.parts(name, value) for name, value in given.items()}
        each = [
            self.declared.described({name: parts[gpu] for name, parts in listed.items()})
            for gpu in range(1 if self.single else self.size)
        ]
        infos = {name: [of_gpu[name] for of_gpu in each] for name in given}
        for name, several in infos.items():
            self._check_alike(name, several)
        return infos

    def _check_alike(self, name: str, infos: OnGpus) -> None:
        """Keep the descriptions of an argument. Raises SpecError if they differ between GPUs."""
        for gpu, info in enumerate(infos):
            for what, mine, other in (
                ("shape; fix: pad the last one", infos[0].shape, info.shape),
                ("type; fix: cast some of them", infos[0].dtype, info.dtype),
            ):
                if mine != other:
                    raise SpecError(
                        f"{self.op}: '{name}' is {mine} on GPU 0 and {other} on GPU {gpu}: all "
                        f"GPUs must have shards of one {what}"
                    )
        self._infos.append(infos)

    def outputs(
        self, out: Any, wanted: dict[str, ArrayType], operands: dict[str, OnGpus]
    ) -> dict[str, OnGpus]:
        """Describe the arrays passed as out= of an op with one result. Raises SpecError if they do
        not match it, or are not where the operands of their GPU are."""
        each = [
            self.declared.outputs(
                part, wanted, {name: infos[gpu] for name, infos in operands.items()}
            )
            for gpu, part in enumerate(self.parts("out", out))
        ]
        results = {name: [of_gpu[name] for of_gpu in each] for name in wanted}
        for infos in results.values():
            self._check_alike("out", infos)
        return results

    def parts(self, name: str, value: Any) -> Sequence:
        """Return the arrays passed for this process' GPUs. Raises SpecError if they are not a list
        of that length."""
        listed = type(value) in (list, tuple) and self.mesh.rank is None
        if not listed and self.single:
            return [value]
        if not listed or len(value) != self.mesh.size or any(each is None for each in value):
            lacking = sum(each is None for each in value) if listed else 0
            got = f"{len(value) - lacking} of them" if listed else told(value)
            raise SpecError(
                f"{self.op}: '{name}' under {self.mesh!r} must be a list of {self.mesh.size} "
                f"arrays, one for each GPU, got {got}"
            )
        return value  # type: ignore[no-any-return]

    # ---- layouts
    def rows(self, name: str, infos: OnGpus) -> OnGpus:
        """Return matrices whose rows TMA can address: the arguments themselves or copies."""
        found = []
        for info in infos:
            dense = info.strides[-1] == info.dtype.itemsize
            reason = tma_addressable(info) if dense else "its rows are not contiguous"
            if reason:
                tell_copied(self.op, name, info, reason)
                self._launches.append(None)
                info = copied(info, self.place)
            found.append(info)
        return found

    def laid(self, name: str, infos: OnGpus) -> tuple[OnGpus, bool]:
        """Return matrices whose rows TMA can address, views of the arguments or copies, and whether
        they are the transposes of the arguments.

        Raises SpecError if some GPUs have row-major and others column-major matrices.
        """
        found = [laid(self.op, {name: info}, (), self.place)[0] for info in infos]
        if any(operand.info.ptr != info.ptr for operand, info in zip(found, infos, strict=True)):
            self._launches.append(None)
        for gpu, operand in enumerate(found):
            if operand.turned != found[0].turned:
                raise SpecError(
                    f"{self.op}: '{name}' has strides {infos[0].strides} on GPU 0 and "
                    f"{infos[gpu].strides} on GPU {gpu}: all GPUs must have shards of one layout; "
                    "fix: pass copies of some of them"
                )
        return [operand.info for operand in found], found[0].turned

    def as_words(self, name: str, infos: OnGpus, count: int) -> OnGpus:
        """View contiguous arrays as 4-byte words in `count` rows."""
        return [
            _retyped(info, (count, self._contiguous(name, info, count) // _WORD.itemsize), _WORD)
            for info in infos
        ]

    def as_rows(self, name: str, infos: OnGpus, count: int = 0) -> OnGpus:
        """View contiguous arrays as rows of 64 elements, or of the largest divisor that their size
        shares with 64; with `count`, each of `count` parts is viewed that way."""
        found = []
        for info in infos:
            elements = self._contiguous(name, info, max(count, 1)) // info.dtype.itemsize
            columns = math.gcd(elements, 64)
            found.append(
                _retyped(info, (*[count] * bool(count), elements // columns, columns), info.dtype)
            )
        return found

    def _contiguous(self, name: str, info: ArrayInfo, parts: int) -> int:
        """Return the bytes of each of `parts` parts of a contiguous array. Raises SpecError for
        other arrays, and if TMA cannot copy each part."""
        nbytes = math.prod(info.shape) * info.dtype.itemsize // parts
        if info.strides != dense_strides(info.shape, info.dtype.itemsize):
            raise SpecError(
                f"{self.op}: '{name}' is not contiguous, shape {info.shape}, strides "
                f"{info.strides} bytes; fix: {name} = numpipe.ops.copy({name})"
            )
        if nbytes % _CHUNK or info.ptr % _CHUNK:
            raise SpecError(
                f"{self.op}: each GPU's part of '{name}' has {nbytes} bytes, and must "
                f"begin and end at a multiple of {_CHUNK}; fix: pad it"
            )
        return nbytes

    # ---- memory
    def made(self, like: OnGpus, kind: ArrayType) -> OnGpus:
        """Return new arrays, allocated by the library of `like` on each GPU, as the call's next
        outputs."""
        self._made += 1
        self._infos.append([allocated(info, kind.shape, self.place, kind.dtype) for info in like])
        return self._infos[-1]

    def workspace(
        self, name: str, like: OnGpus, shape: Sequence[int], dtype: np.dtype | None = None
    ) -> OnGpus:
        """Return symmetric memory of the mesh, by default for elements of the type of `like`,
        shared by the launches on this stream."""
        dtype = dtype or like[0].dtype
        if taken() is not None:
            return [imagined(shape, dtype) for _ in like]
        stream = (
            None
            if self.mesh.gpus is None
            else launch.current_stream(like[:1])
            if self.stream is None
            else self.stream
        )
        room = self.mesh.workspace(f"{self.op}: {name}", tuple(shape), dtype, stream)
        return [launch.describe(part, name, self.op) for part in self.parts(name, room)]

    def reaches(self, infos: OnGpus) -> bool:
        """Return whether kernels on other GPUs can access these arrays; True for a call that is
        only recorded."""
        return taken() is not None or self.mesh.reaches(infos)

    def reached(self, name: str, infos: OnGpus) -> OnGpus:
        """Return arrays that kernels on other GPUs can access: the arguments themselves, or copies
        in symmetric memory."""
        if self.reaches(infos):
            return infos
        self._launches.append(None)
        room = self.workspace(name, infos, infos[0].shape)
        for info, made in zip(infos, room, strict=True):
            move(info, made, self.place)
        return room

    # ---- the call
    def run(self, kernel: Kernel, *arrays: OnGpus) -> None:
        """Run a kernel on all GPUs."""
        self._launches.append(
            kernel.together(
                self.mesh, [infos[0] if self.single else infos for infos in arrays], self.stream
            )
        )

    def apart(self, function: Callable, *arrays: OnGpus) -> None:
        """Call a function that launches kernels of one GPU, for each GPU, with its arrays and its
        `Place`. The call can be repeated if the function launches one kernel and allocates
        nothing."""
        streams = as_tuple(self.stream)
        for gpu, infos in enumerate(zip(*arrays, strict=True)):
            place = {**self.place, "stream": streams[gpu % len(streams)]}
            if self.mesh.gpus is None or taken() is not None:
                function(*infos, place)
                continue
            with launch.collecting(launch.Collected()) as found:
                function(*infos, place)
            self._launches += found.launches if len(found.launches) == 1 else [None]  # type: ignore[arg-type]

    def learn(self, repeats: OpRepeats, arrays: tuple, options: tuple, result: Any) -> None:
        """Record the launches for reuse, unless operands were copied: the copies would hold
        outdated data the next time."""
        launches = [one for one in self._launches if one is not None]
        if launches and len(launches) == len(self._launches):
            outputs = result if self._made > 1 else (result,)
            infos = list(zip(*self._infos, strict=True))
            launched = launches[0] if len(launches) == 1 else MeshSeries(launches)
            repeats.learn((self.mesh, options), arrays, outputs, infos, self._made, launched)

    def delivered(self, like: OnGpus, results: OnGpus) -> Any:
        """Return the allocated arrays as the call's result, in the caller's library."""
        found = [
            delivered(of._replace(dtype=info.dtype), info, self.stream)
            for of, info in zip(like, results, strict=True)
        ]
        return found[0] if self.single else found


@function
def divided_ctas(share):  # type: ignore[no-untyped-def]
    """Divide the CTAs of a kernel: one in `share` works with this GPU's own data, the others send.
    Return (this CTA's number, the number of senders, the number of the others, this CTA's number
    among the others: negative if it only sends)."""
    cta, ctas = axis_index("cta"), axis_size("cta")
    near = max(ctas // share, 1)
    return cta, max(ctas - near, 1), near, cta - (ctas - near)


@function
def wait_for_slot(more):  # type: ignore[no-untyped-def]
    """Wait until the previous block has been read, so that its slot can be released; without `more`
    blocks, until all have been read."""
    if more:
        wait_smem_to_gmem(1, wait_read_only=True)
    else:
        wait_smem_to_gmem(0, wait_read_only=True)


class Sizes:
    """The base class of an op's config whose fields are all at least 1."""

    def __post_init__(self) -> None:
        op = type(self).__module__.rpartition(".")[2]
        require(f"{op}: Config", vars(self), **dict.fromkeys(vars(self), POSITIVE))


def config_check(kind: type) -> dict[str, Rule]:
    """Return the rule of the option `config`, which is of this class or None."""
    return {"config": a(kind) | NONE}


def planes(infos: OnGpus, count: int) -> OnGpus:
    """Return matrices as batches of `count` matrices, which are consecutive rows of each."""
    rows, columns = infos[0].shape[0] // count, infos[0].shape[1]
    return [
        strided(info, (count, rows, columns), (rows * info.strides[0], *info.strides))
        for info in infos
    ]


def check_matrices(op: str, a: Ints, b: Ints) -> tuple[int, int]:
    """Return (M, N) for shards (M, K) and (K, N). Raises SpecError for other shapes."""
    if len(a) != 2 or len(b) != 2:
        raise SpecError(
            f"{op}: 'a' and 'b' must be matrices, got {a} and {b}; fix: reshape batches to rows"
        )
    if a[1] != b[0]:
        raise SpecError(
            f"{op}: K = {a[1]} in 'a' {a}, {b[0]} in 'b' {b}"
            + "; fix: pass b.T for a b (N, K)" * (a[1] == b[1])
        )
    return a[0], b[1]


def gathered_rows(xp: Any, mesh: Any, arrays: list) -> list:
    """Return the rows of all GPUs, for a gradient function; arrays of any size and layout are
    accepted."""
    rows, columns = arrays[0].shape
    found = _by_elements(xp, mesh, "all_gather", arrays)
    return [x.reshape(mesh.size * rows, columns) for x in found]


def right_gradient(xp: Any, a: list, grads: list) -> list:
    """Return ``a.T @ grad`` for each GPU: the gradient of the right matrix of a product."""
    return [xp("matmul", xp.transposed(x), grad) for x, grad in zip(a, grads, strict=True)]


def added_up(xp: Any, mesh: Any, arrays: list) -> list:
    """Return the sum of the arrays of all GPUs for each of them, for a gradient function; arrays of
    any size and layout are accepted."""
    found = _by_elements(xp, mesh, "all_reduce", arrays)
    return [x.reshape(arrays[0].shape) for x in found]


def _by_elements(xp: Any, mesh: Any, op: str, arrays: list) -> list:
    """Call an op with the elements of arrays, padded to a multiple of 16 bytes; return its result
    without the padding, as rows of as many elements as an array has."""
    size = math.prod(arrays[0].shape)
    added = -size % (_CHUNK // arrays[0].dtype.itemsize)
    flat = [x.reshape(-1) for x in arrays]
    if added:
        zeros = xp.broadcast_to(xp.zeros_like(flat[0][:1]), (added,))
        flat = [xp.concatenate([x, zeros]) for x in flat]
    found = xp(op, [xp.contiguous(x) for x in flat], mesh=mesh)
    return [x.reshape(-1, size + added)[:, :size] for x in found] if added else found


def _retyped(info: ArrayInfo, shape: Ints, dtype: np.dtype) -> ArrayInfo:
    """View a contiguous array with another shape and an element type of another size."""
    array = None if info.array is None else info.array.reshape(-1).view(dtype).reshape(shape)
    return info._replace(
        shape=shape, strides=dense_strides(shape, dtype.itemsize), dtype=dtype, array=array
    )
