"""For mkdocs: the version, a page for each verb in the navigation, and a table of them on the first page.

So a new verb needs its page and nothing else here. mkdocs.yml names this file among its hooks.
"""

from __future__ import annotations

from typing import Any

from hpckit.cli.main import VERBS
from hpckit.version import __version__

FOLDER = "reference/cli"
TABLE = "<!-- the verbs -->"


def on_config(config: Any) -> Any:
    """Name the version, and put the pages of verbs behind the one that the navigation names."""
    config["site_name"] += f" {__version__}"
    _expand(config["nav"])
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in the table of verbs: what `hpckit --help` says of each."""
    lines = (f"| [`{verb}`]({verb}.md) | {line} |" for verb, line in VERBS.items())
    table = "\n".join(("| verb | what it does |", "|---|---|", *lines))
    return markdown.replace(TABLE, table) if page.file.src_uri == f"{FOLDER}/index.md" else markdown


def _expand(entries: list[Any]) -> None:
    for entry in list(entries):
        for inner in entry.values() if isinstance(entry, dict) else ():
            if isinstance(inner, list):
                _expand(inner)
        if entry == f"{FOLDER}/index.md":
            entries += [{verb: f"{FOLDER}/{verb}.md"} for verb in VERBS]
