"""The command `remem`. An error is one line on standard error and status 2; Ctrl-C is status 130.

Heavy imports stay inside the commands, so that help and usage errors come at once.
"""

import codecs
import glob
import importlib.util
import io
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from remem_jax import __version__
from remem_jax.cli_data import data
from remem_jax.cli_plan import plan
from remem_jax.cli_report import report
from remem_jax.errors import RememError

app = typer.Typer(
    name="remem",
    help="Memory agents that read documents far longer than a model's window, and call earlier memories back.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(data)
app.command()(report)
app.command()(plan)


# typer carries its own copy of click; this is the base of its usage errors, whichever copy that is.
_UsageError: Any = typer.BadParameter.__mro__[2]


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    _choose_platform()
    _keep_compiled_programs()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a character that this terminal lacks is no failure
    try:
        status = _run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except _UsageError as error:
        _fail(error.format_message())  # pyright: ignore[reportAttributeAccessIssue]
    except RememError as error:
        _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        print("remem: stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has gone; so have we
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        _fail(f"{error.filename or 'input or output'}: {error.strerror or error}")
    except Exception as error:
        if "RESOURCE_EXHAUSTED" not in str(error) and not isinstance(error, MemoryError):
            raise
        _fail("out of memory: lower --questions-in-flight, --chunk-tokens or --memory-tokens, or take a smaller model")
    sys.exit(status)


def _run(arguments: list[str]) -> int:
    """Run a command; returns its status. The library's own `main` would keep Ctrl-C and closed pipes to itself."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("remem", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as finished:
        return finished.exit_code
    return 0


def _choose_platform() -> None:
    """Where libtpu is installed but there is no TPU, jax would look for one and fill the screen: name the CPU."""
    installed = {
        name for name in ("libtpu", "jax_cuda12_plugin", "jax_cuda13_plugin") if importlib.util.find_spec(name)
    }
    if installed == {"libtpu"} and not glob.glob("/dev/accel*") and not glob.glob("/dev/vfio/[0-9]*"):
        os.environ.setdefault("JAX_PLATFORMS", "cpu")


def _keep_compiled_programs() -> None:
    """Compiled programs are kept between runs, as most of a short run is compilation. JAX's own variables go before."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.expanduser("~/.cache/remem_jax/xla"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")


def _fail(message: str) -> NoReturn:
    print(f"remem: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def _warn(message: str) -> None:
    print(f"remem: warning: {message}", file=sys.stderr)


def _writes_unicode() -> bool:
    return codecs.lookup(sys.stdout.encoding or "ascii").name == "utf-8"


def _version(wanted: bool) -> None:
    if wanted:
        print(f"remem_jax {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def answer(
    model: Annotated[str, typer.Option(help="Model directory, .gguf file, hub id, or smollm2.")],
    documents: Annotated[
        list[str], typer.Option(help="A .txt, .md or .jsonl file, a directory, or - for standard input. Takes several.")
    ],
    more: Annotated[list[str] | None, typer.Argument(metavar="DOCUMENT", help="Further documents.")] = None,
    question: Annotated[list[str] | None, typer.Option(help="The question; give it again for several.")] = None,
    questions: Annotated[
        Path | None, typer.Option(help="File with a question a line, or .jsonl with the field question.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="rememr1 (default), memagent, rule_callback, full_context or retrieval.")
    ] = None,
    prompt_order: Annotated[
        str | None, typer.Option(help="section_first (default), section_last, document_first or question_last.")
    ] = None,
    candidates: Annotated[
        str | None, typer.Option(help="Memories a callback may find: not_current (default) or all.")
    ] = None,
    prompts: Annotated[Path | None, typer.Option(help="Folder of prompt texts in place of the built-in ones.")] = None,
    memory_tag: Annotated[
        str | None, typer.Option(help="Name of the memory mark; 'none' makes the whole reply the memory.")
    ] = None,
    chunk_tokens: Annotated[int | None, typer.Option(help="Document tokens read in one turn.")] = None,
    memory_tokens: Annotated[int | None, typer.Option(help="Tokens a memory is cut to.")] = None,
    max_reply_tokens: Annotated[int | None, typer.Option(help="Tokens a reply may have.")] = None,
    max_chunks: Annotated[
        int | None, typer.Option(help="Read at most this many chunks; what is cut is reported.")
    ] = None,
    retrieval_paragraphs: Annotated[
        int | None, typer.Option(help="Paragraphs that the agent retrieval is shown.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature; 0 is greedy.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus of the sampling; 1 is everything.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Most likely tokens to sample from; 0 is all.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampling; equal seeds give equal answers.")] = 0,
    dtype: Annotated[str | None, typer.Option(help="float32 (default on CPU), bfloat16 or float16.")] = None,
    attention: Annotated[
        str | None, typer.Option(help="How prompts are read: blocked (CPU), splash (TPU), cudnn (GPU) or dense.")
    ] = None,
    questions_in_flight: Annotated[
        int, typer.Option(help="Questions answered at a time; lower it to save memory.")
    ] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a question and nothing else.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Write every turn as a JSON line to this file.")] = None,
    dry_run: Annotated[
        bool, typer.Option(help="Print the exact first prompt and its token counts; run nothing.")
    ] = False,
) -> None:
    """Answer questions over documents: read chunk by chunk, keep a memory, call earlier memories back."""
    asked = _questions(question or [], questions)
    if questions_in_flight < 1:
        raise RememError(f"questions_in_flight must be at least 1, found {questions_in_flight}")
    if not 0 <= seed < 2**32:
        raise RememError(f"seed must be from 0 to 4294967295, found {seed}")

    if trace is not None:
        from remem_jax.observe.trajectories import check_trace

        check_trace(trace, [*documents, *(more or []), *([questions] if questions else [])])
    from remem_jax.data.documents import read_documents

    texts = read_documents([*documents, *(more or [])], sys.stdin.buffer)
    for document in texts:
        if not document.text.strip():
            _warn(f"document {document.title!r} is empty")
    if not texts:
        _warn("the documents are empty")

    settings = {
        "agent": agent,
        "prompt_order": prompt_order,
        "candidates": candidates,
        "chunk_tokens": chunk_tokens,
        "memory_tokens": memory_tokens,
        "max_reply_tokens": max_reply_tokens,
        "max_chunks": max_chunks,
        "retrieval_paragraphs": retrieval_paragraphs,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
    }
    from remem_jax.observe.terminal import Terminal

    terminal = Terminal(quiet=as_json, questions=len(asked))
    with terminal.status(f"loading {model}"):
        loaded = _load(model, dtype, attention, prompts, memory_tag, settings, weights=not dry_run)
    for note in loaded.notes:
        _warn(note)
    readings = loaded.readings(asked, texts)
    if readings[0].cut_tokens:
        _warn(f"{readings[0].cut_tokens} of {readings[0].document_tokens} document tokens will not be read")
    if dry_run:
        from remem_jax.agent.preview import first_prompt
        from remem_jax.observe.terminal import clean

        prompt = first_prompt(loaded.agent, readings[0])
        print(clean(prompt) if sys.stdout.isatty() else prompt)
        return
    _answer(loaded, readings, terminal, seed, questions_in_flight, trace, as_json)


@app.command(context_settings={"ignore_unknown_options": False})
def train(
    config: Annotated[Path, typer.Argument(help="YAML file; configs/ holds examples.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings in place of the file's, such as steps=20.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option(help="Print the resolved settings, shapes and a memory estimate; train nothing.")
    ] = False,
    quiet: Annotated[bool, typer.Option(help="Show nothing while it runs.")] = False,
) -> None:
    """Train an agent by multi-level GRPO, or warm-start it on demonstrations (algorithm: sft). Resumes by itself."""
    from remem_jax.rl.config import TrainConfig
    from remem_jax.settings import load_config

    settings = load_config(TrainConfig, config, overrides or [])
    if dry_run:
        from remem_jax.rl.preview import preview

        print(preview(settings))
        return
    from remem_jax.rl.trainer import train as run

    outcome = run(settings, quiet=quiet)
    import jax

    if jax.process_index() > 0:  # process 0 speaks for all
        return
    if outcome.stopped:
        on = [] if settings.resume == "auto" else ["resume=auto"]  # never would refuse, a path could go back
        again = shlex.join(["remem", "train", str(config), *(overrides or []), *on])
        saved = f"saved in {settings.run_dir}" if outcome.step else "nothing to save yet"
        print(f"stopped after step {outcome.step} of {settings.steps}, {saved}; go on with: {again}")
        return
    best = "" if outcome.best is None else f", best validation exact match {outcome.best:.3f}"
    where = "" if outcome.exported is None else f"; model: {outcome.exported}"
    print(f"done: {outcome.step} steps in {settings.run_dir}{best}{where}")


@app.command("eval")
def evaluate(
    config: Annotated[Path, typer.Argument(help="YAML file; configs/eval_*.yaml are examples.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings in place of the file's: questions=8.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option(help="Print cells, questions, tokens, chunks and turns; answer nothing.")
    ] = False,
    quiet: Annotated[bool, typer.Option(help="Show nothing while it runs.")] = False,
) -> None:
    """Compare agents on the same questions over sizes of contexts. Resumes by itself, no answer is lost or repeated."""
    from remem_jax.eval.config import EvalConfig
    from remem_jax.settings import load_config

    settings = load_config(EvalConfig, config, overrides or [])
    if dry_run:
        from remem_jax.eval.preview import preview

        print(preview(settings))
        return
    from remem_jax.eval.runner import run_evaluation

    outcome = run_evaluation(settings, quiet=quiet)
    if outcome.stopped:
        again = " ".join(["remem eval", str(config), *(overrides or [])])
        print(
            f"stopped with {outcome.answered:,} of {outcome.total:,} questions answered, kept in {settings.out}; "
            f"go on with: {again}"
        )
        raise typer.Exit(130)
    print(outcome.report)
    print(f"written: {settings.out}: results.md, results.json, accuracy.png; every answer: results/")


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="A run's directory, or one checkpoint in it.")],
    out: Annotated[Path, typer.Argument(help="New directory for safetensors weights, tokenizer and remem.json.")],
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    best: Annotated[bool, typer.Option(help="The best checkpoint by validation instead of the newest.")] = False,
) -> None:
    """Export a checkpoint as a Hugging Face directory that transformers and `remem answer` load."""
    from remem_jax.convert import convert as run

    print(f"written: {run(source, out, dtype=dtype, best=best)}")


def _load(model, dtype, attention, prompts, memory_tag, settings, *, weights: bool):
    """The agent, its tags changed where asked."""
    if dtype not in (None, "float32", "bfloat16", "float16"):
        raise RememError(f"dtype must be float32, bfloat16 or float16, found {dtype}")
    from remem_jax.agent.api import load_agent

    if memory_tag is not None:
        from remem_jax.agent.protocol import Tags

        settings["tags"] = Tags(memory=None if memory_tag.lower() == "none" else memory_tag)
    return load_agent(model, dtype=dtype, attention=attention, prompts=prompts, weights=weights, **settings)


def _answer(loaded, readings, terminal, seed: int, questions_in_flight: int, trace: Path | None, as_json: bool) -> None:
    """Run the agent, show its progress, print the answers."""
    from remem_jax.agent.api import answer_of
    from remem_jax.observe.trajectories import TraceWriter

    writer = TraceWriter(trace, loaded.agent.model.tokenizer) if trace is not None else None

    def on_turn(progress) -> None:
        if writer is not None:
            writer(progress)
        terminal.turn(progress)

    with terminal.reading(loaded.memory_turns(readings[0])):
        episodes = loaded.agent.run(readings, seed=seed, questions_in_flight=questions_in_flight, on_turn=on_turn)
    if writer is not None:
        writer.close()
    for of_question in episodes:
        found = answer_of(of_question[0])
        if as_json:
            print(json.dumps({"agent": loaded.config.agent, **found.summary()}, ensure_ascii=not _writes_unicode()))
        else:
            terminal.answer(found)


def _questions(given: list[str], file: Path | None) -> list[str]:
    """Questions of the command line and of a file, none of them blank."""
    found = list(given)
    if file is not None:
        from remem_jax.data.documents import json_lines, read_text, string_field

        if file.suffix == ".jsonl":
            found += [string_field(value, "question", place) for place, value in json_lines(file)]
        else:
            found += [line.strip() for line in read_text(file).splitlines() if line.strip()]
    if not found:
        where = f"found none in {file}" if file is not None else "give --question TEXT or --questions FILE"
        raise RememError(f"expected a question, {where}")
    for text in found:
        if not text.strip():
            raise RememError("the question is empty: give a question of at least one word")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise RememError("the question is not UTF-8: give it in the terminal's encoding")
    return found


if __name__ == "__main__":
    main()
