"""The course as static pages, for those who only read: `make site`.

    python -m oplab.tools.site --to build/site

Every notebook with the outputs that are stored in it, linked pages and all, the two texts beside the
notebooks, and an index with the README's table of them. Nothing is run, and no page asks for the network.
"""

import argparse
import html
import re
import shutil
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter
from nbconvert.filters import markdown2html

from oplab.views.picture import image

ROOT = Path(__file__).parents[2]
TEXTS = ("README.md", "glossary.md")  # in notebooks/; README.md becomes teaching.html
STYLE = """body { font: 18px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse }
th, td { padding: .4rem .8rem; border-bottom: 1px solid #8886; text-align: left }
img { max-width: 100% } .anchor-link { display: none } pre, code { font-size: 16px } pre { overflow-x: auto }
:root { color-scheme: light dark }"""
FRAME = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>{style}</style></head>
<body><main>
{body}
</main></body></html>
"""


def build(root, to):
    """Writes the pages of the repository at `root` into the folder `to`. Returns the index's path."""
    to.mkdir(parents=True, exist_ok=True)
    for file in sorted((root / "notebooks").glob("*.ipynb")):
        _write(to / file.with_suffix(".html").name, notebook_page(file))
    for name in TEXTS:
        file = root / "notebooks" / name
        text = file.read_text("utf-8")
        _write(to / _page_of(name), text_page(text, text.splitlines()[0].lstrip("# ")))
    shutil.copy(root / "data/walk.png", to / "walk.png")
    index = to / "index.html"
    _write(index, text_page(index_text((root / "README.md").read_text("utf-8")), "oplab"))
    return index


def notebook_page(file):
    export = HTMLExporter(mathjax_url="", require_js_url="", mermaid_js_url="")  # no script from elsewhere
    page, _ = export.from_notebook_node(_described(nbformat.read(file, as_version=4)))
    return _local(page)


def _described(notebook):
    """A bare picture with the alternative text of its cell, which the exporter leaves out."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data, said = output.get("data", {}), cell.metadata.get("alt")
            if said and "image/png" in data and "text/html" not in data:
                data["text/html"] = image(data["image/png"].strip(), said)
    return notebook


def text_page(text, title):
    return FRAME.format(title=html.escape(title), style=STYLE, body=_local(markdown2html(text)))


def index_text(readme):
    """Of the README what somebody needs who only reads: its first words, its picture, its notebooks."""
    opening = readme.split("```")[0]
    table = re.search(r"^## Notebooks\n.*?(?=^## |\Z)", readme, re.DOTALL | re.MULTILINE)[0]
    more = "[For those who teach](notebooks/README.md) · [Glossary](notebooks/glossary.md)"
    return f"{opening}\n{table}\n{more}\n".replace("data/walk.png", "walk.png")


def _local(page):
    """Links between notebooks and texts lead to pages. What is in a frame is escaped, so left alone."""
    def to_page(found):
        folder, name, anchor = found.groups()
        return f'href="{_page_of(name)}{anchor or ""}"'

    return re.sub(r'href="(notebooks/)?([\w.]+\.(?:ipynb|md))(#[^"]*)?"', to_page, page)


def _page_of(name):
    return "teaching.html" if name == "README.md" else str(Path(name).with_suffix(".html"))


def _write(path, text):
    path.write_text(text, encoding="utf-8")


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m oplab.tools.site", description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, default=Path("build/site"), help="the folder to write into")
    print(f"the course as pages: {build(ROOT, parser.parse_args(argv).to)}")


if __name__ == "__main__":
    main()
