"""A workspace: a folder with the index of images, rounds, labels and trained models of one labeling project."""

from typing import TYPE_CHECKING

from rarefish.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from rarefish.workspace.active_learning import choose_round, evaluate_model, train_model, training_for
    from rarefish.workspace.answers import Progress, Task, answer, disagreements, progress, settled, take, undo
    from rarefish.workspace.backup import Backup, back_up
    from rarefish.workspace.dataset import WorkspaceImages, open_images
    from rarefish.workspace.indexing import Indexed, index
    from rarefish.workspace.model import first_model, latest_model
    from rarefish.workspace.running import Running
    from rarefish.workspace.store import Store, create_store, is_workspace, open_store
    from rarefish.workspace.summary import summarize
    from rarefish.workspace.trust import check_trust, trust_model
    from rarefish.workspace.verification import verify

__all__ = [
    "Backup",
    "Indexed",
    "Progress",
    "Running",
    "Store",
    "Task",
    "WorkspaceImages",
    "answer",
    "back_up",
    "check_trust",
    "choose_round",
    "create_store",
    "disagreements",
    "evaluate_model",
    "first_model",
    "index",
    "is_workspace",
    "latest_model",
    "open_images",
    "open_store",
    "progress",
    "settled",
    "summarize",
    "take",
    "train_model",
    "training_for",
    "trust_model",
    "undo",
    "verify",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "active_learning": ("choose_round", "evaluate_model", "train_model", "training_for"),
        "answers": ("Progress", "Task", "answer", "disagreements", "progress", "settled", "take", "undo"),
        "backup": ("Backup", "back_up"),
        "dataset": ("WorkspaceImages", "open_images"),
        "indexing": ("Indexed", "index"),
        "model": ("first_model", "latest_model"),
        "running": ("Running",),
        "store": ("Store", "create_store", "is_workspace", "open_store"),
        "summary": ("summarize",),
        "trust": ("check_trust", "trust_model"),
        "verification": ("verify",),
    },
)
