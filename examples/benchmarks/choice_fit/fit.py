"""Fit the constants and the networks of a GPU to measured times, and evaluate the resulting choice.

The constants are fitted first, by least squares of the logarithm of counted over measured cycles;
then networks are trained on the remaining error. Both fit the order of a product's configs rather
than its time: most of the mean error of a group of times is subtracted, and configs near the
fastest have the largest weights. The networks' loss includes the time that their choice loses.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from numpipe.ops.choice.cost import cycles
from numpipe.ops.choice.gpu import Constants, Gpu
from numpipe.ops.choice.network import correction, features
from numpipe.ops.choice.ranking import TURNED

from .measurements import Group, Rows, arrays

__all__ = ["fit", "losses", "unseen"]

COMMON = 0.95
"""fraction of a group's mean error that is subtracted"""
STAY = 3e-5
"""weight of a constant's distance (of logarithms) from its initial value"""
NETWORKS, HIDDEN, EPOCHS, GROUPS = 4, (32, 16), 200, 256
"""number of networks; units of their hidden layers; passes over all groups; groups per step"""
RATE, DECAY, WARM = 2e-2, 0.1, 0.05
"""AdamW: the largest learning rate, the weight decay, and the warm-up as a fraction of all steps"""
LOST, SHARP = 0.1, 0.01
"""weight of the time that the choice loses; difference of two predicted times (logarithms) that
makes one e times as likely as the other"""
Sets = Sequence[tuple[Gpu, list[Group]]]


def fit(sets: Sets) -> Gpu:
    """Return the GPU of the first set, with constants and networks fitted to its times.

    Further sets are of other GPUs. The networks also learn from them, for sizes that were not
    measured on the first; their cycles are counted with their own constants.
    """
    own = replace(sets[0][0], constants=_constants(*sets[0]))
    groups = [group for _, each in sets for group in each]
    counted, inputs = [], []
    for gpu, each in ((own, sets[0][1]), *sets[1:]):
        rows = arrays(each)
        counted.append(cycles(rows.ways, rows.product, gpu))
        inputs.append(features(rows.ways, rows.product, counted[-1], gpu))
    data = arrays(groups), np.concatenate(counted), np.concatenate(inputs, axis=1).T
    networks = [_trained(*data, seed) for seed in range(NETWORKS)]
    return replace(own, layers=tuple(np.stack(each) for each in zip(*networks, strict=True)))


def losses(gpu: Gpu, groups: list[Group], corrects: bool = True) -> Any:
    """Return the time of the chosen config over the time of the fastest, for each group."""
    rows = arrays(groups)
    predicted = cycles(rows.ways, rows.product, gpu)
    if corrects:
        inputs = features(rows.ways, rows.product, predicted, gpu)
        predicted = predicted * np.exp(correction(inputs, gpu.layers))
    predicted = predicted * np.where(rows.product.turned, TURNED, 1)
    chosen = np.lexsort((predicted, rows.number))[rows.starts]
    return rows.longer[chosen]


def unseen(sets: Sets, folds: int = 3) -> Any:
    """Return the losses of the first set's groups by cross-validation: each group is predicted by a
    fit to the other folds. All times of a shape are in the same fold."""

    def within(groups: list[Group], fold: int, inside: bool) -> list[Group]:
        return [
            group
            for group in groups
            if (zlib.crc32(str(group.shape).encode()) % folds == fold) == inside
        ]

    found = []
    for fold in range(folds):
        if held_out := within(sets[0][1], fold, True):  # few shapes may leave a fold empty
            gpu = fit([(gpu, within(groups, fold, False)) for gpu, groups in sets])
            found.append(losses(gpu, held_out))
    return np.concatenate(found)


def _constants(gpu: Gpu, groups: list[Group]) -> Constants:
    """Fit the constants by the Levenberg-Marquardt method."""
    rows = arrays(groups)
    weight = rows.longer**-1.5
    start = np.log(gpu.constants)

    def errors(logarithms: Any) -> Any:
        by = replace(gpu, constants=Constants(*np.exp(logarithms).tolist()))
        error = np.log(cycles(rows.ways, rows.product, by) / rows.cycles)
        stays = np.sqrt(STAY * weight.sum()) * (logarithms - start)
        return np.append(np.sqrt(weight) * (error - _common(error, weight, rows.starts)), stays)

    found, damping = start, 1e-2
    left = errors(found)
    for _ in range(20):
        slopes = (
            np.stack([errors(found + step) - left for step in 0.01 * np.eye(len(found))]) / 0.01
        )
        square = slopes @ slopes.T
        step = np.linalg.solve(square + damping * np.diag(square.diagonal()), -slopes @ left)
        following = errors(found + np.clip(step, -0.7, 0.7))
        if following @ following < left @ left:
            found, left, damping = found + np.clip(step, -0.7, 0.7), following, damping / 5
        else:
            damping *= 5
    return Constants(*np.exp(found).tolist())


