"""Prints a trace of `remem answer --trace FILE` for reading: a block a turn, short values first, long texts wrapped.

What was read before the turn (its chunk, its old memory) is left out.

python examples/show_trace.py runs/answer/trace.jsonl
"""

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

SHORT = 60
WIDTH = 100
LEFT_OUT = ("question_id", "chunk", "memory_before")  # the last is the memory of the turn before


def show(record: dict[str, Any], number: int) -> str:
    """One line of the trace as a block of text."""
    lines = [f"---- {number} ".ljust(WIDTH, "-")]
    record = {name: value for name, value in record.items() if value not in (None, "", []) and name not in LEFT_OUT}
    facts = [f"{name} {_spell(value)}" for name, value in record.items() if not _is_long(value)]
    lines += textwrap.wrap("   ".join(facts), WIDTH, break_long_words=False)
    for name, value in record.items():
        if _is_long(value):
            lines.append(f"{name}:")
            for paragraph in value.strip().splitlines():
                lines += textwrap.wrap(paragraph, WIDTH, initial_indent="    ", subsequent_indent="    ") or [""]
    return "\n".join(lines)


def _is_long(value: Any) -> bool:
    return isinstance(value, str) and (len(value) > SHORT or "\n" in value)


def _spell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/show_trace.py FILE")
    try:
        lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        sys.exit(f"expected a trace file, found: {error}")
    for number, line in enumerate(lines, 1):
        print(show(json.loads(line), number))


if __name__ == "__main__":
    main()
