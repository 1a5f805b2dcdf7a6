"""Mutation tests: breaks the code in one place at a time and shows whether the tests notice.

    python tools/mutants.py --jobs 2 --output benchmarks/results/mutants.log

Each mutant of `mutant_list.py` replaces a text in a temporary copy of the source tree and runs the tests that should
fail. The working tree is never changed. Results are written to the output file as they come, and `--resume` keeps those
that it already has. The exit status is 1 if fewer than 95 % of the mutants are killed, or if a test fails without any
mutant.
"""

import argparse
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from queue import Queue

from mutant_list import MUTANTS, Mutant

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tests", "tools", "recipes")
"""Folders that are copied; everything else in the repository is linked."""
GENERATED = shutil.ignore_patterns(".hypothesis", ".pytest_cache", "*.egg-info", "node_modules")
NEEDED = 0.95
"""Fraction of the mutants that has to be killed."""
CPU_LIMIT_S = 300
"""Tests that use more CPU time, such as those of a loop that a mutant makes endless, count as failed."""
TIMEOUT_S = 1_800.0
"""Tests of a mutant that take longer than this, for example on a busy machine, have no result."""
PRELOADED = ["torch", "torch._dynamo", "numpy", "scipy.stats", "PIL.Image", "rich.console", "beartype", "pytest"]
"""Modules that are imported once, in the process that all test runs are forked from."""
KILLED, SURVIVED, BROKEN = "killed", "survived", "BROKEN"
FAST = (
    "pool's prior counts labeled pool images",
    "an ensemble scored by its first member",
)
"""Mutants of the part that the test suite runs, by name."""


@dataclass(frozen=True)
class Outcome:
    """The result of running the tests of a mutant."""

    mutant: str
    verdict: str
    """killed, survived, or BROKEN if the tests could not run or did not end in time."""
    by: str = ""
    """The test that failed; the end of the output of a broken run."""

    def line(self) -> str:
        return f"{self.verdict:8}  {self.mutant}" + (f"  [{self.by}]" if self.by else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="a mutant by name; may be repeated")
    parser.add_argument("--fast", action="store_true", help="only the few that the test suite runs")
    parser.add_argument("--list", action="store_true", help="list the mutants and run nothing")
    parser.add_argument("--jobs", type=int, default=2, help="number of mutants at a time")
    parser.add_argument("--output", type=Path, help="file for the results")
    parser.add_argument("--resume", action="store_true", help="keep the results that the output file already has")
    parser.add_argument(
        "--timeout",
        type=float,
        default=TIMEOUT_S,
        help="seconds after which the tests of a mutant are stopped without a result",
    )
    options = parser.parse_args()
    mutants = select_mutants(FAST if options.fast else options.only)
    if options.list:
        print(*(f"{mutant.name}: {mutant.file}" for mutant in mutants), sep="\n")
        return
    done = read_outcomes(options.output) if options.resume and options.output else {}
    outcomes = [done[mutant.name] for mutant in mutants if mutant.name in done]
    left = [mutant for mutant in mutants if mutant.name not in done]
    began = time.monotonic()
    for outcome in run_mutants(left, options.jobs, with_baseline=True, timeout=options.timeout):
        if outcome.mutant == UNCHANGED.name and outcome.verdict != SURVIVED:
            sys.exit(f"Without any mutant, a test fails: {outcome.by}")
        if outcome.mutant != UNCHANGED.name:
            outcomes.append(outcome)
            print(outcome.line(), flush=True)
            write_outcomes(options.output, mutants, outcomes)
    print(summary(outcomes), f"This took {time.monotonic() - began:.0f} s.", sep="\n")
    write_outcomes(options.output, mutants, outcomes, summary(outcomes))
    sys.exit(sum(outcome.verdict == KILLED for outcome in outcomes) < NEEDED * len(outcomes))


UNCHANGED = Mutant("no mutant", "__init__.py", "", "", ())
"""The tests of all mutants, on the code as it is."""


def select_mutants(names: Sequence[str] | None) -> list[Mutant]:
    """Returns the mutants with these names; all if there are none."""
    unknown = set(names or ()) - {mutant.name for mutant in MUTANTS}
    if unknown:
        sys.exit(f"There is no mutant {sorted(unknown)[0]!r}. --list shows their names.")
    return [mutant for mutant in MUTANTS if not names or mutant.name in names]


