"""The build gate: rules for the machine code of a numpipe kernel, checked on its PTX and SASS.

A kernel can be correct but slow without any message from the compiler. Each rule detects one such
case:

=====================  =============================================================================
rule                   what a violation means
=====================  =============================================================================
resources              spills, stack, C75xx notes: serialized wgmma, ignored setmaxnreg
                       (`Resources.clean`)
entry registers        more threads or fewer registers than setmaxnreg redistributes: the first inc
                       hangs. Without a memory role: more registers than there are for the CTA's
                       threads
local memory           registers were moved to memory without being reported as spills
memory barriers        a MEMBAR at GPU scope, which halves the speed of a loop: releases must stay
                       inside the CTA, or specify no scope. Allowed are one in a cluster's barrier
                       at the end (with debug=True also at the beginning), and, outside the loop of
                       products, those that pass a partial sum or a turn (`grid.cta_turns`) to
                       another CTA through global memory, or signal a semaphore
waterfalls             a TMA instruction is wrapped in a loop over the active lanes: its lane was
                       not elected by elect.sync
tensor cores           products of a shape that the kernel never requested: ptxas inserts a dummy
                       product for a commit without one
waits                  waits for products that the source does not contain, which leave fewer
                       groups in flight: ptxas serialized the products
roles                  the memory role computes, or exceeds its registers; another role loads
                       (except in single-stream pipelines); TMA stores are missing in the warpgroup
                       of the role that issues them, or are in another one
registers              setmaxnreg has other values than the Unit
launch bounds          they are missing, so ptxas ignores setmaxnreg (C7508)
tensor maps            they are not in one by-value parameter that is addressed and never read: a
                       copy in local memory is not a tensor map
=====================  =============================================================================

>>> from numpipe.compile.check import gate
>>> gate.findings(kernel.compiled(a, b))  # doctest: +SKIP
()
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ...arch.products import Groups, Product
from ...arch.target import Target
from ...plan.roles import COMPUTE, MEMORY, Role
from ..built import Built


# ---- SASS ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Instruction:
    """A line of SASS: its address in the section, its predicate ("" for none) and the rest."""

    address: int
    predicate: str
    text: str

    @property
    def opcode(self) -> str:
        return self.text.partition(" ")[0]

    def __str__(self) -> str:
        return f"/*{self.address:04x}*/ {self.predicate}{' ' * bool(self.predicate)}{self.text}"


_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?(.*?)\s*;")
_LABEL = re.compile(r"^([.$\w]+):\s*$")
_TARGET = re.compile(r"`\(([.$\w]+)\)")


class Sass:
    """The instructions of one kernel, and the control flow between them, read from nvdisasm's
    text."""

    def __init__(self, text: str, target: Target) -> None:
        self.target = target
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        for line in text.splitlines():
            if found := _LINE.match(line):
                self.instructions.append(Instruction(int(found[1], 16), found[2] or "", found[3]))
            elif found := _LABEL.match(line):
                self.labels[found[1]] = len(self.instructions)

    def find(self, pattern: str) -> list[Instruction]:
        """Return the instructions whose opcode matches."""
        return [i for i in self.instructions if re.match(pattern, i.opcode)]

    def products(self) -> list[Instruction]:
        """Return the instructions of the tensor cores."""
        return self.find(self.target.opcodes)

    def in_loop(self, instruction: Instruction) -> bool:
        """Whether an instruction can run again after it has run."""
        at = self.instructions.index(instruction)
        return any(
            instruction in self.reachable(self.instructions[i]) for i in self._successors(at)
        )

    def reachable(self, first: Instruction, until: str = "never") -> list[Instruction]:
        """Return the instructions that can run after `first`, itself included, in the order of
        addresses. Calls are followed.

        The search stops before opcodes that match `until`.
        """
        todo, seen = [self.instructions.index(first)], set[int]()
        while todo:
            at = todo.pop()
            if (
                at in seen
                or at >= len(self.instructions)
                or re.match(until, self.instructions[at].opcode)
            ):
                continue
            seen.add(at)
            todo.extend(self._successors(at))
        return [self.instructions[i] for i in sorted(seen)]

    def innermost(self, instruction: Instruction) -> list[Instruction]:
        """Return the smallest loop around an instruction, from the target of a branch back to the
        branch, or [] if there is none."""
        here = self.instructions.index(instruction)
        loops = [
            (at - target, target, at)
            for at, branch in enumerate(self.instructions)
            if branch.opcode.startswith("BRA")
            for target in (self.labels.get(label, at + 1) for label in _TARGET.findall(branch.text))
            if target <= here <= at
        ]
        return self.instructions[min(loops)[1] : min(loops)[2] + 1] if loops else []

    def _successors(self, at: int) -> Iterator[int]:
        instruction = self.instructions[at]
        kind = instruction.opcode.partition(".")[0]
        targets = [
            self.labels[label]
            for label in _TARGET.findall(instruction.text)
            if label in self.labels
        ]
        if kind == "RET":
            targets = []  # it returns to the instruction after the CALL
        yield from targets
        # a branch on a uniform predicate has it as an operand, others before the opcode
        always = not instruction.predicate and not re.search(r"\bU?P\d", instruction.text)
        if not (always and kind in ("EXIT", "RET", "BRA", "JMP", "BRX")):
            yield at + 1


def highest_register(code: list[Instruction]) -> int:
    """Return how many registers a lane needs for `code`: one more than the highest number in it."""
    numbers = [
        int(n) + (2 if ".64" in i.text else 1)
        for i in code
        for n in re.findall(r"\bR(\d+)\b", i.text)
    ]
    return max(numbers, default=0)


def role_code(sass: Sass, who: Role) -> list[Instruction]:
    """Return the code of a role and of the roles that share its warpgroup, from their
    ``setmaxnreg`` to the cluster's barrier, if there is one."""
    starts = sass.find(r"USETMAXREG\." + ("TRY_ALLOC" if who.computes else "DEALLOC"))
    return [i for start in starts for i in sass.reachable(start, "UCGABAR_ARV")]


