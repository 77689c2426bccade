"""Hazards of several GPUs: data read before another GPU has written it or left unread, and signals
that never come or come too late."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import BlockSpec, PipelineDeadlock, SimulationError, ds

from .catalogue import F16, F32, integers, kernel, zeros

X = integers(64, 64)
BOTH = np.stack([X, X + 1]).astype(F16)
OTHER = BOTH[::-1]
"""what two GPUs have after each has received the other's array"""
OUT = zeros(64, 64)
TALL = integers(128, 64)
UNORDERED = (
    r"no semaphore orders two GPUs.*fix: +warpgroup \d .* signals a semaphore of GPU \d after its "
    r"access"
)


# ---- blocks read or written too early
@kernel(
    X,
    OUT,
    OUT,
    hazard="gpu-conflict",
    says=r"TMA (load|store) \(y( of GPU \d)?\) (reads|writes) y( of GPU \d)?\[0:64, 0:64\], "
    rf"which warpgroup \d .* of CTA \(0, 0, 0\) of GPU \d (reads|writes).*{UNORDERED}",
    gives=OTHER,
    gpus=2,
)
def a_block_that_is_read_before_its_signal(x, y, z, ready, *, fixed: numpipe.Static):
    other = 1 - numpipe.axis_index("gpu")
    numpipe.peer(y, other)[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)]
    numpipe.signal(ready.at[0], other)
    if fixed:
        numpipe.wait(ready.at[0], 1)
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (k, 0)),))
    for _, (y_tile,) in pipe(y):
        z[ds(0, 64), ds(0, 64)] = y_tile[...]
    numpipe.wait(ready.at[0], 1)


@kernel(
    zeros(128, 64),
    zeros(128, 64),
    hazard="gpu-conflict",
    says=rf"(load|store) \(y( of GPU \d)?\) (reads|writes) y.*{UNORDERED}.*n counts the signals "
    r"of all",
    gives=np.stack([np.zeros((128, 64)), np.full((128, 64), 2)]),
    gpus=2,
    num_compute_wgs=2,
)
def a_wait_for_one_of_two_warpgroups(y, z, ready, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    if numpipe.axis_index("gpu") == 0:
        numpipe.peer(y, 1)[ds(wg * 64, 64), ds(0, 64)] = numpipe.full((64, 64), 2.0, np.float16)
        numpipe.signal(ready.at[0], 1)
    else:
        numpipe.wait(ready.at[0], 2 if fixed else 1)
        z[ds(64 - wg * 64, 64), ds(0, 64)] = y[ds(64 - wg * 64, 64), ds(0, 64)]
        numpipe.wait(ready.at[0], 2)


@kernel(
    X,
    OUT,
    OUT,
    hazard="gpu-conflict",
    says=rf"(load|store) \(y( of GPU \d)?\) (reads|writes) y.*{UNORDERED}",
    gives=OTHER,
    gpus=2,
)
def a_signal_before_the_store(x, y, z, ready, *, fixed: numpipe.Static):
    other = 1 - numpipe.axis_index("gpu")
    if not fixed:
        numpipe.signal(ready.at[0], other)
    numpipe.peer(y, other)[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)]
    if fixed:
        numpipe.signal(ready.at[0], other)
    numpipe.wait(ready.at[0], 1)
    z[ds(0, 64), ds(0, 64)] = y[ds(0, 64), ds(0, 64)]
    numpipe.signal(ready.at[1], other)
    numpipe.wait(ready.at[1], 1)


@kernel(
    TALL,
    OUT,
    zeros(128, 64),
    hazard="gpu-conflict",
    says=rf"(load|store) \(y( of GPU \d)?\) (reads|writes) y.*{UNORDERED}",
    gives=np.stack([TALL + 1, TALL]).astype(F16),
    gpus=2,
)
def one_semaphore_for_two_blocks(x, y, z, ready, *, fixed: numpipe.Static):
    other = 1 - numpipe.axis_index("gpu")
    for i in range(2):
        numpipe.peer(y, other)[ds(0, 64), ds(0, 64)] = x[ds(i * 64, 64), ds(0, 64)]
        numpipe.signal(ready.at[0], other)
        numpipe.wait(ready.at[0], i + 1 if fixed else 1)
        z[ds(i * 64, 64), ds(0, 64)] = y[ds(0, 64), ds(0, 64)]
        numpipe.signal(ready.at[1], other)
        numpipe.wait(ready.at[1], i + 1)
    numpipe.wait(ready.at[0], 2)


