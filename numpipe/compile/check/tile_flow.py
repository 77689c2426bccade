"""Register tiles while products are in flight, found in functions that Numba has typed, before
machine code is generated.

A product holds registers from its wgmma to the wait that covers it: the registers of its
accumulator, and of its A operand if that is not in shared memory. The typed source shows three
mistakes that ptxas would report as a note only, or not at all:

* an operand that gets a new value while the product reads it, because both values are one variable
that is carried around a loop::

      acc = numpipe.wgmma(acc, p, v_tile)
      s = numpipe.wgmma_wait(s)
      p = np.exp2(s).astype(
          v.dtype
      )  # the registers that the product reads: ptxas serializes all products (C7513)
      acc = numpipe.wgmma_wait(acc)

* an operand that a step loads or computes while a product of an earlier step reads its registers.
ptxas reports nothing if the operand is loaded from shared memory, and the product reads the new
value (found on an H100)::

      for (k,), (a_tile, b_tile) in numpipe.pipeline(…, delay_release=1)(a, b):
          acc = numpipe.wgmma(acc, a_tile[:, :], b_tile)

* tiles that are live at the same time and need more registers than a lane has (C7511, C7512).

A wait leaves the number of newest groups in flight that it specifies. A step of a pipeline, and a
function that is not an operation on tiles, may wait for all products, so the analysis assumes that
they do: every report is a mistake, but not every mistake is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...arch.dtypes import BOOL
from ...core import numba as nb
from ...core.op import does
from ...diagnostics.errors import Position
from ...language.pipeline.pipelines_cuda import StepsType
from ...language.tiles import elementwise, tile
from ...language.tiles.layout_names import COLUMN, EITHER, ROW
from ...language.tiles.layouts import places
from ...language.tiles.tile_cuda import InFlightType, TileType
from ...plan.roles import COMPUTE
from ..lift.constants import one_of
from ..lift.positions import Positions
from .register_budget import LiveTile, Products, needed

MOST = 8
"""Number of groups that a wait can distinguish: 0…7 left, or all."""
_QUIET = (
    "numpipe.language.tiles.",
    "numpipe.language.pipeline.operand_barriers",
    "numpipe.language.pipeline.pipelines",
    "numpipe.core.arith",
    "numpipe.core.numbers",
)
_WAITING = tuple(f"numpipe.language.tiles.{name}" for name in ("atomics", "load", "store"))
"""_QUIET: prefixes of the modules whose operations wait for no product. _WAITING: modules among
these whose operations may wait."""


def watcher(positions: Positions, seen: Products) -> Callable[[Any, dict[str, Any]], None]:
    """Return a callback for the typed functions of a kernel (`nb.compile_kernel`). It adds what it
    finds in the compute role's functions to `seen`."""

    def look(function: Any, types: dict[str, Any]) -> None:
        if {ty.role for ty in types.values() if isinstance(ty, InFlightType)} == {COMPUTE}:
            _Function(function, types, positions, seen).look()

    return look


# ---- one function --------------------------------------------------------------------------------
State = dict[str, int]
"""The variables of products that may be in flight, each with the smallest number of groups issued
after it, on any path to this point."""
EARLIER = "'"
"""Suffix of the variable of a product that an earlier step issued."""


