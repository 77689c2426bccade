"""Arrays of the real libraries on a GPU: as inputs, in mixtures, as results, and with memory and
order kept across streams."""

from __future__ import annotations

import os

# read when JAX is imported: other libraries need memory too
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe import SpecError, ds, launch
from tests.examples.test_example_copy import copy_pipeline

ALONE = True  # several libraries allocate, and it orders streams against each other

copy = copy_pipeline.copy
F8 = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]


@numpipe.kernel(
    warp_specialized=False,
    out_type=lambda a: numpipe.ArrayType(a.shape, a.dtype),
    grid=lambda a: (numpipe.cdiv(a.shape[0], 64), numpipe.cdiv(a.shape[1], 64)),
)
def moves(a, c):
    """Copy a matrix of any element type by TMA alone."""
    tile = numpipe.scratch(numpipe.SMEM((64, 64), a.dtype))
    arrived = numpipe.scratch(numpipe.Barrier())
    i, j = numpipe.program_id(0) * 64, numpipe.program_id(1) * 64
    numpipe.copy_gmem_to_smem(a.at[ds(i, 64), ds(j, 64)], tile, arrived)
    numpipe.barrier_wait(arrived)
    numpipe.copy_smem_to_gmem(tile, c.at[ds(i, 64), ds(j, 64)])
    numpipe.wait_smem_to_gmem(0)


# ---- kinds of arrays
class Interface:
    """An object with ``__cuda_array_interface__`` and nothing else."""

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.array.__cuda_array_interface__


