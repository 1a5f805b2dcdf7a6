"""Charts, statistics and report pages made from records."""

from typing import TYPE_CHECKING

from rarefish.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from rarefish.report.charts import draw_curves, draw_heatmaps, draw_recall, draw_tsne, save_figure
    from rarefish.report.curves import Curve, curve, labels_needed, labels_saved, labels_to_reach
    from rarefish.report.demo import run_demo
    from rarefish.report.experiment_page import write_report
    from rarefish.report.forecast import Forecast
    from rarefish.report.run_data import Contents, read_paper, read_runs
    from rarefish.report.statistics import Comparison, Saving, compare, compare_labels
    from rarefish.report.workspace_page import write_work_report

__all__ = [
    "Comparison",
    "Contents",
    "Curve",
    "Forecast",
    "Saving",
    "compare",
    "compare_labels",
    "curve",
    "draw_curves",
    "draw_heatmaps",
    "draw_recall",
    "draw_tsne",
    "labels_needed",
    "labels_saved",
    "labels_to_reach",
    "read_paper",
    "read_runs",
    "run_demo",
    "save_figure",
    "write_report",
    "write_work_report",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "charts": ("draw_curves", "draw_heatmaps", "draw_recall", "draw_tsne", "save_figure"),
        "curves": ("Curve", "curve", "labels_needed", "labels_saved", "labels_to_reach"),
        "demo": ("run_demo",),
        "experiment_page": ("write_report",),
        "forecast": ("Forecast",),
        "run_data": ("Contents", "read_paper", "read_runs"),
        "statistics": ("Comparison", "Saving", "compare", "compare_labels"),
        "workspace_page": ("write_work_report",),
    },
)