@kernel(
    TALL,
    OUT,
    zeros(128, 64),
    hazard="gpu-conflict",
    says=rf"(load|store) \(y( of GPU \d)?\) (reads|writes) y.*{UNORDERED}",
    gives=np.stack([TALL + 1, TALL]).astype(F16),
    gpus=2,
)
def a_block_that_is_overwritten_before_it_was_read(x, y, z, ready, *, fixed: numpipe.Static):
    other = 1 - numpipe.axis_index("gpu")
    for i in range(2):
        numpipe.peer(y, other)[ds(0, 64), ds(0, 64)] = x[ds(i * 64, 64), ds(0, 64)]
        numpipe.signal(ready.at[0], other)
        numpipe.wait(ready.at[0], i + 1)
        z[ds(i * 64, 64), ds(0, 64)] = y[ds(0, 64), ds(0, 64)]
        if fixed:
            numpipe.signal(ready.at[1], other)
            numpipe.wait(ready.at[1], i + 1)


@kernel(
    X,
    zeros(192, 64),
    OUT,
    hazard="gpu-conflict",
    says=rf"(load|store) \(parts( of GPU \d)?\) (reads|writes) parts.*{UNORDERED}",
    gives=np.stack([3 * X + 3] * 3).astype(F16),
    gpus=3,
)
def a_wait_for_one_of_two_peers(x, parts, y, ready, *, fixed: numpipe.Static):
    me, gpus = numpipe.axis_index("gpu"), numpipe.axis_size("gpu")
    total = x[ds(0, 64), ds(0, 64)]
    for distance in range(1, gpus):
        to = (me + distance) % gpus
        numpipe.peer(parts, to)[ds(me * 64, 64), ds(0, 64)] = total
        numpipe.signal(ready.at[0], to)
    numpipe.wait(ready.at[0], 2 if fixed else 1)
    for distance in range(1, gpus):
        total = total + parts[ds((me + distance) % gpus * 64, 64), ds(0, 64)]
    y[ds(0, 64), ds(0, 64)] = total
    numpipe.wait(ready.at[0], 2)


@kernel(
    zeros(128, 64, dtype=F32),
    hazard="gpu-conflict",
    says=r"reduction 'add' \(y( of GPU \d)?\) writes y.*which warpgroup 0 .* of GPU \d writes "
    r"too.*fix: +reductions are atomic among the CTAs of one GPU only",
    gives=np.stack([np.full((128, 64), 1 + gpu) for gpu in range(2)]),
    gpus=2,
)
def sums_of_two_gpus_in_one_place(y, ready, *, fixed: numpipe.Static):
    me = numpipe.axis_index("gpu")
    row = 64 * me if fixed else 0
    for rank in range(2):
        numpipe.atomic_add(
            numpipe.peer(y, rank).at[ds(row, 64), ds(0, 64)],
            numpipe.full((64, 64), 1.0, np.float32),
        )
        numpipe.signal(ready.at[0], rank)
    numpipe.wait(ready.at[0], 2)


@kernel(
    zeros(128, 64),
    zeros(128, 64),
    hazard="cta-conflict",
    says=r"of CTA \(\d, 0, 0\) of GPU 0: .*\(x\) (reads|writes) x\[.*no semaphore orders two "
    r"CTAs.*fix: +warpgroup",
    gives=np.ones((1, 128, 64), F16),
    gpus=1,
    grid=numpipe.persistent(2),
)
def ctas_of_one_gpu_that_do_not_wait_for_each_other(x, y, ready, *, fixed: numpipe.Static):
    cta = numpipe.program_id(0)
    x[ds(cta * 64, 64), ds(0, 64)] = numpipe.full((64, 64), 1.0, np.float16)
    numpipe.signal(ready.at[cta], 0)
    numpipe.wait(ready.at[1 - cta if fixed else cta], 1)
    y[ds(64 - cta * 64, 64), ds(0, 64)] = x[ds(64 - cta * 64, 64), ds(0, 64)]


# ---- missing signals, and launches that end too early
@kernel(
    X,
    OUT,
    hazard="deadlock",
    says=r"the CTAs of 2 GPUs: every warpgroup waits.*warpgroup 0 \(compute\) of CTA \(0, 0, 0\) "
    r"of GPU 0: blocked on the semaphore ready\[1\] of GPU 0: it is 0, and the wait is for "
    r"1.*hint: ready\[1\] of GPU 0 is 0 .*no warpgroup has signaled it.*fix: "
    r"+numpipe.signal\(ready.at\[…\], 0\) for ready\[1\]",
    gives=OTHER,
    error=PipelineDeadlock,
    gpus=2,
)
def a_signal_that_nobody_sends(x, y, ready, *, fixed: numpipe.Static):
    me = numpipe.axis_index("gpu")
    numpipe.peer(y, 1 - me)[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)]
    numpipe.signal(ready.at[1 if fixed else 0], 1 - me)
    numpipe.wait(ready.at[1], 1)


