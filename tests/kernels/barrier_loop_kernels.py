"""Loops that wait for their operands and release them explicitly, in every construct that can
contain a pipeline, with NumPy's results."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import numpipe
from numpipe import BlockSpec, cdiv, ds


@numpipe.kernel(grid=1, num_compute_wgs=2)
def rotated(q, k, v, o, *, less: numpipe.Static = 0):
    """Compute o = the sum of (q @ k_j.T) @ v_j over blocks j, in the order attention issues it.

    The product of block j - 1 comes after the scores of block j, and K is released while V is in
    use. The second warpgroup leaves out the last `less` steps.
    """
    wg = numpipe.axis_index("wg")
    blocks = k.shape[0] // 64
    queries = numpipe.pipeline(
        grid=(1,), max_concurrent_steps=1, in_specs=(BlockSpec((128, 64), lambda _: (0, 0)),)
    )
    for _, (q_tile,) in queries(q):
        acc = numpipe.zeros((64, 64), np.float32)
        p = numpipe.full((64, 64), 0.0, np.float32).astype(q.dtype)
        pipe = numpipe.pipeline(
            grid=(blocks + 1,),
            max_concurrent_steps=2,
            steps_of=(lambda wg: blocks + 1 - less * wg) if less else None,
            manual_produced_barriers=True,
            manual_consumed_barriers=True,
            in_specs=(
                BlockSpec((64, 64), lambda j: (j, 0)),
                BlockSpec((64, 64), lambda j: (j - 1, 0)),
            ),
        )
        for (_,), (k_tile, v_tile), (k_ready, v_ready), (k_consumed, v_consumed) in pipe(k, v):
            numpipe.barrier_wait(k_ready)
            s = numpipe.wgmma(None, q_tile.at[ds(wg * 64, 64), :], k_tile.T)
            numpipe.barrier_wait(v_ready)
            acc = numpipe.wgmma(acc, p, v_tile)
            s = numpipe.wgmma_wait(s)
            numpipe.barrier_arrive(k_consumed)
            scores = np.maximum(s, -1000.0)
            acc = numpipe.wgmma_wait(acc)
            p = scores.astype(q.dtype)
            numpipe.barrier_arrive(v_consumed)
        o[ds(wg * 64, 64), ds(0, 64)] = acc


@numpipe.kernel(grid=1)
def nested(a, b, c):
    """Multiply rows of blocks by a block each, in nested loops that both wait and release
    explicitly."""
    outer = numpipe.pipeline(
        grid=(cdiv(a.shape[0], 64),),
        manual_produced_barriers=True,
        manual_consumed_barriers=True,
        in_specs=(BlockSpec((64, 64), lambda i: (i, 0)),),
    )
    for (i,), (b_tile,), (b_ready,), (b_consumed,) in outer(b):
        acc = numpipe.zeros((64, 64), np.float32)
        inner = numpipe.pipeline(
            grid=(3,),
            manual_produced_barriers=True,
            manual_consumed_barriers=True,
            in_specs=(BlockSpec((64, 64), lambda k: (i, k)),),
        )
        numpipe.barrier_wait(b_ready)
        for _, (a_tile,), (a_ready,), (a_consumed,) in inner(a):
            numpipe.barrier_wait(a_ready)
            acc = numpipe.wgmma_wait(numpipe.wgmma(acc, a_tile, b_tile.T), 0)
            numpipe.barrier_arrive(a_consumed)
        numpipe.barrier_arrive(b_consumed)
        c[ds(i * 64, 64), ds(0, 64)] = acc


@numpipe.kernel(grid=1, num_compute_wgs=2)
def in_parts(q, k, v, o):
    """Compute `rotated` over tiles of q in three loops on the same slots: first step, middle, last
    product."""
    wg = numpipe.axis_index("wg")
    blocks = k.shape[0] // 64
    for m, _ in numpipe.tiles(q.shape[0] // 128, 1):

        def specs(step):
            return (
                BlockSpec((64, 64), lambda j: (step + j, 0), buffer_count=2),
                BlockSpec((64, 64), lambda j: (step + j - 1, 0), buffer_count=2),
            )

        first = numpipe.pipeline(
            grid=(1,),
            in_specs=specs(0),
            manual_produced_barriers=True,
            manual_consumed_barriers=True,
        )
        between = numpipe.pipeline(
            grid=(blocks - 1,),
            in_specs=specs(1),
            manual_produced_barriers=True,
            manual_consumed_barriers=True,
        )
        last = numpipe.pipeline(
            grid=(1,),
            in_specs=specs(blocks),
            manual_produced_barriers=True,
            manual_consumed_barriers=True,
        )
        slots = first.get_allocations(k, v)
        acc = numpipe.zeros((64, 64), np.float32)
        queries = numpipe.pipeline(
            grid=(1,), in_specs=(BlockSpec((128, 64), lambda _: (m, 0), buffer_count=2),)
        )
        for _, (q_tile,) in queries(q):
            p = numpipe.full((64, 64), 0.0, np.float32).astype(q.dtype)
            for _, (k_tile, v_tile), (k_ready, v_ready), (k_consumed, v_consumed) in first(k, v):
                numpipe.barrier_wait(v_ready)
                numpipe.barrier_arrive(v_consumed)
                numpipe.barrier_wait(k_ready)
                s = numpipe.wgmma_wait(numpipe.wgmma(None, q_tile.at[ds(wg * 64, 64), :], k_tile.T))
                numpipe.barrier_arrive(k_consumed)
                p = s.astype(q.dtype)
            for _, (k_tile, v_tile), (k_ready, v_ready), (k_consumed, v_consumed) in between(
                k, v, allocations=slots
            ):
                numpipe.barrier_wait(k_ready)
                with numpipe.turn("products"):
                    s = numpipe.wgmma(None, q_tile.at[ds(wg * 64, 64), :], k_tile.T)
                    numpipe.barrier_wait(v_ready)
                    acc = numpipe.wgmma(acc, p, v_tile)
                s = numpipe.wgmma_wait(s)
                numpipe.barrier_arrive(k_consumed)
                numpipe.schedule_fence(after=s)
                acc = numpipe.wgmma_wait(acc)
                numpipe.barrier_arrive(v_consumed)
                p = s.astype(q.dtype)
            for _, (_, v_tile), (k_ready, v_ready), (k_consumed, v_consumed) in last(
                k, v, allocations=slots
            ):
                numpipe.barrier_wait(k_ready)
                numpipe.barrier_arrive(k_consumed)
                numpipe.barrier_wait(v_ready)
                acc = numpipe.wgmma_wait(numpipe.wgmma(acc, p, v_tile))
                numpipe.barrier_arrive(v_consumed)
        o[ds(m * 128 + wg * 64, 64), ds(0, 64)] = acc


@numpipe.kernel(grid=1, num_compute_wgs=2)
def held(a, b, c):
    """Use a b that changes only every second step: arriving has no effect except in a block's last
    step."""
    wg = numpipe.axis_index("wg")
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(a.shape[1] // 128, 2),
        manual_produced_barriers=True,
        manual_consumed_barriers=True,
        in_specs=(
            BlockSpec((128, 64), lambda i, k: (0, 2 * i + k)),
            BlockSpec((64, 64), lambda i, k: (0, i)),
        ),
    )
    for _, (a_tile, b_tile), (a_ready, b_ready), (a_consumed, b_consumed) in pipe(a, b):
        numpipe.barrier_wait(a_ready)
        numpipe.barrier_wait(b_ready)
        acc = numpipe.wgmma_wait(numpipe.wgmma(acc, a_tile.at[ds(wg * 64, 64), :], b_tile.T), 0)
        numpipe.barrier_arrive(b_consumed)
        numpipe.barrier_arrive(a_consumed)
    c[ds(wg * 64, 64), ds(0, 64)] = acc


@functools.cache
def product(
    schedule: str = "cooperative", cluster: int = 1, dynamic: bool = False, delay: int = 0
) -> Any:
    """Compute c = a @ b.T in tiles of 64 rows per warpgroup."""
    options: dict[str, Any] = (
        {"cluster": (cluster,), "cluster_names": ("cluster",)} if cluster > 1 else {}
    )

    @numpipe.kernel(
        grid=numpipe.persistent(2 * cluster), num_compute_wgs=2, schedule=schedule, **options
    )
    def product(a, b, c):
        wg = numpipe.axis_index("wg")
        rows = 64 * numpipe.axis_size("wg")
        for above, n in numpipe.tiles(
            cdiv(a.shape[0], rows * cluster), cdiv(b.shape[0], 64), dynamic=dynamic
        ):
            m = above * cluster + numpipe.axis_index("cluster") if cluster > 1 else above
            acc = numpipe.zeros((64, 64), np.float32)
            pipe = numpipe.pipeline(
                grid=(cdiv(a.shape[1], 64),),
                max_concurrent_steps=3,
                delay_release=delay,
                manual_produced_barriers=True,
                manual_consumed_barriers=True,
                in_specs=(
                    BlockSpec((rows, 64), lambda k: (m, k)),
                    BlockSpec(
                        (64, 64),
                        lambda k: (n, k),
                        collective_axes="cluster" if cluster > 1 else None,
                    ),
                ),
            )
            for _, (a_tile, b_tile), (a_ready, b_ready), (a_consumed, b_consumed) in pipe(a, b):
                numpipe.barrier_wait(b_ready)
                numpipe.barrier_wait(a_ready)
                acc = numpipe.wgmma_wait(
                    numpipe.wgmma(acc, a_tile.at[ds(wg * 64, 64), :], b_tile.T), delay
                )
                numpipe.barrier_arrive(a_consumed)
                numpipe.barrier_arrive(b_consumed)
            c[ds(m * rows + wg * 64, 64), ds(n * 64, 64)] = acc

    return product


@dataclass(frozen=True)
class Case:
    """A call and its result; the output is the last argument."""

    kernel: Any
    inputs: tuple[np.ndarray, ...]
    expected: np.ndarray
    options: tuple[tuple[str, Any], ...] = ()

    def check(self, run: Callable[..., Any]) -> None:
        out = np.full(self.expected.shape, np.nan, np.float32)
        run(*self.inputs, out, **dict(self.options))
        np.testing.assert_array_equal(out, self.expected)


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-2, 3, shape).astype(np.float16)


def cases() -> dict[str, Case]:
    """Return the cases, by name."""
    q = integers(128, 64)
    k = integers(192, 64)
    v = integers(192, 64)
    a = integers(384, 192)
    b = integers(128, 192)
    wide = [x.astype(np.float64) for x in (q, k, v, a, b)]
    blocks = [wide[0] @ wide[1][j : j + 64].T @ wide[2][j : j + 64] for j in range(0, 192, 64)]
    fewer = np.concatenate([sum(blocks)[:64], sum(blocks[:1])[64:]])  # type: ignore[index]
    of_rows = np.concatenate(
        [
            wide[3][i : i + 64].reshape(64, 3, 64).sum(1) @ (wide[3][i : i + 64, :64]).T
            for i in range(0, 384, 64)
        ]
    )
    both = wide[3][:128].reshape(128, 3, 64)
    exact = wide[3] @ wide[4].T
    return {
        "rotated": Case(rotated, (q, k, v), np.asarray(sum(blocks))),
        "rotated, fewer steps": Case(rotated, (q, k, v), fewer, (("less", 2),)),
        "in parts": Case(
            in_parts,
            (np.concatenate([q, 1 - q]), k, v),
            np.concatenate([sum(blocks), (1 - wide[0]) @ wide[1].T @ wide[2]]),
        ),
        "in parts, none between": Case(in_parts, (q, k[:64], v[:64]), blocks[0]),
        "nested": Case(nested, (a, a[:, :64].copy()), of_rows),
        "held": Case(
            held, (a[:128, :128].copy(), b[:64]), (both[:, 0] + both[:, 1]) @ wide[4][:64, :64].T
        ),
        "turns": Case(product("pingpong", delay=1), (a, b), exact),
        "turns, at once": Case(product("pingpong"), (a, b), exact),
        "dynamic": Case(product(dynamic=True), (a, b), exact),
        "dynamic turns": Case(product("pingpong", dynamic=True, delay=1), (a, b), exact),
        "cluster": Case(product(cluster=2), (a, b), exact),
    }
