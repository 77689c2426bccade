"""What a sweep over configurations of a Pallas kernel has found, for the other processes of a
benchmark's run."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(tempfile.gettempdir()) / f"pallas_{os.getppid()}"
"""of the benchmark that started this process, whose GPUs are all of one kind: a file for each
sweep"""


def remembered(sweep: str, find: Callable[[], Any]) -> Any:
    """What `find` returned, as JSON has it, the first time that anyone asked for this sweep."""
    known = FOLDER / (re.sub(r"\W+", "_", sweep) + ".json")
    if not known.exists():
        FOLDER.mkdir(exist_ok=True)
        part = known.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(find()), encoding="utf8")
        os.replace(part, known)  # whole, or not there: another process may be reading
    return json.loads(known.read_text(encoding="utf8"))
