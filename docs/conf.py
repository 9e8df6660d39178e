"""The documentation site: `make docs` builds it into docs/_build/html."""

import os
import re

from docutils import nodes
from sphinx.addnodes import pending_xref

import scrapy_bloom
from scrapy_bloom.all_settings import SETTINGS

REPOSITORY = "https://github.com/scrapy-bloom/scrapy-bloom"

project = "scrapy-bloom"
author = "The scrapy-bloom authors"
copyright = author  # noqa: A001 - Sphinx calls it so
version = release = scrapy_bloom.__version__

extensions = [
    "myst_parser",
    "notfound.extension",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"scrapy-bloom {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL", "")
html_use_index = html_domain_indices = html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
}

myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False
# docstrings write `names` as Markdown does
default_role = "code"

# The prompt is not copied, nor is what a command prints.
copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .go"

# Scrapy's own inventory of its documents lies beside this file, so that a build needs no network.
# A newer one: https://docs.scrapy.org/en/latest/objects.inv
intersphinx_mapping = {"scrapy": ("https://docs.scrapy.org/en/latest", "scrapy.inv")}

notfound_context = {
    "title": "No such page",
    "body": "<h1>No such page</h1><p>It may have moved. The search finds settings, stats and"
    " commands by their names, and the pages are listed beside this text.</p>",
}


def setup(app):
    app.add_object_type("setting", "setting", objname="setting")
    app.connect("doctree-read", note_settings)
    app.connect("doctree-read", link_settings)
    app.connect("doctree-read", note_short_code)


def note_settings(app, tree):
    """Make each setting an object of its heading, which a search finds first."""
    page = app.env.current_document.docname
    if page == "settings":
        places = {title.astext(): title.parent for title in tree.findall(nodes.title)}
        for name in sorted({setting.name for setting in SETTINGS}):
            identifier = places[name]["ids"][0]
            app.env.domains.standard_domain.note_object("setting", name, identifier)


def link_settings(app, tree):
    """Link the first mention of a setting on a page, ours or Scrapy's, to what tells of it."""
    page, linked = app.env.current_document.docname, set()
    own = {setting.name for setting in SETTINGS if page == "settings"}
    for literal in list(tree.findall(nodes.literal)):
        name = re.match(r"[A-Z][A-Z_]+[A-Z](?= =|$)|", literal.astext())[0]
        is_linked = isinstance(literal.parent, (nodes.reference, pending_xref, nodes.title))
        if not name or is_linked or name in own | linked:
            continue
        linked.add(name)
        link = pending_xref(
            "", refdomain="std", reftype="setting", reftarget=name, refdoc=page, refwarn=False
        )
        literal.replace_self(link)
        link += literal


def note_short_code(app, tree):
    """Name code whose words fit a line of a telephone, so that site.css keeps them whole."""
    for literal in tree.findall(nodes.literal):
        if all(len(word) <= 36 for word in literal.astext().split()):
            literal["classes"].append("short")
