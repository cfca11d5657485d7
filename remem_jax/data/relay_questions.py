"""Writes relay questions to evaluate on, a file for each order of evidence and number of documents.

    python -m remem_jax.data.relay_questions --out runs/eval/relay-data

They are the questions that the relay experiment asks, and never those that it trains on.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from remem_jax.data.relay import record_line, write_lines
from remem_jax.data.relay_task import ORDERS, make_records
from remem_jax.errors import RememError

EVALUATION_SEED = "evaluation"  # training, validation and demonstrations draw from seeds of other names


def write_questions(out: Path, documents: Sequence[int], count: int, orders: Sequence[str] = ORDERS) -> None:
    """Write `out/ORDER_DOCUMENTS.jsonl`, `count` questions each (METHOD 9); a larger count only adds."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for order in orders:
            for size in documents:
                records = make_records(size, count, EVALUATION_SEED, (order,))
                write_lines(out / f"{order}_{size}.jsonl", map(record_line, records))
    except OSError as error:
        raise RememError(f"{out}: cannot be written ({error.strerror or error}): give another folder") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the folder; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m remem_jax.data.relay_questions", description="Write relay questions to evaluate on."
    )
    parser.add_argument("--out", required=True, type=Path, help="folder to write")
    parser.add_argument("--documents", nargs="+", type=int, default=[4, 8, 16, 32], help="of a question")
    parser.add_argument("--questions", type=int, default=128, help="of a file (default: %(default)s)")
    given = parser.parse_args(arguments)
    try:
        write_questions(given.out, given.documents, given.questions)
    except RememError as error:
        print(f"remem: error: {error}", file=sys.stderr)
        return 2
    files = len(ORDERS) * len(given.documents)
    print(f"wrote {given.out}: {files} files of {given.questions} questions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
