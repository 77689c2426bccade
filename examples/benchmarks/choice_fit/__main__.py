"""Fit the choice of matmul configs to a GPU, or report how good it is.

``fit`` writes the file of the GPU whose times are in the first of ROWS. ``evaluate`` prints how
much slower the chosen config is than the fastest measured one, for products that were held out of
the fit. Files of other GPUs may follow, for sizes that were not measured on the first. ROWS are
written by random_products.py in the parent folder.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from numpipe.errors import NumpipeError

from .fit import fit, losses, unseen
from .measurements import read


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Return the exit status: 2 if a file cannot be read."""
    parser = argparse.ArgumentParser("python -m choice_fit", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("fit", "evaluate"):
        options = commands.add_parser(command)
        options.add_argument("rows", nargs="+", type=Path, metavar="ROWS")
        if command == "fit":
            options.add_argument("-o", "--out", type=Path, required=True, metavar="FILE")
    parsed = parser.parse_args(arguments)
    try:
        sets = list(read(parsed.rows).values())
    except (NumpipeError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    gpu, groups = sets[0]
    count = sum(len(group.seconds) for group in groups)
    print(f"{gpu.name}: {count} times of {len({group.shape for group in groups})} products")
    if parsed.command == "evaluate":
        _print("products held out of the fit", unseen(sets))
        return 0
    fitted = fit(sets)
    _print("the count alone", losses(fitted, groups, corrects=False))
    _print("corrected, the products of the fit", losses(fitted, groups))
    fitted.save(parsed.out)
    return 0


def _print(what: str, lost: Any) -> None:
    mean = np.exp(np.log(lost).mean())
    print(
        f"{what}: the chosen config takes {mean:.4f} of the fastest config's time on average, at "
        f"most {lost.max():.2f}; more than 1.1 in {(lost > 1.1).mean():.1%}"
    )


if __name__ == "__main__":
    sys.exit(main())
