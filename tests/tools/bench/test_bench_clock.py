"""numpipe.bench: the SM clock, and the achieved fraction of the limit."""

from __future__ import annotations

import ctypes
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from numpipe import bench
from numpipe.bench.__main__ import main
from numpipe.errors import LaunchError
from numpipe.tools.bench import timer
from tests.tools.bench.test_bench import FakeGpu

SMS = 4


# ---- clock
class FakeCuda:
    """A fake of cuda.bindings.driver on host memory, whose SMs have counters with clocks of their
    own.

    `time` (ns) passes explicitly. A launch reaches the SMs in `reached`.
    """

    def __init__(self) -> None:
        self.time, self.reached, self.mhz = 10**18, range(SMS), [1500.0, 1500.0, 1500.0, 3000.0]
        self.cycles = [10**6 * (sm + 1) for sm in range(SMS)]
        self.memory: list[Any] = []
        self.streams: list[int] = []
        self.event_streams: list[int] = []
        self.events: dict[int, int] = {}
        self.held: list[tuple[int, ctypes.c_uint32]] = []
        self.CU_MEMHOSTALLOC_DEVICEMAP = 2
        self.CUdevice_attribute = types.SimpleNamespace(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=16)
        self.status = 0

    def passes(self, nanoseconds: int) -> None:
        self.time += nanoseconds
        self.cycles = [
            c + round(nanoseconds * mhz / 1000)
            for c, mhz in zip(self.cycles, self.mhz, strict=True)
        ]

    def cuLibraryLoadData(self, code: bytes, *options: Any) -> tuple[int, str]:
        assert code.endswith(b"}\n\0")
        return self.status, "library"

    def cuLibraryGetKernel(self, library: str, name: bytes) -> tuple[int, bytes]:
        return 0, name

    def cuKernelGetFunction(self, kernel: bytes) -> tuple[int, bytes]:
        return 0, kernel

    def cuMemAlloc(self, nbytes: int) -> tuple[int, int]:
        self.memory.append((ctypes.c_uint8 * nbytes)())
        return 0, ctypes.addressof(self.memory[-1])

    def cuMemsetD8(self, at: int, value: int, nbytes: int) -> tuple[int]:
        ctypes.memset(at, value, nbytes)
        return (0,)

    def cuCtxGetDevice(self) -> tuple[int, int]:
        return 0, 0

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> tuple[int, int]:
        return 0, SMS

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> tuple[int, int]:
        assert flags == self.CU_MEMHOSTALLOC_DEVICEMAP
        return self.cuMemAlloc(nbytes)

    def cuMemHostGetDevicePointer(self, at: int, flags: int) -> tuple[int, int]:
        return 0, at

    def cuLaunchKernel(self, kernel: bytes, *args: Any) -> tuple[int]:
        if kernel == b"np_hold":
            (at, limit), kinds = args[8]
            assert (
                args[:6] == (1,) * 6
                and kinds == (ctypes.c_uint64, ctypes.c_uint64)
                and 1e6 <= limit <= 1e8
            )
            self.held.append((args[7], ctypes.c_uint32.from_address(at)))
            return (0,)
        assert kernel == b"np_stamp" and args[:6] == (4 * SMS, 1, 1, 32, 1, 1)
        (at, serial), kinds = args[8]
        assert kinds == (ctypes.c_uint64, ctypes.c_uint64)
        self.streams.append(args[7])
        for sm in self.reached:
            (ctypes.c_uint64 * 3).from_address(at + 32 * sm)[:] = self.time, self.cycles[sm], serial
        return (0,)

    def cuMemcpyDtoH(self, to: int, at: int, nbytes: int) -> tuple[int]:
        ctypes.memmove(to, at, nbytes)
        return (0,)

    def cuEventCreate(self, flags: int) -> tuple[int, int]:
        assert flags == 0, "events that tell the time"
        event = len(self.event_streams)
        self.events[event] = -1
        return 0, event

    def cuEventRecord(self, event: int, stream: int) -> tuple[int]:
        self.events[event] = self.time
        self.event_streams.append(stream)
        return (0,)

    def cuEventSynchronize(self, event: int) -> tuple[int]:
        return (0,)

    def cuEventElapsedTime(self, start: int, end: int) -> tuple[int, float]:
        return 0, (self.events[end] - self.events[start]) * 1e-6

    def cuEventDestroy(self, event: int) -> tuple[int]:
        del self.events[event]
        return (0,)

    def cuCtxSynchronize(self) -> tuple[int]:
        return (0,)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setitem(sys.modules, "cuda.bindings", types.SimpleNamespace(driver=fake))
    return fake


