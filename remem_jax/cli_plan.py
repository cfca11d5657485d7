"""`remem plan`: does a training run fit a slice, and what does it cost, told without one.

Heavy imports stay inside the command, so that help and usage errors come at once.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def plan(
    config: Annotated[Path, typer.Argument(help="YAML file of remem train.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings in place of the file's: mesh=[1,16,4].")
    ] = None,
    topology: Annotated[
        str | None, typer.Option(help="TPU slice: v5e:8x8, v5p:4x4x4, v6e:8x8, v4:4x4x4, tpu7x:4x4x4.")
    ] = None,
    devices: Annotated[int | None, typer.Option(help="So many devices of any kind in place of a slice.")] = None,
    memory_gib: Annotated[float | None, typer.Option(help="With --devices: what one of them holds, in GiB.")] = None,
    chunks: Annotated[int, typer.Option(help="Chunks of a document, for the time of a step.")] = 6,
    fast: Annotated[
        bool, typer.Option(help="Let the compiler search less: minutes become seconds, memory is a little off.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Compile every function of a run for a TPU slice, without one: memory, work, time. Needs the extra tpu."""
    from remem_jax.plan import make_plan
    from remem_jax.plan.report import report

    def tell(text: str) -> None:
        if not as_json and sys.stderr.isatty():
            print(text, file=sys.stderr)

    found = make_plan(
        str(config),
        overrides or [],
        topology=topology,
        devices=devices,
        memory_gib=memory_gib,
        chunks=chunks,
        fast=fast,
        tell=tell,
    )
    print(json.dumps(found) if as_json else report(found))
