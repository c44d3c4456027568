"""Mends what other extensions get wrong in a page."""

import re

from myst_nb.core import render

_coalesce = render.coalesce_streams


def join_streams(outputs):
    """Put what a cell printed in pieces together again; MyST-NB would break the line between two pieces."""
    first = {}
    for output in outputs:
        name = output.get("name")
        if output["output_type"] == "stream" and name in first:
            first[name]["text"] += output["text"]
        elif output["output_type"] == "stream":
            first[name] = output
    rest = [o for o in outputs if o["output_type"] != "stream" or o is first[o["name"]]]
    return _coalesce(rest)


def _tidy(app, pagename, templatename, context, doctree):
    body = context.get("body")
    if not body:
        return
    # sphinx-exercise and sphinx-proof give every box of a kind on a page the same id.
    body = re.sub(r' id="(?:(?:exercise|solution|proof)-content|proof)"', "", body)
    # docutils puts entries into a list without calling them its items.
    context["body"] = body.replace('role="doc-biblioentry"', 'role="listitem"')


def setup(app):
    """Register with Sphinx."""
    render.coalesce_streams = join_streams
    app.connect("html-page-context", _tidy)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
