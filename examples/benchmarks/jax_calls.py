"""Measure the host time of a kernel call inside jax.jit, replayed in a command buffer and called
one by one.

    python examples/benchmarks/jax_calls.py --out result.json

The program makes `CALLS` calls of a kernel, each on the previous result, so short that the GPU
waits for the host. A figure is the time until the program is queued, after a device
synchronization, divided by its calls: the median over `--rounds`, less that of a program without
calls. XLA reads its flags once per process, so each method has a process of its own.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import harness

CALLS = 100
FLAGS = {"in a command buffer": "", "one by one": "--xla_gpu_enable_command_buffer="}
MOST = {"in a command buffer": 2.0, "one by one": 20.0}
"""most microseconds that a call may take"""


def measured(rounds: int) -> dict[str, Any]:
    """Return the microseconds per call in this process."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import numpipe.jax

    block = numpipe.BlockSpec((64, 64), lambda i: (i, 0))

    @numpipe.kernel(
        grid=(1,),
        in_specs=block,
        out_specs=block,
        out_type=lambda x: numpipe.ArrayType(x.shape, x.dtype),
    )
    def more(x, y):  # type: ignore[no-untyped-def]
        y[...] = x[...] + 1.0

    function = numpipe.jax.call(more)

    def chain(x: Any, calls: int) -> Any:
        for _ in range(calls):
            x = function(x)
        return x + 1.0

    x = jnp.zeros((64, 64), np.float32)

    def microseconds(calls: int) -> float:
        program, times = jax.jit(chain, static_argnums=1), []
        for number in range(rounds + 20):  # the first rounds compile and record
            jax.block_until_ready(x)
            start = time.perf_counter()
            made = program(x, calls)
            times.append(time.perf_counter() - start)
            made.block_until_ready()
            if number == 0:
                assert float(made[0, 0]) == calls + 1
        return 1e6 * statistics.median(times[20:])

    return {
        "call": (microseconds(CALLS) - microseconds(0)) / CALLS,
        "jax": jax.__version__,
        "gpu": jax.devices()[0].device_kind,
    }


def main() -> None:
    parser = harness.script(__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--here",
        action="store_true",
        help="measure in this process, with its XLA_FLAGS",
    )
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measured(options.rounds)))
        return
    rows = {}
    for way, flags in FLAGS.items():
        command = [sys.executable, __file__, "--here", "--rounds", str(options.rounds)]
        flags = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
        rows[way] = harness.answer(command, XLA_FLAGS=flags)
        call = rows[way]["call"]
        print(
            f"{way:22} {call:6.2f} us a call, at most {MOST[way]:g}: "
            f"{'met' if call <= MOST[way] else 'missed'}"
        )
    harness.write(options.out, rows)


if __name__ == "__main__":
    main()
