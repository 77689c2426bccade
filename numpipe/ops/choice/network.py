"""What the count of cycles (`costs`) leaves out, learned from measurements: a small network that
corrects it.

The count knows waves, steps and bytes; how a cluster's waits, a ring's depth and the L2 work
together it does not. So the logarithm of measured over counted cycles is learned from some thousand
measurements (product, config, time) of an H200. examples/benchmarks/fit_products.py reads what
`random_products.py --fit` wrote, and writes `learned.npz`. A network has three hidden layers, of
96, 48 and 24; several, trained from other beginnings, are averaged. Their answer for some hundred
configs takes some milliseconds.
"""

from __future__ import annotations

import numpy as np

from ...arch.target import LINE, SECTOR
from .cost import Product, cycles, work
from .gpu import Gpu
from .ways import Floats, Ways

__all__ = ["corrected", "features"]

_PORT, _L2, _MEMORY = 48, 3500, 2460
"""bytes a cycle at most, about: to an SM, from the L2, from memory. (The constants of `costs` are
fitted, all together.)"""
MOST = 1.3
"""logarithm of a correction at most: those of the measurements are below it; of products unlike
these a network says anything"""


def features(of: Ways, product: Product, counted: Floats, gpu: Gpu) -> Floats:
    """Return what the network is told of each way to cut: a row of numbers of about 1, the last of
    them the `counted` cycles."""
    _, steps, units, slots, _, high, wide = work(of, product, gpu)
    rows, columns, k, turned, aligned, batches = product
    log, waves = np.log, units / slots
    own = np.ceil(steps / np.minimum(of.along * of.parts, np.maximum(steps, 1)))
    rounds = np.where(of.stream > 0, waves, np.ceil(waves))
    deep = np.maximum(rounds * own * of.tk, 1)  # along K, of a CTA
    limits = [
        deep / 16 * of.tm / 64 * np.maximum(of.tn / 2, 27),
        2 * deep * (high + wide) / _PORT,
        2 * units * own * of.tk * (high / of.across + wide / of.cluster) / _L2 + 1,
        2.0 * batches * (k * (rows + columns) + rows * columns) / _MEMORY,
    ]
    facts = [
        log(rows),
        log(columns),
        log(k),
        log(of.tm),
        log(of.tn),
        np.minimum(of.tk, 128) / 64,
        log(of.slots * of.tk / 64),
        log(of.cluster),
        log(of.across),
        log(of.along),
        log(of.parts),
        of.stream,
        of.turns,
        of.wgs,
        turned,
        *(
            np.asarray(each) % bytes == 0
            for each in (aligned, 2 * np.where(turned, rows, columns))
            for bytes in (SECTOR, LINE)
        ),
        np.clip(log(waves), -3, 3),
        waves / np.ceil(waves),
        log(np.maximum(1, np.ceil(steps / (of.along * of.parts)))),
        high / of.tm,
        wide / of.tn,
        np.clip(log(units % slots + 1), 0, 5),
        log(2.0 * batches * k * (rows + columns)),
        log(2.0 * batches * rows * columns),
        of.tn % 64 / 64,
        log(of.panels),
        np.minimum(1, 4096 * of.panels * np.where(of.turns > 0, 1, of.wgs) / (of.tm * of.tn)),
        log(np.minimum(units, slots)),
        log(rounds),
        log(np.maximum.reduce(np.broadcast_arrays(*limits)) / counted),
        *(log(each / counted) for each in limits),
        log(counted),
    ]
    return np.stack(
        [np.broadcast_to(np.asarray(fact, np.float32), of.tm.shape) for fact in facts], axis=1
    )


def corrected(of: Ways, product: Product, gpu: Gpu) -> Floats:
    """Return about how many cycles a product takes, cut in each of these ways: counted, and
    corrected."""
    counted = cycles(of, product, gpu)
    x = features(of, product, counted, gpu)[None]
    for number, (weights, bias) in enumerate(gpu.layers):
        x = x @ weights + bias
        if number < len(gpu.layers) - 1:
            x = x / (1 + np.exp(-x))
    return counted * np.exp(np.clip(x.mean(axis=(0, 2)), -MOST, MOST))  # type: ignore[no-any-return]