class _Function:
    """A typed function; `look` adds its products and tiles to `seen`."""

    def __init__(
        self, function: Any, types: dict[str, Any], positions: Positions, seen: Products
    ) -> None:
        self.types, self.positions, self.seen = types, positions, seen
        self.blocks: dict[int, list] = {
            label: list(block.body) for label, block in function.blocks.items()
        }
        self.ends = {
            label: list(block.terminator.get_targets()) for label, block in function.blocks.items()
        }
        self.definitions: dict[str, Any] = {}
        """Name -> the statement that defines it."""
        self.home: dict[str, int] = {}
        """Name -> the block of that statement."""
        for label, body in self.blocks.items():
            for statement in body:
                if isinstance(statement, nb.numba_ir.Assign):
                    self.definitions[statement.target.name] = statement
                    self.home[statement.target.name] = label
        self.constant: dict[str, bool] = {}
        self.tiles_of: dict[int, set[str]] = {}
        """The tiles that a statement names, by the statement's id: a cache."""
        self.products = {
            name: statement.value
            for name, statement in self.definitions.items()
            if does(self._operation(statement.value), "issues")
            and isinstance(types[name], InFlightType)
        }
        self.operands = {
            name: self._origin(call.args[-2].name)
            for name, call in self.products.items()
            if isinstance(types[call.args[-2].name], TileType)
        }
        self.webs = self._webs()
        self.accumulators = {self.webs[name] for name in self.products}
        self.operand_webs = {
            self.webs[name] for name in self.operands.values() if name in self.webs
        }

    def _operation(self, value: Any) -> Any:
        """Return the operation that an expression calls, or a name for a method; None if it is not
        a call."""
        if not (isinstance(value, nb.numba_ir.Expr) and value.op == "call"):
            return None
        return getattr(self.types[value.func.name], "typing_key", self.types[value.func.name])

    def _groups_left(self, value: Any) -> int | None:
        """Return how many groups a wait leaves; None if the expression is not a wait."""
        if not does(self._operation(value), "waits"):
            return None
        return nb.literal(self.types[value.args[1].name]) if len(value.args) > 1 else 0

    def _same(self, value: Any) -> str:
        """Return the variable that an expression copies; "" if it is not a copy."""
        if isinstance(value, nb.numba_ir.Var):
            return str(value.name)
        return str(value.args[0].name) if self._groups_left(value) is not None else ""

    def _origin(self, name: str) -> str:
        """Return the first variable of a chain of copies."""
        while name in self.definitions and (before := self._same(self.definitions[name].value)):
            name = before
        return name

    def position(self, where: Any) -> Position | None:
        """Return the position of a statement, an expression or a variable in the user's source."""
        return self.positions.find(where.loc.line)

    # ---- what is in flight
    def _after(self, statement: Any, state: State) -> State:
        """Return what is in flight after a statement."""
        value = getattr(statement, "value", None)
        if isinstance(statement, nb.numba_ir.Assign) and statement.target.name in self.products:
            return {name: behind + 1 for name, behind in state.items() if behind + 1 < MOST} | {
                statement.target.name: 0
            }
        left = self._groups_left(value)
        if left is not None:
            return {name: behind for name, behind in state.items() if behind < left}
        steps = self._steps(value)
        if isinstance(steps, StepsType):
            left = MOST if steps.loop.pending is None else steps.loop.pending
            return {
                name.rstrip(EARLIER) + EARLIER: behind
                for name, behind in state.items()
                if behind < left
            }
        return {} if state and self._may_wait(value) else state

    def _steps(self, value: Any) -> Any:
        """Return the type of the iterator whose next step an expression begins; None for other
        expressions."""
        step = isinstance(value, nb.numba_ir.Expr) and value.op == "iternext"
        return self.types[value.value.name] if step else None

    def _may_wait(self, value: Any) -> bool:
        if not isinstance(value, nb.numba_ir.Expr):
            return False
        if (steps := self._steps(value)) is not None:
            return not isinstance(steps, nb.types.RangeIteratorType)
        operation = self._operation(value)
        if operation is None:
            return False
        module = getattr(operation, "__module__", "") or ""
        quiet = module.startswith(_QUIET) and not module.startswith(_WAITING)
        return not (
            isinstance(self.types[value.func.name], nb.types.BoundFunction)
            or quiet
            or module in ("builtins", "_operator")
        )

    def states(self) -> dict[int, State]:
        """Return what is in flight at the beginning of each block, on any path to it."""
        states: dict[int, State] = {label: {} for label in self.blocks}
        todo = list(self.blocks)
        while todo:
            label = todo.pop(0)
            state = states[label]
            for statement in self.blocks[label]:
                state = self._after(statement, state)
            for to in self.ends[label]:
                joined = {
                    name: min(states[to].get(name, MOST), state.get(name, MOST))
                    for name in states[to] | state
                }
                if joined != states[to]:
                    states[to] = joined
                    todo.append(to)
        return states

    # ---- what is live
    def _tile(self, name: str) -> TileType | None:
        ty = self.types.get(name)
        ty = ty.tile if isinstance(ty, InFlightType) else ty
        return ty if isinstance(ty, TileType) and ty.dtype != BOOL else None

    @staticmethod
    def _phi(statement: Any) -> bool:
        value = getattr(statement, "value", None)
        return isinstance(value, nb.numba_ir.Expr) and value.op == "phi"

    def _incoming(self, statement: Any) -> Iterator[tuple[int, str]]:
        """Yield each (block, variable) that a phi node takes its value from."""
        for label, value in zip(
            statement.value.incoming_blocks, statement.value.incoming_values, strict=True
        ):
            if isinstance(value, nb.numba_ir.Var):
                yield label, value.name

    def live(self) -> dict[int, set[str]]:
        """Return the tiles that are live at the end of each block."""
        live: dict[int, set[str]] = {label: set() for label in self.blocks}
        before = {
            label: [to for to in self.blocks if label in self.ends[to]] for label in self.blocks
        }
        todo = list(self.blocks)
        while todo:
            label = todo.pop()
            names = live[label]
            for statement in reversed(self.blocks[label]):
                names = self._before(statement, names)
            phis = [each for each in self.blocks[label] if self._phi(each)]
            used = {
                var.name
                for statement in self.blocks[label]
                if not self._phi(statement)
                for var in statement.list_vars()
            }
            for one in before[label]:
                taken = {
                    name
                    for phi in phis
                    if phi.target.name in live[label] | used
                    for came, name in self._incoming(phi)
                    if came == one and self._tile(name)
                }
                if not names | taken <= live[one]:
                    live[one] |= names | taken
                    todo.append(one)
        return live

    def _before(self, statement: Any, names: set[str]) -> set[str]:
        """Return what is live before a statement, given what is live after it. A phi node takes
        its value at the ends of the blocks before."""
        target = {statement.target.name} if isinstance(statement, nb.numba_ir.Assign) else set()
        known = self.tiles_of.get(id(statement))
        if known is None:
            read = () if self._phi(statement) else statement.list_vars()
            known = self.tiles_of[id(statement)] = {v.name for v in read if self._tile(v.name)}
        return (names | known) - target

    # ---- variables
    def _webs(self) -> dict[str, str]:
        """Return each tile's variable. Values that a phi node, a copy, a wait or a product joins
        are the same variable."""
        web = {name: name for name in self.types if self._tile(name)}

        def find(name: str) -> str:
            while web[name] != name:
                name = web[name]
            return name

        for name, statement in self.definitions.items():
            if name not in web:
                continue
            others = (
                [other for _, other in self._incoming(statement)]
                if self._phi(statement)
                else [self._same(statement.value)]
            )
            if name in self.products:
                others = [self.products[name].args[-3].name]
            for other in others:
                if other in web:
                    web[find(other)] = find(name)
        return {name: find(name) for name in web}

    def _constant(self, name: str, seen: frozenset[str] = frozenset()) -> bool:
        """Whether a tile is made from numbers only, so that it needs no registers until it is
        used."""
        statement = self.definitions.get(name)
        if statement is None or name in seen:
            return name in seen
        value, seen = statement.value, seen | {name}
        if self._phi(statement):
            return all(self._constant(other, seen) for _, other in self._incoming(statement))
        if one_of(self._operation(value), (tile.zeros, elementwise.full, elementwise.iota)):
            return True
        if name in self.products or isinstance(value, nb.numba_ir.Arg):
            return False
        if isinstance(value, nb.numba_ir.Var):
            return self._constant(value.name, seen)
        if not isinstance(value, nb.numba_ir.Expr):
            return True
        read = [var.name for var in value.list_vars()]
        tiles = [var for var in read if isinstance(self.types[var], TileType)]
        bound = [
            self.definitions[var].value.value.name
            for var in read
            if isinstance(self.types[var], nb.types.BoundFunction)
            and var in self.definitions
            and isinstance(self.types[self.definitions[var].value.value.name], TileType)
        ]
        return bool(tiles or bound) and all(self._constant(var, seen) for var in (*tiles, *bound))

    # ---- the mistakes
    def look(self) -> None:
        """Add the products and tiles of this function to `seen`."""
        states, ends, seen = self.states(), self.live(), self.seen
        for found, names in (
            (seen.products, self.products),
            (seen.from_registers, self.operands),
        ):
            places = (self.position(self.definitions[name]) for name in names)
            found.extend(place for place in places if place)
        carried = {
            target.name: self._next(target.name)
            for body in self.blocks.values()
            for statement in body
            if self._phi(statement) and self._tile((target := statement.target).name)
        }
        for label, body in self.blocks.items():
            state = states[label]
            after = [ends[label]]
            for statement in reversed(body):
                after.append(self._before(statement, after[-1]))
            measured: set[str] = set()
            for statement, live in zip(body, reversed(after[:-1]), strict=True):
                self._ended(statement, state)
                name = statement.target.name if isinstance(statement, nb.numba_ir.Assign) else ""
                if name and self._makes(statement):
                    self._overwritten(statement, state)
                    if now := _of_this_step(state):
                        self._defined(name, now, carried)
                state = self._after(statement, state)
                now = _of_this_step(state)
                if now and live | set(now) != measured:
                    measured = live | set(now)
                    self._measure(label, measured, now)

    def _ended(self, statement: Any, state: State) -> None:
        """Record a wait that also ends products whose accumulators it does not name."""
        value, place = getattr(statement, "value", None), self.position(statement)
        # others were added after a loop
        if self._groups_left(value) is not None and place and "wait" in place.text:
            waited = self.definitions.get(self._origin(statement.value.args[0].name), statement)
            read = self._before(statement, set()) | self._before(waited, set())
            named = {self.webs[name] for name in read}
            left = self._after(statement, state)
            ended = {self.webs[name.rstrip(EARLIER)] for name in state if name not in left}
            if ended - named:
                self.seen.unnamed.append((place, [*map(self._name, sorted(named | ended))]))

    def _overwritten(self, statement: Any, state: State) -> None:
        """Record an operand that a step makes while a product of an earlier step reads it."""
        for product, operand in self.operands.items():
            if operand != statement.target.name or product + EARLIER not in state:
                continue
            places = self.position(statement), self.position(self.definitions[product])
            if None not in places:
                self.seen.overwritten.append(places)  # type: ignore[arg-type]

    def _makes(self, statement: Any) -> bool:
        """Whether a statement gives a tile new registers: not a copy, a product or a phi node."""
        name, value = statement.target.name, statement.value
        return (
            bool(self._tile(name))
            and name not in self.products
            and not self._same(value)
            and not self._phi(statement)
            and (isinstance(value, nb.numba_ir.Expr))
        )

    def _next(self, variable: str) -> set[str]:
        """Return the variables whose value a phi node may have, through copies and phi nodes of
        other blocks."""
        todo, taken = [name for _, name in self._incoming(self.definitions[variable])], set[str]()
        while todo:
            name = self._origin(todo.pop())
            if name in taken or name == variable or name not in self.definitions:
                continue
            if not self._phi(self.definitions[name]):
                taken.add(name)
            elif self.home[name] != self.home[variable]:
                taken.add(name)
                todo += [other for _, other in self._incoming(self.definitions[name])]
        return taken

    def _defined(self, name: str, state: State, carried: dict[str, set[str]]) -> None:
        """Record a tile that gets new registers while products are in flight."""
        web, seen = self.webs[name], self.seen
        place = self.position(self.definitions[name])
        newest = self.position(self.definitions[min(state, key=state.__getitem__)])
        if place is None or newest is None:
            return
        for product in state:
            operand = self.operands.get(product, "")
            product_place = self.position(self.definitions[product])
            if name in carried.get(operand, ()) and product_place is not None:
                entry = self._name(operand), place, product_place
                seen.redefined += [] if entry in seen.redefined else [entry]
        alike = {
            str(self._tile(self.operands[product])) for product in state if product in self.operands
        }
        # also the next value of an argument of a body, which is what the body returns
        if web in self.operand_webs or str(self._tile(name)) in alike:
            seen.packed.append((place, newest))
        begins = {self.webs.get(call.args[-3].name) for call in self.products.values()}
        if web in begins and web not in self.operand_webs:
            seen.begun.append((place, newest))

    def _measure(self, label: int, live: set[str], state: State) -> None:
        """Record the tiles that are live while products are in flight, if they need more registers
        than any before."""
        live = live | {self.operands[product] for product in state if product in self.operands}
        held: dict[str, LiveTile] = {}
        for name in sorted(live):
            web = self.webs.get(name)
            if web is None:
                continue
            if name not in self.constant:
                self.constant[name] = self._constant(name)
            if self.constant[name]:
                continue
            role = (
                "accumulator"
                if web in self.accumulators
                else "operand"
                if web in self.operand_webs
                else ""
            )
            if not role and self.home.get(name) == label:
                # made in this block: it may be made after this point, or last used before it
                continue
            ty = self._tile(name)
            assert ty is not None
            one = LiveTile(
                self._name(name), f"{ty.dtype} {ty.shape}", role, _registers(ty), self._first(web)
            )
            if web not in held or held[web].registers < one.registers:
                held[web] = one
        tiles = tuple(
            sorted(held.values(), key=lambda one: (not one.role, -one.registers, one.name))
        )
        if needed(tiles) > needed(self.seen.widest[0]):
            newest = min(state, key=state.__getitem__)
            self.seen.widest = tiles, self.position(self.definitions[newest])

    def _first(self, web: str) -> Position | None:
        """Return where a variable is first assigned."""
        members = [name for name, one in self.webs.items() if one == web]
        made = [self.definitions[name] for name in members if name in self.definitions]
        places = [self.position(statement) for statement in made if not self._phi(statement)]
        return min(filter(None, places), key=lambda place: place.line, default=None)

    def _name(self, name: str) -> str:
        """Return a tile as the user wrote it: a variable, or the expression."""
        if not name.startswith("$"):
            return name.partition(".")[0]
        place = self.position(self.definitions[name]) if name in self.definitions else None
        if place is None:
            return "a tile"
        start, end = place.columns
        return place.text[start:end]


def _registers(ty: TileType) -> int:
    """Return a tile's registers per lane. For a vector that may have either layout it is the
    smaller number, because the other layout is not computed."""
    if ty.layout == EITHER:
        return min(len(places(ty.shape, ROW)), len(places(ty.shape, COLUMN)))
    return ty.registers


def _of_this_step(state: State) -> State:
    """Return the products in flight that this step issued."""
    return {name: behind for name, behind in state.items() if not name.endswith(EARLIER)}
