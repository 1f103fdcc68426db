"""How the documentation is built: `sphinx-build -W docs docs/_build/html`."""

import importlib.util
import re
import sys
from pathlib import Path
from textwrap import indent

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import recorder  # noqa: E402

project = "recorder"
author = "the recorder developers"
copyright = author
release = recorder.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"recorder {release}"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]  # JSON on these pages may be shortened with an ellipsis

autoclass_content = "both"
autodoc_member_order = "bysource"
autodoc_mock_imports = [  # extras; zarr imports fsspec by itself where it is, so that one cannot be mocked
    name
    for name in ("matplotlib", "obstore", "pettingzoo", "pyarrow", "ray", "starlette", "torch", "uvicorn")
    if importlib.util.find_spec(name) is None
]

# What in a docstring is no prose: a fenced block, examples, a role, code in double and in single backticks.
LITERAL = re.compile(
    r"^(?P<margin> *)```(?P<language>\w*)\n(?P<block>.*?)^ *``` *$"
    r"|^ *>>> .*?(?:\n\s*\n|\Z)|:\w+:`[^`]+`|``.+?``|`(?P<code>[^`]+)`",
    re.DOTALL | re.MULTILINE,
)

SECTION = """
## `{name}`

```{{eval-rst}}
.. automodule:: {name}
   :members:
   :exclude-members: {excluded}
```
"""


def modules() -> list[str]:
    """Name every public module that exists now, the package itself first."""
    paths = sorted((ROOT / "recorder").rglob("*.py"))
    parts = [path.relative_to(ROOT).with_suffix("").parts for path in paths]
    names = [".".join(part for part in each if part != "__init__") for each in parts]
    return [name for name in names if not any(part.startswith("_") for part in name.split("."))]


def elsewhere(module: str) -> str:
    """Name what has its place in the section of the package, where a user imports it from."""
    return "" if module == "recorder" else ", ".join(getattr(recorder, "__all__", ()))


def fill_in_modules(app: Sphinx, page: str, source: list[str]) -> None:
    """Put a section for each module where the reference asks for them."""
    sections = "".join(SECTION.format(name=name, excluded=elsewhere(name)) for name in modules())
    source[0] = source[0].replace("<!-- modules -->", sections)


def literal(match: re.Match[str]) -> str:
    """Return code of a docstring as reStructuredText has it."""
    if match["block"] is not None:
        directive = f"{match['margin']}.. code-block:: {match['language'] or 'text'}"
        return f"{directive}\n\n{indent(match['block'], '   ')}"
    return f"``{match['code']}``" if match["code"] is not None else match.group()


def mend(app: Sphinx, what: str, name: str, target: object, options: object, lines: list[str]) -> None:
    """Read a docstring as the sources mean it, which is Markdown: a star in prose is a star."""
    text, parts, end = "\n".join(lines), [], 0
    for match in LITERAL.finditer(text):
        parts += [text[end : match.start()].replace("*", "\\*"), literal(match)]
        end = match.end()
    parts.append(text[end:].replace("*", "\\*"))
    lines[:] = "".join(parts).split("\n")


def setup(app: Sphinx) -> None:
    """Fill in the reference as it is read, and mend docstrings before Napoleon looks for their sections."""
    app.connect("source-read", fill_in_modules)
    app.connect("autodoc-process-docstring", mend, priority=400)
