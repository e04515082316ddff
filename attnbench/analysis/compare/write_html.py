"""A comparison as one self-contained HTML file, in the look of `report --html`: tables only, no script.

It asks for nothing from anywhere (its Content-Security-Policy forbids it), prints, and works by keyboard and in the
dark.
"""

from __future__ import annotations

from html import escape

from attnbench import __version__
from attnbench.analysis.compare import write_rows
from attnbench.analysis.compare.compare import Comparison
from attnbench.analysis.compare.write_answer import answer
from attnbench.analysis.compare.write_blocks import Block
from attnbench.report.html import palette
from attnbench.report.html.html_page import asset

STYLE = """
body { display: block; }
.answer { font-size: 1.15rem; max-width: 60rem; }
.rows { font-size: .9rem; }
.rows th { text-align: right; font-weight: 600; padding: .25rem .8rem; border-bottom: 1px solid var(--quiet);
  vertical-align: bottom; }
.rows td, .rows tbody th { padding: .18rem .8rem; border-top: 1px solid var(--grid); text-align: right; }
.rows .text { text-align: left; overflow-wrap: anywhere; }
.rows tbody th { font-weight: 400; border-bottom: 0; white-space: nowrap; }
.scroll { max-height: none; width: fit-content; max-width: 100%; }
nav ol { display: flex; flex-wrap: wrap; gap: 0 1.5rem; border-top: 0; padding-top: 0; }
@media print { nav { display: none; } .scroll { width: auto; } .rows { font-size: 7.5pt; } }
"""


def page(c: Comparison) -> str:
    """The whole file, with every cell."""
    title = " and ".join(machine.label for machine in c.machines)
    found = write_rows.blocks(c, every=True)
    parts = [f"<p class=answer>{escape(sentence)}</p>" for sentence in answer(c)]
    pairs = "".join(
        f"<tr><th scope=row>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in write_rows.descriptions(c)
    )
    parts.append(f"<table class=pairs><tbody>{pairs}</tbody></table>")
    links = [("warnings", "Warnings"), *((block.name, block.title) for block in found)]
    items = "".join(f"<li><a href='#{name}'>{escape(text)}</a></li>" for name, text in links)
    warnings = "".join(f"<li>{escape(line)}</li>" for line in write_rows.warnings(c)) or "<li>None.</li>"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>attnbench: {escape(title)}</title>
<style>
{palette.style()}
{asset("report.css")}{STYLE}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the tables</a>
<main id="main" tabindex="-1">
<header>
<h1>{escape(title)}, compared</h1>
{"".join(parts)}
</header>
<nav aria-label="Contents"><ol>{items}</ol></nav>
<section id="warnings"><h2>Warnings</h2>
<ul>{warnings}</ul>
</section>
{"".join(map(_section, found))}
<p class=quiet>{escape(write_rows.MORE)} Made by attnbench {__version__}.</p>
</main>
</body>
</html>
"""


def _section(block: Block) -> str:
    heads = "".join(f"<th scope=col{_side(block, i)}>{escape(text)}</th>" for i, text in enumerate(block.headings))
    lines = "".join(_row(block, row) for row in block.rows)
    note = f"<p class=quiet>{escape(block.note)}</p>" if block.note else ""
    return (
        f"<section id={block.name} aria-labelledby={block.name}-title>"
        f"<h2 id={block.name}-title>{escape(block.title)}</h2>{note}"
        f"<div class=scroll tabindex=0 role=region aria-labelledby={block.name}-title>"
        f"<table class=rows><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div></section>\n"
    )


def _row(block: Block, row: tuple[str, ...]) -> str:
    first, *rest = row
    cells = "".join(f"<td{_side(block, i)}>{escape(text)}</td>" for i, text in enumerate(rest, start=1))
    return f"<tr><th scope=row class=text>{escape(first)}</th>{cells}</tr>"


def _side(block: Block, i: int) -> str:
    return " class=text" if i in block.text else ""
