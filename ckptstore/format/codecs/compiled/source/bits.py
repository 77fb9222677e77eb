"""What processors do with many bytes, or bits, at once, and neither Python nor numba has a word for."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ckptstore.format.codecs.compiled.source.compiling import Helper

LINE = 64
"""Bytes that `above` compares at once."""
_BYTES = ir.VectorType(ir.IntType(8), LINE)


@intrinsic
def _trailing_zeros(_typing: Any, number: Any) -> Any:
    def build(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], cgutils.true_bit)

    return number(number), build


@intrinsic
def _above(_typing: Any, line: Any, offset: Any, most: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given = context.make_array(signature.args[0])(context, builder, arguments[0])
        loaded = builder.load(builder.bitcast(given.data, _BYTES.as_pointer()), align=1)
        moved = builder.sub(loaded, _all(builder, arguments[1]))
        return builder.bitcast(builder.icmp_unsigned(">", moved, _all(builder, arguments[2])), ir.IntType(LINE))

    return types.uint64(line, types.uint8, types.uint8), build


trailing_zeros: Helper = _trailing_zeros
"""How many of the last bits of a number, which is not 0, are 0."""

above: Helper = _above
"""Which bytes of a line, less an offset, are above a number: a bit for each, the last bit for the first byte."""


def _all(builder: Any, byte: Any) -> Any:
    """A line of the same bytes."""
    one = builder.insert_element(ir.Constant(_BYTES, ir.Undefined), byte, ir.Constant(ir.IntType(32), 0))
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), LINE), None)
    return builder.shuffle_vector(one, ir.Constant(_BYTES, ir.Undefined), everywhere)
