"""How long the first call of attention takes, in a process of its own that finds nothing compiled: numpipe's, and Pallas'.

    python examples/benchmarks/attention_compile.py numpipe 4,16,4096,128 full
    python examples/benchmarks/attention_compile.py Pallas 4,16,4096,128 full 128 2     # its rows of K and V in a step, its steps

Prints seconds as JSON. "import": of the module and what it imports at once, behind PyTorch's own; "first call": from float16 arrays
on the GPU to the result, all that is compiled, and imported for that, included; "of it", for numpipe: its imports, and the parts of
the compile as `kernel.inspect("resources", ...)` has them; "other type": the same for bfloat16, then, which Pallas' kernel does not
take.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent.parent))
UNLIKE = ("JAX_COMPILATION_CACHE_DIR", "PYTHONDONTWRITEBYTECODE")
"""not of the process: a cache, and what keeps Python from keeping the modules of an editable installation compiled"""
CACHES = ("NUMPIPE_CACHE_DIR", "NUMBA_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME")


def cold(who: str, case: dict[str, Any], *config: int) -> dict[str, Any]:
    """The seconds of a new process whose caches are empty folders; RuntimeError with all that it printed if it fails."""
    arguments = [sys.executable, str(HERE), who, case["shape"], case["mask"], *map(str, config)]
    with tempfile.TemporaryDirectory() as folder:
        without = {key: value for key, value in os.environ.items() if key not in UNLIKE}
        done = subprocess.run(arguments, env=without | dict.fromkeys(CACHES, folder), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with status {done.returncode}:\n{done.stdout}\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def numpipe_calls(causal: bool) -> Callable[..., object]:
    from numpipe.ops import attention

    return functools.partial(attention, causal=causal)


def pallas_calls(causal: bool, keys: int, steps: int) -> Callable[..., object]:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    from jax.experimental.pallas.ops.gpu import attention_mgpu

    config = attention_mgpu.TuningConfig(block_q=64, block_kv=keys, max_concurrent_steps=steps, causal=causal)
    function = jax.jit(lambda q, k, v: attention_mgpu.attention(q, k, v, config))
    return lambda *arrays: jax.block_until_ready(function(*arrays))


def parts(causal: bool, arrays: Sequence[Any]) -> dict[str, float]:
    """Of the compile of numpipe's kernel for these arrays, which has been called with them."""
    from numpipe.ops.attention import Form, choose, kernel

    depth = arrays[0].shape[3]
    asked = kernel(choose(depth, causal), Form(depth, causal))
    return dict(asked.inspect("resources", *arrays, scale=1.0, diagonal=0, group=1).seconds)


def seconds(who: str, shape: str, mask: str, *config: int) -> dict[str, Any]:
    import torch

    torch.zeros(1, device="cuda")  # its context
    times: dict[str, Any] = {}
    begun = time.perf_counter()
    call = (numpipe_calls if who == "numpipe" else pallas_calls)(mask == "causal", *config)
    times["import"] = time.perf_counter() - begun
    import flash_attention

    batches, heads, shared, positions, depth = flash_attention.shape_of(shape)
    for what, dtype in (("first call", torch.float16), ("other type", torch.bfloat16))[:2 if who == "numpipe" else 1]:
        arrays: list[Any] = [torch.zeros(batches, h, positions, depth, device="cuda", dtype=dtype) for h in (heads, shared, shared)]
        if who != "numpipe":
            import jax

            arrays = [jax.dlpack.from_dlpack(x.transpose(1, 2).contiguous()) for x in arrays]
        torch.cuda.synchronize()
        begun = time.perf_counter()
        if who == "numpipe":
            importlib.import_module("numpipe.core.numba")
        imported = time.perf_counter()
        call(*arrays)
        torch.cuda.synchronize()
        times[what] = time.perf_counter() - begun
        if who == "numpipe" and what == "first call":
            times["of it"] = {"imports": imported - begun, **parts(mask == "causal", arrays)}
    return times


if __name__ == "__main__":
    print(json.dumps(seconds(sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))))