class Dlpack:
    """An object with DLPack and nothing else."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def as_torch(values: np.ndarray[Any, Any]) -> Any:
    torch = pytest.importorskip("torch")
    return (
        torch.from_numpy(values.view(f"i{values.itemsize}").copy())
        .cuda()
        .view(getattr(torch, values.dtype.name))
    )


def as_cupy(values: np.ndarray[Any, Any]) -> Any:
    return pytest.importorskip("cupy").asarray(values)


def as_jax(values: np.ndarray[Any, Any]) -> Any:
    jax = pytest.importorskip("jax")
    try:
        return jax.device_put(values, jax.devices("gpu")[0])
    except RuntimeError as error:
        pytest.skip(f"JAX has no GPU here: {error}")


def as_numba(values: np.ndarray[Any, Any]) -> Any:
    from numba import cuda

    return cuda.to_device(values)


def as_own(values: np.ndarray[Any, Any]) -> Any:
    return launch.DeviceArray.from_host(values)


MAKERS = {
    "torch": as_torch,
    "cupy": as_cupy,
    "jax": as_jax,
    "numba": as_numba,
    "interface": lambda v: Interface(as_own(v)),
    "dlpack": lambda v: Dlpack(as_torch(v)),
}
MUTABLE = [kind for kind in MAKERS if kind != "jax"]


def kind_of(array: Any) -> str:
    name = type(array).__module__.partition(".")[0]
    return {"jaxlib": "jax", "numpipe": "own"}.get(name, name)


def on_host(array: Any) -> np.ndarray[Any, Any]:
    """Return the bytes of any of them, once pending writes are done."""
    if isinstance(array, (Interface, Dlpack)):
        return on_host(array.array)
    kind = kind_of(array)
    if kind == "torch":
        torch = pytest.importorskip("torch")
        torch.cuda.synchronize()
        integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[array.element_size()]
        return array.contiguous().view(integer).cpu().numpy()
    if kind == "cupy":
        return array.get()
    if kind == "numba":
        return array.copy_to_host()
    return array.copy_to_host() if kind == "own" else np.asarray(array)


def same(array: Any, values: np.ndarray[Any, Any]) -> None:
    got = on_host(array)
    assert got.shape == values.shape
    np.testing.assert_array_equal(
        np.ascontiguousarray(got).view(np.uint8), np.ascontiguousarray(values).view(np.uint8)
    )


def numbers(*shape: int, dtype: Any = np.float16, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


# ---- inputs and outputs
@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=lambda d: d.__name__)
@pytest.mark.parametrize("kind", MAKERS)
def test_every_kind_goes_in_and_comes_out(kind: str, dtype: Any) -> None:
    for shape in ((64, 64), (200, 1000), (1, 8)):
        values = numbers(*shape, dtype=dtype)
        c = copy(MAKERS[kind](values), target="gpu")
        assert kind_of(c) == {"interface": "own", "dlpack": "own"}.get(kind, kind)
        same(c, values)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, *F8], ids=lambda d: d.__name__)
@pytest.mark.parametrize("kind", ["torch", "jax", "own"])
def test_bfloat16_and_float8(kind: str, dtype: Any) -> None:
    values = numbers(100, 64, dtype=dtype)
    x = as_own(values) if kind == "own" else MAKERS[kind](values)
    c = moves(x, target="gpu")
    assert kind_of(c) == kind and launch.describe(c, "c").dtype == np.dtype(dtype)
    same(c, values)


@pytest.mark.parametrize("kind", ["cupy", "numba"])
def test_bfloat16_where_the_library_has_it(kind: str) -> None:
    values = numbers(100, 64, dtype=ml_dtypes.bfloat16)
    try:
        x = MAKERS[kind](values)
    except Exception as error:
        pytest.skip(f"this {kind} has no bfloat16: {error}")
    same(copy(x, target="gpu"), values)


def test_bfloat16_through_dlpack() -> None:
    values = numbers(100, 64, dtype=ml_dtypes.bfloat16)
    c = copy(Dlpack(as_torch(values)), target="gpu")
    assert c.dtype == ml_dtypes.bfloat16
    same(c, values)


@pytest.mark.parametrize("given", MUTABLE)
@pytest.mark.parametrize("kind", MAKERS)
def test_kinds_may_be_mixed(kind: str, given: str) -> None:
    values = numbers(100, 64)
    out = MAKERS[given](np.zeros_like(values))
    assert copy(MAKERS[kind](values), out=out, target="gpu") is out
    same(out, values)


def test_views_with_any_outer_strides_are_used_in_place() -> None:
    torch = pytest.importorskip("torch")
    values = numbers(200, 256)
    x = as_torch(values)
    views = (x[::3, 8:72], x[50:], x[:, 128:])
    outs = [torch.empty(view.shape, dtype=view.dtype, device="cuda") for view in views]
    for view, out in zip(views, outs, strict=True):
        copy(view, out=out, target="gpu")  # compiles and loads the kernel
    before = torch.cuda.mem_get_info()[0]
    for view, out, expected in zip(
        views, outs, (values[::3, 8:72], values[50:], values[:, 128:]), strict=True
    ):
        copy(view, out=out, target="gpu")
        same(out, expected)
    assert torch.cuda.mem_get_info()[0] == before


# ---- order and lifetime
def test_a_jax_array_that_is_still_computed_is_waited_for() -> None:
    jax = pytest.importorskip("jax")
    x = as_jax(numbers(2048, 2048, dtype=np.float32))

    @jax.jit
    def late(x: Any) -> Any:
        return jax.lax.fori_loop(0, 200, lambda i, y: jax.numpy.tanh(y @ x), x)

    copy(x, target="gpu")
    late(x).block_until_ready()
    y = late(x)
    same(copy(y, target="gpu"), np.asarray(y))


def test_a_new_jax_array_is_complete_when_it_is_returned() -> None:
    torch = pytest.importorskip("torch")
    values = numbers(512, 512, dtype=np.float32)
    x, stream = as_jax(values), torch.cuda.Stream()
    copy(x, target="gpu")
    for _ in range(5):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)
        c = copy(x, stream=stream, target="gpu")
        np.testing.assert_array_equal(np.asarray(c + 1), values + 1)


def test_new_jax_arrays_share_no_memory() -> None:
    inputs = [numbers(64, 64, seed=seed) for seed in range(4)]
    outputs = [copy(as_jax(values), target="gpu") for values in inputs]
    assert len({output.unsafe_buffer_pointer() for output in outputs}) == 4
    for output, values in zip(outputs, inputs, strict=True):
        same(output, values)


def test_the_memory_of_a_forgotten_jax_array_is_not_used_again_too_early() -> None:
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    values = numbers(1024, 1024, dtype=np.float32)
    stream, out = torch.cuda.Stream(), as_torch(np.zeros_like(values))
    copy(as_jax(values), out=out, target="gpu")
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)
    # only numpipe refers to the input now
    copy(as_jax(values), out=out, stream=stream, target="gpu")
    for i in range(30):
        jax.numpy.full((1024, 1024), i, np.float32).block_until_ready()
    stream.synchronize()
    same(out, values)


def test_an_exporter_orders_its_stream_before_the_kernels() -> None:
    torch = pytest.importorskip("torch")
    values = numbers(512, 512, dtype=np.float32)
    source = as_torch(values)
    x = as_torch(np.zeros_like(values))
    out = as_torch(np.zeros_like(values))
    producer, consumer = torch.cuda.Stream(), torch.cuda.Stream()
    copy(Dlpack(x), out=out, target="gpu")
    torch.cuda.synchronize()
    with torch.cuda.stream(producer):
        torch.cuda._sleep(200_000_000)
        x.copy_(source)
        copy(Dlpack(x), out=out, stream=consumer, target="gpu")
    consumer.synchronize()
    same(out, values)


# ---- numpipe.ascontiguous
@pytest.mark.parametrize("kind", MAKERS)
def test_ascontiguous_makes_rows_that_tma_can_address(kind: str) -> None:
    for values in (numbers(100, 5), numbers(7, 65)):
        x = MAKERS[kind](values)
        if kind not in ("interface",):  # its rows are already padded
            with pytest.raises(SpecError, match=r"pass numpipe.ascontiguous\(a\)"):
                moves(x, target="gpu")
        made = numpipe.ascontiguous(x)
        same(made, values)
        assert launch.tma_addressable(launch.describe(made, "a")) is None
        assert kind_of(made) == (kind if kind in ("torch", "cupy", "numba") else "own") or made is x
        # TMA stores only rows of whole 16-byte units
        room = np.zeros((len(values), -(-values.shape[1] // 8) * 8), values.dtype)
        out = as_own(room)
        moves(made, out, target="gpu")
        room[:, : values.shape[1]] = values
        same(out, room)


@pytest.mark.parametrize("kind", ["torch", "cupy", "numba", "dlpack"])
def test_ascontiguous_of_views(kind: str) -> None:
    values = numbers(40, 96)
    whole = MAKERS["torch" if kind == "dlpack" else kind](values)
    cuts = [np.s_[:, ::3], np.s_[3:, 1:50]] + (
        [np.s_[::-1], np.s_[:, ::-1]] if kind == "cupy" else []
    )
    for cut in cuts:
        view = Dlpack(whole[cut]) if kind == "dlpack" else whole[cut]
        made = numpipe.ascontiguous(view)
        assert launch.tma_addressable(launch.describe(made, "a")) is None
        same(made, values[cut])
    if kind in ("torch", "cupy"):
        odd = MAKERS[kind](numbers(40, 9))
        made = numpipe.ascontiguous(odd.T)
        assert launch.describe(made, "a").strides == (2, 32)
        same(made, numbers(40, 9).T)


# ---- rejected arrays
def refused(match: str, *args: Any, **named: Any) -> None:
    with pytest.raises(SpecError, match=match):
        copy(*args, target="gpu", **named)


def test_a_jax_array_is_not_an_output_and_a_deleted_one_not_an_input() -> None:
    x = as_jax(numbers(64, 64))
    refused(
        "argument 'o' of kernel 'copy': it is an output, and JAX arrays are immutable",
        x,
        out=as_jax(numbers(64, 64)),
    )
    x.delete()
    refused("argument 'a' of kernel 'copy': this JAX array was deleted or donated", x)


@pytest.mark.parametrize("kind", MAKERS)
def test_arrays_on_host_and_gpu_are_refused(kind: str) -> None:
    refused(
        "argument 'o' of kernel 'copy': a ndarray on the host, but argument 'a' is on GPU 0",
        MAKERS[kind](numbers(64, 64)),
        out=numbers(64, 64),
    )


@pytest.mark.parametrize("kind", ["torch", "cupy", "numba"])
def test_overlap_is_refused_and_halves_and_the_same_array_are_not(kind: str) -> None:
    values = numbers(129, 128)
    x = MAKERS[kind](values)
    refused(
        "argument 'o' of kernel 'copy': it is an output and overlaps argument 'a'",
        x[:128],
        out=x[1:],
    )
    same(copy(x, out=x, target="gpu"), values)
    copy(x[:, :64], out=x[:, 64:], target="gpu")
    same(x, np.hstack([values[:, :64]] * 2))
