"""Summarize, merge, compare and draw result files.

    python examples/benchmarks/results.py summary sweep.json
    python examples/benchmarks/results.py merge first.json second.json --out all.json
    python examples/benchmarks/results.py compare before.json after.json
    python examples/benchmarks/results.py map sweep.json [more.json] --out sweep.svg

``python -m numpipe.bench show result.json`` prints the table of a file.
"""

from __future__ import annotations

import sys
from pathlib import Path

from harness import changes, merge, script, summary
from harness.pictures import ratio_map

from numpipe import bench
from numpipe.errors import NumpipeError


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Return the exit status: 2 for files that do not fit it."""
    parser = script(__doc__)
    parser.add_argument("command", choices=("summary", "merge", "compare", "map"))
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, help="for merge and map: the file to write")
    parser.add_argument("--of", help="for map: the competitor (default: the first)")
    options = parser.parse_args(arguments)
    if options.command in ("merge", "map") and options.out is None:
        parser.error(f"{options.command}: --out is missing")
    if options.command == "compare" and len(options.files) != 2:
        parser.error("compare: two files, before and after")
    try:
        results = [(file.name, bench.read(file)) for file in options.files]
        if options.command == "summary":
            print(summary(merge(results).rows))
        elif options.command == "compare":
            print(changes(results))
        elif options.command == "merge":
            merge(results).write(options.out)
        else:
            ratio_map(results, options.out, options.of)
    except (NumpipeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
