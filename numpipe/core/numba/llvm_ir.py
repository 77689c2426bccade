"""LLVM IR: types, constants, the builder that emits code, and annotations of a kernel's
parameters."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from llvmlite import ir
from llvmlite.ir.values import ArgumentAttributes
from numba.cuda import cgutils, types
from numba.cuda.descriptor import cuda_target

from ...arch.dimensions import Names
from ..instrumentation import INSTRUMENTATION

__all__ = [
    "BOOLEAN",
    "F16",
    "F32",
    "F64",
    "I32",
    "I64",
    "VOID",
    "Builder",
    "cluster_dims",
    "const",
    "f32",
    "f64",
    "global_pointer",
    "grid_constant",
    "i1",
    "i8",
    "i16",
    "i32",
    "i64",
    "nothing",
    "signature_of",
    "void",
]

i1, i8, i16, i32, i64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
f32 = ir.FloatType()
f64 = ir.DoubleType()
void = ir.VoidType()
nothing = ir.Constant(i8.as_pointer(), None)
"""the value of a call that returns None"""
VOID, BOOLEAN, I32, I64 = types.void, types.boolean, types.int32, types.int64
F16, F32, F64 = types.float16, types.float32, types.float64
_NUMBERS = {i1: BOOLEAN, i32: I32, i64: I64, f32: F32}
"""the Numba types of numbers of an LLVM type"""
_REGISTERS = {i16: "h", i32: "r", i64: "l", f32: "f", f64: "d"}
"""the register classes of inline assembly"""


class Builder(ir.IRBuilder):  # type: ignore[misc]
    """LLVM's builder, which also emits operations, structures, inline assembly and calls of
    symbols. It takes Python numbers as one of two operands of one type, as the value of a store,
    and as indices. Integers are extended and truncated to 32 bits by default."""

    context: Any
    """Numba's context of the function that is compiled"""

    def cast(self, value: Any, fromty: Any, toty: Any) -> Any:
        """Convert a value of one Numba type to another."""
        return self.context.cast(self, value, fromty, toty)

    def make_tuple(self, type: Any, values: Sequence) -> Any:
        """Return a tuple of a Numba type."""
        return self.context.make_tuple(self, type, values)

    def store(self, value: Any, pointer: Any, *args: Any, **options: Any) -> Any:
        value = _operand(value, pointer.type.pointee)
        return super().store(value, pointer, *args, **options)

    def gep(self, pointer: Any, indices: Sequence, *args: Any, **options: Any) -> Any:
        return super().gep(pointer, [_operand(each, i32) for each in indices], *args, **options)

    def zext(self, value: Any, kind: Any = i32, name: str = "") -> Any:
        return super().zext(value, kind, name)

    def trunc(self, value: Any, kind: Any = i32, name: str = "") -> Any:
        return super().trunc(value, kind, name)

    def extract_element(self, vector: Any, index: Any, name: str = "") -> Any:
        return super().extract_element(vector, _operand(index, i32), name)

    def insert_element(self, vector: Any, value: Any, index: Any, name: str = "") -> Any:
        return super().insert_element(vector, value, _operand(index, i32), name)

    def apply(self, function: Any, argtypes: Sequence, args: Sequence, *value: Any) -> Any:
        """Call `function` (an operation, a helper or its Numba type), and return the value.

        Omitted arguments must default to None. If the function is a value and not a constant, pass
        it as `value`."""
        fnty = function if isinstance(function, types.Type) else function._numba_type_
        sig = signature_of(fnty, argtypes)
        left_out = sig.args[len(args) :]
        assert all(ty == types.none for ty in left_out), sig
        values = [
            v if t == s else self.cast(v, t, s)
            for v, t, s in zip(args, argtypes, sig.args[: len(args)], strict=True)
        ] + [nothing for _ in left_out]
        return self.apply_signature(fnty, sig, [*value, *values])

    def apply_value(self, function: Any, value: Any, argtypes: Sequence, args: Sequence) -> Any:
        """Call a callable value of type `function`, and return the value of the call."""
        callee = () if isinstance(function, types.Function) else (value,)
        return self.apply(function, argtypes, args, *callee)

    def apply_signature(self, fnty: Any, sig: Any, args: Sequence) -> Any:
        """Call a function whose signature is known, with values of the types that it names."""
        return self.context.get_function(fnty, sig)(self, args)

    def issue(self, operation: Any, *numbers: Any) -> Any:
        """Call an operation of numbers, whose types follow from their LLVM types. Python
        numbers are int32."""
        values = [_operand(number, i32) for number in numbers]
        return self.apply(operation, [_NUMBERS[value.type] for value in values], values)

    def fields(self, ty: Any, value: Any) -> Any:
        """Return the fields of a structure, as attributes."""
        return cgutils.create_struct_proxy(ty)(self.context, self, value=value)

    def struct(self, ty: Any, **values: Any) -> Any:
        """Return a structure with these fields; other fields are undefined."""
        proxy = cgutils.create_struct_proxy(ty)(self.context, self)
        for name, value in values.items():
            setattr(proxy, name, value)
        return proxy._getvalue()

    def unpack_tuple(self, value: Any) -> list:
        """Return the parts of a tuple."""
        return cgutils.unpack_tuple(self, value)  # type: ignore[no-any-return]

    def emit_asm(
        self,
        result: Any,
        args: Sequence,
        text: str,
        *,
        tied: int | None = None,
        early: bool = False,
        memory: bool = True,
    ) -> Any:
        """Emit one PTX statement, with results $0, $1, … followed by the operands.

        `result` may be a list of types, for a list of values. `tied`: from this operand on,
        operands have the registers of the results. `early`: results are written before all
        operands are read. `memory` keeps memory accesses from moving across the statement. LLVM
        never moves it across divergent control flow.

        With `CompilerParams.jitter`, a random sleep precedes arrivals, waits and copies.
        """
        seed = INSTRUMENTATION.get().jitter
        if seed is not None and _TRANSITION.search(text):
            text = _SLEEP.replace("SEED", str((seed * 0x9E3779B1 + 0x85EBCA6B) & 0xFFFFFFFF)) + text
        several = isinstance(result, list)
        results = result if several else [] if result == void else [result]
        kind = ir.LiteralStructType(results) if len(results) > 1 else (*results, void)[0]
        constraints = _constraints(results, args, tied, early, memory)
        found = self._asm(kind, args, text, constraints, ("convergent",))
        if several and len(results) > 1:
            return [self.extract_value(found, i) for i in range(len(results))]
        return [found] if several else found

    def execute(self, args: Sequence, text: str, *, memory: bool = True) -> None:
        """Emit one PTX statement that has no result (see `emit_asm`)."""
        self.emit_asm(void, args, text, memory=memory)

    def emit_where(self, chosen: Any, text: str, address: Any, value: Any) -> None:
        """Emit a statement on an address $0 and a value $1 in the lanes that are `chosen`."""
        text = f"{{ .reg .pred own; setp.ne.u32 own, $2, 0; @own {text} }}"
        self.execute([address, value, self.zext(chosen, i32)], text)

    def pure_asm(self, result: Any, args: Sequence, text: str, attributes: Names = ()) -> Any:
        """Emit PTX without side effects, which LLVM may move, merge or drop."""
        constraints = _constraints([result], args, None, False, False)
        return self._asm(result, args, text, constraints, attributes, side_effect=False)

    def _asm(
        self,
        result: Any,
        args: Sequence,
        text: str,
        constraints: str,
        attributes: Names,
        side_effect: bool = True,
    ) -> Any:
        fnty = ir.FunctionType(result, [a.type for a in args])
        statement = ir.InlineAsm(fnty, text, constraints, side_effect=side_effect)
        return self.call(statement, list(args), attrs=attributes)

    def emit_gated(self, result: Any, args: Sequence, text: str, memory: bool = True) -> Any:
        """Emit a PTX statement without a result, in which "$gate " marks an instruction.

        A debugged kernel omits the instruction after one of the CTA's waits timed out (`np_words`).
        """
        if INSTRUMENTATION.get().debug:
            omits = self.emit_asm(
                i32,
                [self.external("np_words", i32)],
                "ld.volatile.shared.u32 $0, [$1];",
            )
            text = re.sub(r"@(\w+) \$gate ", r"and.pred goes_on, goes_on, \1; @goes_on ", text)
            text = text.replace("$gate", "@goes_on")
            text = f"{{ .reg .pred goes_on; setp.eq.u32 goes_on, ${len(args)}, 0; {text} }}"
            args = [*args, omits]
        return self.emit_asm(result, args, text.replace("$gate ", ""), memory=memory)

    def join(self) -> None:
        """Emit an empty statement where divergent lanes meet, which LLVM may not copy into their
        paths.

        Without it, LLVM copies the end of an enclosing loop into both paths. The loop's counter
        then has a definition in each path, and ptxas assumes that it and everything that depends on
        it differ between lanes: no uniform registers, a shuffle for each descriptor, BSSY and
        WARPSYNC around each branch. ptxas itself does this after a predicated statement, which it
        turns into a branch. There a bar.warp.sync keeps the paths together; it becomes a NOP or
        nothing in the machine code. With `plan.context_cuda.uniform` this saves 14 of 646
        instructions and every BSSY in a step of attention, and 7 of 102 instructions in the
        ping-pong GEMM."""
        self.execute([], "", memory=False)

    def one_of(self, test: Any, then: Callable[[], list], otherwise: Callable[[], list]) -> list:
        """Return the values made by `then` if a test is true, and by `otherwise` if it is false."""
        arms = []
        with self.if_else(test) as paths:
            for path, make in zip(paths, (then, otherwise), strict=True):
                with path:
                    values = make()
                    arms.append((values, self.block))
        merged = []
        for both in zip(*(values for values, _ in arms), strict=True):
            phi = self.phi(both[0].type)
            for value, (_, block) in zip(both, arms, strict=True):
                phi.add_incoming(value, block)
            merged.append(phi)
        return merged

    def external(self, name: str, result: Any, args: Sequence = ()) -> Any:
        """Call a symbol that the kernel's entry module defines (see `define`). Shared helpers get
        information about their kernel in this way."""
        fn = cgutils.get_or_insert_function(
            self.module, ir.FunctionType(result, [a.type for a in args]), name
        )
        return self.call(fn, list(args))

    @contextlib.contextmanager
    def define(self, name: str, result: Any, args: Sequence = ()) -> Iterator:
        """Define an always-inlined function in this module, yielding ``(builder, arguments)``.

        The linkage is weak instead of linkonce, because the linker reads the entry module first and
        would drop functions that are not called in it."""
        fn = cgutils.get_or_insert_function(self.module, ir.FunctionType(result, list(args)), name)
        fn.linkage = "weak_odr"
        fn.attributes.add("alwaysinline")
        builder = Builder(fn.append_basic_block("entry"))
        builder.context = self.context
        yield builder, fn.args

    def thread_index(self) -> Any:
        """Read %tid.x through the LLVM intrinsic, which can be folded, unlike inline assembly. Role
        guards rely on this."""
        return self.special("tid.x")

    def high_word(self, value: Any) -> Any:
        """Return the upper half of an int64."""
        return self.trunc(self.lshr(value, 32), i32)

    def lane_index(self) -> Any:
        """Return the index of this lane in its warpgroup."""
        return self.and_(self.thread_index(), 127)

    def special(self, name: str) -> Any:
        return self.external(f"llvm.nvvm.read.ptx.sreg.{name}", i32)

    def block_index(self) -> list:
        """Read %ctaid.x, y and z."""
        return [self.special(f"ctaid.{axis}") for axis in "xyz"]

    def grid_size(self) -> list:
        """Read %nctaid.x, y and z."""
        return [self.special(f"nctaid.{axis}") for axis in "xyz"]

    def block_number(self) -> Any:
        """Compute the number of the CTA in the grid."""
        (x, y, z), (width, height, _) = self.block_index(), self.grid_size()
        return self.add(x, self.mul(width, self.add(y, self.mul(height, z))))

    def c_string(self, text: str) -> Any:
        """Return the generic address of a constant string, as C functions expect it."""
        return self.context.insert_string_const_addrspace(self, text)

    def vprintf(self, format: str, values: Sequence) -> None:
        """Call C's printf in the active lanes; `values` are i32, i64, double and string addresses,
        naturally aligned."""
        struct = cgutils.make_anonymous_struct(self, list(values))
        buffer = self.bitcast(cgutils.alloca_once_value(self, struct), i8.as_pointer())
        self.external("vprintf", i32, [self.c_string(format), buffer])

    def assert_fail(self, message: str, file: str, line: int, function: str) -> None:
        """Fail like a C assert: the lane prints "file:line: function: … Assertion `message` failed"
        and stops the kernel."""
        text = [self.c_string(part) for part in (message, file, function)]
        self.external("__assertfail", void, [*text[:2], const(line), text[2], const(1, i64)])

    def shared_base(self) -> Any:
        """Return the shared-space address (32 bits) of the CTA's dynamic shared memory."""
        module = self.module
        array = module.globals.get("numpipe_smem")
        if array is None:
            array = ir.GlobalVariable(module, ir.ArrayType(i8, 0), "numpipe_smem", addrspace=3)
            array.linkage = "external"
            array.align = 1024
        return self.ptrtoint(array, i32)

    def smem(self, offset: int) -> Any:
        """Return the shared-space address of an offset in dynamic shared memory."""
        return self.add(self.shared_base(), offset)


