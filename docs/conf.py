"""Sphinx settings of the site; `make docs` builds it.

The source folder is the repository, so that relative links are the same in a checkout and on the
site. `site_pages` writes the pages that are made from code and results.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # nothing is trained here

import reference_pages  # noqa: E402
import site_pages  # noqa: E402

import astkit  # noqa: E402

project, author, version = "astkit", "The astkit authors", astkit.__version__
copyright = f"{author}, Apache-2.0"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "notebooks/*.ipynb",
    "notebooks/solutions/*.ipynb",
    "data/README.md",
    *site_pages.ROOT_PAGES,
]
exclude_patterns = [
    ".*",
    "astkit",
    "benchmarks",
    "tests",
    "out",
    "runs",
    "dist",
    "build",
    "**/.ipynb*",
]

nb_execution_mode = "off"  # the committed outputs are shown
nb_merge_streams = True
myst_enable_extensions = [
    "colon_fence",
    "fieldlist",
]  # no dollarmath: a "$" is a dollar
myst_heading_anchors = 3

napoleon_use_ivar = True
default_role = "py:obj"
autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    # of matplotlib figures, in a markup of its own; set for each policy
    "exclude-members": "set, chooses, observes",
}
autodoc_mock_imports = list(reference_pages.OPTIONAL)
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 88
nitpicky = True
# annotations may name internal types, and other projects have no inventories offline
nitpick_ignore_regex = [("py:class", r".*"), ("py:.*", r"(?!astkit).*")]

# a page's directives are comments on GitHub, which would show them as code
ON_SITE = re.compile(
    r"(?s)(?:<!-- on GitHub -->(?:(?!<!--).)*)?<!-- on the site\n(.*?)\n-->"
)

# of pages of results, tables of more than 6 rows that are not folded yet
RESULTS = ("docs/policies", "docs/measured", "docs/tried")
TABLE = re.compile(r"(?m)(?<!</summary>\n\n)^\|.*(?:\n\|.*){8,}")

# on GitHub a policy's name leads to its file, on the site to its page
POLICY = re.compile(r"\[(`?\w+`?)\]\(\.\./astkit/(?:aim|gating)/\S+\.py\)")

html_theme = "sphinx_book_theme"
html_title = f"astkit {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_theme_options = {
    "use_download_button": False,
    "use_fullscreen_button": False,
}


def setup(app: Any) -> None:
    """Write the generated pages before a build, and the address of the first page after it."""
    app.connect(
        "builder-inited",
        lambda app: site_pages.write(ROOT / "docs" / "generated"),
    )
    app.connect("source-read", _uncommented)
    app.connect("build-finished", _first_page)


def _uncommented(app: Any, name: str, source: list[str]) -> None:
    """Take the directives of a page out of its comments; name the pictures of a notebook."""
    if str(app.env.doc2path(name)).endswith(".ipynb"):
        source[0] = _with_alternative_texts(source[0])
        return
    source[0] = POLICY.sub(_policy, ON_SITE.sub(r"\1", source[0]))
    if name in RESULTS:
        source[0] = TABLE.sub(_folded, source[0])


def _with_alternative_texts(notebook: str) -> str:
    """A notebook whose cells have the texts of their pictures where myst_nb looks for them."""
    book = json.loads(notebook)
    for cell in book["cells"]:
        outputs = cell.get("outputs", ())
        about = [
            each.get("metadata", {}).get("image/png", {}) for each in outputs
        ]
        if texts := [each["alt"] for each in about if "alt" in each]:
            cell["metadata"]["mystnb"] = {"image": {"alt": "; ".join(texts)}}
    return json.dumps(book)


def _folded(table: re.Match[str]) -> str:
    """A table that a click opens, under the number of its rows and the names of its columns."""
    head, _, *rows = table[0].splitlines()
    columns = ", ".join(cell.strip() for cell in head.strip("| ").split("|"))
    summary = f"{len(rows)} rows: {columns.replace('`', '')}"
    return f"<details><summary>{summary}</summary>\n\n{table[0]}\n\n</details>"


def _policy(link: re.Match[str]) -> str:
    """A link to the file of a policy, as one to its page."""
    name = link[1].strip("`")
    known = name in site_pages.REGISTRIES["policy"]
    page = f"[{link[1]}](/docs/generated/policies/{name}.md)"
    return page if known else link[0]


def _first_page(app: Any, error: Exception | None) -> None:
    target = f"{root_doc}.html"
    link = f'<meta http-equiv="refresh" content="0; url={target}"><a href="{target}">astkit</a>'
    (Path(app.outdir) / "index.html").write_text(link, encoding="utf-8")
