"""The machine of a result: the GPU, the driver, versions, and the readings of the card's own sensors."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from .probes import api, call

_PACKAGES = ("numpipe", "numpy", "numba", "numba-cuda", "cuda-bindings", "cuda-core", "nvidia-nvjitlink", "nvidia-nvvm",
             "torch", "triton", "nvidia-cublas", "nvidia-cublas-cu12", "cupy-cuda12x", "cupy-cuda13x", "jax")

Sensors = Callable[[], dict[str, float]]


def describe() -> dict[str, Any]:
    """Return device, driver, host and package versions, ready for JSON. Needs a GPU."""
    driver = api()
    call(driver.cuInit(0))
    device = call(driver.cuDeviceGet(0))

    def attribute(name: str) -> int:
        code = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(call(driver.cuDeviceGetAttribute(code, device)))

    row = _query("driver_version", "power.limit", "clocks.max.sm")
    card = {} if not row else {"driver": row[0], "power_limit_watts": _number(row[1]), "max_sm_mhz": _number(row[2])}
    return {
        "device": {
            "name": call(driver.cuDeviceGetName(96, device)).split(b"\0")[0].decode(),
            "uuid": _uuid(call(driver.cuDeviceGetUuid(device)).bytes),
            "compute_capability": f"{attribute('COMPUTE_CAPABILITY_MAJOR')}.{attribute('COMPUTE_CAPABILITY_MINOR')}",
            "sms": attribute("MULTIPROCESSOR_COUNT"),
            "l2_bytes": attribute("L2_CACHE_SIZE"),
            "memory_bytes": int(call(driver.cuDeviceTotalMem(device))),
            "cuda_driver_api": call(driver.cuDriverGetVersion()),
            **card,
        },
        "host": {"system": platform.platform(), "machine": platform.machine(), "cpus": os.cpu_count(),
                 "python": sys.version.split()[0]},
        "versions": versions(),
    }


def cards() -> list[str]:
    """Return the UUIDs of all GPUs that this process sees, in CUDA's order; none where there is no driver."""
    driver = api()
    status = driver.cuInit(0)[0]
    count = driver.cuDeviceGetCount()[1] if int(status) == 0 else 0
    return [_uuid(driver.cuDeviceGetUuid(number)[1].bytes) for number in range(count)]


def versions() -> dict[str, str]:
    """Return the installed versions of everything that makes or moves a kernel, the compared peers included."""
    installed = {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[package] = importlib.metadata.version(package)
    return installed


def sensors() -> Sensors:
    """Return a function that reads SM clock (MHz), power (W) and temperature (°C) of GPU 0.

    It reads NVML where nvidia-ml-py is installed, which is quick enough while the measured work is still running. Else it runs
    nvidia-smi, whose start takes longer than the work: its clock is the one just after.
    """
    return _nvml() or _smi


def _uuid(raw: bytes) -> str:
    digits = raw[:16].hex()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _nvml() -> Sensors | None:
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        status, uuid = api().cuDeviceGetUuid(0)
        # CUDA_VISIBLE_DEVICES renumbers CUDA's devices, not NVML's
        handle = nvml.nvmlDeviceGetHandleByIndex(0) if int(status) else nvml.nvmlDeviceGetHandleByUUID(_uuid(uuid.bytes))
        readings: dict[str, Callable[[], float]] = {
            "sm_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "celsius": lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        }
        for read in readings.values():
            read()
    except Exception:  # absent, forbidden in this container, or too old for the card: nvidia-smi may still know
        return None
    return lambda: {name: read() for name, read in readings.items()}


def _smi() -> dict[str, float]:
    texts = zip(("sm_mhz", "watts", "celsius"), _query("clocks.sm", "power.draw", "temperature.gpu"), strict=False)
    return {name: number for name, text in texts if (number := _number(text)) is not None}


def _query(*fields: str) -> list[str]:
    """Return what nvidia-smi says of GPU 0; [] where it says nothing."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return []
    return [field.strip() for field in answer.splitlines()[0].split(",")] if answer else []


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
