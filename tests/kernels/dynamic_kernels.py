"""Kernels whose CTAs take tiles from a counter, in every form of a loop over tiles: ``c = a @ b.T``
or a part of it.

`cases` gives calls of them: a kernel, its arguments with the output last, and the expected output.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import numpipe
from numpipe import cdiv, ds
from tests.kernels import kernels_for_tests
from tests.kernels.kernels_for_tests import Config, operands, product
from tests.kernels.turn_kernels import (
    CFG,
    TABLE,
    Case,
    in_body_form,
    skipped,
    some_steps,
    trip_counts,
    with_skips,
)

DYNAMIC = replace(CFG, dynamic=True)
STEP_A_TILE = Config(64, 64, 64, 8, order="row", dynamic=True)
"""for few blocks of K: with this many slots, only the ring of tickets holds back the memory role"""
gemm = kernels_for_tests.gemm().function
by_trip_count = kernels_for_tests.by_trip_count().function


def made(
    function: Callable[..., Any],
    schedule: str = "cooperative",
    warpgroups: int = 2,
    ctas: int = 3,
    **options: Any,
) -> Any:
    return numpipe.kernel(
        function,
        grid=numpipe.persistent(ctas),
        num_compute_wgs=warpgroups,
        schedule=schedule,
        **options,
    )


def in_bands(a, b, c, *, cfg: numpipe.Static = CFG):
    """Loop over bands of rows, one tile loop after another, which continue with the remaining
    ticket and turn.

    Every third loop is static. Then comes a loop with a negative number of tiles and one without
    pipelines.
    """
    all_steps = cdiv(a.shape[1], cfg.tk)
    for m in range(cdiv(a.shape[0], cfg.tm)):
        if m % 3 == 2:
            for (n,) in numpipe.tiles(cdiv(b.shape[0], cfg.tn)):
                acc = some_steps(
                    a, b, numpipe.zeros((cfg.tm, cfg.tn), np.float32), m, n, 0, all_steps, cfg
                )
                c[ds(m * cfg.tm, cfg.tm), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)
        else:
            for (n,) in numpipe.tiles(cdiv(b.shape[0], cfg.tn), dynamic=True):
                acc = some_steps(
                    a, b, numpipe.zeros((cfg.tm, cfg.tn), np.float32), m, n, 0, all_steps, cfg
                )
                c[ds(m * cfg.tm, cfg.tm), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)
    for (i,) in numpipe.tiles(cdiv(b.shape[0], cfg.tn) - 7, dynamic=True):  # no tiles
        c[ds(a.shape[0], cfg.tm), ds(i * cfg.tn, cfg.tn)] = numpipe.zeros(
            (cfg.tm, cfg.tn), np.float32
        ).astype(c.dtype)
    # no pipelines, so no turns
    for (i,) in numpipe.tiles(cdiv(b.shape[0], cfg.tn), dynamic=True):
        ones = numpipe.zeros((cfg.tm, cfg.tn), np.float32) + 1.0
        c[ds(a.shape[0], cfg.tm), ds(i * cfg.tn, cfg.tn)] = ones.astype(c.dtype)


@numpipe.function
def band(a, b, c, first, rows, cfg):
    for i, n in numpipe.tiles(rows, cdiv(b.shape[0], cfg.tn), order="snake", group=2, dynamic=True):
        acc = some_steps(
            a,
            b,
            numpipe.zeros((cfg.tm, cfg.tn), np.float32),
            first + i,
            n,
            0,
            cdiv(a.shape[1], cfg.tk),
            cfg,
        )
        c[ds((first + i) * cfg.tm, cfg.tm), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)


def by_helper(a, b, c, *, cfg: numpipe.Static = CFG):
    """Call a function with the tile loop twice, for the first rows of tiles and for the rest."""
    band(a, b, c, 0, 2, cfg)
    band(a, b, c, 2, cdiv(a.shape[0], cfg.tm) - 2, cfg)


@functools.cache
def cases() -> dict[str, Case]:
    """Return calls by name; K has an odd number of steps, so that tiles begin at any slot."""
    a, b = operands(192, 128, 5 * 64)
    wide, tall = operands(192, 320, 5 * 64), operands(512, 64, 3 * 64)
    sums, more, rows = product(a, b), product(*wide), product(*tall)
    bands = np.concatenate([more, np.ones_like(more[:64])])
    shared = Config(128, 64, 64, 3, order="row", dynamic=True)
    own = Config(64, 64, 64, 3, 1, "row", dynamic=True)
    return {
        "shared tiles": Case(made(gemm), tall, rows, replace(shared, order="snake")),
        "one warpgroup, 5 CTAs": Case(
            made(gemm, warpgroups=1, ctas=5), wide, more, replace(own, delay=0)
        ),
        "no memory role": Case(made(gemm, warp_specialized=False), tall, rows, shared),
        "no memory role, one warpgroup": Case(
            made(gemm, warpgroups=1, warp_specialized=False), wide, more, replace(own, delay=0)
        ),
        "trip counts": Case(
            made(by_trip_count, warpgroups=1), (a, b, TABLE), trip_counts(a, b), DYNAMIC
        ),
        "body form": Case(made(in_body_form, warpgroups=1), (a, b), sums, DYNAMIC),
        "in a helper, twice": Case(made(by_helper, warpgroups=1, ctas=2), (a, b), sums),
        "skips": Case(made(with_skips, warpgroups=1), wide, skipped(*wide), DYNAMIC),
        "loops": Case(made(in_bands, warpgroups=1), wide, bands),
        "turns": Case(made(gemm, "pingpong"), wide, more, replace(own, order="column")),
        "turns, 3 warpgroups": Case(made(gemm, "pingpong", 3), wide, more, own),
        "turns, trip counts": Case(
            made(by_trip_count, "pingpong", ctas=2), (a, b, TABLE), trip_counts(a, b), DYNAMIC
        ),
        "turns, body form": Case(made(in_body_form, "pingpong", ctas=2), (a, b), sums, DYNAMIC),
        "turns, skips": Case(made(with_skips, "pingpong"), wide, skipped(*wide), DYNAMIC),
        "turns, loops": Case(made(in_bands, "pingpong"), wide, bands),
        "turns, loops, 4 warpgroups": Case(
            made(in_bands, "pingpong", 4, 2, memory_registers=24), wide, bands
        ),
    }
