"""Repeated and bound calls: what they launch, on a driver whose kernels are Python functions."""

from __future__ import annotations

import ctypes
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, LaunchError, SpecError, launch
from numpipe.kernels.calls import Calls
from numpipe.launch import driver, repeats, windows
from numpipe.launch.array_info import ArrayInfo
from numpipe.launch.repeats import OpRepeats
from tests.kernels.launch_fakes import CudaArray, FakeDriver, TorchTensor
from tests.kernels.launch_kernels import compiled_as, image


class Torch(TorchTensor):
    """A tensor that can be moved."""

    def __init__(
        self,
        ptr: int,
        shape: tuple[int, ...] = (64, 64),
        dtype: str = "float32",
        strides: tuple[int, ...] | None = None,
        device: int = 0,
    ) -> None:
        super().__init__(ptr, shape, dtype, strides or (shape[-1], 1), device)

    @classmethod
    def like(cls, shape: tuple[int, ...], dtype: Any) -> Torch:
        made = cls(0, tuple(shape))
        made.dtype = dtype
        return made


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """Return a driver that records the address of each array at every launch.

    The fake of torch allocates at increasing addresses.
    """
    fake = FakeDriver()
    monkeypatch.setattr(driver, "_opened", fake)
    monkeypatch.setattr(repeats, "_memory", {})
    launch.current_gpu.gpu_state.cache_clear()
    launch.streams._torch_getter.cache_clear()
    launch.encode.cache_clear()
    fake.stream, fake.made, fake.seen = 5, [], []  # type: ignore[attr-defined]

    def empty(*_shape: Any, **_named: Any) -> Torch:
        fake.made.append(Torch((1 << 24) + 65536 * (len(fake.made) % 2)))  # type: ignore[attr-defined]
        return fake.made[-1]  # type: ignore[attr-defined,no-any-return]

    torch = types.SimpleNamespace(
        _C=types.SimpleNamespace(_cuda_getCurrentRawStream=lambda device: fake.stream),  # type: ignore[attr-defined]
        empty=empty,
        empty_like=empty,
        float32="float32",
        contiguous_format=None,
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(
        launch.output_arrays,
        "_element",
        lambda dtype, _: types.SimpleNamespace(expand=lambda shape: Torch.like(shape, dtype)),
    )
    yield fake
    launch.current_gpu.gpu_state.cache_clear()
    launch.streams._torch_getter.cache_clear()
    launch.encode.cache_clear()


def launches(fake: FakeDriver, arrays: int, scalars: str = "") -> None:
    """Set the fake's number of 2-D arrays, and the ctypes codes of its scalars."""
    fake.sizes = [128] + [8] * (5 * arrays) + [{"f": 4, "i": 4}[code] for code in scalars]
    kinds = {"f": ctypes.c_float, "i": ctypes.c_int32}

    def note(parameters: list[int]) -> None:
        addresses = [
            ctypes.c_int64.from_address(parameters[1 + 5 * i]).value for i in range(arrays)
        ]
        values = [
            kinds[code].from_address(p).value
            for code, p in zip(scalars, parameters[1 + 5 * arrays :], strict=True)
        ]
        fake.seen.append((addresses, values))  # type: ignore[attr-defined]

    fake.kernel = note


def made(monkeypatch: pytest.MonkeyPatch, function: Any, names: str, **options: Any) -> Any:
    """Return a kernel that is not compiled: its launch is a fake."""
    kernel = numpipe.kernel(**options)(function)
    arrays = tuple(names.split())
    return compiled_as(kernel, lambda *_: image((), arrays, name="scale"))


def copy(a, c):
    c[...] = a[...]


def scaled(a, c, scale=1.0):
    c[...] = a[...] * scale


def with_static(a, c, *, n: numpipe.Static = 1):
    c[...] = a[...]


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of kernels whose calls were bound, described and planned."""
    seen: list[str] = []
    resolve = Calls.resolve
    monkeypatch.setattr(
        Calls,
        "resolve",
        lambda self, *args: (seen.append(self.definition.name), resolve(self, *args))[1],
    )
    return seen


def test_a_repeated_call_launches_the_same_and_is_not_looked_at_again(
    fake: FakeDriver, monkeypatch: Any, resolved: Any
) -> None:
    launches(fake, 2)
    k = made(monkeypatch, copy, "a c")
    a, b, c = Torch(4096), Torch(8192), Torch(1 << 20)
    for array in (a, b, a, b, a):
        k(array, c)
    assert [addresses for addresses, _ in fake.seen] == [
        [x, 1 << 20] for x in (4096, 8192, 4096, 8192, 4096)
    ]
    assert resolved == ["copy", "copy"]
    assert fake.named("launch") == [((1, 1, 1), 5, 0)] * 5 and len(fake.named("load")) == 1


@pytest.mark.parametrize(
    "other",
    [Torch(4096, (64, 128)), Torch(4096, (64, 64), "float16"), Torch(4096, strides=(128, 1))],
)
def test_another_shape_type_or_stride_at_the_same_address_is_another_call(
    fake: FakeDriver, monkeypatch: Any, resolved: Any, other: Torch
) -> None:
    launches(fake, 2)
    k = made(monkeypatch, copy, "a c")
    c = Torch(1 << 20)
    for array in (Torch(4096), other, Torch(4096), other):
        k(array, c)
    assert len(resolved) == 2 and len(fake.seen) == 4


def test_a_tensor_that_is_changed_in_place_is_seen(fake: FakeDriver, monkeypatch: Any) -> None:
    launches(fake, 2)
    k = made(monkeypatch, copy, "a c")
    a, c = Torch(4096), Torch(1 << 20)
    k(a, c)
    a._ptr = 8192
    k(a, c)
    assert [addresses[0] for addresses, _ in fake.seen] == [4096, 8192]


def test_it_runs_on_the_stream_of_the_moment_or_the_one_it_is_given(
    fake: FakeDriver, monkeypatch: Any
) -> None:
    launches(fake, 2)
    k = made(monkeypatch, copy, "a c")
    a, c = Torch(4096), Torch(1 << 20)
    for fake.stream, given in ((5, None), (5, None), (6, None), (6, 9), (6, 9), (5, None)):  # type: ignore[attr-defined]
        k(a, c, stream=given)
    assert [stream for _, stream, _ in fake.named("launch")] == [5, 5, 6, 9, 9, 5]


def test_outputs_are_allocated_anew_and_launched_at_their_address(
    fake: FakeDriver, monkeypatch: Any, resolved: Any
) -> None:
    launches(fake, 2)
    k = made(monkeypatch, copy, "a c", out_type=lambda a: ArrayType(a.shape, a.dtype))
    a = Torch(4096)
    results = [k(a) for _ in range(5)]
    assert [r.data_ptr() for r in results] == [addresses[1] for addresses, _ in fake.seen]
    assert len({id(r) for r in results}) == 5 and len(resolved) == 2  # two alternating addresses
    given = Torch(1 << 22)
    assert k(a, out=given) is given and k(a, out=given) is given and k(a, out=[given]) == [given]
    assert [addresses[1] for addresses, _ in fake.seen[5:]] == [1 << 22] * 3


def test_statics_by_name_are_distinguished(
    fake: FakeDriver, monkeypatch: Any, resolved: Any
) -> None:
    launches(fake, 2)
    k = made(monkeypatch, with_static, "a c")
    a, c = Torch(4096), Torch(1 << 20)
    for n in (1, True, 1, True, 300, int("300"), int("300")):
        k(a, c, n=n)
    assert len(resolved) == 3 and len(fake.seen) == 7  # 1, True, 300
    with pytest.raises(SpecError, match="unexpected argument 'm'"):
        k(a, c, m=1)


def test_calls_with_scalars_are_always_looked_at(fake: FakeDriver, monkeypatch: Any) -> None:
    launches(fake, 2, "f")
    k = made(monkeypatch, scaled, "a c")
    a, c = Torch(4096), Torch(1 << 20)
    for scale in (2.0, 2.0, 3.0):
        k(a, c, scale)
    k(a, c)
    assert [values for _, values in fake.seen] == [[2.0], [2.0], [3.0], [1.0]]


def test_wrong_calls_stay_wrong_after_a_right_one(fake: FakeDriver, monkeypatch: Any) -> None:
    launches(fake, 2)
    k = made(monkeypatch, copy, "a c")
    a, c = Torch(4096), Torch(1 << 20)
    for _ in range(2):
        k(a, c)
    with pytest.raises(SpecError, match="out= was given"):
        k(a, c, out=c)
    with pytest.raises(SpecError, match="out= was given"):
        k(a, c, out=())
    with pytest.raises(SpecError, match="not an array"):
        k(a, "c")
    with pytest.raises(SpecError, match="not a CUDA stream"):
        k(a, c, stream="s")


def test_a_failed_launch_says_which_kernel_and_shows_the_users_line(
    fake: FakeDriver, monkeypatch: Any
) -> None:
    launches(fake, 2)
    k = made(monkeypatch, copy, "a c")
    a, c = Torch(4096), Torch(1 << 20)
    bound = k.bind(a, c)
    k(a, c)
    fake.code = 700
    for call in (lambda: k(a, c), lambda: bound()):
        with pytest.raises(
            LaunchError, match=r"kernel 'scale' \(grid \(1, 1, 1\).*CUDA_ERROR_ILLEGAL_ADDRESS"
        ) as caught:
            call()
        assert len(caught.traceback) <= 3  # this function, the lambda, the entry


def test_nothing_keeps_the_arrays_of_a_call_alive_and_a_bound_one_does(
    fake: FakeDriver, monkeypatch: Any
) -> None:
    launches(fake, 2)
    k = made(monkeypatch, copy, "a c")
    a, c = Torch(4096), Torch(1 << 20)
    k(a, c)
    bound = k.bind(a, c)
    dead = weakref.ref(a)
    del a
    assert dead() is not None
    bound()
    del bound
    assert dead() is None


def test_a_bound_launch_does_only_that(fake: FakeDriver, monkeypatch: Any, resolved: Any) -> None:
    launches(fake, 2, "f")
    k = made(monkeypatch, scaled, "a c")
    bound = k.bind(Torch(4096), Torch(1 << 20), 2.0)
    before = len(fake.calls)
    assert [bound() for _ in range(3)] == [None] * 3
    assert [call[0] for call in fake.calls[before:]] == ["launch"] * 3 and len(resolved) == 1
    assert fake.seen == [([4096, 1 << 20], [2.0])] * 3
    fake.stream = 6  # type: ignore[attr-defined]
    bound()
    bound(stream=8)
    assert [stream for _, stream, _ in fake.named("launch")] == [5, 5, 5, 6, 8]


def test_update_replaces_arrays_outputs_and_scalars(fake: FakeDriver, monkeypatch: Any) -> None:
    launches(fake, 2, "f")
    k = made(monkeypatch, scaled, "a c", out_type=lambda a: ArrayType(a.shape, a.dtype))
    a, c, d = Torch(4096), Torch(1 << 20), Torch(1 << 21)
    bound = k.bind(a, out=c)
    assert bound() is c
    bound.update(a=Torch(8192), scale=3)
    assert bound() is c
    bound.update(c=d)
    assert bound() is d
    assert fake.seen == [
        ([4096, 1 << 20], [1.0]),
        ([8192, 1 << 20], [3.0]),
        ([8192, 1 << 21], [3.0]),
    ]
    for wrong, message in (
        (
            {"a": Torch(4096, (64, 128))},
            r"update of 'a': expected shape \(64, 64\), as bound, got \(64, 128\)",
        ),
        ({"a": Torch(4096, dtype="float16")}, "expected dtype float32, as bound, got float16"),
        ({"a": Torch(4096, device=1)}, "expected device 0, as bound, got 1"),
        ({"c": CudaArray(4096, (64, 64), "<f4", readonly=True)}, "read-only"),
        ({"b": a}, "no argument 'b' to update; it has a, c, scale"),
        ({"scale": "2"}, "'scale': expected a scalar"),
        ({"scale": 1e300}, "does not fit float32"),
    ):
        with pytest.raises(SpecError, match=message):
            bound.update(**wrong)
    bound()
    assert fake.seen[-1] == fake.seen[-2]


def test_arrays_that_were_freed_or_moved_are_reported_before_the_launch(
    fake: FakeDriver, monkeypatch: Any
) -> None:
    launches(fake, 2)
    k = made(monkeypatch, copy, "a c")
    a, own = Torch(4096), launch.DeviceArray((64, 64), np.float32)
    bound, other = k.bind(a, Torch(1 << 20)), k.bind(own, Torch(1 << 20))
    bound()
    other()
    a._ptr = 1 << 16
    with pytest.raises(
        LaunchError,
        match=r"kernel copy: the data of argument 'a' of this bound call moved from 0x1000 to "
        r"0x10000",
    ):
        bound()
    a._ptr = 0
    with pytest.raises(LaunchError, match=r"this bound call was freed \(it was at 0x1000\)"):
        bound()
    own.free()
    with pytest.raises(LaunchError, match=r"the data of argument 'a' of this bound call was freed"):
        other()
    assert len(fake.seen) == 2
    a._ptr = 1 << 16
    bound.update(a=a)
    bound()
    assert fake.seen[-1][0][0] == 1 << 16


def test_a_bound_call_on_host_arrays_runs_simulated_too() -> None:
    block = numpipe.BlockSpec((64, 64), lambda i: (i, 0))

    @numpipe.kernel(
        grid=(2,),
        in_specs=block,
        out_specs=block,
        target="sim",
        out_type=lambda a: ArrayType(a.shape, a.dtype),
    )
    def double(a, c):
        c[...] = a[...] + a[...]

    a = np.arange(128 * 64, dtype=np.float32).reshape(128, 64)
    bound = double.bind(a)
    c = bound()
    np.testing.assert_array_equal(c, 2 * a)
    a += 1
    assert bound() is c
    np.testing.assert_array_equal(c, 2 * a)
    bound.update(a=np.ones_like(a))
    np.testing.assert_array_equal(bound(), np.full_like(a, 2))
    assert repr(bound) == "<numpipe bound double(a, c)>"


# ---- calls of an op
class Doubled:
    """An op of one kernel, or of two, that looks at its arrays before it calls one."""

    also: Any = None
    """returns what the first kernel writes, if not the result"""

    def __init__(self, kernel: Any, times: int = 1) -> None:
        self.kernel, self.times, self.looked, self.repeats = kernel, times, 0, OpRepeats("doubled")

    def __call__(self, a: Any, out: Any = None, *, n: Any = 1, stream: Any = None) -> Any:
        done, out = self.repeats.again((a, None), (n,), out, stream)
        if done:
            return out
        self.looked += 1
        info = launch.describe(a, "a")
        made = sys.modules["torch"].empty() if out is None else out
        infos = [info, launch.describe(made, "out")]

        def run() -> None:
            passed = self.also() if self.also else infos[1]
            for number in range(self.times):
                to = passed if number < max(1, self.times - 1) else infos[1]
                self.kernel(windows.transposed(info), to, stream=stream)

        self.repeats.call(run, (a, None), (n,), out, infos)
        return made


def test_a_repeated_call_of_an_op_is_launched_again_without_running_the_op(
    fake: FakeDriver, monkeypatch: Any, resolved: Any
) -> None:
    launches(fake, 2)
    op, a, b, c = Doubled(made(monkeypatch, copy, "a c")), Torch(4096), Torch(8192), Torch(1 << 20)
    for array in (a, b, a, b, Torch(4096)):
        assert op(array, c) is c
    assert [addresses for addresses, _ in fake.seen] == [
        [x, 1 << 20] for x in (4096, 8192, 4096, 8192, 4096)
    ]
    assert op.looked == 2 and resolved == ["copy", "copy"]
    # each of these is a different call
    op(Torch(4096, (32, 128)), Torch(1 << 20, (32, 128))), op(a, c, n=2), op(a, c, stream=9)
    assert op.looked == 5 and fake.named("launch")[-1] == ((1, 1, 1), 9, 0)
    op(a, c, stream=9), op(a, c)
    assert op.looked == 5 and [launched[1] for launched in fake.named("launch")[-2:]] == [9, 5]


def test_a_repeated_call_of_an_op_allocates_its_output_anew(
    fake: FakeDriver, monkeypatch: Any
) -> None:
    launches(fake, 2)
    op, a = Doubled(made(monkeypatch, copy, "a c")), Torch(4096)
    outputs = [op(a) for _ in range(4)]
    assert [addresses[1] for addresses, _ in fake.seen] == [out.data_ptr() for out in outputs]
    assert op.looked <= 2 and len({out.data_ptr() for out in outputs}) == 2
    looked = op.looked
    # PyTorch must know the stream of an output to reuse its memory safely
    op(a, stream=9), op(a, stream=9)
    assert op.looked == looked + 2


def out_of_memory(nbytes: int, stream: int, ordinal: int) -> int:
    raise driver.DriverError("cuMemAllocFromPoolAsync", 2, "CUDA_ERROR_OUT_OF_MEMORY")


@pytest.mark.parametrize("times", [1, 2])
def test_repeated_calls_of_ops_share_memory_for_what_they_pass_on_except_in_a_graph(
    fake: FakeDriver, monkeypatch: Any, times: int
) -> None:
    launches(fake, 2)
    kernel, b = made(monkeypatch, copy, "a c"), Torch(8192)
    ops, a, c = [Doubled(kernel, times) for _ in range(2)], Torch(4096), Torch(1 << 20)
    spare = launch.describe(Torch(1 << 22), "spare")

    def also() -> ArrayInfo:
        collected = launch.COLLECTING.now
        made = collected and collected.allocate((32, 32), np.dtype(np.float32), 0)
        return made or spare

    for op in ops:
        op.also = also
        for array in (a, b, a, b):
            op(array, c)
        assert op.looked == 2
    seen = [addresses[1] for addresses, _ in fake.seen[::times]]
    assert len(set(seen)) == 1 and seen[0] != spare.ptr and len(fake.seen) == 8 * times
    monkeypatch.setattr(fake, "capturing", lambda stream, ordinal: True)
    ops[0](a, c)
    assert ops[0].looked == 3 and fake.seen[-times][0][1] == spare.ptr
    monkeypatch.setattr(fake, "capturing", lambda stream, ordinal: False)
    # what does not fit in the memory is not repeated, and has its own
    monkeypatch.setattr(repeats, "_memory", {})
    for of, name, value in ((fake, "allocate", out_of_memory), (repeats, "HELD", 4095)):
        monkeypatch.setattr(of, name, value)
        ops[0](Torch(1 << 14), c)
        assert fake.seen[-times][0][1] == spare.ptr
    assert ops[0].looked == 5


def test_an_op_with_views_and_one_with_unknown_options_run_each_time(
    fake: FakeDriver, monkeypatch: Any
) -> None:
    launches(fake, 2)
    kernel, a, c = made(monkeypatch, copy, "a c"), Torch(4096), Torch(1 << 20)
    viewed, unhashed = Doubled(kernel), Doubled(kernel)
    for _ in range(2):
        viewed(windows.transposed(launch.describe(a, "a")), c), unhashed(a, c, n=[1])
    assert viewed.looked == unhashed.looked == 2 and len(fake.seen) == 4


def test_an_op_runs_again_where_pytorch_would_record_it(fake: FakeDriver, monkeypatch: Any) -> None:
    launches(fake, 2)
    op, a, c = Doubled(made(monkeypatch, copy, "a c")), Torch(4096), Torch(1 << 20)
    sys.modules["torch"].is_grad_enabled = lambda: True  # type: ignore[attr-defined]
    for requires, looked in ((False, 1), (True, 2), (False, 2)):
        a.requires_grad = requires  # type: ignore[attr-defined]
        op(a, c)
        assert op.looked == looked
