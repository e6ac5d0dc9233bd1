"""A calculator that can do nothing but calculate: numbers, + - * /, parentheses.

The text is parsed, never evaluated as code, and every step is bounded, so that no expression a model can write
costs more than a few milliseconds.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from math import isfinite
from typing import Final

from toolfleet.examples.airline_desk.records import Refused

EXPRESSION_CHARS_MAX: Final = 1_000
DEPTH_MAX: Final = 100  # far below the interpreter's own recursion limit
_ALLOWED: Final = frozenset("0123456789+-*/(). ")
_BINARY: Final[dict[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}
_UNARY: Final[dict[type[ast.unaryop], Callable[[float], float]]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def calculated(expression: str) -> float:
    """The value, rounded to cents; always a float, as the recorded desk answers (`255.0`).

    Raises Refused where the text is not arithmetic or has no value.
    """
    if not _ALLOWED.issuperset(expression):
        raise Refused("Error: invalid characters in expression", "invalid_expression")
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise Refused("Error: expression is too long", "invalid_expression")
    try:
        tree = ast.parse(expression.strip(), filename="<string>", mode="eval")
        return round(float(_value(tree.body, DEPTH_MAX)), 2)
    except ZeroDivisionError as exc:
        raise Refused("Error: division by zero", "invalid_expression") from exc
    except OverflowError as exc:
        raise Refused("Error: the result is too large", "invalid_expression") from exc
    except (SyntaxError, MemoryError, RecursionError) as exc:
        raise Refused(f"Error: {exc}", "invalid_expression") from exc


def _value(node: ast.expr, depth_left: int) -> float:
    if depth_left == 0:
        raise Refused("Error: expression is nested too deeply", "invalid_expression")
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)  # floats only: they cannot grow without bound
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            return _real(_BINARY[type(sign)](_value(left, depth_left - 1), _value(right, depth_left - 1)))
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _UNARY:
            return _UNARY[type(sign)](_value(operand, depth_left - 1))
        case _:
            raise Refused(
                "Error: only numbers, + - * / and parentheses can be calculated", "invalid_expression"
            )


def _real(number: object) -> float:
    """The number itself; a power of a negative number may not be a real one, and no float sum may be infinite."""
    if not isinstance(number, float) or not isfinite(number):
        raise Refused("Error: the result is not a number", "invalid_expression")
    return number
