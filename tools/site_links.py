"""For MkDocs: links of a page to files beside docs/ lead to the repository, so that they work there and on the site."""

import re
from typing import Any


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Turn `](../X)` into a link to `X` in the repository that mkdocs.yml names."""
    return re.sub(r"\]\(\.\./([^)]+)\)", rf"]({config.repo_url.rstrip('/')}/blob/main/\1)", markdown)
