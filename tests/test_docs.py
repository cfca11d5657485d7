"""The documentation names things that exist."""

import importlib
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def test_every_function_of_the_map_from_method_to_code_exists():
    names = re.findall(r"`(remem_jax(?:\.\w+)+)`", (DOCS / "method.md").read_text())
    assert len(names) >= 19
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert callable(getattr(importlib.import_module(module), attribute)), name


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_relative_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        assert re.match(r"[a-z]+:", target) or (page.parent / target).exists(), target