def _constraints(
    results: Sequence, args: Sequence, tied: int | None, early: bool, memory: bool
) -> str:
    """Return LLVM's constraints of inline assembly; for the parameters see `Builder.emit_asm`."""
    classes = [f"={'&' * early}{_REGISTERS[ty]}" for ty in results]
    operands = [_REGISTERS[a.type] for a in args]
    if tied is not None:
        operands[tied : tied + len(results)] = map(str, range(len(results)))
    return ",".join([*classes, *operands, *["~{memory}"] * memory])


def signature_of(fnty: Any, argtypes: Sequence) -> Any:
    """Return the signature of a call of a Numba type with arguments of these types."""
    return fnty.get_call_type(cuda_target.typing_context, tuple(argtypes), {})


def _operand(value: Any, type: Any) -> Any:
    return ir.Constant(type, value) if isinstance(value, (int, float)) else value


def _with_numbers(name: str) -> None:
    emit = getattr(ir.IRBuilder, name)

    def method(self: Any, *operands: Any, **options: Any) -> Any:
        kind = next(each.type for each in reversed(operands) if hasattr(each, "type"))
        return emit(self, *(_operand(each, kind) for each in operands), **options)

    setattr(Builder, name, method)


for _name in (
    *("add", "sub", "mul", "and_", "or_", "xor", "shl", "lshr", "ashr", "udiv", "sdiv", "urem"),
    *("fadd", "fsub", "fmul", "fdiv", "select"),
    *("icmp_signed", "icmp_unsigned", "fcmp_ordered", "fcmp_unordered"),
):
    _with_numbers(_name)


