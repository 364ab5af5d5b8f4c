"""Pages: the look that all HTML of surd shares, light and dark, without network; style and script stand beside this."""

from html import escape
from pathlib import Path

HERE = Path(__file__).parent


def style() -> str:
    """The style sheet."""
    return (HERE / "page.css").read_text(encoding="utf-8")


def script() -> str:
    """Chooses light or dark, and brings one series of a chart to the front."""
    return (HERE / "page.js").read_text(encoding="utf-8")


def document(title: str, part: str, script: str, body: str) -> str:
    """A whole page; `part` says which part of surd made it, `script` is an element, `body` is HTML."""
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{style()}</style>
{script}
<header><span>surd {escape(part)}</span><button id="theme" type="button" hidden></button></header>
<main>
{body}
</main>
</html>
"""
