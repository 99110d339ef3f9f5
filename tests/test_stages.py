"""A folder is a stage of the data's way, and imports only the stages before it."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "alltokens"

GROUND = ["errors", "shapes", "files", "kernels", "plain", "processes", "progress", "workers"]
STAGES = [
    *["geometry", "models", "sources", "labels", "annotate", "augment", "data", "mix", "objectives", "evaluate"],
    *["explain", "report", "train", "export", "recipes", "demo", "cli", "__main__"],
]
ORDER = dict.fromkeys(GROUND, 0) | {name: place for place, name in enumerate(STAGES, start=1)}


def imported_modules(path: Path, package: Path) -> set[str]:
    """Dotted names of everything a file imports, relative imports made absolute; inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            folder = ["alltokens", *path.relative_to(package).parts[:-1]]
            start = folder[: len(folder) - node.level + 1] if node.level else []
            source = ".".join([*start, *([node.module] if node.module else [])])
            names |= {f"{source}.{alias.name}" for alias in node.names}
    return names


def back_edges(package: Path) -> list[str]:
    """`file imports stage` for each import of a later stage, of one that has no place in the order, or of the whole."""
    edges = []
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package)
        if place.name == "__init__.py" and len(place.parts) == 1:
            continue  # what the package promises comes from every stage
        stage = place.parts[0].removesuffix(".py")
        for name in sorted(imported_modules(path, package)):
            first, *rest = name.split(".")
            if first != "alltokens" or rest[:1] == ["__version__"]:
                continue
            target = rest[0] if rest else "alltokens"
            if stage not in ORDER or target not in ORDER or ORDER[target] > ORDER[stage]:
                edges.append(f"{place} imports {target}")
    return edges


def plant(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_no_stage_imports_a_later_one():
    assert back_edges(PACKAGE) == []


@pytest.mark.parametrize(
    "statement",
    [
        "from alltokens.train.loop import step",
        "from alltokens.train import loop",
        "from alltokens import train",
        "import alltokens.train",
        "from ..train import loop",
        "def late():\n    import alltokens.train.loop",
    ],
)
def test_a_planted_back_edge_is_found(tmp_path, statement):
    planted = {"models/vit.py": statement, "train/loop.py": "from alltokens.models.vit import late"}
    assert back_edges(plant(tmp_path, planted)) == ["models/vit.py imports train"]


def test_ground_imports_no_stage(tmp_path):
    assert back_edges(plant(tmp_path, {"plain.py": "import alltokens.models"})) == ["plain.py imports models"]


def test_a_stage_without_a_place_in_the_order_is_found(tmp_path):
    assert back_edges(plant(tmp_path, {"helpers/a.py": "import alltokens.errors"})) == ["helpers/a.py imports errors"]


def test_importing_the_whole_package_is_found(tmp_path):
    assert back_edges(plant(tmp_path, {"models/a.py": "import alltokens"})) == ["models/a.py imports alltokens"]


def test_earlier_stages_and_neighbours_may_be_imported(tmp_path):
    text = "import torch\nfrom alltokens.errors import UserError\nfrom alltokens.models import vit\nfrom . import loop"
    assert back_edges(plant(tmp_path, {"train/trainer.py": text})) == []
