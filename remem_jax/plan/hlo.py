"""What a program compiled for TPU computes, holds and sends, read from its text: matrix products, arrays, collectives.

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
_ARRAY = re.compile(r"\b(pred|bf16|[fsu]\d+(?:e\d\w*)?)\[([\d,]*)\]")
_COLLECTIVE = re.compile(r" = (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(-start)?\(")
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
    return sum(
        times * _product_flops(shapes[product[3]], _sizes(product[2]), product[4])
        for name, times in _executions(text, computations).items()
        for line in computations[name]
        if (product := _PRODUCT.search(line))
    )


def collectives(text: str) -> dict[str, dict[str, int]]:
    """Kind -> how often one device takes part (`count`) and bytes of the results it gets (`bytes`), loops counted.

    An asynchronous collective is counted at its start, whose result holds what goes in before what comes out.
    """
    computations = _computations(text)
    found: dict[str, dict[str, int]] = {}
    for name, times in _executions(text, computations).items():
        for line in computations[name]:
            if made := _COLLECTIVE.search(line):
                sizes = [_array_bytes(*array) for array in _ARRAY.findall(made[1])]
                if made[3]:  # in front of the results stand as many operands; then, for permutes, counters
                    sizes = [size for size in sizes if size > 4]
                    sizes = sizes[len(sizes) // 2 :]
                of_kind = found.setdefault(made[2], {"count": 0, "bytes": 0})
                of_kind["count"] += times
                of_kind["bytes"] += times * sum(sizes)
    return found


def _array_bytes(kind: str, sizes: str) -> int:
    bits = 8 if kind == "pred" else int(re.sub(r"\D.*", "", kind.lstrip("bfsu")) or 8)
    return math.prod(_sizes(sizes)) * bits // 8


def _executions(text: str, computations: Computations) -> dict[str, int]:
    """How often each computation runs; one that runs until some condition holds counts once, as do all branches."""
    entry = re.search(r"^ENTRY %?([\w.\-]+)", text, re.MULTILINE)
    assert entry is not None
    times = dict.fromkeys(computations, 0) | {entry[1]: 1}
    for name in reversed(computations):  # a computation stands before those that call it
        for line in computations[name] if times[name] else ():
            if loop := _LOOP.search(line):
                times[loop[2]] += times[name] * _trips(computations[loop[1]], computations[loop[2]])
                continue
            branches = _BRANCHES.search(line)
            for called in re.findall(r"[\w.\-]+", branches[1]) if branches else _CALL.findall(line):
                times[called] += times[name]
    return {name: count for name, count in times.items() if count}


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
    """How often a counted loop runs: its limit over the sum of what its body adds to the counter. Others: once."""
    compared = re.search(r" compare\(%([\w.\-]+), %([\w.\-]+)\), direction=LT", "\n".join(_root(condition)))
    limit = _constant(_line(condition, compared[2])) if compared else None
    index = re.search(r"index=(\d+)", _line(condition, compared[1])) if compared else None
    tuple_of = re.search(r" tuple\((.*?)\)", "\n".join(_root(body)))
    if limit is None or index is None or tuple_of is None:
        return 1
    counter = re.findall(r"%([\w.\-]+)", tuple_of[1])[int(index[1])]
    step = sum(_added(body, counter))
    return math.ceil(limit / step)


def _added(body: list[str], name: str) -> Iterator[int]:
    """Constants that are added on the way from the loop's parameter to the value `name`."""
    line = _line(body, name)
    while "get-tuple-element(" not in line:
        operands = re.findall(r"%([\w.\-]+)", re.findall(r" [\w\-]+\(([^)]*)\)", line)[0])
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
