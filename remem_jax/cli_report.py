"""`remem report`: what an agent did, as one HTML page or in the terminal.

Heavy imports stay inside the command, so that help and usage errors come at once.
"""

from pathlib import Path
from typing import Annotated

import typer

from remem_jax.errors import RememError


def report(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="RUN_DIR|TRACE", help="Runs of remem train, or traces (.jsonl). Takes several."),
    ],
    compare: Annotated[
        list[str] | None, typer.Option(help="Another run or trace, shown beside on the same questions.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    text: Annotated[bool, typer.Option(help="Tell the trajectories here instead, and write no page.")] = False,
    limit: Annotated[int, typer.Option(help="Trajectories at most; of more, whole questions are sampled.")] = 500,
) -> None:
    """Show what agents did: curves and trajectories in one HTML file that needs no network."""
    if limit < 1:
        raise RememError(f"limit: expected at least 1, found {limit}")
    if text:
        _tell([*sources, *(compare or [])], limit)
        return
    from remem_jax.observe.report import write_report

    path, told = write_report([*sources, *(compare or [])], out, limit=limit)
    print(f"written: {path}: {told}")


def _tell(paths: list[str], limit: int) -> None:
    """The trajectories on standard output, a blank line between one and the next."""
    from rich.console import Console

    from remem_jax.observe.report import read_sources
    from remem_jax.observe.stories import sample
    from remem_jax.observe.terminal import tell

    found = read_sources(paths, limit=limit)
    every = [one for source in found for one in source.trajectories]
    shown = sample(every, limit) if len(every) > limit else every
    console = Console(highlight=False, emoji=False)
    for at, trajectory in enumerate(shown):
        if at:
            console.print()
        tell(trajectory, console)
    if not shown:
        raise RememError(
            f"{', '.join(paths)}: expected trajectories, found none: give a run that wrote some, or a trace"
        )
    if len(shown) < (total := sum(source.total for source in found)):
        Console(stderr=True, highlight=False).print(
            f"A sample: {len(shown):,} of {total:,} trajectories; --limit shows more."
        )
