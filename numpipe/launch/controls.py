"""The control blocks of a mesh's launches, and the error of a launch that waits too long for a peer
(see `plan.control_block`).

A launch on several GPUs reads in its control block which GPUs have begun and which signals have
arrived. Launches on a stream run one after another, so they share one block. Its size depends only
on the kernel's semaphores, so that all GPUs use the same block for a launch, whatever each of them
launched before. Blocks are never freed, because graphs may use them.

Waits for peers are bounded. The first wait that times out is reported to the host in the *record*,
and the kernels queued on its stream end without waiting. After that, launches on the GPUs no longer
match, so every later call on the mesh raises the same error."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..arch.dimensions import Ints, next_power_of_two
from ..diagnostics.errors import PipelineDeadlock, SpecError, reported
from ..diagnostics.reports import Party, Report
from ..plan import control_block
from ..plan.control_block import GO, RECORD_BYTES, SEMAPHORES, Waited
from . import debug_reports, driver

if TYPE_CHECKING:
    from ..plan.image import Image
    from .local_gpus import LocalGpus
    from .torch_gpus import TorchGpus

TIMEOUT = "NUMPIPE_PEER_TIMEOUT"
_WORD = 4
_LEAST = 1024
"""number of words of the smallest control block"""
_PAGE = 4096
_NOTHING = bytes(_PAGE)


def patience() -> float:
    """Return the time limit of a wait for a peer, in seconds."""
    return debug_reports.seconds(TIMEOUT, control_block.PATIENCE)


def block_words(semaphores: int, gpus: int, debug: bool) -> int:
    """Return the number of words of the control block for a kernel with this many semaphores, a
    power of two.

    >>> block_words(100, 2, False), block_words(1000, 2, False), block_words(1000, 2, True)
    (1024, 2048, 4096)
    """
    return max(_LEAST, next_power_of_two(SEMAPHORES + semaphores * (1 + gpus * debug)))


class Known(NamedTuple):
    """A kernel that was launched on a mesh, with the control block and the number of semaphores of
    its latest launch."""

    image: Image
    block: list[int]
    """addresses by rank"""
    semaphores: int


class Controls:
    """The control blocks and records of one mesh."""

    def __init__(self, gpus: LocalGpus | TorchGpus) -> None:
        self._gpus, self._lock = gpus, threading.RLock()
        self.launching = threading.RLock()
        """held while the launches of a call are queued, so that calls of several threads reach all
        GPUs in the same order"""
        self._blocks: dict[tuple[int, int], list[int]] = {}
        self._streams: dict[Ints, int] = {}
        self._kernels: list[Known] = []
        """kernels by number"""
        self._lost: PipelineDeadlock | None = None
        """the error of the launch that waited too long"""
        self._pages: list[tuple[Any, int]] = []
        """records, one per kernel and GPU of this process, as pinned memory and its address on the
        GPUs"""

    def stream(self, streams: Sequence[int]) -> int:
        """Return the number assigned to a combination of streams of this process's GPUs; numbers
        are assigned in order of first use."""
        return self._streams.setdefault(tuple(streams), len(self._streams))

    def block(self, image: Image, streams: Sequence[int], semaphores: int) -> Known:
        """Return the control block for launches of a kernel on these streams."""
        with self._lock:
            key = self.stream(streams), block_words(semaphores, self._gpus.size, image.debug)
            if key not in self._blocks:
                if self._gpus.meets and driver.get().capturing(streams[0], self._gpus.devices[0]):
                    raise SpecError(
                        f"kernel {image.name}: its stream is being captured into a CUDA graph, "
                        "but the first call on a stream allocates memory that its launches "
                        "share, together with the other ranks: make a call on this stream before "
                        "the capture"
                    )
                self._blocks[key] = self._gpus.control(key[1])
            number, known = self._number(image), Known(image, self._blocks[key], semaphores)
            self._kernels[number : number + 1] = [known]
            return known

    def _number(self, image: Image) -> int:
        return next(
            (number for number, known in enumerate(self._kernels) if known.image is image),
            len(self._kernels),
        )

    def _record(self, number: int) -> int:
        """Return the address of a record on the GPUs."""
        page, place = divmod(RECORD_BYTES * number, _PAGE)
        while page >= len(self._pages):
            with driver.get().aside(self._gpus.devices[0]):
                address, there = driver.get().pinned(_PAGE)
            ctypes.memset(address, 0, _PAGE)
            self._pages.append(((ctypes.c_char * _PAGE).from_address(address), there))
        return self._pages[page][1] + place

    def words(self, own: int, known: Known) -> bytes:
        """Return the words of a kernel's launches on this process's GPU number `own`."""
        with self._lock:
            record = self._record(self._number(known.image) * len(self._gpus.ranks) + own)
        rank = self._gpus.ranks[own]
        return control_block.words(
            rank, self._gpus.size, record, _limit(known.image), known.block[rank]
        )

    def cleared(self, own: int, known: Known) -> tuple[int, int]:
        """Return the address and number of the words that are cleared before a launch."""
        words = SEMAPHORES - GO + known.semaphores * (1 + self._gpus.size * known.image.debug)
        return known.block[self._gpus.ranks[own]] + _WORD * GO, words

    # ---- launches that waited too long
    def check(self) -> None:
        """Raise the error of a launch that waited too long for a peer, in every call after it."""
        if self._lost is None:
            if all(page.raw == _NOTHING for page, _ in self._pages):
                return
            with self._lock:
                memory = b"".join(page.raw for page, _ in self._pages)
                records = [
                    (self._kernels[start // (RECORD_BYTES * len(self._gpus.ranks))], record)
                    for start in range(0, len(memory), RECORD_BYTES)
                    if (record := control_block.read(memory[start : start + RECORD_BYTES]))
                ]
                if not records:  # a record is being written
                    return
                self._lost = self._lost or self._error(records)
        raise self._lost.with_traceback(None)

    def _error(self, records: Sequence[tuple[Known, Waited]]) -> PipelineDeadlock:
        (known, first), *others = records
        image = known.image
        if first.kind == control_block.BEGIN:
            what = f"the launch on GPU {first.index} to begin"
            why = (
                f"GPU {first.index} has not launched it: its process was killed, is busy with "
                "something else, or raised an error"
            )
        else:
            what = (
                f"{image.arrays[-1]}[{first.index}] to reach {first.wanted}, but it is {first.seen}"
            )
            why = self._who(first, known)
        more = "".join(f", GPU {other.rank} also waited" for _, other in others)
        text = (
            f"kernel {image.name}, GPU {first.rank}, CTA {first.cta}: it waited {_limit(image):g} "
            f"s for {what}{more}; {why}. The results of the kernel are wrong, and launches of "
            "this mesh no longer match: restart the processes, or continue with a new "
            f"numpipe.Mesh. {TIMEOUT} sets how many seconds a wait for a peer may take"
        )
        lines = (
            debug_reports.lines_of(image.name, image.places[first.place])
            if 0 <= first.place < len(image.places)
            else ()
        )
        part = image.part(first.thread // 32)
        party = Party(f"waits for {what}", part, image.parts[part], first.cta, lines)
        fix = "signal as often as waits expect, on every GPU"
        return reported(
            PipelineDeadlock,
            Report("deadlock", text, waiting=(party,), fix=fix, kernel=image.name),
        )

    def _who(self, record: Waited, known: Known) -> str:
        """Return a sentence that names the GPU that has not signalled, as far as that is known."""
        if counts := self._counts(record, known):
            least = [rank for rank, count in enumerate(counts) if count == min(counts)]
            added = ", ".join(f"GPU {rank} {count}" for rank, count in enumerate(counts))
            return f"of the signals added to it, {_gpus(least)} added least ({added})"
        if silent := self._gpus.silent():
            return f"the process of {_gpus(silent)} does not respond: it was killed, or it hangs"
        others = [rank for rank in range(self._gpus.size) if rank != record.rank]
        fix = (
            ""
            if known.image.debug
            else "; CompilerParams(debug=True) shows what each GPU has added"
        )
        return (
            f"{_gpus(others)} did not signal it, or this GPU did not{fix}"
            if others
            else "no other GPU signals it"
        )

    def _counts(self, record: Waited, known: Known) -> list[int]:
        """Return what each GPU has added to the semaphore; empty for a kernel without
        debug=True."""
        if not known.image.debug:
            return []
        device = self._gpus.devices[self._gpus.ranks.index(record.rank)]
        try:
            words = [
                driver.get().peek(
                    known.block[record.rank]
                    + _WORD * (SEMAPHORES + known.semaphores * (1 + rank) + record.index),
                    _WORD,
                    device,
                )
                for rank in range(self._gpus.size)
            ]
        except driver.DriverError:
            return []
        return [int.from_bytes(word, "little", signed=True) for word in words]


def _limit(image: Image) -> float:
    """Return the time limit of a kernel's waits for its peers, in seconds.

    With debug=True waits for barriers also time out. The limit is then shorter than theirs, so that
    barriers that depend on a wait for a peer do not time out first.
    """
    return min(patience(), debug_reports.limit() / 2) if image.debug else patience()


def _gpus(ranks: Sequence[int]) -> str:
    return f"GPU {ranks[0]}" if len(ranks) == 1 else f"GPUs {', '.join(map(str, ranks))}"
