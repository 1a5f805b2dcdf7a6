"""Fixtures for tests that run whole experiments: a small dataset and a finished run."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rarefish.experiments.datasets import FOLDER_VARIABLE
from tests import forked_processes
from tests.experiments.runs import COMMAND, ROOT
from tests.experiments.small import forget, write_few


@pytest.fixture(scope="session")
def few_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a few of the bundled digits in place of MNIST."""
    folder = tmp_path_factory.mktemp("data")
    write_few(folder)
    return folder


@pytest.fixture(scope="module")
def few_images(few_folder: Path) -> Iterator[None]:
    """That data folder, for this process and those it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(few_folder))
        forget()
        yield
    forget()


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, few_folder: Path) -> Path:
    """A finished run of `few()` that was never interrupted."""
    folder = tmp_path_factory.mktemp("run") / "whole"
    environment = {**os.environ, FOLDER_VARIABLE: str(few_folder)}
    command = [*COMMAND, "--output", str(folder), "--jobs", "1"]
    forked_processes.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    return folder