def _trained(rows: Rows, counted: Any, seen: Any, seed: int) -> list[Any]:
    """Train a network on these times and return its layers: arrays (outputs, inputs + 1) whose last
    column is the bias."""
    random = np.random.default_rng(seed)
    mean, spread = seen.mean(0), seen.std(0)
    spread[spread < 1e-3] = 1  # features that are constant
    x = ((seen - mean) / spread).astype(np.float32)
    weight = rows.longer**-1.5 * rows.weight[rows.number]
    lost = np.minimum(rows.longer - 1, 0.3)
    facts = np.stack([np.log(rows.cycles / counted), np.log(counted), lost, weight])
    layers = [
        (random.uniform(-1, 1, (inputs + 1, outputs)) / np.sqrt(inputs)).astype(np.float32)
        for inputs, outputs in itertools.pairwise((x.shape[1], *HIDDEN, 1))
    ]
    moments = [(np.zeros_like(layer), np.zeros_like(layer)) for layer in layers]
    places = np.split(np.arange(len(x)), rows.starts[1:])  # indices of each group's times
    parts = max(1, round(len(places) / GROUPS))
    for step in range(EPOCHS * parts):
        if step % parts == 0:
            order = random.permutation(len(places))
        several = order[step % parts :: parts]
        at = np.concatenate([places[group] for group in several])
        starts = np.cumsum([0, *(len(places[group]) for group in several[:-1])])
        gradients = _gradients(layers, x[at], facts[:, at], starts, rows.weight[several])
        done = step / (EPOCHS * parts)
        rate = RATE * min(1, done / WARM) * (1 + np.cos(np.pi * done)) / 2
        for layer, (first, second), gradient in zip(layers, moments, gradients, strict=True):
            first += 0.1 * (gradient - first)
            second += 0.001 * (gradient * gradient - second)
            layer -= rate * (first / (np.sqrt(second) + 1e-8) + DECAY * layer)
    layers[0][-1] -= mean / spread @ layers[0][:-1]  # fold the normalization into the first layer
    layers[0][:-1] /= spread[:, None]
    return [layer.T for layer in layers]


def _gradients(layers: list[Any], x: Any, facts: Any, starts: Any, groups: Any) -> list[Any]:
    """Return the gradients of the loss, per layer, for groups of times that start at `starts` and
    have the weights `groups`."""
    target, counted, lost, weight = facts
    inputs, slopes = [x], []
    for layer in layers[:-1]:
        sums = inputs[-1] @ layer[:-1] + layer[-1]
        gate = np.tanh(sums / 2) / 2 + 0.5
        inputs.append(sums * gate)  # SiLU
        slopes.append(gate * (1 + sums - inputs[-1]))
    answer = (inputs[-1] @ layers[-1][:-1] + layers[-1][-1])[:, 0]
    # squared errors, less each group's common error
    error = answer - target
    error = weight * (error - _common(error, weight, starts))
    gradient = 2 * (error - weight * _common(error / weight, weight, starts)) / weight.sum()
    # time lost by a soft choice of the fastest
    counts = np.diff(starts, append=len(x))
    swift = -(counted + answer) / SHARP
    likely = np.exp(swift - np.repeat(np.maximum.reduceat(swift, starts), counts))
    likely /= np.repeat(np.add.reduceat(likely, starts), counts)
    expected = np.add.reduceat(likely * lost, starts)
    share = np.repeat(groups / groups.sum(), counts)
    gradient -= LOST / SHARP * share * likely * (lost - np.repeat(expected, counts))
    found, back = [], gradient[:, None].astype(np.float32)
    for number in reversed(range(len(layers))):
        found.append(np.vstack([inputs[number].T @ back, back.sum(0)]))
        if number:
            back = back @ layers[number][:-1].T * slopes[number - 1]
    return found[::-1]


def _common(error: Any, weight: Any, starts: Any) -> Any:
    """Return what is subtracted from each time's error: a fraction of its group's mean."""
    mean = np.add.reduceat(weight * error, starts) / np.add.reduceat(weight, starts)
    return COMMON * np.repeat(mean, np.diff(starts, append=len(error)))
