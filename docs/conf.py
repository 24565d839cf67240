"""Settings of the documentation, which `make docs` builds."""

import inspect
import io
import os
import re
import shutil
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path
from unittest.mock import patch

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.util.docutils import SphinxDirective, SphinxRole

import ortpartial
from ortpartial.cli import main

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

# The gallery shows the scripts alone: the folders beside them have pages of their own.
SCRIPTS = HERE / "_build" / "scripts"
shutil.rmtree(SCRIPTS, ignore_errors=True)
SCRIPTS.mkdir(parents=True)
for file in (HERE / "gallery" / "GALLERY_HEADER.rst", *HERE.parent.glob("examples/plot_*.py")):
    shutil.copy2(file, SCRIPTS)

REPOSITORY = "https://github.com/ortpartial/ortpartial"

project = "ortpartial"
author = "The ortpartial authors"
copyright = author
version = release = ortpartial.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "_templates", "gallery"]
templates_path = ["_templates"]
nitpicky = True
# The values of attributes such as the `target_dtype` of a loss, which a page shows.
nitpick_ignore = [("py:class", "numpy.int64")]
default_role = "name"

# Pages.
myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath", "substitution"]
myst_heading_anchors = 3
copybutton_exclude = ".linenos, .gp, .go"

# The reference: numpydoc has the types, so signatures need not repeat them.
autosummary_generate = True
autodoc_typehints = "none"
autodoc_default_options = {"member-order": "bysource"}
# A page has the methods of its class and of bases that have no page.
DOCUMENTED_BASES = [
    "BaseLearningLoss", "BaseLearningPenalty", "BaseLearningRate", "Schedule", "WeightAverage", "WeightDecay",
    "Callback", "Module", "Initializer", "Exception", "UserWarning", "BaseEstimator", "ClassifierMixin",
    "RegressorMixin", "dict", "list", "object"]


def list_members(cls):
    """The members of a class that have a description of their own."""
    names = {n for c in cls.__mro__ if c is cls or c.__name__ not in DOCUMENTED_BASES for n in vars(c)}
    members = {n: getattr(cls, n) for n in names if not n.startswith("_")}
    codes = {n: v.fget if isinstance(v, property) else v for n, v in members.items()}
    return sorted(n for n, v in codes.items() if inspect.isroutine(v) and v.__doc__
                  and v.__module__.startswith("ortpartial"))


# The members of the largest classes have pages of their own.
LARGE = {"ortpartial.OrtGradientForwardBackwardOptimizer": ortpartial.OrtGradientForwardBackwardOptimizer,
         "ortpartial.OrtGradientOptimizer": ortpartial.OrtGradientOptimizer,
         "ortpartial.nn.Module": ortpartial.nn.Module}
autosummary_context = {"documented_bases": ", ".join(DOCUMENTED_BASES),
                       "large": {name: list_members(cls) for name, cls in LARGE.items()}}
numpydoc_show_class_members = False
add_module_names = False
toc_object_entries_show_parents = "hide"

# The gallery.
sphinx_gallery_conf = {
    "examples_dirs": "_build/scripts",
    "gallery_dirs": "examples",
    "filename_pattern": r"/plot_",
    "reset_argv": "draw_into_a_folder.draw_into_a_folder",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,
    "min_reported_time": 0,
    "remove_config_comments": True,
}

# The site.
html_theme = "pydata_sphinx_theme"
html_title = "ortpartial"
html_static_path = ["_static"]
html_css_files = ["ortpartial.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_toc_level": 2,
    "header_links_before_dropdown": 7,
    "navbar_align": "left",
    "navigation_with_keys": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "footer_start": ["copyright"],
    "footer_end": [],
}


class NameRole(SphinxRole):
    """What stands between backticks in a docstring: code, and a link where it is a name of this reference."""

    def run(self):
        code = nodes.literal(self.rawtext, self.text, classes=["py"])
        link = pending_xref("", code, refdomain="py", reftype="obj", reftarget=self.text.removesuffix("()"),
                            refdoc=self.env.docname, refexplicit=False, optional=True)
        for context in ("py:module", "py:class"):
            link[context] = self.env.ref_context.get(context)
        return [link], []


