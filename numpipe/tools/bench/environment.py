"""The machine of a result: GPU, driver, package versions, and sensor readings."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Callable
from typing import Any
from uuid import UUID

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
    """Return device, driver, host and package versions as JSON values. Needs a GPU."""
    driver = api()
    call(driver.cuInit(0))
    device = call(driver.cuDeviceGet(0))

    def attribute(name: str) -> int:
        code = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(call(driver.cuDeviceGetAttribute(code, device)))

    return {
        "device": {
            "name": call(driver.cuDeviceGetName(96, device)).split(b"\0")[0].decode(),
            "uuid": uuid_text(call(driver.cuDeviceGetUuid(device)).bytes),
            "compute_capability": ".".join(
                str(attribute(f"COMPUTE_CAPABILITY_{part}")) for part in ("MAJOR", "MINOR")
            ),
            "sms": attribute("MULTIPROCESSOR_COUNT"),
            "l2_bytes": attribute("L2_CACHE_SIZE"),
            # clock in kHz, bus width in bits, two transfers per cycle
            "bandwidth": attribute("MEMORY_CLOCK_RATE")
            * attribute("GLOBAL_MEMORY_BUS_WIDTH")
            * 250,
            "memory_bytes": int(call(driver.cuDeviceTotalMem(device))),
            "cuda_driver_api": call(driver.cuDriverGetVersion()),
            **_card(),
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
    """Return the installed versions of the packages that compile and launch kernels, and of
    competitors."""
    return installed(*_PACKAGES)


def sensors() -> Sensors:
    """Return a function that reads the SM clock (MHz), power (W) and temperature (°C) of GPU 0.

    It uses NVML from the package nvidia-ml-py (the extra ``bench``); without the package there are
    no readings.
    """
    opened = _nvml()

    def read() -> dict[str, float]:
        if opened is None:
            return {}
        nvml, card = opened
        return {
            "sm_mhz": float(nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM)),
            "watts": nvml.nvmlDeviceGetPowerUsage(card) / 1000,
            "celsius": float(nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU)),
        }

    try:
        read()
    except Exception:  # not permitted in this container, or not supported by the card
        return dict
    return read


def uuid_text(raw: bytes) -> str:
    return f"GPU-{UUID(bytes=raw[:16])}"


def _nvml() -> tuple[Any, Any] | None:
    """Return NVML and its handle of GPU 0, or None if NVML is not available."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        status, uuid = api().cuDeviceGetUuid(0)
        # by UUID: CUDA_VISIBLE_DEVICES renumbers CUDA's devices, not NVML's
        if int(status):
            return nvml, nvml.nvmlDeviceGetHandleByIndex(0)
        return nvml, nvml.nvmlDeviceGetHandleByUUID(uuid_text(uuid.bytes))
    except Exception:  # not installed, or it does not see the card
        return None


def _card() -> dict[str, Any]:
    """Return the driver version and the limits of GPU 0, as far as NVML reports them."""
    found = {}
    if opened := _nvml():
        nvml, card = opened
        with contextlib.suppress(nvml.NVMLError):
            found["driver"] = nvml.nvmlSystemGetDriverVersion()
            found["power_limit_watts"] = nvml.nvmlDeviceGetPowerManagementLimit(card) / 1000
            found["max_sm_mhz"] = float(nvml.nvmlDeviceGetMaxClockInfo(card, nvml.NVML_CLOCK_SM))
    return found
