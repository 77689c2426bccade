"""The machine of a result: GPU, driver, versions, and the readings of the card's sensors."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from ...diagnostics.versions import installed
from .timer import api, call

_PACKAGES = (
    "numpipe",
    "numpy",
    "numba",
    "numba-cuda",
    "cuda-bindings",
    "cuda-core",
    "nvidia-nvjitlink",
    "nvidia-nvvm",
    "torch",
    "triton",
    "nvidia-cublas",
    "nvidia-cublas-cu12",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "jax",
)

Sensors = Callable[[], dict[str, float]]


def describe() -> dict[str, Any]:
    """Return device, driver, host and package versions, as JSON has them. Needs a GPU."""
    driver = api()
    call(driver.cuInit(0))
    device = call(driver.cuDeviceGet(0))

    def attribute(name: str) -> int:
        code = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(call(driver.cuDeviceGetAttribute(code, device)))

    row = _query("driver_version", "power.limit", "clocks.max.sm")
    names = ("power_limit_watts", "max_sm_mhz")
    card = {"driver": row[0], **dict(zip(names, map(_number, row[1:]), strict=True))} if row else {}
    return {
        "device": {
            "name": call(driver.cuDeviceGetName(96, device)).split(b"\0")[0].decode(),
            "uuid": uuid_text(call(driver.cuDeviceGetUuid(device)).bytes),
            "compute_capability": ".".join(
                str(attribute(f"COMPUTE_CAPABILITY_{part}")) for part in ("MAJOR", "MINOR")
            ),
            "sms": attribute("MULTIPROCESSOR_COUNT"),
            "l2_bytes": attribute("L2_CACHE_SIZE"),
            "memory_bytes": int(call(driver.cuDeviceTotalMem(device))),
            "cuda_driver_api": call(driver.cuDriverGetVersion()),
            **card,
        },
        "host": {
            "system": platform.platform(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "python": sys.version.split()[0],
        },
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the installed versions of what compiles and launches kernels, and of competitors."""
    return installed(*_PACKAGES)


def sensors() -> Sensors:
    """Return a function that reads SM clock (MHz), power (W) and temperature (°C) of GPU 0.

    It reads NVML if nvidia-ml-py is installed, which is fast enough while the measured work runs.
    Else it runs nvidia-smi, which takes longer than the work: its clock is the one just after.
    """
    return _nvml() or _smi


def uuid_text(raw: bytes) -> str:
    digits = raw[:16].hex()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _nvml() -> Sensors | None:
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        status, uuid = api().cuDeviceGetUuid(0)
        # by UUID: CUDA_VISIBLE_DEVICES renumbers CUDA's devices, not NVML's
        handle = (
            nvml.nvmlDeviceGetHandleByIndex(0)
            if int(status)
            else nvml.nvmlDeviceGetHandleByUUID(uuid_text(uuid.bytes))
        )
        readings: dict[str, Callable[[], float]] = {
            "sm_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "celsius": lambda: float(
                nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            ),
        }
        for read in readings.values():
            read()
    except Exception:  # absent, forbidden in this container, or too old for the card
        return None
    return lambda: {name: read() for name, read in readings.items()}


def _smi() -> dict[str, float]:
    read = _query("clocks.sm", "power.draw", "temperature.gpu")
    texts = zip(("sm_mhz", "watts", "celsius"), read, strict=False)
    return {name: number for name, text in texts if (number := _number(text)) is not None}


def _query(*fields: str) -> list[str]:
    """Return fields of GPU 0 by nvidia-smi; [] if it has no answer."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--id=0"]
    command.append("--format=csv,noheader,nounits")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    answer = done.stdout.strip()
    return [field.strip() for field in answer.splitlines()[0].split(",")] if answer else []


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
