"""The report as one HTML page that loads nothing, runs no script, and shows all records as text."""

import base64
import dataclasses
import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Self

import matplotlib
from matplotlib.figure import Figure

# No script, font or link: pictures are data within the page, and the policy forbids the browser to fetch anything.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5a6675; --paper: #fff; --card: #f5f7fa; --line: #d8dee6;
  --yes: #1a7f37; --partly: #9a6700; --no: #c62828; --unknown: #5a6675; }
body { font: 16px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 76rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.7rem; margin: 0; } h2 { font-size: 1.25rem; margin: 2rem 0 .6rem; } p.soft, .soft { color: var(--soft); }
.verdict { border-left: .4rem solid var(--tone); background: var(--card); padding: .8rem 1.2rem; margin: 1.2rem 0;
  border-radius: .3rem; }
.verdict h2 { margin: 0 0 .4rem; color: var(--tone); } .verdict ul { margin: .3rem 0; padding-left: 0; list-style: none; }
.verdict li { padding-left: 1.6rem; text-indent: -1.6rem; } .mark { display: inline-block; width: 1.6rem; text-indent: 0; }
.yes { --tone: var(--yes); } .partly { --tone: var(--partly); } .no { --tone: var(--no); } .unknown { --tone: var(--unknown); }
.passed .mark { color: var(--yes); } .failed .mark { color: var(--no); font-weight: bold; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: .6rem; margin: 0; }
dl div { background: var(--card); border-radius: .3rem; padding: .5rem .8rem; } dt { color: var(--soft); font-size: .85rem; }
dd { margin: 0; font-size: 1.15rem; font-weight: 600; }
dd small { display: block; font-size: .8rem; font-weight: 400; color: var(--soft); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)); gap: 1.2rem; }
figure { margin: 0; break-inside: avoid; } figure.wide { grid-column: 1 / -1; }
img { width: 100%; height: auto; background: #fff; border: 1px solid var(--line); border-radius: .3rem; }
figcaption { font-size: .9rem; color: var(--soft); }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; } th, td { padding: .2rem .7rem; border-bottom: 1px solid var(--line); text-align: right; }
th { color: var(--soft); font-weight: 600; } td.word, th.word { text-align: left; overflow-wrap: anywhere; }
code { font-size: .9em; overflow-wrap: anywhere; } summary { cursor: pointer; }
footer { margin-top: 2rem; border-top: 1px solid var(--line); font-size: .85rem; color: var(--soft); }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #9aa7b6; --paper: #15181d; --card: #1e232b;
  --line: #343c48; --yes: #4ac26b; --partly: #d4a72c; --no: #ff7b72; --unknown: #9aa7b6; }
  img { border-color: #d8dee6; filter: invert(.91) hue-rotate(180deg); } }
@media print { body { max-width: none; padding: 0; font-size: 10pt; } .figures { grid-template-columns: 1fr 1fr; }
  .verdict, dl div { break-inside: avoid; border: 1px solid var(--line); } }
"""


@dataclasses.dataclass(frozen=True)
class EmbeddedPicture:
    """A figure of the page.

    Attributes:
      name: name of its file.
      caption: description of its content.
      svg: drawing as SVG.
      wide: True if it takes the whole width of the page.
    """

    name: str
    caption: str
    svg: bytes
    wide: bool = False

    @classmethod
    def of(cls, figure: Figure, name: str, caption: str, *, wide: bool = False) -> Self:
        """Return a figure of matplotlib for the page; the same figure has the same bytes."""
        svg = io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": "gemjax"}):
            figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        return cls(name, caption, svg.getvalue(), wide)


def page(title: str, sections: Iterable[str]) -> str:
    """Assemble a page; sections are HTML, the title is text."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(sections)
        + "\n</body>\n</html>\n"
    )


def heading(title: str, below: str) -> str:
    return f'<h1>{escape(title)}</h1>\n<p class="soft">{escape(below)}</p>'


def verdict_box(tone: str, headline: str, findings: Sequence[tuple[bool, str]], advice: Sequence[str]) -> str:
    """Box with the verdict, its findings and its advice."""
    rows = "".join(
        f'<li class="{"passed" if passed else "failed"}"><span class="mark">{"✓" if passed else "✗"}</span>{escape(text)}</li>'
        for passed, text in findings
    )
    steps = "".join(f'<li><span class="mark">→</span>{escape(text)}</li>' for text in advice)
    return (
        f'<section class="verdict {escape(tone)}"><h2>{escape(headline)}</h2><ul>{rows}</ul>'
        + (f"<p><strong>What to change</strong></p><ul>{steps}</ul>" if steps else "")
        + "</section>"
    )


def numbers(pairs: Sequence[tuple[str, str, str]]) -> str:
    """Key numbers, given as name, value and remark."""
    cells = (
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)} <small>{escape(remark)}</small></dd></div>"
        for name, value, remark in pairs
    )
    return f"<dl>{''.join(cells)}</dl>"


def figures(pictures: Iterable[EmbeddedPicture]) -> str:
    """Pictures, embedded in the page as data."""
    parts = []
    for picture in pictures:
        data = base64.b64encode(picture.svg).decode()
        wide = ' class="wide"' if picture.wide else ""
        parts.append(
            f'<figure{wide} id="{escape(picture.name)}"><img alt="{escape(picture.caption)}" '
            f'src="data:image/svg+xml;base64,{data}"><figcaption>{escape(picture.caption)}</figcaption></figure>'
        )
    return f'<div class="figures">{"".join(parts)}</div>'


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], words: Sequence[int] = ()) -> str:
    """Table whose columns in `words` are text, aligned to the left."""
    classes = [' class="word"' if column in words else "" for column in range(len(header))]
    head = "".join(f"<th{c}>{escape(name)}</th>" for name, c in zip(header, classes, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{c}>{escape(str(cell))}</td>" for cell, c in zip(row, classes, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def section(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def paragraph(text: str) -> str:
    return f'<p class="soft">{escape(text)}</p>'


def code(text: str) -> str:
    return f'<div class="scroll"><pre>{escape(text)}</pre></div>'


def folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def footer(text: str) -> str:
    return f"<footer><p>{escape(text)}</p></footer>"