@kernel(
    X,
    OUT,
    hazard="deadlock",
    says=r"hint: ready\[0\] of GPU \d is 1 and the wait is for 2: signaled by warpgroup 0 "
    r"\(compute\) of CTA \(0, 0, 0\) of GPU \d at gpus.py:\d+.*fix: +1 more signal",
    gives=OTHER,
    error=PipelineDeadlock,
    gpus=2,
)
def a_wait_for_more_than_is_sent(x, y, ready, *, fixed: numpipe.Static):
    me = numpipe.axis_index("gpu")
    numpipe.peer(y, 1 - me)[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)]
    numpipe.signal(ready.at[0], 1 - me)
    numpipe.wait(ready.at[0], 1 if fixed else 2)


@kernel(
    X,
    OUT,
    hazard="exit-in-flight",
    says=r"load \(x of GPU \d\) of x of GPU \d\[0:64, 0:64\], in the memory of GPU \d, whose "
    r"kernel (may have ended|has ended).*numpipe.signal\(semaphore.at\[i\], \d\) after it",
    gives=OTHER,
    gpus=2,
)
def a_gpu_that_ends_while_a_peer_loads(x, y, ready, *, fixed: numpipe.Static):
    other = 1 - numpipe.axis_index("gpu")
    y[ds(0, 64), ds(0, 64)] = numpipe.peer(x, other)[ds(0, 64), ds(0, 64)]
    if fixed:
        numpipe.signal(ready.at[0], other)
        numpipe.wait(ready.at[0], 1)


@kernel(
    OUT,
    hazard="exit-in-flight",
    says=r"signal to ready\[0\] of GPU \d, in the memory of GPU \d, whose kernel (may have "
    r"ended|has ended).*GPU \d must wait for all signals that it is sent",
    gives=np.ones((2, 64, 64), F16),
    gpus=2,
)
def a_signal_that_nobody_waits_for(y, ready, *, fixed: numpipe.Static):
    y[ds(0, 64), ds(0, 64)] = numpipe.full((64, 64), 1.0, np.float16)
    numpipe.signal(ready.at[0], 1 - numpipe.axis_index("gpu"))
    if fixed:
        numpipe.wait(ready.at[0], 1)


@kernel(
    X,
    zeros(192, 64),
    hazard="exit-in-flight",
    says=r"store \(y of GPU \d\) of y of GPU \d\[\d+:\d+, 0:64\], in the memory of GPU \d, whose "
    r"kernel (may have ended|has ended).*numpipe.signal\(semaphore.at\[i\], \d\) after it",
    gives=np.stack([np.concatenate([X, X + 1, X + 2])] * 3).astype(F16),
    gpus=3,
)
def a_gpu_that_ends_while_one_of_two_peers_stores(x, y, ready, *, fixed: numpipe.Static):
    me = numpipe.axis_index("gpu")
    for distance in range(3):
        to = (me + distance) % 3
        numpipe.peer(y, to)[ds(me * 64, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)]
        if distance == 1:
            numpipe.signal(ready.at[0], to)
        if fixed and distance == 2:
            numpipe.signal(ready.at[0], to)
    numpipe.wait(ready.at[0], 2 if fixed else 1)


# ---- what does not exist
@kernel(
    X,
    OUT,
    hazard="out-of-bounds",
    says=r"numpipe.peer\(y, rank\) of GPU 2, but the mesh has 2.*a rank in 0…1",
    gives=OTHER,
    error=SimulationError,
    gpus=2,
)
def a_gpu_that_the_mesh_does_not_have(x, y, ready, *, fixed: numpipe.Static):
    me = numpipe.axis_index("gpu")
    other = (me + 1) % 2 if fixed else me + 1
    numpipe.peer(y, other)[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)]
    numpipe.signal(ready.at[0], other)
    numpipe.wait(ready.at[0], 1)


@kernel(
    OUT,
    hazard="out-of-bounds",
    says=r"a (signal|wait) of ready\[4\], but there are only 4.*an index in 0…3",
    gives=np.ones((2, 64, 64), F16),
    error=SimulationError,
    gpus=2,
)
def a_semaphore_that_is_not_there(y, ready, *, fixed: numpipe.Static):
    i = 3 if fixed else 4
    y[ds(0, 64), ds(0, 64)] = numpipe.full((64, 64), 1.0, np.float16)
    numpipe.signal(ready.at[i], 1 - numpipe.axis_index("gpu"))
    numpipe.wait(ready.at[i], 1)
