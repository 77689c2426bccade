"""Fit the network that corrects numpipe's count of a product's cycles (`numpipe.ops.learned`).
Needs PyTorch, no GPU.

    cd examples/benchmarks
    python random_products.py --seed 1 --space 26 --processes 1 --out result.json
    python random_products.py --read result.json --fit rows.jsonl
    # how good the choice is for products that it was not trained on
    python fit_products.py rows.jsonl --folds 3
    python fit_products.py ../../docs/results/product_configs_*.jsonl.gz rows.jsonl --write

What counts is the order of a product's configs: for each product the error of its mean is taken
away, configs near the fastest weigh most, and what the network's choice would lose is a part of the
loss. Large products are limited by power under load, by the L2 and memory after a pause
(`random_products.py --idle`): the choice is made for both. `--folds 3` trains on two thirds of the
products and chooses for the others, each third in turn; printed is how much longer the chosen
config takes than the fastest of those that were measured. The layers and squares that the op is
judged by (product_rows.py) are left out: nothing is learned from them.
"""

from __future__ import annotations

import argparse
import ast
import functools
import gzip
import itertools
import json
import math
import sys
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from product_rows import SQUARES, layer_rows

from numpipe.ops import costs, learned
from numpipe.ops.configs import Config, delay_of, ways_of

CLOCK = 1.7e9
"""cycles a second, about"""
HIDDEN, EPOCHS, NETWORKS = (96, 48, 24), 1600, 8
BURST = 4.0
"""weight of a product that was measured after a pause: of large products, three times as many were
measured under load. 3, 4, 5 and 8 were tried, and 600 to 1,600 epochs. 4 and 1,600 were taken
because with them the choice has configs that measured faster at 8192 x 8192 x 512, and after a
pause at 8192 x 8200 x 8184, two products of gemm.py's suite; for unseen products all were alike."""
LOST, SHARP = 0.1, 0.01
"""weight of what the choice loses; difference of two predicted times (logarithms) that makes one e
times as likely as the other"""


def config_of(name: str) -> Config | None:
    """The config of a line; None for one that has a name."""
    call = ast.parse(name, mode="eval").body if name.startswith("Config(") else None
    return (
        Config(**{each.arg: ast.literal_eval(each.value) for each in call.keywords})
        if isinstance(call, ast.Call)
        else None
    )


def outdated(config: Config, m: int, n: int) -> bool:
    """Whether one warpgroup left products in flight, or did not, otherwise than now: where it
    matters, 10 to 25 % slower."""
    usual = delay_of(config.schedule == "pingpong", config.tk, config.wgs, config.depth)
    return config.wgs == 1 and config.delay != usual and (config.tk > 128 or min(m, n) > 64)


class Rows:
    """Measured times: one for each (product, config). Products are numbered; `product_of` says
    which are the same one, measured again: in another run, so on another card, or by another
    protocol. Their times are only compared with those of the same run and protocol."""

    def __init__(self, paths: list[Path]) -> None:
        found = defaultdict(list)
        judged = {*layer_rows(), *((side, side, side) for side in SQUARES)}
        for path in paths:
            with (gzip.open if path.suffix == ".gz" else open)(
                path, "rt", encoding="utf8"
            ) as lines:
                for row in map(json.loads, lines):
                    if (config := config_of(row["config"])) is not None and not outdated(
                        config, *row["shape"][:2]
                    ):
                        run = path.name, row.get("run"), row.get("protocol", "sweep")
                        key = *row["shape"], row["dtype"], row["stored"], *run
                        found[key].append((config, row["seconds"]))
        several = [
            (key, rows) for key, rows in found.items() if len(rows) > 3 and key[:3] not in judged
        ]
        places = {key[:5]: i for i, key in enumerate(dict.fromkeys(key[:5] for key, _ in several))}
        self.product_of = np.array([places[key[:5]] for key, _ in several])
        self.weight = np.array([BURST if key[-1] == "burst" else 1 for key, _ in several])
        self.number = np.concatenate([np.full(len(rows), i) for i, (_, rows) in enumerate(several)])
        every = [(key, config, seconds) for key, rows in several for config, seconds in rows]
        turned = np.array([config.turned for _, config, _ in every])
        m, n, k = np.array([key[:3] for key, _, _ in every]).T
        self.ways = ways_of(config for _, config, _ in every)
        self.product = costs.Product(
            np.where(turned, n, m), np.where(turned, m, n), k, turned, np.gcd(2 * k, costs.LINE)
        )
        self.measured = np.array([seconds for *_, seconds in every]) * CLOCK
        self.counted = costs.cycles(self.ways, self.product)
        self.fastest = np.array(
            [self.measured[self.number == i].min() for i in range(len(several))]
        )

    def regret(self, predicted: Any, products: Any) -> Any:
        """How much longer the config with the least predicted time takes than the fastest, for each
        of these products."""
        return np.array(
            [
                self.measured[at][predicted[at].argmin()] / self.fastest[i]
                for i in np.where(products)[0]
                for at in [self.number == i]
            ]
        )


