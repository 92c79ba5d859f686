# SPDX-License-Identifier: Apache-2.0
"""Sphinx's settings of the site that build.py makes."""

project = "libgdn"
root_doc = "docs/index"
author = "the authors of libgdn"
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
myst_enable_extensions = ["html_image"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
mermaid_fullscreen = False
mermaid_height = "auto"
mermaid_init_config = {"startOnLoad": False, "flowchart": {"useMaxWidth": False}}
html_theme = "furo"
html_title = "libgdn"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
# Code blocks that are parts of programs, and formulas in them, are not always what a lexer takes.
suppress_warnings = ["misc.highlighting_failure"]
