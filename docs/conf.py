"""How the documentation is built: `sphinx-build -W docs docs/_build/html`."""

import importlib.util
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import recorder  # noqa: E402

project = "recorder"
author = "the recorder developers"
copyright = author
release = recorder.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"recorder {release}"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]  # JSON on these pages may be shortened with an ellipsis

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_mock_imports = [
    name
    for name in ("matplotlib", "obstore", "pyarrow", "ray", "starlette", "torch", "uvicorn")
    if importlib.util.find_spec(name) is None
]

# What a docstring holds that is not to be read as reStructuredText: examples, roles, and code in backticks.
LITERAL = re.compile(r"^ *>>> .*?(?:\n\s*\n|\Z)|:\w+:`[^`]+`|``.+?``|`[^`]+`", re.DOTALL | re.MULTILINE)

SECTION = """
## `{name}`

```{{eval-rst}}
.. automodule:: {name}
   :members:
   :show-inheritance:
```
"""


def modules() -> list[str]:
    """Name every public module that exists now, the package itself first."""
    paths = sorted((ROOT / "recorder").rglob("*.py"))
    parts = [path.relative_to(ROOT).with_suffix("").parts for path in paths]
    names = [".".join(part for part in each if part != "__init__") for each in parts]
    return [name for name in names if not any(part.startswith("_") for part in name.split("."))]


def fill_in_modules(app: Sphinx, page: str, source: list[str]) -> None:
    """Put a section for each module where the reference asks for them."""
    sections = "".join(SECTION.format(name=name) for name in modules())
    source[0] = source[0].replace("<!-- modules -->", sections)


def as_markdown(app: Sphinx, what: str, name: str, target: object, options: object, lines: list[str]) -> None:
    """Read a docstring as the sources mean it: code between single backticks, and a star is a star."""
    text, parts, end = "\n".join(lines), [], 0
    for match in LITERAL.finditer(text):
        literal = match.group()
        single = literal.startswith("`") and not literal.startswith("``")
        parts += [text[end : match.start()].replace("*", "\\*"), f"`{literal}`" if single else literal]
        end = match.end()
    parts.append(text[end:].replace("*", "\\*"))
    lines[:] = "".join(parts).split("\n")


def setup(app: Sphinx) -> None:
    """Fill in the reference as it is read, and mend docstrings before Napoleon looks for their sections."""
    app.connect("source-read", fill_in_modules)
    app.connect("autodoc-process-docstring", as_markdown, priority=400)
