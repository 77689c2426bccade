"""Detection of the GPU, and choice between the GPU and the simulated SM.

=============  ================================================  ==================  ===============
status         meaning                                           target="auto"       target="gpu"
=============  ================================================  ==================  ===============
ok             a Hopper GPU and a suitable driver                the GPU             the GPU
none           no driver, no Python binding, or no GPU           simulates           TargetError
unsupported    GPUs, but none that `arch.targets` knows          simulates           TargetError
old_driver     the driver is older than the CUDA wheels          TargetError         TargetError
broken         libcuda exists but does not initialize            TargetError         TargetError
forked         the parent process had used CUDA before fork()    TargetError         TargetError
=============  ================================================  ==================  ===============

A GPU that should work but does not is an error, because silent simulation would hide the fault and
be a thousand times slower. ``target="sim"`` never accesses the driver.

A call on GPU arrays runs on the GPU of the arrays. A call on host arrays runs on the first
supported GPU.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Literal

from ..arch.targets import TARGETS
from ..core.process_guards import in_child
from ..diagnostics.argument_checks import told, word
from ..diagnostics.errors import SpecError, TargetError
from ..diagnostics.versions import installed
from . import driver
from .driver_errors import NOT_INITIALIZED

Target = Literal["gpu", "sim"]
Status = Literal["ok", "none", "unsupported", "old_driver", "broken", "forked"]
VARIABLE = "NUMPIPE_TARGET"
_NO_GPU = (34, 100)
"""CUDA_ERROR_STUB_LIBRARY and CUDA_ERROR_NO_DEVICE: results of cuInit without a GPU"""
_CHECK = "check nvidia-smi and CUDA_VISIBLE_DEVICES, or pass target='sim'"
TARGET_NAMES = ("auto", "gpu", "sim")


@dataclass(frozen=True)
class Device:
    """A GPU that can run numpipe's kernels."""

    ordinal: int
    name: str
    cc: tuple[int, int]
    sm_count: int
    driver_version: int
    """CUDA version of the driver, 1000 × major + 10 × minor"""
    max_dynamic_smem: int
    """bytes of dynamic shared memory that a CTA can have"""
    bandwidth: float = 0.0
    """memory bandwidth in bytes per second, from its clock and width; 0: unknown"""


@dataclass(frozen=True)
class GpuState:
    """The result of looking for a GPU: a device if `status` is "ok", otherwise why there is none,
    and how to fix it."""

    status: Status
    device: Device | None
    reason: str
    fix: str = ""
    gpus: tuple[Device, ...] = ()
    """all GPUs that the driver sees, supported or not"""


@dataclass(frozen=True)
class Choice:
    """Where a kernel runs, and why. `fallback` means that the simulator is used because no GPU is
    usable, not because the user chose it."""

    target: Target
    why: str
    device: Device | None = None
    fallback: bool = False


@functools.cache
def gpu_state() -> GpuState:
    """Look for a usable GPU, once per process. Never raises."""
    try:
        cuda = driver.get()
        version = cuda.version()
        # looking up the wheels takes milliseconds
        wheels = cuda_wheels_major() if version < _NEWEST_WHEELS * 1000 else None
        if wheels and version < wheels * 1000:
            return GpuState(
                status="old_driver",
                device=None,
                reason=f"the driver supports CUDA {spell(version)} and the installed CUDA wheels "
                f"are for CUDA {wheels}",
                fix=f"update the driver to one for CUDA {wheels}.0 or "
                f"newer{' (R580)' if wheels == 13 else ''}, "
                "or change the wheels: pip uninstall -y nvidia-nvvm nvidia-nvjitlink "
                "nvidia-cuda-nvrtc nvidia-cuda-runtime "
                f'nvidia-cuda-cccl, then pip install "numba-cuda[cu{version // 1000}]" '
                f'"cuda-bindings=={version // 1000}.*"',
            )
        properties = [cuda.properties(ordinal) for ordinal in range(cuda.count)]
        gpus = tuple(
            Device(i, name, cc, sm_count, version, smem, bandwidth)
            for i, (name, cc, sm_count, smem, bandwidth) in enumerate(properties)
        )
    except driver.DriverMissing as error:
        return GpuState("none", None, error.reason, error.fix)
    except driver.DriverError as error:
        if error.code in _NO_GPU:
            return GpuState("none", None, str(error), _CHECK)
        if error.code == NOT_INITIALIZED:
            return GpuState(
                status="forked",
                device=None,
                reason="this process was forked from one that had used CUDA, which does not "
                "survive fork()",
                fix="start workers with multiprocessing.get_context('spawn'), fork before "
                "anything uses a GPU, or pass target='sim'",
            )
        return GpuState(
            "broken",
            None,
            str(error),
            "fix the driver (nvidia-smi shows its state), or pass target='sim'",
        )
    for device in gpus:
        if device.cc in TARGETS:
            return GpuState("ok", device, _known(device), gpus=gpus)
    if not gpus:
        return GpuState("none", None, "the CUDA driver sees no GPU", _CHECK)
    return GpuState(
        status="unsupported",
        device=None,
        reason=f"found {', '.join(map(_seen, gpus))}, but {_NEEDED}",
        fix="run on a Hopper GPU, or pass target='sim'",
        gpus=gpus,
    )


