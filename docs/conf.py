"""The documentation site: `make docs` builds it into docs/_build/html."""

import scrapy_bloom

project = "scrapy-bloom"
author = "The scrapy-bloom authors"
copyright = author  # noqa: A001 - Sphinx calls it so
version = release = scrapy_bloom.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.intersphinx"]
exclude_patterns = ["_build"]
html_theme = "sphinx_rtd_theme"
html_static_path = ["_static"]
html_use_index = html_domain_indices = False
html_css_files = ["site.css"]
html_show_sphinx = False

myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False
# docstrings write `names` as Markdown does
default_role = "code"
intersphinx_mapping = {}