def resolve_name(app, env, node, content):
    """The page of a name of the package, for what is not one of the module at hand; else the code as it is."""
    if not node.get("optional"):
        return None
    found = env.domains["py"].resolve_xref(
        env, node["refdoc"], app.builder, "obj", f"ortpartial.{node['reftarget']}", node, content)
    return found or content


def leave_out(app, what, name, obj, skip, options):
    """Methods of other libraries, and those such as the `forward` of a layer, whose class says what it computes."""
    code = obj.fget if isinstance(obj, property) else obj
    if not inspect.isroutine(code):
        return None
    own = (getattr(code, "__module__", None) or "").startswith("ortpartial")
    return None if own and code.__doc__ else True


def sign(app, what, name, obj, options, signature, returns):
    """The parameters of a class, which Sphinx would read from a `__new__` that takes any."""
    if what != "class" or not signature:
        return None
    found = inspect.signature(obj)
    return str(found.replace(parameters=[p.replace(annotation=p.empty) for p in found.parameters.values()
                                         if not p.name.startswith("_")], return_annotation=found.empty)), None


def escape_bars(app, what, name, obj, options, lines):
    """The bars of absolute values, as in |e|, between which reStructuredText reads a name."""
    is_example = False
    for i, line in enumerate(lines):
        is_example = line.lstrip().startswith(">>>") or (is_example and bool(line.strip()))
        if not is_example:
            lines[i] = "`".join(p.replace("|", r"\|") if j % 2 == 0 else p for j, p in enumerate(line.split("`")))


def read_page(app, docname, source):
    """Put files of the repository where a page includes them, and lead links to what has no page to the repository."""
    page = Path(app.env.doc2path(docname))
    if page.suffix == ".md":
        source[0] = lead_links(source[0], page.parent, page.parent)
        included = r"(?m)^```{include} (\S+)\n```$"
        included = r"(?m)^```{include} (\S+)\n```$"
        source[0] = re.sub(included, lambda m: read_file(app, page, m[1]), source[0])


def read_file(app, page, path):
    file = (page.parent / path).resolve()
    app.env.note_dependency(str(file))
    return lead_links(file.read_text(encoding="utf-8"), file.parent, page.parent)


def lead_links(text, folder, page_folder):
    """The links of a text that is written for a folder, in a page of another one."""
    def lead(match):
        path, anchor = re.fullmatch(r"([^#]*)(.*)", match[1]).groups()
        target = (folder / path).resolve()
        if not path or not target.exists():
            return match[0]
        if target.is_relative_to(HERE):
            return f"]({os.path.relpath(target, page_folder)}{anchor})"
        return f"]({REPOSITORY}/blob/HEAD/{target.relative_to(HERE.parent)}{anchor})"

    return re.sub(r"\]\((?!https?:)([^)\s]+)\)", lead, text)


class CommandHelp(SphinxDirective):
    """The help of a command of the command line, as a terminal of 100 columns shows it."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        shown = io.StringIO()
        with patch.dict(os.environ, COLUMNS="100", NO_COLOR="1"), redirect_stdout(shown), suppress(SystemExit):
            main([*self.arguments[0].removeprefix("ortpartial").split(), "--help"])
        return [nodes.literal_block(shown.getvalue(), shown.getvalue(), language="text")]


def name_thumbnails(app, doctree):
    """The title of an example as the alternative text of its thumbnail, which the gallery leaves empty."""
    for image in doctree.findall(nodes.image):
        script = SCRIPTS / f"{Path(image['uri']).stem.removeprefix('sphx_glr_').removesuffix('_thumb')}.py"
        if not image.get("alt") and script.exists():
            image["alt"] = script.read_text(encoding="utf-8").splitlines()[1]


def setup(app):
    app.add_directive("command-help", CommandHelp)
    app.add_role("name", NameRole())
    app.connect("missing-reference", resolve_name)
    app.connect("source-read", read_page)
    app.connect("doctree-read", name_thumbnails)
    app.connect("autodoc-process-docstring", escape_bars, priority=100)
    app.connect("autodoc-process-signature", sign)
    app.connect("autodoc-skip-member", leave_out)
