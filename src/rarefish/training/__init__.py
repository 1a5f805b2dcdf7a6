"""Training: settings, the loop, evaluation, and backends that train many small networks at once."""

from typing import TYPE_CHECKING

from rarefish.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from rarefish.training.config import FINE_TUNING, Epoch, Training, TrainingResult
    from rarefish.training.cuda_streams import fit_many, fit_on_streams
    from rarefish.training.evaluation import Score, evaluate
    from rarefish.training.jobs import Job, fit_each
    from rarefish.training.loop import Share, fit
    from rarefish.training.rotation import ROTATION, PretrainingJob, pretrain_rotation
    from rarefish.training.vmapped import fit_vmapped

__all__ = [
    "FINE_TUNING",
    "ROTATION",
    "Epoch",
    "Job",
    "PretrainingJob",
    "Score",
    "Share",
    "Training",
    "TrainingResult",
    "evaluate",
    "fit",
    "fit_each",
    "fit_many",
    "fit_on_streams",
    "fit_vmapped",
    "pretrain_rotation",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "config": ("FINE_TUNING", "Epoch", "Training", "TrainingResult"),
        "cuda_streams": ("fit_many", "fit_on_streams"),
        "evaluation": ("Score", "evaluate"),
        "jobs": ("Job", "fit_each"),
        "loop": ("Share", "fit"),
        "rotation": ("ROTATION", "PretrainingJob", "pretrain_rotation"),
        "vmapped": ("fit_vmapped",),
    },
)
