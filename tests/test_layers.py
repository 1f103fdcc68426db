"""Imports go down only, each heavy library has owners, and few files step an environment.

The tables say so; the rest of this file reads the sources and names what does not fit.
A name is a module below `recorder`; `convert.*` is every module in that folder,
`__init__` the package itself.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

FLOORS = (
    # From the ground up. A module imports from the floors below its own, and from its own but for cycles.
    "errors",
    (
        "asking columns digests files infos leaf limits repeated "
        "threads metadata metadata.annotation metadata.kinds spaces.array_json webp webp_codec"
    ),
    "metadata.vocabulary spaces spaces.*",
    "storages.base writing.rows",
    "storages.adopting storages.streams",
    "storages.table storages.table_*",  # what the table storages share
    (
        "storages.hdf5 storages.hdf5_files storages.image_files* "
        "storages.npz storages.parquet* storages.video storages.video_*"
    ),
    "storages.zarr storages.zarr_*",
    "storages.depth storages.dict",
    "storages",  # the storages by name
    "damage discarded episodes holdings index indexing repeated schema shard versions writing.staging",
    "episode memory recorded recorded_spaces routing routing.* selection writing writing.*",
    "catalogue rebuilding recording",
    (
        "filming following gif preview replay_buffer replay_buffer.* replaying replaying.* statistics statistics.* "
        "step_cost stepping summary tiling timing training_data vector vector.* verify windows windows.* wrapper"
    ),
    "bare bare.* multiagent testing testing.* torch view view.*",
    "collect convert convert.* edit edit.*",
    "cli cli.*",
    "__init__ __main__",  # the public names, and `python -m recorder`
)

OWNERS = {
    # What is large, slow to import or optional is imported by these modules and no others.
    "av": "gif preview storages.video storages.video_*",
    "h5py": "bare.hdf5* convert.* storages.hdf5 writing.pipeline",
    "imagecodecs": "preview replay_buffer.packing replay_buffer.pictures "
    "storages.image_files* storages.zarr_* webp webp_codec",
    "matplotlib": "cli.* replaying.plotting statistics",
    "numcodecs": "convert.* replay_buffer.* storages.zarr_*",
    "pyarrow": "bare.parquet convert.* storages.parquet*",
    "pettingzoo": "multiagent",
    "ray": "collect",
    "starlette": "view view.*",
    "torch": "torch",
    "tqdm": "cli cli.* collect convert.* replaying.many replaying.reobserving replay_buffer.*",
    "typer": "cli cli.*",
    "uvicorn": "view view.*",
    "zarr": "convert.* replay_buffer.* storages.zarr storages.zarr_* webp_codec",
}

STEPPERS = "cli cli.* collect multiagent replaying.driving stepping vector vector.* wrapper"
"""The modules that may call `step` of an environment."""

ROOT = Path(__file__).resolve().parent.parent / "recorder"
HERE = "tests/test_layers.py"


class Import(NamedTuple):
    """One import: the line that holds it, the module that does it, and what it imports, as a full name."""

    where: str
    module: str
    imported: str


def sources(root: Path) -> dict[str, Path]:
    """Name every module of a package by its path below it; the package itself is `__init__`."""
    parts = {path: path.relative_to(root).with_suffix("").parts for path in sorted(root.rglob("*.py"))}
    return {".".join(each).removesuffix(".__init__"): path for path, each in parts.items()}


def imported_names(node: ast.AST, package: Sequence[str], known: frozenset[str]) -> Iterator[str]:
    """Yield what an import statement imports; `from a import b` means the module `a.b` where there is one."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package[: len(package) - node.level + 1] if node.level else ()
        base = ".".join([*above, *([node.module] if node.module else [])])
        inner = [f"{base}.{alias.name}" for alias in node.names]
        yield from (name if name in known else base for name in inner)


def imports(root: Path) -> list[Import]:
    """List all imports of a package, those inside functions and below `TYPE_CHECKING` too."""
    found = sources(root)
    known = frozenset(f"{root.name}.{module}" for module in found)
    rows = []
    for module, path in found.items():
        folder = (root.name, *path.relative_to(root).parts[:-1])
        for node in ast.walk(ast.parse(path.read_text())):
            for name in imported_names(node, folder, known):
                where = f"{path.relative_to(root.parent)}:{getattr(node, 'lineno', 0)}"
                rows.append(Import(where, module, name))
    return rows


def inner_imports(root: Path) -> list[Import]:
    """List the imports of a package from itself, with the imported module named below the package."""
    rows = [row for row in imports(root) if row.imported.split(".")[0] == root.name]
    return [row._replace(imported=row.imported.partition(".")[2] or "__init__") for row in rows]


def matches(module: str, names: str) -> bool:
    """Tell whether a module is one of the names, which are separated by spaces."""
    return any(fnmatchcase(module, name) for name in names.split())


def floor_of(module: str, floors: Sequence[str]) -> int | None:
    """Return the floor that a module is on, from the ground up."""
    return next((i for i, floor in enumerate(floors) if matches(module, floor)), None)


def homeless(root: Path, floors: Sequence[str]) -> list[str]:
    """List the modules that are on no floor."""
    modules = {module: path for module, path in sources(root).items() if floor_of(module, floors) is None}
    return [
        f"{path.relative_to(root.parent)} is on no floor: add {module!r} to FLOORS in {HERE}"
        for module, path in modules.items()
    ]