_TRANSITION = re.compile(
    r"mbarrier\.(try_wait|test_wait|arrive)|cp(\.reduce)?\.async\.bulk\.(tensor|commit|wait)"
    r"|st\.async|bar\.sync"
)
_SLEEP = (
    "{ .reg .pred now; .reg .b32 drawn, rest; "
    "mov.u32 drawn, %clock; xor.b32 drawn, drawn, SEED; mul.lo.u32 drawn, drawn, 747796405; "
    "shr.u32 rest, drawn, 15; xor.b32 drawn, drawn, rest; mul.lo.u32 drawn, drawn, 277803737; "
    "and.b32 rest, drawn, 3; shr.u32 drawn, drawn, 21; setp.eq.u32 now, rest, 0; "
    "@now nanosleep.u32 drawn; }"
)
"""a sleep of up to 2 microseconds, one time in four"""


def const(value: int, type: Any = i32) -> Any:
    return ir.Constant(type, value)


def global_pointer(type: Any) -> Any:
    """Return the type of a pointer into global memory."""
    return ir.PointerType(type, 1)


# ---- annotations of a kernel's parameters --------------------------------------------------------
class _ByVal(ArgumentAttributes):  # type: ignore[misc]
    """`byval` in the spelling of LLVM 7 (the NVVM dialect of sm_90), without a type."""

    def _expand(self, name: str, typ: Any) -> str:
        return name