_NEWEST_WHEELS = 13
"""newest CUDA major version whose wheels numpipe installs (setup.cfg)"""
_NEEDED = f"numpipe's kernels need {' or '.join(target.gpus for target in TARGETS.values())}"


def _known(device: Device) -> str:
    return f"{device.name}, {TARGETS[device.cc].name}, {device.sm_count} SMs"


def _seen(device: Device) -> str:
    return f"{device.name} (sm_{device.cc[0]}{device.cc[1]})"


in_child(gpu_state.cache_clear)


def cuda_wheels_major() -> int | None:
    """Return the CUDA major version of the newest installed CUDA wheel that numpipe uses, or
    None."""
    majors = [
        version.partition(".")[0]
        for version in installed("cuda-bindings", "nvidia-nvvm", "nvidia-nvjitlink").values()
    ]
    return max((int(major) for major in majors if major.isdecimal()), default=None)


def spell(version: int) -> str:
    """Format a CUDA version: "12.8" for 12080."""
    return f"{version // 1000}.{version % 1000 // 10}"


def choose_target(target: str | None = None, ordinal: int | None = None) -> Choice:
    """Choose where to run: `target`, or the environment variable NUMPIPE_TARGET, or "auto".

    `ordinal` is the GPU that the arrays are on; without it, the first supported GPU is used. Raises
    SpecError for any other word, and TargetError, with the fix, if the GPU is not usable. If the
    choice is a fallback, the caller warns once.
    """
    source = "target"
    if target is None:
        target, source = os.environ.get(VARIABLE) or "auto", VARIABLE
    if not word(*TARGET_NAMES).holds(target):
        raise SpecError(
            f"{source} is {told(target)}; use one of {', '.join(map(repr, TARGET_NAMES))}"
        )
    if target == "sim":
        return Choice("sim", f"{source}='sim' was requested")
    state = gpu_state()
    if state.status == "ok":
        device = state.device if ordinal is None else _of_arrays(state, ordinal)
        return Choice("gpu", state.reason if device is None else _known(device), device)
    if target == "gpu" or state.status in ("broken", "old_driver", "forked"):
        raise TargetError(f"target={target!r}: the GPU cannot be used: {state.reason}; {state.fix}")
    return Choice("sim", f"no usable GPU: {state.reason}", fallback=True)


def _of_arrays(state: GpuState, ordinal: int) -> Device:
    for device in state.gpus:
        if device.ordinal == ordinal:
            if device.cc in TARGETS:
                return device
            able = ", ".join(f"GPU {d.ordinal} ({d.name})" for d in state.gpus if d.cc in TARGETS)
            raise TargetError(
                f"the arrays are on GPU {ordinal}, {_seen(device)}, but {_NEEDED}: move them to "
                f"{able}"
            )
    raise TargetError(
        f"the arrays are on GPU {ordinal}, but the CUDA driver sees {len(state.gpus)} GPUs: pass "
        "arrays of this process"
    )
