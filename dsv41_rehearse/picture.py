# SPDX-License-Identifier: Apache-2.0
"""A picture of a run: drafts accepted over time, the loss and the recovery marked. Needs matplotlib, the extra "plot"."""

from __future__ import annotations

import importlib
import importlib.util

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dsv41_rehearse.report import LossReport, ReportError, RunReport, check_writable


INK: Final = "#1f2933"
QUIET: Final = "#7b8794"
LINE: Final = "#1f6feb"
LOST: Final = "#d1242f"
BACK: Final = "#1a7f37"
SMOOTH: Final = 5  # buckets that the line is a mean of
DPI: Final = 144


def check(path: Path) -> None:
    """Raise ReportError where no picture could be made, before a run is spent on it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ReportError("--plot needs matplotlib: pip install 'dsv41-proxyd[plot]'")
    if path.suffix.lower() != ".png":
        raise ReportError(f"cannot write the picture {path}: give a name that ends in .png")
    check_writable(path)


def draw(path: Path, report: RunReport) -> None:
    """Write the picture. Raises ReportError where that does not work."""
    # By name: an optional extra, which type checkers need not find.
    mpl: Any = importlib.import_module("matplotlib")
    figures: Any = importlib.import_module("matplotlib.figure")
    with mpl.rc_context({"font.size": 10, "axes.edgecolor": QUIET, "text.color": INK, "axes.labelcolor": INK}):
        figure = figures.Figure(figsize=(10, 4.6), layout="constrained")
        axes = figure.subplots()
        _curve(axes, report)
        for loss in report.loss_times:
            _mark(axes, loss)
        _dress(axes, report)
        try:
            figure.savefig(path, dpi=DPI, format="png", metadata={"Software": report.command})
        except OSError as error:
            raise ReportError(f"cannot write the picture {path}: {error.strerror}") from error


def _curve(axes: Any, report: RunReport) -> None:
    series = np.array(report.accepted_over_time).reshape(-1, 2)
    if not len(series):
        return
    seconds, accepted = series.T
    axes.fill_between(seconds, accepted, color=LINE, alpha=0.10, linewidth=0)
    axes.plot(seconds, accepted, color=LINE, alpha=0.35, linewidth=0.9)
    # The mean stops at a loss and begins anew: it must not show a fall before there was one.
    cuts = [at for loss in report.loss_times for at in (loss.hurt or loss.lost, loss.back) if at is not None]
    piece = np.searchsorted(np.array(sorted(cuts)), seconds)
    for one in np.unique(piece):
        mine = piece == one
        axes.plot(seconds[mine], _mean(accepted[mine]), color=LINE, linewidth=2.0, solid_capstyle="round")


def _mean(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the running mean; at the ends of those neighbours that are there."""
    ones = np.ones(min(SMOOTH, len(values)))
    return np.convolve(values, ones, "same") / np.convolve(np.ones_like(values), ones, "same")


def _mark(axes: Any, loss: LossReport) -> None:
    began = loss.hurt if loss.hurt is not None else loss.lost
    if began is None:
        return
    top = axes.get_xaxis_transform()
    end = loss.back if loss.back is not None else axes.get_xlim()[1]
    axes.axvspan(began, end, color=LOST, alpha=0.10, linewidth=0)
    axes.axvline(began, color=LOST, linewidth=1.4)
    word = "daemon killed" if loss.hurt is not None else f"session lost ({loss.reason})"
    axes.text(began, 0.985, f"{word}  ", color=LOST, transform=top, ha="right", va="top")
    if loss.back is None:
        return
    axes.axvline(loss.back, color=BACK, linewidth=1.4)
    since = (
        ""
        if loss.ready is None
        else f"\n  {(loss.back - loss.ready) * 1e3:.0f} ms after the next daemon was ready (dashed)"
    )
    axes.text(
        loss.back, 0.985, f"  drafting again{since}", color=BACK, transform=top, ha="left", va="top", linespacing=1.4
    )
    if loss.ready is not None:
        axes.axvline(loss.ready, color=QUIET, linewidth=1.0, linestyle=(0, (3, 2)))


def _dress(axes: Any, report: RunReport) -> None:
    highest = max((accepted for _, accepted in report.accepted_over_time), default=1.0)
    axes.set_ylim(0, max(0.5, highest * 1.25))  # room for what is written at the top
    axes.set_xlim(0, max(report.seconds, 0.1))
    axes.set_xlabel("seconds")
    axes.set_ylabel("drafts accepted a step" + (" (simulated)" if report.acceptance_simulated else ""))
    axes.grid(axis="y", color=QUIET, alpha=0.2, linewidth=0.8)
    axes.tick_params(colors=INK, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    output = "identical to the text" if report.identical else "NOT the text"
    mean = "" if report.accepted_per_step is None else f"{report.accepted_per_step:.2f} drafts accepted a step, "
    axes.set_title(
        f"{report.requests_completed} requests, {report.tokens} tokens, output {output}; {mean}"
        f"{report.target_only_steps} of {report.steps} steps target-only",
        loc="left", fontsize=10.5, color=INK, pad=10,
    )  # fmt: skip