# ---- rules ---------------------------------------------------------------------------------------
def resources(built: Built) -> Iterator[str]:
    """Check that a kernel has no spills, no stack and no notes."""
    used = built.image.resources
    if used.spill_bytes or used.stack_bytes:
        yield f"{used.spill_bytes} bytes of spills, {used.stack_bytes} bytes of stack"
    yield from used.notes


def entry_registers(built: Built) -> Iterator[str]:
    """Check that the registers at launch are the pool that setmaxnreg redistributes."""
    expected = min(255, built.unit.register_pool // built.unit.warpgroups)
    registers = built.image.resources.registers
    if registers > expected or (built.unit.warp_specialized and registers != expected):
        yield (
            f"{registers} registers at entry; {built.image.threads} threads share the register "
            f"file at {expected} a lane"
        )


SHOWN = 10
"""Number of accesses to local memory that are listed; a kernel that spills may have thousands."""


def local_memory(sass: Sass) -> Iterator[str]:
    """Check that a kernel neither loads from local memory nor stores to it."""
    found = sass.find(r"(STL|LDL)\b")
    for instruction in found[:SHOWN]:
        yield f"local memory: {instruction}"
    if len(found) > SHOWN:
        yield f"local memory: {len(found) - SHOWN} more instructions, {len(found)} in total"


BEYOND = r"MEMBAR\.\w+\.(GPU|SYS)"


def memory_barriers(built: Built, sass: Sass) -> Iterator[str]:
    """Check that a kernel has no fence beyond the CTA, except in the cluster's two barriers,
    outside loops; outside the loops of products, in a kernel that hands partial sums over
    (`partials`) or has semaphores; one at the end, where the last CTA resets a counter; and in
    arrivals by which CTAs let each other load stored data, or take turns (`cta_turns`)."""
    handed = any(array.own for array in built.unit.arrays)
    products = [sass.innermost(instruction) for instruction in sass.products()]
    spared = int(built.unit.work_ring is not None)
    for instruction in sass.find(BEYOND):
        at = sass.instructions.index(instruction)
        if built.unit.takes_turns or (
            any(other.opcode == "UCGABAR_ARV" for other in sass.instructions[at + 1 : at + 5])
            and not sass.in_loop(instruction)
        ):
            continue
        if handed:
            if any(instruction in loop for loop in products):
                yield f"a memory barrier beyond the CTA in a loop of products: {instruction}"
        elif spared:
            spared -= 1
        elif not built.unit.orders_stores:
            yield f"a memory barrier beyond the CTA: {instruction}"
    wanted = built.unit.clustered + built.unit.meets_at_end
    if (meetings := len(sass.find("UCGABAR_ARV"))) != wanted:
        yield (
            f"{meetings} arrivals at the cluster's barrier: one at the beginning"
            + " and one at the end" * (wanted > 1)
        )


def waterfalls(sass: Sass) -> Iterator[str]:
    """Check that no instruction with uniform operands is in a loop over the active lanes.

    The code from WARPSYNC.COLLECTIVE to ENDCOLLECTIVE is not such a loop by itself: lanes that may
    have diverged (BRA.DIV) meet there, off the main path, for one instruction of the whole warp: an
    election, a shuffle, a vote, bar.warp.sync.
    """
    for instruction in sass.find(r"BRA\.U\.ANY|R2UR\.OR|WARPSYNC\.COLLECTIVE"):
        rest = sass.instructions[sass.instructions.index(instruction) + 1 :]
        inside = itertools.takewhile(lambda each: each.opcode != "ENDCOLLECTIVE", rest)
        if instruction.opcode != "WARPSYNC.COLLECTIVE" or any(
            re.match(r"R2UR|UTMA|UBLKCP|USETMAXREG", i.opcode) for i in inside
        ):
            yield f"a loop over the active lanes: {instruction}"


def tensor_cores(sass: Sass, ptx: str) -> Iterator[str]:
    """Check that the machine code has the same products as the PTX."""
    asked = {
        product.expected(*statement)
        for product in sass.target.products
        for statement in re.findall(product.written, ptx)
        if statement[-1] in product.by_name
    }
    made = {" ".join(i.opcode.split(".")[:2]): i for i in sass.products()}
    for shape, instruction in made.items():
        if shape not in asked:
            yield f"a product nobody asked for (the PTX has {sorted(asked)}): {instruction}"
    for shape in asked - set(made):
        yield f"no {shape}, although the PTX has it"


def waits(sass: Sass, ptx: str) -> Iterator[str]:
    """Check that the machine code has only the waits for products, and the beginnings of their
    groups, that the PTX has, from the source or from pipelines. If code is duplicated, for example
    by unrolling, its waits are duplicated with its products."""
    for product in sass.target.products:
        if product.groups:
            yield from _waits(product, product.groups, sass, ptx)


def _waits(product: Product, groups: Groups, sass: Sass, ptx: str) -> Iterator[str]:
    written = max(1, ptx.count(product.statement))
    copies = max(1, -(-len(sass.find(product.opcodes)) // written))
    asked = Counter(int(left) for left in re.findall(groups.wait, ptx))
    made = [
        (int(found[1], 16), instruction)
        for instruction in sass.find(groups.waited)
        if (found := re.search(groups.left, instruction.text))
    ]
    for left, count in sorted(Counter(left for left, _ in made).items()):
        if count > copies * asked[left]:
            example = next(instruction for other, instruction in made if other == left)
            yield (
                f"waits that leave {left} groups of products in flight: {count}, {asked[left]} "
                f"in the PTX: among them {example}"
            )
    begun, fences = sass.find(groups.begun), ptx.count(groups.fence)
    if len(begun) > copies * fences:
        yield (
            f"beginnings of groups of products: {len(begun)}, {fences} in the PTX: among them "
            f"{begun[0]}"
        )


def roles(built: Built, sass: Sass) -> Iterator[str]:
    """Check that only the memory role loads, within its registers, and that the compute role does
    everything else. A kernel without a memory role must have what its rings need, and no
    setmaxnreg."""
    unit = built.unit
    rings = [bool(plan.private) for plan in unit.load_rings]
    shared, private, tickets = not all(rings), any(rings), unit.work_ring is not None
    if unit.warp_specialized:
        memory = role_code(sass, MEMORY)
        compute = role_code(sass, COMPUTE)
        whose = "the {} role"
        if not memory or not compute:
            yield "the roles are not there: no setmaxnreg in the code"
            return
        needed = highest_register(memory)
        if needed > unit.memory_registers:
            yield f"the memory role needs {needed} registers, it keeps {unit.memory_registers}"
        # ordinary stores pass work indices on in shared memory, and record the events of a profile;
        # others (STRONG) set flags of CTAs and GPUs, and record waits that timed out
        own = sass.target.opcodes + r"|STSM|BAR\." + r"|UTMASTG|UTMAREDG" * unit.storing.computes
        own += r"|STS\b" * (not tickets) + r"|STG(?!\S*STRONG)" * (not unit.params.profile_space)
        others = ["UTMALDG"] * (not private and not unit.copies_in)
        others += ["UTMASTG|UTMAREDG"] * (not unit.storing.computes and not unit.copies_out)
        for code, who, pattern in (
            (memory, MEMORY, own),
            (compute, COMPUTE, "|".join(others) or "never"),
        ):
            for instruction in code:
                if re.match(pattern, instruction.opcode):
                    yield f"not the {who} role's business: {instruction}"
    else:
        memory, compute, whose, shared, tickets = [], sass.instructions, "the code", False, False
        for instruction in sass.find("USETMAXREG"):
            yield f"setmaxnreg without a memory role: {instruction}"
    for expected, who, code, *opcodes in (
        (tickets, MEMORY, memory, "ATOMG"),
        (tickets, MEMORY, memory, "STS"),
        (tickets, COMPUTE, compute, "LDS"),
        (shared, MEMORY, memory, "UTMALDG"),
        (shared, MEMORY, memory, "SYNCS.PHASECHK"),
        (shared or private, COMPUTE, compute, "SYNCS.PHASECHK"),
        (private, COMPUTE, compute, "UTMALDG"),
        (
            unit.stores,
            unit.storing,
            compute if unit.storing.computes else memory,
            "UTMASTG",
            "UTMAREDG",
        ),
    ):
        if expected and not any(i.opcode.startswith(tuple(opcodes)) for i in code):
            yield f"no {' or '.join(opcodes)} in {whose.format(who)}"


def registers(built: Built, sass: Sass) -> Iterator[str]:
    """Check that setmaxnreg has the register counts of the Unit."""
    if not built.unit.warp_specialized:
        return
    for opcode, expected in (
        ("DEALLOC", built.unit.memory_registers),
        ("TRY_ALLOC", built.unit.compute_registers),
    ):
        found = [
            int(re.findall(r"0x([0-9a-f]+)\b", i.text)[-1], 16)
            for i in sass.find(rf"USETMAXREG\.{opcode}")
        ]
        if found != [expected]:
            yield f"setmaxnreg {opcode} of {found}, expected one of {expected}"


def launch_bounds(built: Built, ptx: str) -> Iterator[str]:
    """Check that the launch bounds are the threads of the Unit, and `ctas_per_sm`."""
    found, ctas = re.search(r"\.maxntid\s+(\d+)", ptx), built.unit.params.ctas_per_sm
    if (
        found is None
        or int(found[1]) != built.image.threads
        or not re.search(rf"\.minnctapersm\s+{ctas}\b", ptx)
    ):
        yield (
            f"launch bounds: .maxntid {found[1] if found else 'missing'}, expected "
            f"{built.image.threads} with .minnctapersm {ctas}"
        )


def tensor_maps(built: Built, ptx: str) -> Iterator[str]:
    """Check that all maps are in one by-value parameter, and that every copy's descriptor comes
    from its address. Nothing may read its words, except the address of a counter after the maps,
    and what a kernel with semaphores stores there about the GPUs, each of which has its own maps.
    """
    unit = built.unit
    wanted = unit.table_bytes
    words = {*[unit.counter_at] * (unit.work_ring is not None), *[unit.peers_at] * bool(unit.gpus)}
    tables = re.findall(r"\.param \.align (\d+) \.b8 (\w+)\[(\d+)\]", ptx)
    if [(align, size) for align, _, size in tables] != [("64", str(wanted))]:
        yield (
            f"tensor maps: expected one parameter of {wanted} bytes aligned to 64, found "
            f"{[(a, s) for a, _, s in tables]}"
        )
        return
    table = tables[0][1]
    for line in ptx.splitlines():
        found = re.search(rf"\bld\.param\S*\s+[^,]+,\s*\[{table}(?:\+(\d+))?\]", line)
        if found and int(found[1] or 0) not in words:
            yield f"tensor maps are read: {line.strip()}"
    defined: dict[str, list[str]] = {}
    for register, source in re.findall(
        r"^\s*(?:@!?%p\d+\s+)?(?:mov|add|or|cvta)\S*\s+(%rd\d+), ([^;]+);", ptx, re.MULTILINE
    ):
        defined.setdefault(register, []).append(source)
    if unit.gpus:  # a product selects the GPU's section of the parameter
        defined.update(
            {register: [] for register in re.findall(r"^\s*mul\S*\s+(%rd\d+), ", ptx, re.MULTILINE)}
        )
    copies = set(
        re.findall(
            r"(?:cp\.async\.bulk\.tensor|prefetch\.tensormap)[^;]*?\[(%rd\d+)(?:, *\{|\])", ptx
        )
    )
    for register in sorted(copies):
        roots = set(_roots(register, defined, set()))
        if roots != {table}:
            yield (
                f"a copy's tensor map {register} comes from {sorted(roots)}, not from the "
                f"parameter {table}"
            )


def _roots(name: str, defined: dict[str, list[str]], seen: set[str]) -> Iterator[str]:
    """Yield the roots that a 64-bit register is computed from."""
    if name in seen:
        return
    seen.add(name)
    if not name.startswith("%"):
        yield name
        return
    sources = defined.get(name)
    if sources is None:
        yield f"{name} (no address arithmetic)"
        return
    for source in sources:
        parts = [
            p
            for p in re.split(r"[,\s]+", source)
            if p and not re.fullmatch(r"-?\d+|0x[0-9a-fA-F]+", p)
        ]
        for part in parts:
            yield from _roots(part, defined, seen)


def findings(built: Built) -> tuple[str, ...]:
    """Return the violations of a compiled kernel, one line each, or () if it passes. Needs
    nvdisasm, but no GPU."""
    ptx, sass = built.ptx, Sass(built.sass, built.unit.target)
    return (
        *resources(built),
        *entry_registers(built),
        *local_memory(sass),
        *memory_barriers(built, sass),
        *waterfalls(sass),
        *tensor_cores(sass, ptx),
        *waits(sass, ptx),
        *roles(built, sass),
        *registers(built, sass),
        *launch_bounds(built, ptx),
        *tensor_maps(built, ptx),
    )