def upward(root: Path, floors: Sequence[str]) -> list[str]:
    """List the imports that go up."""
    faults = []
    for where, module, imported in inner_imports(root):
        own, other = floor_of(module, floors), floor_of(imported, floors)
        if own is not None and other is not None and other > own:
            faults.append(
                f"{where} imports {root.name}.{imported} from floor {other}, but {module!r} is on floor {own}"
            )
    return faults


def cycle(root: Path) -> list[str]:
    """List the modules of one cycle of imports, if there is any."""
    graph: dict[str, set[str]] = {}
    for _, module, imported in inner_imports(root):
        if imported != module:
            graph.setdefault(module, set()).add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [str(module) for module in reversed(error.args[1])]
    return []


def trespassing(root: Path, owners: Mapping[str, str]) -> list[str]:
    """List the imports of heavy libraries by modules that do not own them."""
    return [
        f"{where} imports {imported}, which only {owners[library]} may: see OWNERS in {HERE}"
        for where, module, imported in imports(root)
        if (library := imported.split(".")[0]) in owners and not matches(module, owners[library])
    ]


def stepping(root: Path, steppers: str) -> list[str]:
    """List the calls of a method `step` in modules that leave environments alone."""
    return [
        f"{path.relative_to(root.parent)}:{node.lineno} calls step, which only {steppers} may"
        for module, path in sources(root).items()
        if not matches(module, steppers)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "step"
    ]


def report(faults: Sequence[str]) -> None:
    """Fail with one fault a line."""
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


def test_every_module_is_on_a_floor() -> None:
    report(homeless(ROOT, FLOORS))


def test_imports_go_down_only() -> None:
    report(upward(ROOT, FLOORS))


def test_imports_make_no_cycle() -> None:
    found = cycle(ROOT)
    assert not found, f"a cycle of imports: {' -> '.join(found)}"


def test_heavy_libraries_are_imported_by_their_owners_only() -> None:
    report(trespassing(ROOT, OWNERS))


def test_few_modules_step_an_environment() -> None:
    report(stepping(ROOT, STEPPERS))


class TestTheChecksThemselves:
    """Each check finds what it is for, in a package of a few lines."""

    floors = ("low", "rooms.left rooms.right", "top rooms", "__init__")

    @pytest.fixture
    def package(self, tmp_path: Path) -> Path:
        root = tmp_path / "house"
        (root / "rooms").mkdir(parents=True)
        for name in ("__init__", "low", "top", "rooms/__init__", "rooms/left", "rooms/right"):
            (root / f"{name}.py").write_text("import os\n")
        return root

    def test_a_good_package_has_no_faults(self, package: Path) -> None:
        (package / "top.py").write_text("from house.rooms import left\nfrom . import low\nimport house.rooms.right\n")
        (package / "rooms/left.py").write_text("from .right import x\nfrom ..low import y\nfrom os import path\n")
        assert homeless(package, self.floors) == upward(package, self.floors) == cycle(package) == []

    @pytest.mark.parametrize(
        "statement",
        [
            "import house.top",
            "from house import top",
            "from house.top import x",
            "from . import top",
            "from .top import x",
        ],
    )
    def test_an_import_that_goes_up_is_named_with_its_line(self, package: Path, statement: str) -> None:
        (package / "low.py").write_text(f"import os\n\n\ndef late():\n    {statement}\n")
        assert upward(package, self.floors) == [
            "house/low.py:5 imports house.top from floor 2, but 'low' is on floor 0"
        ]

    def test_an_import_of_the_package_itself_goes_up(self, package: Path) -> None:
        (package / "top.py").write_text("from house import __version__\n")
        assert upward(package, self.floors) == [
            "house/top.py:1 imports house.__init__ from floor 3, but 'top' is on floor 2"
        ]

    def test_relative_imports_in_a_folder_count_from_the_folder(self, package: Path) -> None:
        (package / "rooms/__init__.py").write_text("from .left import x\n")
        (package / "rooms/left.py").write_text("from .. import top\n")
        assert [row.imported for row in inner_imports(package)] == ["rooms.left", "top"]

    def test_a_module_on_no_floor_is_told_where_to_go(self, package: Path) -> None:
        (package / "rooms/cellar.py").touch()
        assert homeless(package, self.floors) == [
            f"house/rooms/cellar.py is on no floor: add 'rooms.cellar' to FLOORS in {HERE}"
        ]

    def test_a_cycle_on_one_floor_is_found(self, package: Path) -> None:
        (package / "rooms/left.py").write_text("from house.rooms.right import x\n")
        (package / "rooms/right.py").write_text("def late():\n    from house.rooms.left import x\n")
        assert set(cycle(package)) == {"rooms.left", "rooms.right"}

    def test_a_heavy_library_is_found_inside_a_function(self, package: Path) -> None:
        (package / "low.py").write_text("def late():\n    from zarr.codecs import ZstdCodec\n")
        assert trespassing(package, {"zarr": "top rooms.*"}) == [
            f"house/low.py:2 imports zarr.codecs, which only top rooms.* may: see OWNERS in {HERE}"
        ]
        assert trespassing(package, {"zarr": "low"}) == []

    def test_a_step_is_found(self, package: Path) -> None:
        (package / "low.py").write_text("def run(env):\n    env.reset()\n    env.step(0)\n")
        assert stepping(package, "top") == ["house/low.py:3 calls step, which only top may"]
        assert stepping(package, "low") == []
