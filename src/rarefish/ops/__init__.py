"""Fast paths: GPU kernels, compiled passes, CUDA graphs."""

from typing import TYPE_CHECKING

from rarefish.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from rarefish.ops.autotune import Tiles
    from rarefish.ops.compiled import AdaptivePass, CompiledPass, try_compile
    from rarefish.ops.cuda_graph import RecordedStep
    from rarefish.ops.fused_matching import (
        ClassProbabilities,
        PackedPoints,
        best_exactly,
        best_matches,
        is_fusible,
        pack,
    )

__all__ = [
    "AdaptivePass",
    "ClassProbabilities",
    "CompiledPass",
    "PackedPoints",
    "RecordedStep",
    "Tiles",
    "best_exactly",
    "best_matches",
    "is_fusible",
    "pack",
    "try_compile",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "autotune": ("Tiles",),
        "compiled": ("AdaptivePass", "CompiledPass", "try_compile"),
        "cuda_graph": ("RecordedStep",),
        "fused_matching": ("ClassProbabilities", "PackedPoints", "best_exactly", "best_matches", "is_fusible", "pack"),
    },
)
