"""``python -m numpipe.bench``: result files as a table, a picture, or beside each other.

    python -m numpipe.bench show result.json
    python -m numpipe.bench plot result.json [more.json] --out result.svg [--protocols burst,alone]
    python -m numpipe.bench map sweep.json [more.json] --out sweep.svg [--x M] [--y "N x K"] [--along "flops a byte"] [--of numpipe]
    python -m numpipe.bench merge first.json second.json --out all.json
    python -m numpipe.bench compare before.json after.json
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ...diagnostics.errors import NumpipeError
from .files import as_text, changes, merge, plot
from .maps import ratio_map
from .protocols import PROTOCOLS
from .report import read, table
from .summaries import summary


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns its exit status: 2 for files that cannot be read, drawn or compared."""
    parser = argparse.ArgumentParser("python -m numpipe.bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("show", help="the table of a file").add_argument("files", nargs=1, type=Path)
    drawing = commands.add_parser("plot", help="a picture of files of one model of GPU")
    drawing.add_argument("files", nargs="+", type=Path)
    drawing.add_argument("--out", type=Path, help="an .svg or .png file (default: the first file's name, as .svg)")
    drawing.add_argument("--protocols", default="", help="comma-separated, of: " + ", ".join(PROTOCOLS))
    mapping = commands.add_parser("map", help="a picture of a sweep's ratios over its rows")
    mapping.add_argument("files", nargs="+", type=Path)
    mapping.add_argument("--out", type=Path, help="an .svg or .png file (default: the first file's name, as .svg)")
    for option, what in (("x", "the number to the right"), ("y", "the number upwards"), ("along", "the number below the ratios"),
                         ("of", "the competitor")):
        mapping.add_argument(f"--{option}", help=what)
    merging = commands.add_parser("merge", help="the runs of several files as one: medians over all their processes")
    merging.add_argument("files", nargs="+", type=Path)
    merging.add_argument("--out", type=Path, required=True)
    commands.add_parser("compare", help="what changed from one file to another").add_argument("files", nargs=2, type=Path)
    options = parser.parse_args(arguments)
    try:
        results = [(file.name, read(file)) for file in options.files]
        if options.command == "show":
            rows = results[0][1].rows
            print(table(rows))
            if swept := [row for row in rows if row.protocol == "sweep"]:
                print("\n" + summary(swept))
        elif options.command == "compare":
            (before, first), (after, second) = results
            print(as_text(changes(first, second, (before, after))))
        elif options.command == "merge":
            merge(results).write(options.out)
            print(f"written to {options.out}")
        else:
            out = options.out or options.files[0].with_suffix(".svg")
            if options.command == "map":
                ratio_map(results, out, x=options.x, y=options.y, along=options.along, name=options.of)
            else:
                plot(results, out, protocols=[name for name in options.protocols.split(",") if name])
            print(f"written to {out}")
    except (NumpipeError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