def test_the_clock_is_of_the_sms_between_two_stamps(cuda: FakeCuda) -> None:
    stamps = timer.Stamps()
    first = stamps.stamp(7)
    cuda.passes(400_000)
    second = stamps.stamp(7)
    cuda.mhz = [1200.0] * SMS
    cuda.passes(100_000)
    third = stamps.stamp(7)
    assert cuda.streams == [7, 7, 7]
    # the median: one SM's counter is off
    assert stamps.megahertz(first, second) == pytest.approx(1500)
    assert stamps.megahertz(second, third) == pytest.approx(1200)
    assert stamps.megahertz(first, third) == pytest.approx(1440)


def test_only_sms_of_both_stamps_count_and_an_overwritten_stamp_gives_none(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer, "KEPT", 4)
    stamps = timer.Stamps()
    cuda.reached = range(2, SMS)
    first = stamps.stamp(0)
    cuda.passes(100_000)
    cuda.reached = range(3)
    assert stamps.megahertz(first, stamps.stamp(0)) == pytest.approx(1500)  # SM 2
    cuda.reached = range(2)
    assert stamps.megahertz(first, stamps.stamp(0)) is None
    assert stamps.megahertz(first, first) is None  # no time has passed
    for _ in range(4):
        last = stamps.stamp(0)
    assert stamps.megahertz(first, last) is None
    cuda.reached = range(SMS)
    first, last = stamps.stamp(0), stamps.stamp(0)
    # SMs 2 and 3 still have the first of the two
    for reached in (range(SMS), range(SMS), range(2), range(SMS)):
        cuda.reached = reached
        cuda.passes(100_000)
        stamps.stamp(0)
    assert stamps.megahertz(first, last) is None


def test_a_driver_that_refuses_is_an_error(cuda: FakeCuda) -> None:
    cuda.status = 218
    with pytest.raises(LaunchError, match="218 while measuring"):
        timer.Stamps()


@pytest.mark.parametrize(
    "source, name", [(timer.STAMP_PTX, b"np_stamp"), (timer.HOLD_PTX, b"np_hold")]
)
def test_the_kernels_assemble(source: str, name: bytes) -> None:
    linker = pytest.importorskip("cuda.bindings.nvjitlink")
    text = source.encode() + b"\0"
    handle = linker.create(1, ["-arch=sm_90"])
    linker.add_data(handle, linker.InputType.PTX, text, len(text), "kernel")
    linker.complete(handle)
    cubin = bytearray(linker.get_linked_cubin_size(handle))
    linker.get_linked_cubin(handle, cubin)
    assert cubin[:4] == b"\x7fELF" and name in cubin


def test_a_hold_waits_for_its_word_and_for_no_other(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer, "KEPT", 3)
    holds = timer.Holds()
    words = [holds.hold(7) for _ in range(2)]
    assert [stream for stream, _ in cuda.held] == [7, 7]
    holds.open(words[1])
    assert [word.value for _, word in cuda.held] == [0, 1]
    for _ in range(3):
        again = holds.hold(7)
    # a reused word is kept alive again
    assert again == words[1] and cuda.held[-1][1].value == 0


