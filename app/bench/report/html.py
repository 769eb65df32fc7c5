"""The report as one HTML file: its Markdown, rendered, with the plots inside, so that it can be put anywhere."""

from __future__ import annotations

import html
import re
from pathlib import Path

from markdown_it import MarkdownIt

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border: 1px solid #8886; padding: .25rem .6rem; text-align: right; white-space: nowrap; }
th:nth-child(-n+3), td:nth-child(-n+3) { text-align: left; }
pre, code { background: #8882; border-radius: 3px; } pre { padding: .6rem; overflow-x: auto; }
svg { max-width: 100%; height: auto; background: white; }
"""
_PLOT = re.compile(r'<p><img src="([\w-]+)\.png"[^>]*></p>')


def page(markdown: str, folder: Path) -> str:
    """The report's Markdown as a page; a plot is taken from the SVG that `folder` has beside its PNG."""
    # Raw HTML is text: the report quotes what servers said.
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    body = _PLOT.sub(lambda plot: _svg(folder / f"{plot[1]}.svg"), body)
    title = html.escape(markdown.partition("\n")[0].lstrip("# "))
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{body}</body></html>\n'


def _svg(path: Path) -> str:
    """The picture alone, without what makes it a file of its own."""
    text = path.read_text(encoding="utf-8")
    return f"<figure>{text[text.index('<svg') :]}</figure>"
