"""The time of a tiled matrix product in closed form: what `numpipe.explain` would predict, without running any control flow.

``C = A Bᵀ`` with A (M, K), B (N, K), by a persistent kernel that walks over tiles of C in an order. What a CTA of such a kernel
does follows from the sizes alone, so a prediction takes a millisecond where `explain`'s count takes up to seconds: quick enough to
choose a configuration in a call. Both go through the same `limits.predict`.
"""

from __future__ import annotations

import itertools
import math

from .._budget import HEADER, PANEL_BYTES, SMEM_BYTES
from .._layout import ATOM
from ..errors import SpecError
from ..orders import Grouped, Order
from .count import Work
from .device import H200, Clock, DeviceModel
from .limits import Facts, Prediction, RingFacts, predict
from .work import NEIGHBOURS, SAMPLES, KernelWork

RING = "a, b"


def product(shape: tuple[int, int, int], *, tile: tuple[int, int], depth: int, slots: int, schedule: str = "cooperative",
            order: Order | None = None, store_slots: int = 1, itemsize: int = 2, num_compute_wgs: int = 2,
            batches: int = 1, device: DeviceModel = H200, clock: Clock | float = "burst") -> Prediction:
    """Predict a matrix product on 16-bit inputs; `seconds`, `limits` and `limiter` of the result are those of `explain`.

    shape            (M, N, K), elements
    tile             (rows, columns) of C: of a CTA, or with ping-pong of a compute warpgroup; rows a multiple of 64 for each
                     warpgroup that shares it, columns a multiple of 8 up to 256 (PTX ISA, "wgmma.mma_async": shapes)
    depth            elements of K of a pipeline step, a multiple of 16
    slots            of the ring
    schedule         "cooperative" or "pingpong"
    order            of the tiles; default: Grouped(16)
    store_slots      staging panels of each compute warpgroup (8192 bytes each)
    itemsize         bytes of an element of A, B and C
    num_compute_wgs  compute warpgroups
    batches          products of this shape, one after the other in one launch, with operands of their own
    device, clock    as for `explain`

    Raises SpecError for sizes that no such kernel has, and for a ring that does not fit into shared memory.

    >>> wide = product((4096, 4096, 4096), tile=(128, 256), depth=64, slots=3, store_slots=4)
    >>> narrow = product((4096, 4096, 4096), tile=(128, 128), depth=64, slots=5, store_slots=4, schedule="pingpong")
    >>> wide.seconds < narrow.seconds
    True
    """
    _check(shape, tile, depth, slots, schedule, store_slots, itemsize, num_compute_wgs, batches)
    stage = sum(-(-side * depth * itemsize // ATOM) * ATOM for side in tile)
    work = _work((batches, *shape), tile, depth, order or Grouped(16), itemsize, num_compute_wgs, schedule, device.sms)
    turns = schedule == "pingpong"
    facts = Facts((RingFacts(RING, slots, int(turns and slots > 1), stage),), resident=1, drain=False, spill_bytes=0,
                  serialised=False, turns=turns)
    return predict(work, facts, device, clock)


def _check(shape: tuple[int, int, int], tile: tuple[int, int], depth: int, slots: int, schedule: str, store_slots: int,
           itemsize: int, num_compute_wgs: int, batches: int) -> None:
    if schedule not in ("cooperative", "pingpong"):
        raise SpecError(f"product: schedule is 'cooperative' or 'pingpong', got {schedule!r}")
    if min(shape) < 1:
        raise SpecError(f"product: shape (M, N, K) = {shape}: every size is at least 1")
    if min(slots, itemsize, num_compute_wgs, batches) < 1 or store_slots < 0:
        raise SpecError(f"product: {slots=}, {itemsize=}, {num_compute_wgs=} and {batches=} are positive, {store_slots=} is not "
                        "negative")
    rows = 64 * (num_compute_wgs if schedule == "cooperative" else 1)
    if tile[0] < 1 or tile[0] % rows or not 8 <= tile[1] <= 256 or tile[1] % 8 or depth < 16 or depth % 16:
        raise SpecError(f"product: tile {tile} with {depth=} and schedule={schedule!r}: rows are a multiple of {rows}, columns of "
                        "8, up to 256, depth of 16")
    stage = sum(-(-side * depth * itemsize // ATOM) * ATOM for side in tile)
    staging = num_compute_wgs * store_slots * PANEL_BYTES
    if (total := HEADER + slots * stage + staging) > SMEM_BYTES:
        raise SpecError(f"product: shared memory: {total} B, but a CTA has {SMEM_BYTES} B: {slots} slots x {stage} B, {staging} B "
                        f"of staging, {HEADER} B of barriers: use fewer slots (numpipe.fit_slots says how many fit)")


def _work(shape: tuple[int, int, int, int], tile: tuple[int, int], depth: int, order: Order, itemsize: int, warpgroups: int,
          schedule: str, sms: int) -> KernelWork:
    (batches, m, n, k), (tm, tn) = shape, tile
    grid = (batches, -(-m // tm), -(-n // tn))
    tiles, steps = math.prod(grid), -(-k // depth)
    work = KernelWork(sms, footprint={"a": batches * m * k * itemsize, "b": batches * n * k * itemsize})
    # the first CTAs have a tile more than the last ones, if the tiles do not divide
    many, left = divmod(tiles, sms)
    for number, of_it, alike in ((0, many + bool(left), left or sms), (sms - 1, many, sms - left if left else 0)):
        if alike:
            work.counted[number] = _cta(of_it, steps, tile, depth, itemsize, warpgroups, schedule)
            for key, amount in work.counted[number].items():
                work.total[key] += alike * amount
    # what lies inside the arrays
    for array, amount in (("a", grid[2] * m * k), ("b", grid[1] * n * k)):
        work.total["load", array] = batches * amount * itemsize
    work.total["store", "c"] = batches * m * n * itemsize

    places = [order.coordinates(t, grid) for t in range(min(tiles, sms, SAMPLES))]
    for axis, array in enumerate("ab", 1):
        panels = [(place[0], place[axis]) for place in places]
        work.distinct[array] = len(set(panels)) / len(panels)
        beside = sum(len(set(panels[at:at + NEIGHBOURS])) for at in range(0, len(panels), NEIGHBOURS))
        work.distinct_beside[array] = beside / len(panels)
    return work


def _cta(tiles: int, steps: int, tile: tuple[int, int], depth: int, itemsize: int, warpgroups: int, schedule: str) -> Work:
    """What a CTA with so many tiles does."""
    tm, tn = tile
    work = Work({("tiles",): tiles, ("fills", RING): tiles * steps, ("copied",): tiles * steps * (tm + tn) * depth * itemsize,
                 ("load", "a"): tiles * steps * tm * depth * itemsize, ("load", "b"): tiles * steps * tn * depth * itemsize,
                 ("store", "c"): tiles * tm * tn * itemsize, ("flop",): 2 * tiles * steps * tm * tn * depth})
    turns = schedule == "pingpong"
    shares = itertools.repeat(tiles) if not turns else (len(range(first, tiles, warpgroups)) for first in range(warpgroups))
    rows = tm if turns else tm // warpgroups
    for warpgroup, mine in zip(range(warpgroups), shares, strict=False):
        products = mine * steps * (rows // 64) * (depth // 16)
        work["steps", warpgroup] = mine * steps
        work["products", warpgroup] = products
        work["tensor", warpgroup] = round(products * max(tn / 2, 16 + tn / 4))
        work["written", warpgroup] = mine * rows * tn * itemsize
    return +work  # without zeros: a CTA without a tile does nothing