def test_stamps_lie_outside_the_events_that_time_the_work_and_all_is_queued_before_any_of_it_runs(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []

    launched, recorded = cuda.cuLaunchKernel, cuda.cuEventRecord
    monkeypatch.setattr(
        cuda, "cuLaunchKernel", lambda *args: log.append(args[0].decode()) or launched(*args)
    )
    monkeypatch.setattr(timer, "require_gpu", lambda: None)
    monkeypatch.setattr(cuda, "cuEventRecord", lambda *args: log.append("event") or recorded(*args))
    monkeypatch.setattr(timer, "_stream", lambda: lambda: 5)
    timed = bench.EventTimer()

    def call(i: int) -> None:
        assert [(stream, word.value) for stream, word in cuda.held] == [(5, 0)]
        cuda.passes(100_000)
        log.append(f"call {i}")

    handle = timed.measure(call, 3, 10)
    assert log == [
        "np_hold",
        "np_stamp",
        "event",
        "call 10",
        "call 11",
        "call 12",
        "event",
        "np_stamp",
    ]
    assert cuda.streams == cuda.event_streams == [5, 5] and cuda.held[0][1].value == 1
    assert timed.seconds(handle) == pytest.approx(100e-6) and timed.megahertz(
        handle
    ) == pytest.approx(1500)
    assert not cuda.events  # destroyed once the time is known


def test_a_competitor_may_launch_many_at_once() -> None:
    class Batched:
        def __init__(self) -> None:
            self.asked: list[tuple[int, int]] = []

        def __call__(self, i: int) -> None:
            raise AssertionError("one by one")

        def many(self, first: int, calls: int) -> None:
            self.asked.append((first, calls))

    batched, single = Batched(), []
    timer.launch(batched, 4, 3)
    timer.launch(single.append, 4, 3)
    assert batched.asked == [(4, 3)] and single == [4, 5, 6]


class ClockedGpu(FakeGpu):
    """A GPU whose SMs run at 2000 MHz after a pause and at 1600 MHz under load.

    A handle is (seconds, MHz).
    """

    def measure(self, competitor: Any, calls: int, first: int) -> Any:
        mhz = 1600.0 if self.hot > 0.5 else 2000.0
        return super().measure(competitor, calls, first), mhz

    def seconds(self, handle: Any) -> float:
        return float(handle[0])

    def megahertz(self, handle: Any) -> float:
        return float(handle[1])


def run(
    process: int,
    ours: float,
    *,
    clocked: bool = True,
    case: str = "1,2,3",
    settled: float = 1.0,
    limit: float | None = 2e-6,
    watts: float = 500.0,
) -> dict[str, Any]:
    gpu = ClockedGpu() if clocked else FakeGpu()
    competitors = {
        name: gpu.competitor(name, seconds, settled)
        for name, seconds in (("numpipe", ours), ("cuBLAS", 1e-3))
    }
    samples = bench.compare(
        competitors,
        reference="cuBLAS",
        timer=gpu,
        sensors=lambda: {"sm_mhz": 1980.0, "watts": watts},
    )
    return bench.run_entry(process, {"shape": case}, 2.0, samples, limit=limit)


def test_a_row_has_the_fraction_of_the_limit_reached_in_its_own_cycles() -> None:
    """2 units of work take 0.8 ms, with at best 2e-6 units per cycle.

    That is 2 / 3.2 of the limit at 2000 MHz, and 2 / 2.56 at 1600 MHz.
    """
    burst, interleaved, alone = bench.summarise([run(p, 0.8e-3) for p in range(3)])
    assert burst.fraction == pytest.approx(0.625) and burst.reference_fraction == pytest.approx(0.5)
    assert interleaved.fraction == pytest.approx(
        0.78125
    ) and interleaved.reference_fraction == pytest.approx(0.625)
    assert alone.fraction == pytest.approx(0.78125) and alone.sensors["clock_mhz"] == 1600
    assert interleaved.sensors == {"clock_mhz": 1600, "sm_mhz": 1980, "watts": 500}


def test_without_a_clock_or_a_limit_nothing_is_said_of_it() -> None:
    for entry in (run(0, 0.8e-3, clocked=False), run(0, 0.8e-3, limit=None)):
        assert all(
            row.fraction is None and row.reference_fraction is None
            for row in bench.summarise([entry])
        )
    head = bench.table(bench.summarise([run(0, 0.8e-3, clocked=False)])).splitlines()[0]
    assert "of the limit" not in head


def test_the_table_shows_the_clock_that_was_measured_and_what_follows() -> None:
    head, burst, _, alone = bench.table(bench.summarise([run(0, 0.8e-3)])).splitlines()
    assert "of the limit (cuBLAS)" in head
    assert "2000  500" in burst and "1980" not in burst and burst.endswith("0.625 (0.500)")
    assert "1600  500" in alone and alone.endswith("0.781 (0.625)")


def test_the_command_prints_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / name for name in ("a.json", "b.json")]
    for file, seconds in zip(files, (0.8e-3, 0.5e-3), strict=True):
        bench.Result("gemm", {}, {}, [run(0, seconds)]).write(file)
    assert main(["show", *map(str, files)]) == 0
    shown = capsys.readouterr().out
    assert "1.250 [one process]" in shown and "2.000 [one process]" in shown
    files[0].write_text("[]")
    assert main(["show", str(files[0])]) == 2 and "not a result file" in capsys.readouterr().err
    assert main(["show", str(tmp_path / "none.json")]) == 2
