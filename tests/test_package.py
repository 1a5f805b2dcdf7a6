"""What can drift: exports, imports, sizes, style, types, generated pages, words a page must not have."""

import email
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import rarefish
from rarefish import errors

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "rarefish"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    tool = Path(sys.executable).parent / command[0]
    return subprocess.run([str(tool), *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)


def test_public_names() -> None:
    names = ["Descriptors", "Embeddings", "MonteCarlo", "Posterior", "RarefishError", "Selection", "describe"]
    names += ["embed", "select"]
    assert sorted(rarefish.__all__) == names
    assert all(getattr(rarefish, name).__name__ == name for name in rarefish.__all__)
    assert set(rarefish.__all__) <= set(dir(rarefish))
    with pytest.raises(AttributeError, match="no attribute 'selct'"):
        _ = rarefish.selct  # pyright: ignore[reportAttributeAccessIssue]


def test_version_is_said_once() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == rarefish.__version__


def test_every_error_is_in_the_picture() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__module__ == errors.__name__]
    assert errors.__doc__ is not None and all(kind.__name__ in errors.__doc__ for kind in kinds)
    assert all(issubclass(kind, (errors.RarefishError, Warning)) for kind in kinds)


def test_ruff() -> None:
    for command in (["check"], ["format", "--check"]):
        done = run("ruff", *command)
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_pyright() -> None:
    done = run("pyright", "--pythonpath", sys.executable)
    if "npm" in done.stderr or "nodeenv" in done.stderr:
        pytest.skip("pyright could not be fetched: no network")
    assert done.returncode == 0, done.stdout


def test_imports_point_down_only() -> None:
    done = run("lint-imports")
    assert done.returncode == 0, done.stdout


def test_the_method_is_read_in_one_sitting() -> None:
    from make_pages import METHOD

    sizes = {name: len((SOURCE / f"{name}.py").read_text().splitlines()) for name in METHOD}
    assert sum(sizes.values()) < 2300, sizes  # two methods, and three kinds of posteriors


def test_generated_pages_are_fresh() -> None:
    import make_pages

    hint = "run `make docs`"
    assert (ROOT / "docs/reference/cli.md").read_text() == make_pages.cli_page(), hint
    assert (ROOT / "docs/reference/files.md").read_text() == make_pages.files_page(), hint


def test_the_page_of_files_names_every_module_once() -> None:
    page = (ROOT / "docs/reference/files.md").read_text()
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        if path.name != "__init__.py" or path.parent == SOURCE:
            assert page.count(f"| `{name}` |") == 1, name
        else:
            assert page.count(f"## `src/rarefish/{path.parent.relative_to(SOURCE).as_posix()}/`") == 1, name


def test_tables_of_results_are_those_of_their_records() -> None:
    import make_results

    assert any("<!-- table: " in page.read_text() for page in make_results.pages())
    for page in make_results.pages():
        assert make_results.make_tables(page.read_text()) == page.read_text(), f"{page}: run `make docs`"


def test_tests_mirror_the_source() -> None:
    """Every module has its test file at the same place."""
    for path in SOURCE.rglob("[a-z]*.py"):
        module = path.relative_to(SOURCE)
        assert (ROOT / "tests" / module.parent / f"test_{module.name}").exists(), module


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} -> {target}"


def test_the_bundled_data_is_small_and_has_its_licence() -> None:
    assert (SOURCE / "data/digits.npz").stat().st_size < 4_000_000
    assert "CC BY-SA" in (SOURCE / "data/digits.LICENSE.md").read_text()


FIRST_SAFE = {
    "pillow": (13,),  # CVE-2026-112403 and others: decoding JPEG and TIFF wrote outside of buffers
    "pyarrow": (23, 0, 1),  # CVE-2023-47248 ran code from Arrow and Parquet files; CVE-2026-25087 used freed memory
    "jinja2": (3, 1, 6),  # CVE-2025-27516: a way out of the sandbox
    "starlette": (1, 3, 1),  # CVE-2026-48710, PYSEC-2026-248: a Host header or path could change request.url
}
"""Versions from which on no hole is known that our input could reach."""


def test_no_version_with_known_holes_is_admitted() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(need for extra in project["optional-dependencies"].values() for need in extra),
    ]
    floors = re.findall(r"^(\w+)>=([\d.]+)", "\n".join(wanted), re.MULTILINE)
    assert {name for name, _ in floors} >= FIRST_SAFE.keys()
    for name, floor in floors:
        assert tuple(map(int, floor.split("."))) >= FIRST_SAFE.get(name, ()), f"{name}>={floor}"


def test_a_wheel_holds_data_and_pages(tmp_path: Path) -> None:
    """What is installed from a wheel, not from this checkout, must have the digits and the templates."""
    copy = tmp_path / "copy"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "*.egg-info", "build", ".*_cache"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "setuptools" in done.stderr:
        pytest.skip("setuptools could not be fetched: no network")
    assert done.returncode == 0, done.stderr
    import zipfile

    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
    head = email.message_from_bytes(zipfile.ZipFile(wheel).read(metadata))
    assert head["License-Expression"] == "Apache-2.0 AND CC-BY-SA-3.0"
    licences = head.get_all("License-File", [])
    assert sorted(map(os.path.basename, licences)) == ["LICENSE", "digits.LICENSE.md"]
    assert all(f"{Path(metadata).parent}/licenses/{file}" in names for file in licences)
    for wanted in ("data/digits.npz", "data/digits.LICENSE.md", "report/demo.html", "py.typed"):
        assert f"rarefish/{wanted}" in names
