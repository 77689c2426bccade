"""A learned correction of the counted cycles (`cost`).

The count models waves, steps and bytes, but not how the waits of a cluster, the depth of a ring and
L2 interact. Small networks learn the logarithm of measured over counted cycles, and their outputs
are averaged. Matrix products use NumPy's einsum, because BLAS would start
threads for a few hundred rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arch.target import LINE, SECTOR
from .cost import Product, work
from .gpu import Gpu
from .ways import Floats, Ways

MOST = 1.7
"""bound on the logarithm of a correction: measured ones are smaller, and far from the measurements
a network's output is arbitrary"""


def features(of: Ways, product: Product, counted: Floats, gpu: Gpu) -> Floats:
    """Return the networks' inputs for each config: one row per feature, float32."""
    _, _, units, own, ctas, high, wide = work(of, product, gpu)
    rows, columns, k, turned, aligned, batches = product
    log, waves = np.log, units / ctas
    rounds = np.where(of.stream > 0, waves, np.ceil(waves))
    deep = np.maximum(rounds * own * of.tk, 1)  # extent along K of a CTA's work
    operands, output = 2.0 * batches * k * (rows + columns), 2.0 * batches * rows * columns
    facts = [
        log(rows),
        log(columns),
        log(k),
        log(of.tm),
        log(of.tn),
        of.tk,
        log(of.slots * of.tk),
        log(of.cluster),
        log(of.across),
        log(of.along),
        log(of.parts),
        of.stream,
        of.turns,
        of.wgs,
        turned,
        *(
            np.asarray(each) % nbytes == 0
            for each in (aligned, 2 * np.where(turned, rows, columns))
            for nbytes in (SECTOR, LINE)
        ),
        np.clip(log(waves), -3, 3),
        waves / np.ceil(waves),
        log(own),
        high / of.tm,
        wide / of.tn,
        np.clip(log(units % ctas + 1), 0, 5),
        log(operands),
        log(output),
        of.tn % 64,
        log(of.panels),
        np.minimum(1, 4096 * of.panels * np.where(of.turns > 0, 1, of.wgs) / (of.tm * of.tn)),
        log(np.minimum(units, ctas)),
        log(rounds),
        # each resource that may limit the time, relative to the count
        log(deep * of.tm * np.maximum(of.tn, 54) / counted),
        log(deep * (high + wide) / counted),
        log(units * own * of.tk * (high / of.across + wide / of.cluster) / counted),
        log((operands + output) / counted),
        log(counted),
    ]
    table = np.empty((len(facts), len(of.tm)), np.float32)
    for row, fact in zip(table, facts, strict=True):
        row[:] = fact
    return table


def correction(seen: Floats, layers: tuple) -> Floats:
    """Return the networks' predictions of the logarithm of measured over counted cycles.

    seen    (features, configs)
    layers  the weights of all networks, an array (networks, outputs, inputs + 1) per layer; the
            last column is the bias
    """
    x: Any = seen[None]
    for number, layer in enumerate(layers):
        if number:
            x = x * (np.tanh(x / 2) / 2 + 0.5)  # SiLU, without overflow
        x = np.broadcast_to(x, (len(layer), *x.shape[1:]))
        x = np.einsum("noi,niw->now", layer[..., :-1], x) + layer[..., -1:]
    return np.clip(x.mean(axis=(0, 1)), -MOST, MOST)  # type: ignore[no-any-return]
