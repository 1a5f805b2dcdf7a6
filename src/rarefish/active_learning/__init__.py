"""The active learning loop: select, label, train, evaluate."""

from typing import TYPE_CHECKING

from rarefish.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from rarefish.active_learning.oracles import known_labels, label_file, noisy, refusing
    from rarefish.active_learning.records import Record, read_records, write_records
    from rarefish.active_learning.resume import RoundFiles
    from rarefish.active_learning.rounds import Round, Task, advance, run_rounds
    from rarefish.active_learning.stopping import Outlook, expect_gain, failing_classes

__all__ = [
    "Outlook",
    "Record",
    "Round",
    "RoundFiles",
    "Task",
    "advance",
    "expect_gain",
    "failing_classes",
    "known_labels",
    "label_file",
    "noisy",
    "read_records",
    "refusing",
    "run_rounds",
    "write_records",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "oracles": ("known_labels", "label_file", "noisy", "refusing"),
        "records": ("Record", "read_records", "write_records"),
        "resume": ("RoundFiles",),
        "rounds": ("Round", "Task", "advance", "run_rounds"),
        "stopping": ("Outlook", "expect_gain", "failing_classes"),
    },
)