def trained(rows: Rows, products: Any, seed: int) -> torch.nn.Sequential:
    """A network, trained on these products."""
    torch.manual_seed(seed)
    x = torch.tensor(learned.features(rows.ways, rows.product, rows.counted))
    mean, spread = x.mean(0), x.std(0) + 1e-6
    longer = rows.measured / rows.fastest[rows.number]
    target, counted, lost = (
        torch.tensor(each, dtype=torch.float32)
        for each in (
            np.log(rows.measured / rows.counted),
            np.log(rows.counted),
            np.minimum(longer - 1, 0.3),
        )
    )
    number = torch.tensor(rows.number)
    of_product = torch.tensor(products * rows.weight, dtype=torch.float32)
    weight = torch.tensor(longer**-1.5, dtype=torch.float32) * of_product[number]
    none = torch.zeros(len(products))
    sums = none.index_add(0, number, weight) + 1e-9
    sizes = x.shape[1], *HIDDEN
    layers = [
        each
        for size, following in itertools.pairwise(sizes)
        for each in (torch.nn.Linear(size, following), torch.nn.SiLU())
    ]
    network = torch.nn.Sequential(*layers, torch.nn.Linear(sizes[-1], 1))
    steps = torch.optim.AdamW(network.parameters(), lr=8e-3, weight_decay=1e-2)
    slower = torch.optim.lr_scheduler.CosineAnnealingLR(steps, EPOCHS)
    for _ in range(EPOCHS):
        correction = network((x - mean) / spread).squeeze(1)
        error = correction - target
        common = none.index_add(0, number, weight * error) / sums
        loss = (weight * (error - 0.9 * common[number]) ** 2).sum() / weight.sum()
        swift = -(counted + correction) / SHARP
        likely = (
            swift
            - none.scatter_reduce(0, number, swift.detach(), "amax", include_self=False)[number]
        ).exp()
        chosen = none.index_add(0, number, likely * lost) / none.index_add(0, number, likely)
        loss = loss + LOST * (of_product * chosen).sum() / of_product.sum()
        steps.zero_grad()
        loss.backward()
        steps.step()
        slower.step()
    first = network[0]
    with torch.no_grad():  # the inputs' mean and spread become a part of the first layer
        first.weight /= spread
        first.bias -= first.weight @ mean
    return network


def ensemble(rows: Rows, products: Any) -> list[torch.nn.Sequential]:
    """Networks, trained in processes of one thread each, so that the bits do not depend on the
    machine's cores."""
    with ProcessPoolExecutor(initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(functools.partial(trained, rows, products), range(NETWORKS)))


def predicted(networks: list[torch.nn.Sequential], rows: Rows) -> Any:
    x = torch.tensor(learned.features(rows.ways, rows.product, rows.counted))
    with torch.no_grad():
        return rows.counted * np.exp(
            np.mean([network(x).squeeze(1).numpy() for network in networks], axis=0)
        )


def told(what: str, regret: Any) -> None:
    mean = math.exp(np.log(regret).mean())
    print(
        f"{what}: the choice takes {mean:.4f} of the fastest's time, at most {regret.max():.3f}; "
        f"above 1.1: {(regret > 1.1).mean():.1%}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="+", type=Path)
    parser.add_argument("--folds", type=int, default=0)
    parser.add_argument("--write", action="store_true", help=f"write {learned.PATH.name}")
    options = parser.parse_args()
    rows = Rows(options.rows)
    count = len(rows.fastest)
    print(f"{len(rows.measured)} times of {count} products")
    told("the count alone", rows.regret(rows.counted, np.ones(count, bool)))
    unseen = []
    for fold in range(options.folds):
        held = rows.product_of % options.folds == fold
        unseen.append(rows.regret(predicted(ensemble(rows, ~held), rows), held))
    if unseen:
        told("corrected, products that were not seen", np.concatenate(unseen))
    if options.write:
        networks = ensemble(rows, np.ones(count, bool))
        told("corrected", rows.regret(predicted(networks, rows), np.ones(count, bool)))
        arrays = {}
        for number in range(len(HIDDEN) + 1):
            layers: list[Any] = [network[2 * number] for network in networks]
            arrays[f"weights{number}"] = np.stack(
                [layer.weight.detach().numpy().T for layer in layers]
            ).astype(np.float32)
            arrays[f"bias{number}"] = np.stack(
                [layer.bias.detach().numpy()[None] for layer in layers]
            ).astype(np.float32)
        np.savez_compressed(learned.PATH, **arrays)
    return 0


if __name__ == "__main__":
    sys.exit(main())
