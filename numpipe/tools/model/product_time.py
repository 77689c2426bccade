"""Predict the time of a tiled matrix product in closed form, like `numpipe.explain` but without
running any control flow.

The product is ``C = A Bᵀ`` with A (M, K), B (N, K), computed by a persistent kernel that walks over
tiles of C in some order. The work of its CTAs follows from the sizes alone, so a prediction takes a
millisecond, while `explain` may count for seconds: fast enough to choose a configuration in a call.
Both use `limits.predict`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from ...arch.dimensions import Dim3, round_up
from ...arch.products import Product
from ...diagnostics.argument_checks import FLAG, NONE, POSITIVE, a, each, require, told, whole, word
from ...diagnostics.errors import SpecError
from ...language.grid.orders import Grouped, Order
from ...language.grid.split_k import STREAM, no_split
from ...plan.budget import HEADER, PANEL_BYTES
from ...plan.layout import ATOM
from ...sim.inferred import Work
from .gpu_figures import H200, Clock, DeviceModel
from .limits import Facts, Prediction, RingFacts, predict
from .work import NEIGHBOURS, KernelWork

RING = "a, b"
CLUSTER = "cluster"
"""a value of `split`: as many parts as a cluster has CTAs, which exchange their sums"""


def product(
    shape: Dim3,
    *,
    tile: tuple[int, int],
    depth: int,
    slots: int,
    schedule: str = "cooperative",
    order: Order | None = None,
    store_slots: int = 1,
    itemsize: int = 2,
    num_compute_wgs: int = 2,
    batches: int = 1,
    split: int | str | None = None,
    cluster: int = 1,
    aligned: bool = True,
    device: DeviceModel = H200,
    clock: Clock | float = "burst",
) -> Prediction:
    """Predict the time of a matrix product. `seconds`, `limits` and `limiter` of the result are as
    for `explain`.

    shape            (M, N, K) in elements
    tile             (rows, columns) of C, of a CTA, or with ping-pong of a compute warpgroup; rows
                     must be a multiple of 64 for each warpgroup that shares the tile, columns a
                     multiple of 8 up to 256 (PTX ISA, "wgmma.mma_async": shapes)
    depth            elements of K in a pipeline step, a multiple of 32 bytes
    slots            slots of the ring
    schedule         "cooperative" or "pingpong"
    order            order of the tiles; default: Grouped(16)
    store_slots      staging panels of each compute warpgroup (8192 bytes each)
    itemsize         bytes of an element of A, B and C
    num_compute_wgs  compute warpgroups
    batches          number of products of this shape, one after another in one launch, each with
                     its own operands
    split            how tiles are cut along K, as in `numpipe.split_tiles`; "cluster" divides each
                     among the CTAs of a cluster
    cluster          CTAs along M that load blocks of B for each other; with split="cluster", CTAs
                     along K
    aligned          whether rows of A and B start at multiples of 128 bytes; if not, L2 has several
                     times as many requests
    device, clock    as for `explain`

    Raises SpecError for sizes that no such kernel can have, and for a ring that does not fit in
    shared memory.

    >>> wide = product((4096, 4096, 4096), tile=(128, 256), depth=64, slots=3, store_slots=4)
    >>> narrow = product(
    ...     (4096, 4096, 4096),
    ...     tile=(128, 128),
    ...     depth=64,
    ...     slots=5,
    ...     store_slots=4,
    ...     schedule="pingpong",
    ... )
    >>> wide.seconds < narrow.seconds
    True
    """
    require(
        "product",
        locals(),
        device=a(DeviceModel),
        shape=each(POSITIVE, 3),
        tile=each(POSITIVE, 2),
        depth=POSITIVE,
        slots=POSITIVE,
        schedule=word("cooperative", "pingpong"),
        order=a(Order) | NONE,
        store_slots=whole(0),
        itemsize=POSITIVE,
        num_compute_wgs=whole(1, 8),
        batches=POSITIVE,
        cluster=POSITIVE,
        aligned=FLAG,
    )
    if cluster > device.sms:
        raise SpecError(f"product: cluster={cluster}: a cluster has 1 to {device.sms} CTAs")
    above, parts = (1, cluster) if word(CLUSTER).holds(split) else (cluster, 1)
    if not (word(STREAM, CLUSTER) | NONE | POSITIVE).holds(split):
        raise SpecError(no_split(told(split)).replace("numpipe.split_tiles", "product"))
    turns = schedule == "pingpong"
    of = device.target.product
    rows = of.rows * (1 if turns else num_compute_wgs)
    if (
        tile[0] % rows
        or not 8 <= tile[1] <= of.widest
        or tile[1] % 8
        or depth * itemsize % of.k_bytes
    ):
        raise SpecError(
            f"product: tile {tile} with {depth=} and schedule={schedule!r}: rows must be a "
            f"multiple of {rows}, columns of 8, up to {of.widest}, depth of "
            f"{of.k_bytes // itemsize}"
        )
    if tile[1] % (8 * parts):
        raise SpecError(
            f"product: tile {tile} in a cluster of {parts}, split={CLUSTER!r}: columns must be a "
            f"multiple of {8 * parts}"
        )
    stage = sum(round_up(side * depth * itemsize, ATOM) for side in tile)
    staging = num_compute_wgs * store_slots * PANEL_BYTES
    sums = 4 * tile[0] * tile[1] * (parts - 1) // parts * (num_compute_wgs if turns else 1)
    if (total := HEADER + slots * stage + staging + sums) > device.target.smem_bytes:
        raise SpecError(
            f"product: shared memory: {total} B, but a CTA has {device.target.smem_bytes} B: "
            f"{slots} slots x {stage} B, {staging} B of staging, "
            f"{f'{sums} B of partial sums, ' * bool(sums)}{HEADER} B of barriers; fix: use fewer "
            "slots (numpipe.fit_slots says how many fit)"
        )
    if cluster > 1:
        device = replace(device, sms=device.sms // cluster * cluster)
    if above > 1:
        device = replace(device, step_cycles=device.step_cycles + device.meeting_cycles)
    work = _work(
        (batches, *shape),
        tile,
        depth,
        order or Grouped(16),
        itemsize,
        num_compute_wgs,
        turns,
        device,
        split,
        above,
        parts,
    )
    if not aligned:
        unaligned = sum(
            work.total["load", array] / shared for array, shared in (("a", 1), ("b", above))
        )
        work.unaligned_rows = round(unaligned / 128)
    facts = Facts(
        (RingFacts(RING, slots, int(turns and slots > 1), stage),),
        resident=1,
        drain=False,
        spill_bytes=0,
        serialised=False,
        turns=turns,
    )
    return predict(work, facts, device, clock)


def _work(
    shape: tuple[int, int, int, int],
    tile: tuple[int, int],
    depth: int,
    order: Order,
    itemsize: int,
    warpgroups: int,
    turns: bool,
    device: DeviceModel,
    split: int | str | None,
    cluster: int,
    within: int,
) -> KernelWork:
    (batches, m, n, k), (tm, tn) = shape, tile
    grid = (batches, -(-m // (tm * cluster)) * cluster, -(-n // tn))
    tiles, steps = math.prod(grid), -(-k // depth)
    work = KernelWork(
        sms := device.sms,
        footprint={"a": batches * m * k * itemsize, "b": batches * n * k * itemsize},
    )
    first = 0
    for alike, share in _shares(tiles, steps, sms, split, within):
        if alike:
            work.counted[first] = _cta(
                share, tile, depth, itemsize, warpgroups, turns, device.target.product
            )
            for key, amount in work.counted[first].items():
                work.total[key] += alike * amount
            first += alike
    # only the parts of blocks inside the arrays are loaded and stored
    for array, amount in (("a", grid[2] * m * k), ("b", grid[1] * n * k)):
        work.total["load", array] = batches * amount * itemsize
    work.total["store", "c"] = batches * m * n * itemsize

    places = [
        (order.coordinates(t // within, grid), t % within) for t in range(min(tiles * within, sms))
    ]
    for axis, array in enumerate("ab", 1):
        panels = [(place[0], place[axis], part) for place, part in places]
        work.again["load", array] = len(set(panels)) / len(panels)
        beside = sum(
            len(set(panels[at : at + NEIGHBOURS])) for at in range(0, len(panels), NEIGHBOURS)
        )
        work.beside[array] = beside / len(panels)
    return work


class _Share(NamedTuple):
    """One CTA's share of the tiles: how many parts of tiles it computes, their steps in total, the
    tiles that it stores, and the sums that it hands over and receives.

    `sent` is how often it sends a sum to another CTA of its cluster; if it does, `given`, `taken`
    and `tiles` may be fractions.
    """

    parts: int
    steps: int
    tiles: float
    given: float = 0
    taken: float = 0
    sent: int = 0


def _shares(
    tiles: int, steps: int, sms: int, split: int | str | None, within: int
) -> list[tuple[int, _Share]]:
    """Return (number of CTAs, share of each), the largest share first. Parts are as in `splits`,
    but assumed to be equal."""
    if split == CLUSTER:
        clusters, others = sms // within, within - 1
        many, left = divmod(tiles, clusters)
        return [
            (
                alike * within,
                _Share(
                    n,
                    n * -(-steps // within),
                    n / within,
                    sums := n * others / within,
                    sums,
                    n * others,
                ),
            )
            for alike, n in ((left, many + 1), (clusters - left, many))
        ]
    # if the tiles do not divide evenly, the first CTAs have one more than the others
    if split is None:
        many, left = divmod(tiles, sms)
        return [
            (left, _Share(many + 1, steps * (many + 1), many + 1)),
            (sms - left, _Share(many, steps * many, many)),
        ]
    if isinstance(split, int):
        parts = min(split, steps, sms)
        used = sms // parts * parts
        many, left = divmod(tiles * parts, used)
        each, others = -(-steps // parts), parts - 1
        return [
            (ctas, _Share(n, n * each, n, 0, n * others))
            for ctas, n in ((left, many + 1), (used - left, many))
        ] + [(sms - used, _Share(0, 0, 0))]
    waves, shared = divmod(tiles, sms)
    if waves and shared:
        waves, shared = waves - 1, shared + sms
    row = -(-shared * steps // sms)
    parts = -(-steps // row) if row else 0
    return [
        (
            sms,
            _Share(
                waves + -(-shared // sms) + bool(shared),
                waves * steps + row,
                waves + -(-shared // sms),
                bool(shared),
                parts - 1 + bool(shared % sms and row > steps) if shared else 0,
            ),
        )
    ]


def _cta(
    share: _Share,
    tile: tuple[int, int],
    depth: int,
    itemsize: int,
    warpgroups: int,
    turns: bool,
    of: Product,
) -> Work:
    """Return the work of a CTA with this share of the tiles."""
    (tm, tn), steps = tile, share.steps
    work = Work(
        {
            ("tiles",): share.parts,
            ("fills", RING): steps,
            ("copied",): steps * (tm + tn) * depth * itemsize,
            ("load", "a"): steps * tm * depth * itemsize,
            ("load", "b"): steps * tn * depth * itemsize,
            ("store", "c"): round(share.tiles * tm * tn * itemsize),
            ("flop",): 2 * steps * tm * tn * depth,
            ("handed",): 0 if share.sent else round(share.given + share.taken),
        }
    )
    rows = tm if turns else tm // warpgroups
    for warpgroup in range(warpgroups):
        parts = len(range(warpgroup, share.parts, warpgroups)) if turns else share.parts
        mine = parts / share.parts if share.parts else 0.0
        work["steps", warpgroup] = round(mine * steps)
        products = work["products", warpgroup] = round(
            mine * steps * (rows // of.rows) * (depth * itemsize // of.k_bytes)
        )
        work["tensor", warpgroup] = round(products * of.cycles(tn))
        work["written", warpgroup] = round(
            mine * rows * tn * (itemsize * share.tiles + 4 * share.given)
        )
        work["read", warpgroup] = round(mine * rows * tn * 4 * share.taken)
        work["sent", warpgroup] = round(mine * share.sent)
    return +work  # drop zeros: a CTA without a tile does nothing