def _annotate(builder: Any, name: str, value: Any) -> None:
    node = builder.module.add_metadata(
        (builder.function, ir.MetaDataString(builder.module, name), value)
    )
    cgutils.get_or_insert_named_metadata(builder.module, "nvvm.annotations").add(node)


def grid_constant(builder: Any, value: Any, align: int = 64) -> Any:
    """Mark a kernel's pointer parameter as passed by value in parameter space and never copied to
    local memory.

    There must be only one annotation node. Of several, NVVM uses the first and silently copies the
    other parameters.
    """
    if isinstance(value, ir.Argument) and value.parent is builder.function:
        attributes = _ByVal()
        attributes.add("byval")
        attributes.align = align
        value.attributes = attributes
        position = [a is value for a in builder.function.args].index(True)
        _annotate(builder, "grid_constant", builder.module.add_metadata([const(position)]))
    return value


def cluster_dims(builder: Any, value: Any, dims: Sequence[int]) -> None:
    """Annotate the kernel that has the parameter `value` with its cluster size in CTAs, which makes
    it part of the machine code.

    The annotation becomes ``.reqnctapercluster``, so that ptxas generates no second path for a
    launch without clusters.
    """
    if isinstance(value, ir.Argument) and value.parent is builder.function:
        for axis, size in zip("xyz", dims, strict=True):
            _annotate(builder, f"cluster_dim_{axis}", const(size))
