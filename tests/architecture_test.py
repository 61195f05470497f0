"""What ARCHITECTURE.md says about imports, names and the wheel."""

import ast
import graphlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "kzoo"
FILES = sorted(PACKAGE.rglob("*.py"))

# Each imports only from those before it.
CHAIN = (
    "arguments",
    "config",
    "files",
    "ops",
    "layers",
    "models",
    "generation",
    "exporters",
    "tasks",
    "zoo",
    "cli",
    "__main__",
)
# Beside the chain: what each may import. Tasks and what follows join them.
BESIDE = {
    part: {"arguments", "config", *more}
    for part, more in {
        "tokenizers": (),
        "data": ("tokenizers",),
        "training": ("files", "ops"),
        "plots": ("files",),
        "families": ("checkpoints",),
        "checkpoints": ("files",),
    }.items()
}
JOINERS = ("tasks", "zoo", "cli")


def name_of(path):
    return str(path.relative_to(ROOT))


def part_of(path):
    """`kzoo/layers/attention.py` -> `layers`."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(tree, inside_functions=True):
    """The dotted names that a module imports, `from a import b` as `a.b`."""
    found, stack = [], [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "write imports in full: from kzoo.x import y"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if inside_functions or not is_function:
            stack.extend(ast.iter_child_nodes(node))
    return found


def top_levels(names):
    return {name.split(".")[0] for name in names}


def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def allowed_parts(part):
    if part in CHAIN:
        allowed = set(CHAIN[: CHAIN.index(part) + 1])
        return allowed | set(BESIDE) if part in JOINERS else allowed
    return BESIDE[part] | {part}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_one_way(path):
    if path == PACKAGE / "__init__.py":
        pytest.skip("joins everything, lazily")
    part = part_of(path)
    assert part in {*CHAIN, *BESIDE}, f"{part} has no place in ARCHITECTURE.md"
    used = {
        name.split(".")[1]
        for name in imports_of(parse(path))
        if name.startswith("kzoo.") and name != "kzoo.__version__"
    }
    assert used <= allowed_parts(part)


def test_no_files_import_each_other_in_a_loop():
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in FILES
        if path.name != "__init__.py"  # which only hands names on
    }
    uses = {
        module: {
            found
            for name in imports_of(parse(path))
            for found in (name, name.rpartition(".")[0])  # a module, or a name of one
            if found in modules
        }
        for module, path in modules.items()
    }
    assert len(uses["kzoo.tasks.task"]) > 5
    graphlib.TopologicalSorter(uses).prepare()  # a CycleError names the loop


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_tensorflow_is_imported_where_it_is_used(path):
    modules = top_levels(imports_of(parse(path), inside_functions=False))
    assert not modules & {"tensorflow", "tensorflow_datasets", "tf2onnx"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_onnx_stays_in_the_emitter_and_the_exporters(path):
    in_emitter = part_of(path) == "ops" and path.name.startswith("onnx")
    if not in_emitter and part_of(path) != "exporters":
        assert "onnx" not in top_levels(imports_of(parse(path)))


DATA_FILES = [
    path
    for path in FILES
    if part_of(path) in ("config", "families")
    or path == PACKAGE / "checkpoints" / "table.py"
]


@pytest.mark.parametrize("path", DATA_FILES, ids=name_of)
def test_configs_and_tables_are_data_without_keras(path):
    assert not top_levels(imports_of(parse(path))) & {"keras", "tensorflow", "jax"}


FAMILY = re.compile(
    r"(?<![a-z])(albert|bart|bert|deberta|distilbert|electra|gemma|gpt_?2|gpt_?j|"
    r"gpt_?neox|llama|marian|mistral|opt|phi|qwen|roberta|t5|xlm)[0-9]*(?![a-z])"
)
CORE = [
    path
    for path in FILES
    if part_of(path) in ("config", "ops", "layers", "models", "generation", "exporters")
]


def words_of_code(tree):
    """Identifiers and strings, but not docstrings, which may name a paper."""
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.add(id(node.value))
    for node in ast.walk(tree):
        for field in ("id", "attr", "name", "arg", "module"):
            if isinstance(getattr(node, field, None), str):
                yield getattr(node, field)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in docstrings:
                yield node.value


@pytest.mark.parametrize("path", CORE, ids=name_of)
def test_the_core_knows_no_family(path):
    named = {w for w in words_of_code(parse(path)) if FAMILY.search(w.lower())}
    assert not named


def test_a_family_name_would_be_noticed():
    tree = ast.parse('"""BERT."""\nif name == "gpt2": x.is_t5 = 1')
    assert {w for w in words_of_code(tree) if FAMILY.search(w)} == {"gpt2", "is_t5"}
    assert not FAMILY.search("option") and not FAMILY.search("adopt")


def test_importing_kzoo_imports_no_keras():
    code = (
        "import sys, kzoo; "
        "heavy = {'keras', 'tensorflow', 'jax', 'torch', 'numpy'}; "
        "assert not heavy & set(sys.modules); "
        "kzoo.ModelConfig, kzoo.StackConfig; "
        "assert not heavy & set(sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


def test_an_unknown_name_is_an_error_that_lists_the_known():
    import kzoo

    with pytest.raises(AttributeError, match="Public names: .*CausalLM"):
        kzoo.Encodr  # noqa: B018
    assert {"ModelConfig", "tasks", "__version__"} <= set(dir(kzoo))


def test_public_names_are_in_the_modules_they_are_said_to_be_in():
    import kzoo

    missing = []
    for name, module in kzoo._EXPORTS.items():
        path = ROOT / Path(*module.split("."))
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if not re.search(rf"\b{name}\b", source.read_text(encoding="utf-8")):
            missing.append(f"{module}.{name}")
    assert not missing


def test_the_list_without_tensorflow_is_a_part_of_the_dependencies():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    everything = set(project["project"]["dependencies"])
    for extra in project["project"]["optional-dependencies"].values():
        everything |= set(extra)
    for name, group in project["dependency-groups"].items():
        assert set(group) <= everything, name
    lean = project["dependency-groups"]["without-tensorflow"]
    assert not [name for name in lean if "tensorflow" in name or "tf2onnx" in name]


def test_every_dependency_has_its_reason():
    bare, inside = [], False
    for line in (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines():
        if line.startswith("[dependency-groups]"):
            break
        if re.fullmatch(
            r"(dependencies|test|metrics|gpu|jax|text|serve|notebooks) = \[", line
        ):
            inside = True
        elif line == "]":
            inside = False
        elif inside and "#" not in line:
            bare.append(line.strip())
    assert not bare


def test_the_wheel_contains_only_kzoo(tmp_path):
    pytest.importorskip("hatchling", reason="not in this environment; [test] has it")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"kzoo"}
    assert "kzoo/config/stack.py" in names
    data = [path for path in PACKAGE.rglob("*") if path.is_file()]
    data = [path for path in data if path.suffix not in (".py", ".pyc")]
    assert {path.relative_to(ROOT).as_posix() for path in data} <= set(names)
    assert not [name for name in names if name.endswith(".pyc")]
