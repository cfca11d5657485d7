"""Reads any settings dataclass from YAML and dotted overrides, and checks names, types and values.

An unknown key is refused with the nearest name, and every message starts with the dotted name of the field it is about.
The string under a field is its documentation; `field_docs` hands it to help texts.
"""

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from remem_jax.errors import RememError
from remem_jax.paths import expanded, local, url_of

T = TypeVar("T")


def expand_paths(config: Any, *names: str) -> None:
    """Paths may begin with `~`, which a shell leaves alone behind `run_dir=` and in a file, or with `file://`."""
    for name in names:
        value = getattr(config, name)
        if value is not None:
            object.__setattr__(config, name, expanded(value))


def expect(holds: bool, name: str, expected: str, found: Any) -> None:
    """Raises RememError `name: expected ..., found ...` unless `holds`."""
    if not holds:
        raise RememError(f"{name}: expected {expected}, found {_short(found)}")


def expect_one_of(name: str, found: str, allowed: Sequence[str]) -> None:
    """Raises RememError unless `found` is one of `allowed`."""
    expect(found in allowed, name, f"one of {', '.join(allowed)}", found)


def check_types(config: Any) -> None:
    """Raises RememError for the first field of a dataclass whose value isn't of its declared type."""
    for name, hint in settings_of(type(config)).items():
        _check_type(name, getattr(config, name), hint)


@functools.cache
def settings_of(cls: type) -> dict[str, Any]:
    """Field name -> type of a settings dataclass."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _check_type(name: str, value: Any, hint: Any) -> None:
    if not _is_of(value, hint):
        raise RememError(f"{name}: expected {_spell(hint)}, found {_short(value)} ({kind_of(value)})")


def _short(value: Any) -> str:
    """The value as Python writes it, cut to a length that a line of error can hold."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _is_of(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_is_of(value, part) for part in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and all(_is_of(item, arguments[0]) for item in value)
    if origin is not None:
        key, item = arguments
        return isinstance(value, Mapping) and all(_is_of(k, key) and _is_of(v, item) for k, v in value.items())
    if hint in (int, float):  # True and False are ints to Python, not to a reader of a configuration
        return isinstance(value, (int, float) if hint is float else int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _spell(hint: Any) -> str:
    """A type in a reader's words: `int | None` is 'a whole number or none'."""
    plain = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
        type(None): "none",
        object: "any value",
    }
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_spell(part) for part in arguments)
    if origin is tuple:
        return f"a list of: {_spell(arguments[0])}"
    if origin is not None:
        return f"a mapping from {_spell(arguments[0])} to {_spell(arguments[1])}"
    if dataclasses.is_dataclass(hint):
        return f"a mapping with some of {', '.join(settings_of(hint))}"  # pyright: ignore[reportArgumentType]
    return plain[hint]


def kind_of(value: Any) -> str:
    """The kind of a value in a reader's words."""
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Mapping: "a mapping"}
    for kind, word in kinds.items():
        if isinstance(value, kind):
            return word
    return "none" if value is None else "a list" if isinstance(value, Sequence) else type(value).__name__


def from_mapping(cls: type[T], values: Any) -> T:
    """The dataclass `cls` with `values` over its defaults; nested mappings become nested dataclasses.

    Raises RememError, its message starting with the dotted name, for an unknown key (with the nearest one), a wrong
    type, a value out of range or a required field without a value.
    """
    hints = settings_of(cls)
    if not isinstance(values, Mapping):
        raise RememError(f"expected {_spell(cls)}, found {_short(values)} ({kind_of(values)})")
    made = {}
    for key, value in values.items():
        if key not in hints:
            raise RememError(f"{key}: expected a known setting, {nearest(str(key), hints)}")
        hint = hints[key]
        if dataclasses.is_dataclass(hint):
            value = _nested(key, typing.cast(type, hint), value)
        elif typing.get_origin(hint) is tuple and isinstance(value, list):
            value = tuple(value)
        elif typing.get_origin(hint) is Mapping and dataclasses.is_dataclass(typing.get_args(hint)[1]):
            item = typing.get_args(hint)[1]
            if isinstance(value, Mapping):
                value = {name: _nested(f"{key}.{name}", item, inner) for name, inner in value.items()}
        _check_type(key, value, hint)
        made[key] = value
    for f in dataclasses.fields(typing.cast(Any, cls)):
        if f.name not in made and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise RememError(f"{f.name}: expected {_spell(hints[f.name])}, found nothing: set it")
    return cls(**made)


def _nested(key: str, cls: type, value: Any) -> Any:
    try:
        return from_mapping(cls, value)
    except RememError as error:
        text = str(error)
        about_field = re.match(r"[^\s:]+: ", text)
        raise RememError(f"{key}.{text}" if about_field else f"{key}: {text}") from None


def nearest(name: str, known: Iterable[str]) -> str:
    """'did you mean ...' with the closest of `known`, or the whole list where none is close."""
    close = get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]}?" if close else f"one of {', '.join(known)}"


def load_config(cls: type[T], path: str | Path | None, overrides: Sequence[str] = ()) -> T:
    """Reads `cls` from a YAML file (None: defaults), then applies overrides such as `sampling.top_p=0.9`.

    Raises RememError for a file that can't be read or isn't YAML, an override that isn't `name=value`, and whatever
    `from_mapping` refuses.
    """
    import omegaconf
    import yaml

    for item in overrides:
        if not item.partition("=")[0].strip() or "=" not in item:
            raise RememError(f"override: expected name=value, such as sampling.top_p=0.9, found {item!r}")
    where = "overrides" if path is None else url_of(path) or str(path)
    try:
        base = omegaconf.OmegaConf.create({}) if path is None else omegaconf.OmegaConf.load(local(path))
        merged = omegaconf.OmegaConf.merge(base, omegaconf.OmegaConf.from_dotlist(list(overrides)))
        values = omegaconf.OmegaConf.to_container(merged, resolve=True)
    except FileNotFoundError:
        raise RememError(f"{path}: expected a YAML file, found no such file") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError, omegaconf.errors.OmegaConfBaseException, TypeError) as error:
        raise RememError(f"{where}: expected readable YAML settings, found: {one_line(error)}") from None
    try:
        return from_mapping(cls, values)
    except RememError as error:
        raise RememError(f"{where}: {error}") from None


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())


@functools.cache
def field_docs(cls: type) -> dict[str, str]:
    """Field name -> the string under it, for help texts."""
    body = typing.cast(ast.ClassDef, ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]).body
    docs = {}
    for statement, after in itertools.pairwise(body):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = " ".join(text.split())
    return docs
