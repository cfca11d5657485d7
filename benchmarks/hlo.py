"""What a program compiled for TPU computes and holds, read from its text: FLOPs of matrix products, shapes of arrays.

The compiler's own count takes the body of a loop once and knows nothing of trip counts; this one multiplies.
"""

import math
import re
from collections.abc import Iterator, Sequence

_HEADER = re.compile(r"(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
_RESULT = re.compile(r"\s*(?:ROOT )?%([\w.\-]+) = \w+\[([\d,]*)\]")
_PRODUCT = re.compile(r"%([\w.\-]+) = \w+\[([\d,]*)\]\S* convolution\(%([\w.\-]+), %[\w.\-]+\)(.*)")
_LOOP = re.compile(r" while\(.*condition=%([\w.\-]+), body=%([\w.\-]+)")
_CALL = re.compile(r"(?:calls|to_apply)=%([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")

Computations = dict[str, list[str]]


def array_shapes(text: str) -> set[tuple[int, ...]]:
    """Every array shape that the text names, those inside fusions too."""
    return {_sizes(match) for match in re.findall(r"\b(?:bf|f|s|u|pred)\d*\[([\d,]+)\]", text)}


def matmul_flops(text: str) -> int:
    """Multiplications and additions of all matrix products, on one device, loops as often as they run.

    A product is a `convolution` in what the TPU compiler makes; kernels of Pallas are not looked into.
    """
    computations = _computations(text)
    shapes = {m[1]: _sizes(m[2]) for lines in computations.values() for line in lines if (m := _RESULT.match(line))}
    found: dict[str, int] = {}

    def of(name: str) -> int:
        if name not in found:
            found[name] = sum(map(of_line, computations[name]))
        return found[name]

    def of_line(line: str) -> int:
        if product := _PRODUCT.search(line):
            return _product_flops(shapes[product[3]], _sizes(product[2]), product[4])
        if loop := _LOOP.search(line):
            return _trips(computations[loop[1]], computations[loop[2]]) * of(loop[2])
        branches = _BRANCHES.search(line)
        called = re.findall(r"[\w.\-]+", branches[1]) if branches else _CALL.findall(line)
        return sum(map(of, called))

    entry = re.search(r"^ENTRY %?([\w.\-]+)", text, re.MULTILINE)
    assert entry is not None
    return of(entry[1])


def _computations(text: str) -> Computations:
    """The lines of every computation; a line of metadata may begin with a brace, an end is one alone."""
    found: Computations = {}
    lines: list[str] = []
    for line in text.splitlines():
        if header := _HEADER.match(line):
            lines = found[header[1]] = []
        elif line == "}":
            lines = []
        else:
            lines.append(line)
    return found


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(",") if size)


def _product_flops(left: Sequence[int], out: Sequence[int], rest: str) -> int:
    """Of `convolution`, whose spatial dimensions stand for batches and windows of a product."""
    labels = re.search(r"dim_labels=(\w+)_\w+->(\w+)", rest)
    assert labels is not None
    of_left, of_out = labels.groups()
    flops = 2 * left[of_left.index("f")] * out[of_out.index("b")] * out[of_out.index("f")]
    window = re.search(r"window=\{([^}]*)\}", rest)
    for d in range(len(of_out) - 2):
        place = of_left.index(str(d)), of_out.index(str(d))
        flops *= _window_terms(left[place[0]], out[place[1]], window[1] if window else "", d)
    return flops


def _window_terms(left: int, out: int, window: str, d: int) -> int:
    """Terms along one spatial dimension that do not fall on padding, over all its outputs."""

    def setting(name: str, default: str) -> str:
        match = re.search(rf"\b{name}=([\d_x\-]+)", window)
        return match[1].split("x")[d] if match else default

    size, stride = int(setting("size", "1")), int(setting("stride", "1"))
    low = int(setting("pad", "0_0").split("_")[0])
    spread, step = int(setting("lhs_dilate", "1")), int(setting("rhs_dilate", "1"))
    places = (o * stride + w * step - low for o in range(out) for w in range(size))
    return sum(0 <= place <= (left - 1) * spread and place % spread == 0 for place in places)


def _trips(condition: list[str], body: list[str]) -> int:
    """How often a counted loop runs: its limit over the sum of what its body adds to the counter."""
    compared = re.search(r"compare\(%([\w.\-]+), %([\w.\-]+)\), direction=LT", "\n".join(_root(condition)))
    assert compared is not None, "a loop that counts up to a constant"
    limit = _constant(_line(condition, compared[2]))
    index = re.search(r"index=(\d+)", _line(condition, compared[1]))
    tuple_of = re.search(r" tuple\((.*?)\)", "\n".join(_root(body)))
    assert limit is not None and index is not None and tuple_of is not None
    counter = re.findall(r"%([\w.\-]+)", tuple_of[1])[int(index[1])]
    step = sum(_added(body, counter))
    return math.ceil(limit / step)


def _added(body: list[str], name: str) -> Iterator[int]:
    """Constants that are added on the way from the loop's parameter to the value `name`."""
    line = _line(body, name)
    while "get-tuple-element(" not in line:
        operands = re.findall(r"%([\w.\-]+)", line.split(" = ", 1)[1].split(", metadata")[0])
        constants = {operand: _constant(_line(body, operand)) for operand in operands}
        yield sum(value for value in constants.values() if value is not None)
        (name,) = (operand for operand, value in constants.items() if value is None)
        line = _line(body, name)


def _root(lines: list[str]) -> list[str]:
    """The root instruction; what follows it belongs to its metadata."""
    return lines[next(i for i, line in enumerate(lines) if line.lstrip().startswith("ROOT ")) :]


def _line(lines: list[str], name: str) -> str:
    return next(line for line in lines if re.match(rf"\s*(?:ROOT )?%{re.escape(name)} = ", line))


def _constant(line: str) -> int | None:
    match = re.search(r" constant\((\d+)\)", line)
    return int(match[1]) if match else None
