"""`remem data`: sets of long contexts, built and checked.

Heavy imports stay inside the commands, so that help and usage errors come at once.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from remem_jax.errors import RememError
from remem_jax.paths import local

data = typer.Typer(name="data", help="Build and check sets of long contexts.", rich_markup_mode=None)


@data.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


SEVERAL = ("--corpus", "--documents", "--exclude")


class _SeveralValues(TyperCommand):
    """A command some of whose options take every value up to the next option, as in `--corpus A B C`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given: list[str] = []
        option = None  # whose values follow
        for argument in args:
            if argument.startswith("-") and argument != "-":
                option = argument if argument in SEVERAL else None
                given += [] if option else [argument]
            else:
                given += [option, argument] if option else [argument]
        if args and args[-1] in SEVERAL:
            given.append(args[-1])  # no value: the usual error
        return super().parse_args(ctx, given)


@data.command(cls=_SeveralValues)
def build(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE", help="Question files; given before the options.")],
    corpus: Annotated[
        list[str],
        typer.Option(
            help="Distractors: lines of {title, text}, or question files for their paragraphs. Takes several, in order."
        ),
    ],
    documents: Annotated[list[str], typer.Option(help="Documents of the contexts: 50,100,200.")],
    split: Annotated[str, typer.Option(help="Name of the split. A folder holds one.")],
    out: Annotated[Path, typer.Option(help="New folder. One made from the same input is left as it is.")],
    order: Annotated[
        str, typer.Option(help="random, or reverse: evidence far apart and backwards; only questions that can be.")
    ] = "random",
    min_gap: Annotated[float, typer.Option(help="reverse: evidence is more than this share of documents apart.")] = 0.5,
    questions: Annotated[
        int | None, typer.Option(help="How many questions, chosen by seed and id; a larger number only adds.")
    ] = None,
    level: Annotated[str | None, typer.Option(help="Only questions of this level, such as HotpotQA's hard.")] = None,
    seed: Annotated[int, typer.Option(help="Of places, distractors and the choice of questions.")] = 0,
    workers: Annotated[int, typer.Option(help="Processes; the files are the same for any number.")] = 1,
    kind: Annotated[
        str | None, typer.Option(help="Kind of the sources, where their fields do not tell it: see docs/data.md.")
    ] = None,
    on_error: Annotated[str, typer.Option(help="stop at a question that cannot be read, or skip it.")] = "stop",
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Question files or built sets; questions with their id or text are left out. Several."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Model whose tokens are counted: directory, tokenizer file, .gguf, hub id or smollm2."),
    ] = None,
    quiet: Annotated[bool, typer.Option(help="Show no progress.")] = False,
) -> None:
    """Build contexts of many sizes: a question's own paragraphs among distractors; smaller ones lie in larger ones."""
    from remem_jax.data.builder import SetOptions, build_set
    from remem_jax.observe.building import BuildScreen

    options = SetOptions(_sizes(documents), split, order, min_gap, questions, level, seed, kind, on_error)
    out = out.expanduser()
    with BuildScreen(quiet=quiet) as screen:
        built = build_set(
            sources, corpus, out, options, exclude=exclude or [], tokenizer=_model(tokenizer), workers=workers,
            progress=screen,
        )  # fmt: skip
    if not built.written:
        print(f"{out}: already built from the same input, nothing to do")
        return
    _tell_left_out(built.manifest)
    print(f"written: {out}: {_summary(built.manifest)}")


@data.command()
def check(
    path: Annotated[Path, typer.Argument(metavar="FILE|FOLDER", help="A question file, or a built set.")],
    kind: Annotated[str | None, typer.Option(help="Kind of a question file, where its fields do not tell it.")] = None,
) -> None:
    """Read every question of a file, or compare every byte of a built set with its manifest."""
    if local(path).is_dir():
        from remem_jax.data.built import check_built

        if kind is not None:
            raise RememError(f"{path}: --kind is for question files, found a folder: leave it out")
        print(f"sound: {path}: {_summary(check_built(path))}")
        return
    from remem_jax.data.sources import read_source

    source = read_source(path, kind=kind, on_error="skip")
    for line in source.skipped:
        print(f"skipped: {line}")
    own = sorted(len(record.paragraphs) for record in source.records)
    print(
        f"{path}: {source.kind}, {len(source.records)} questions, {len(source.skipped)} skipped, "
        f"{own[0]} to {own[-1]} paragraphs a question"
    )
    if source.skipped:
        raise typer.Exit(1)


def _sizes(given: list[str]) -> tuple[int, ...]:
    names = [name.strip() for value in given for name in value.split(",") if name.strip()]
    for name in names:
        if not (name.isascii() and name.isdecimal()):
            raise RememError(f"documents: expected numbers such as 50,100,200, found {name!r}")
    return tuple(map(int, names))


def _model(name: str | None) -> str | Path | None:
    """A tokenizer's place on this machine."""
    if name is None or local(name).exists():
        return name
    from remem_jax.model.hub import resolve_model

    return resolve_model(name)


def _summary(manifest: dict[str, Any]) -> str:
    counts, sizes = manifest["counts"], manifest["documents"]
    unit = "tokens" if "tokens" in manifest["lengths"][str(sizes[-1])] else "words"
    mean = manifest["lengths"][str(sizes[-1])][unit]["mean"]
    return (
        f"{counts['questions']} questions of split {manifest['split']}, contexts of "
        f"{', '.join(map(str, sizes))} documents, the largest of {mean:,.0f} {unit} on average; "
        f"{counts['documents']:,} distinct documents"
    )


def _tell_left_out(manifest: dict[str, Any]) -> None:
    """Nothing is left out in silence; the manifest has the whole lists."""
    texts = {"skipped": "could not be read", "excluded": "stand in a set to keep away from"}
    texts["not_eligible"] = f"cannot be built in order {manifest['order']}"
    for name, text in texts.items():
        if manifest["counts"][name]:
            print(f"left out: {manifest['counts'][name]} questions that {text} (manifest.json, left_out.{name})")