def run_mutants(
    mutants: Sequence[Mutant], jobs: int, with_baseline: bool = False, timeout: float = TIMEOUT_S
) -> Iterator[Outcome]:
    """Runs the tests of each mutant, several at a time; a baseline runs all of them without a mutant first.

    The timeout in seconds is that of a mutant; the baseline has none, and no limit of CPU time.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        copies: Queue[Path] = Queue()
        for number in range(jobs):
            copies.put(copy_tree(Path(place) / str(number)))

        def run(mutant: Mutant) -> Outcome:
            copy = copies.get()
            try:
                return run_one(mutant, copy, timeout)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(jobs) as pool:
            if with_baseline:
                tests = sorted({test for mutant in mutants for test in mutant.tests})
                parts = [tests[number::jobs] for number in range(jobs)]
                baseline = [replace(UNCHANGED, tests=tuple(part)) for part in parts if part]
                yield from pool.map(run, baseline)
            yield from pool.map(run, mutants)


def copy_tree(copy: Path) -> Path:
    """Copies the source tree with its compiled files, so that only a mutated module is compiled again."""
    copy.mkdir()
    for path in ROOT.iterdir():
        if path.name in COPIED:
            shutil.copytree(path, copy / path.name, ignore=GENERATED)
        elif not path.name.startswith("."):
            (copy / path.name).symlink_to(path)
    return copy


def apply(mutant: Mutant, source: str) -> str:
    """Returns the source text with the mutation; raises ValueError unless the old text occurs exactly once."""
    count = source.count(mutant.old)
    if count != 1:
        raise ValueError(f"The old text of {mutant.name!r} occurs {count} times in {mutant.file}, not once.")
    return source.replace(mutant.old, mutant.new)


def run_one(mutant: Mutant, copy: Path, timeout: float = TIMEOUT_S) -> Outcome:
    """Runs the tests of a mutant in a copy of the source tree, and restores the copy."""
    if not mutant.old:
        return run_tests(mutant, copy, None)
    file = copy / "src" / "rarefish" / mutant.file
    before, times = file.read_text(encoding="utf-8"), file.stat()
    try:
        file.write_text(apply(mutant, before), encoding="utf-8")
        # Python compares times in whole seconds, so that what is compiled from the original could seem up to date.
        os.utime(file, (times.st_atime + 1_000, times.st_mtime + 1_000))
        return run_tests(mutant, copy, timeout)
    finally:
        file.write_text(before, encoding="utf-8")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
            compiled.unlink()


def run_tests(mutant: Mutant, copy: Path, timeout: float | None) -> Outcome:
    """Runs pytest in a process forked from one that has already imported torch; without a timeout, until its end."""
    limit = CPU_LIMIT_S if timeout else resource.RLIM_INFINITY
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    log = copy / "output.log"
    process = context.Process(target=be_pytest, args=(str(copy), str(log), mutant.tests, limit))
    process.start()
    process.join(timeout)
    if process.is_alive():
        assert process.pid is not None
        with suppress(ProcessLookupError):  # it may not have its own group yet
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
        return Outcome(mutant.name, BROKEN, f"no result after {timeout:.0f} s")
    if process.exitcode == -signal.SIGXCPU:
        return Outcome(mutant.name, KILLED, f"more than {limit} s of CPU time")
    said = log.read_text(encoding="utf-8", errors="replace")
    failed = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", said, re.MULTILINE)
    if process.exitcode == 0:
        return Outcome(mutant.name, SURVIVED)
    if process.exitcode == 1 and failed:
        return Outcome(mutant.name, KILLED, failed[1])
    return Outcome(mutant.name, BROKEN, " ".join(said.split())[-300:])


def be_pytest(copy: str, log: str, tests: tuple[str, ...], limit: int) -> None:
    """Runs these tests on the code in `copy` and ends the process with pytest's exit status.

    The operating system ends the process if it uses more seconds of CPU time than the limit.
    """
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    os.chdir(copy)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    own = [f"{copy}/src", f"{copy}/tools", copy]
    sys.path[:] = [*own, *(path for path in sys.path if not path.startswith(str(ROOT / "src")))]
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS", "PYTHONDONTWRITEBYTECODE"):
        os.environ.pop(name, None)
    os.environ["PYTHONPATH"] = os.pathsep.join(own)
    sys.dont_write_bytecode = False
    import pytest

    how = ["-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-n", "0", "--hypothesis-seed=0"]
    status = pytest.main([*how, *(f"tests/{test}" for test in tests)])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(status))


def summary(outcomes: Sequence[Outcome]) -> str:
    """Returns the number and percentage of killed mutants, and the names of the others."""
    killed = sum(outcome.verdict == KILLED for outcome in outcomes)
    others = [outcome.mutant for outcome in outcomes if outcome.verdict != KILLED]
    share = 100 * killed / max(1, len(outcomes))
    return f"{killed} of {len(outcomes)} mutants killed ({share:.1f} %)." + (
        f" Left: {'; '.join(others)}." * bool(others)
    )


def write_outcomes(path: Path | None, mutants: Sequence[Mutant], outcomes: Sequence[Outcome], end: str = "") -> None:
    """Writes the outcomes so far, in the order of the list."""
    if path:
        place = {mutant.name: number for number, mutant in enumerate(mutants)}
        lines = [outcome.line() for outcome in sorted(outcomes, key=lambda outcome: place[outcome.mutant])]
        path.write_text("\n".join([*lines, *([end] if end else [])]) + "\n", encoding="utf-8")


def read_outcomes(path: Path) -> dict[str, Outcome]:
    """Returns the mutants that the file says are killed; all others are run again."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [re.fullmatch(rf"{KILLED} +(.+?)(?:  \[(.*)\])?", line) for line in lines]
    return {match[1]: Outcome(match[1], KILLED, match[2] or "") for match in found if match}


if __name__ == "__main__":
    main()
