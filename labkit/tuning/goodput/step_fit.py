"""The step times (:class:`StepTimes`) that fit measured ones, and how well, on rows left out."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import pandas as pd
from annotated_types import Ge
from numpy.typing import NDArray

from labkit.errors import UsageError
from labkit.kit.describe import checked
from labkit.tuning.goodput.step_times import (
    MAX_OVERLAP,
    SYNC_NAMES,
    StepTimes,
    SyncTier,
    allocation_of,
    sync_terms,
)

ComputeLaw = Literal["linear", "measured"]
SyncLaw = Literal["linear", "doubling"]

_NEEDED = ["num_nodes", "num_gpus", "atomic_bsz", "step_time_s"]
_POLLUX = {"num_replicas": "num_gpus", "local_bsz": "atomic_bsz", "step_time": "step_time_s"}
_ROBUST_AT = 0.1  # residuals of the logarithm beyond this (10 %) count less than squared
_STARTS = (1.2, 2.5)  # of the overlap exponent


@checked
def measurements(frame: pd.DataFrame) -> pd.DataFrame:
    """Read measured steps into a tidy table: allocation, num_nodes, num_gpus, atomic_bsz,
    step_time_s.

    ``frame`` has these columns or Pollux's (num_replicas, local_bsz, step_time); ``placement``
    (GPUs of each node as digits, 124 or "124") may stand for the allocation. Its ``sync_time``,
    where there, becomes ``compute_time_s``, the rest of the step, and may be given so. A column
    ``accum_steps`` may only hold 0.

    Raises:
        UsageError: a column is missing, a value is out of range, or the table is empty.
    """
    table = frame.rename(columns=_POLLUX)
    if "placement" in table:
        texts = table["placement"].astype(str)
        if (wrong := ~texts.str.fullmatch("[1-9]+")).any():
            raise UsageError(
                f"placement {texts[wrong].iloc[0]!r}: give the GPUs of each node as digits, such "
                "as 124"
            )
        gpus = [sum(map(int, text)) for text in texts]
        table = table.assign(allocation=texts, num_nodes=texts.str.len(), num_gpus=gpus)
    if missing := [name for name in _NEEDED if name not in table]:
        raise UsageError(f"measured steps lack the column {' and '.join(missing)}")
    if "accum_steps" in table and (table["accum_steps"] != 0).any():
        raise UsageError("measured steps with gradient accumulation cannot be fitted: leave out")
    known = [name for name in (*_NEEDED, "compute_time_s", "sync_time") if name in table]
    numbers = table[known].apply(pd.to_numeric, errors="coerce")
    if "sync_time" in numbers:
        numbers["compute_time_s"] = numbers["step_time_s"] - numbers.pop("sync_time")
    places = zip(numbers["num_nodes"], numbers["num_gpus"], strict=True)
    names = table.get("allocation", [f"{gpus:g} GPUs on {nodes:g}" for nodes, gpus in places])
    numbers.insert(0, "allocation", names)
    _check_measured(numbers)
    return numbers.reset_index(drop=True)


@checked
def fit(
    frame: pd.DataFrame, *, compute: ComputeLaw = "measured", sync: SyncLaw = "doubling"
) -> StepTimes:
    """The step times that fit measured ones best: bounded least squares on their logarithm.

    Args:
        frame: as :func:`measurements` takes it.
        compute: ``linear``: T_grad = a + b·m, as Pollux has it; ``measured``: any time at each
            measured batch size (kernels' speed may jump with it), linear between.
        sync: ``linear``: as Pollux has it, one tier for one node and one for several, each
            α + β(K − 2); ``doubling``: a third tier for just two nodes, times that grow with the
            logarithm of nodes and of GPUs a node, and the wait for the slowest GPU.

    Where ``compute_time_s`` is known it is fitted together with the step time. Residuals above
    10 % count less (soft L1), so that a few slow steps do not bend the fit. A coefficient that
    the rows cannot tell (say β from pairs of GPUs only) is 0; a tier without rows is left out.

    Raises:
        UsageError: as :func:`measurements`, or an unknown law.

    Source: Pollux §4.1 (fits the same form, by root mean squared logarithmic error).
    """
    return _Problem(measurements(frame), compute, sync).solve()


@checked
def cross_validate(
    frame: pd.DataFrame,
    *,
    by: Literal["row", "allocation", "atomic_bsz", "num_nodes", "num_gpus"] = "allocation",
    folds: Annotated[int, Ge(2)] = 5,
    compute: ComputeLaw = "measured",
    sync: SyncLaw = "doubling",
) -> pd.DataFrame:
    """Predict every measured step by a fit that has not seen it.

    Args:
        frame: measured steps, as :func:`measurements` takes them.
        by: ``row`` leaves out rows at random; a column (``allocation``, ``atomic_bsz``,
            ``num_nodes``) leaves out all rows of some of its values together.
        folds: how many fits; each leaves out one part.
        compute, sync: the laws, as :func:`fit` takes them.

    Returns:
        What :func:`measurements` returns, with predicted_s, predicted_grad_s (of the gradient
        alone) and relative_error (predicted over measured, minus 1).
    """
    table = measurements(frame)
    codes = np.arange(len(table)) if by == "row" else pd.factorize(table[by])[0]
    parts = int(codes.max()) + 1
    if folds > parts:
        raise UsageError(f"{folds} folds need as many of {by} to leave out, and there are {parts}")
    part = (np.random.default_rng(0).permutation(parts) % folds)[codes]
    predicted = np.empty(len(table))
    grad = np.empty(len(table))
    for fold in range(folds):
        out = part == fold
        fitted = _Problem(table[~out], compute, sync).solve()
        rows = table[out]
        predicted[out] = fitted.step_time_s(rows["num_nodes"], rows["num_gpus"], rows["atomic_bsz"])
        grad[out] = fitted.grad_s(rows["atomic_bsz"])
    error = predicted / table["step_time_s"] - 1
    return table.assign(predicted_s=predicted, predicted_grad_s=grad, relative_error=error)


# ---------------------------------------------------------------- the least squares


class _Problem:
    """Writes times as linear functions of coefficients ≥ 0, joined by the overlap exponent."""

    def __init__(self, table: pd.DataFrame, compute: ComputeLaw, sync: SyncLaw) -> None:
        self.unit_s = float(table["step_time_s"].median())
        self.sizes = np.sort(table["atomic_bsz"].unique()).astype(float)
        if len(self.sizes) < 2:
            raise UsageError(
                f"steps measured at a single batch size, {self.sizes[0]:g} on a GPU, cannot say "
                "how their time grows with it: measure two or more"
            )
        self.size = size = table["atomic_bsz"].to_numpy(float)
        self.as_measured = compute == "measured"
        line = np.stack([np.ones_like(size), size], 1)
        self.grad_terms = np.equal.outer(size, self.sizes) * 1.0 if self.as_measured else line
        self.coefficients, self.sync_terms = self._tiers(table, sync)
        self.doublings = np.log2(table["num_gpus"].to_numpy(float))
        self.waits = sync == "doubling" and bool(self.doublings.any())
        self.log_step = np.log(table["step_time_s"].to_numpy() / self.unit_s)
        known = table.get("compute_time_s")
        self.log_grad = None if known is None else np.log(known.to_numpy() / self.unit_s)

    def _tiers(
        self, table: pd.DataFrame, sync: SyncLaw
    ) -> tuple[list[tuple[int, str]], NDArray[np.float64]]:
        """List names and columns of the coefficients that the rows can tell."""
        nodes = table["num_nodes"].to_numpy()
        gpus = table["num_gpus"].to_numpy()
        starts = [1, 2] if sync == "linear" else [1, 2, 3]
        used = ("base_s", "per_gpu_s") if sync == "linear" else ("base_s", *SYNC_NAMES[2:])
        columns: dict[tuple[int, str], NDArray[np.float64]] = {}
        for start, end in zip(starts, [*starts[1:], np.inf], strict=True):
            inside = (gpus > 1) & (nodes >= start) & (nodes < end)
            if not inside.any():
                continue
            terms = sync_terms(nodes, gpus, np.full_like(nodes, start)).T
            for name, term in zip(SYNC_NAMES, terms, strict=True):
                if name in used and (name == "base_s" or np.ptp(term[inside]) > 0):
                    columns[start, name] = np.where(inside, term, 0.0)
        terms = np.stack([*columns.values()], 1) if columns else np.zeros((len(table), 0))
        return list(columns), terms

    def solve(self) -> StepTimes:
        """Search from several overlap exponents and keep the best fit."""
        from scipy.optimize import least_squares

        num_grad = self.grad_terms.shape[1]
        num_sync = self.sync_terms.shape[1]
        largest = np.r_[self.grad_terms.max(0), self.sync_terms.max(0, initial=1e-9)]
        self.scale = 1 / np.r_[largest, [1.0] * self.waits, 1]
        lower = np.r_[np.full(num_grad, 1e-9), np.zeros(num_sync + self.waits), 1.0]
        upper = np.r_[np.full(num_grad + num_sync + self.waits, np.inf), MAX_OVERLAP]
        fits = [
            least_squares(
                lambda point: self._residuals(point)[0],
                np.maximum(self._start(overlap) / self.scale, lower + 1e-3),
                jac=lambda point: self._residuals(point)[1],
                bounds=(lower, upper),
                loss="soft_l1",
                f_scale=_ROBUST_AT,
            )
            for overlap in _STARTS
        ]
        best = min(fits, key=lambda result: result.cost).x * self.scale
        # to six digits, as far as the search comes to the same on every processor
        return self._model(np.array([float(f"{value:.6g}") for value in best.tolist()]))

    def _start(self, overlap: float) -> NDArray[np.float64]:
        """Guess a start: gradient times as measured, or else of the fastest steps; synchronisation
        takes the rest.
        """
        from scipy.optimize import nnls

        step = np.exp(self.log_step)
        grad = step if self.log_grad is None else np.exp(self.log_grad)
        fastest = np.array([grad[self.size == size].min() for size in self.sizes])
        point = fastest if self.as_measured else np.array(line_through(self.sizes, fastest))
        rest = np.maximum(step**overlap - (self.grad_terms @ point) ** overlap, 0) ** (1 / overlap)
        # SciPy's solver corrupts memory where it is given no columns at all
        some = self.sync_terms.shape[1] > 0
        sync = nnls(self.sync_terms / step[:, None], rest / step)[0] if some else []
        return np.r_[point, sync, [0.0] if self.waits else [], overlap]

    def _parts(self, point: NDArray) -> tuple[NDArray, NDArray, float]:
        """Split a point into the coefficients of gradients, of synchronisation, and of the wait."""
        num_grad = self.grad_terms.shape[1]
        num_sync = self.sync_terms.shape[1]
        wait = float(point[-2]) if self.waits else 0.0
        return point[:num_grad], point[num_grad : num_grad + num_sync], wait

    def _residuals(self, point: NDArray) -> tuple[NDArray, NDArray]:
        """Compute the logarithm of predicted over measured, step times then gradient times, and its
        Jacobian.
        """
        point = point * self.scale
        of_grad, of_sync, wait = self._parts(point)
        overlap = point[-1]
        grad = self.grad_terms @ of_grad
        longer = 1 + wait * self.doublings
        last = grad * longer
        ratio = self.sync_terms @ of_sync / last
        power = ratio**overlap
        log_step = np.log(last) + np.log1p(power) / overlap
        by_last = 1 / (last * (1 + power))
        by_sync = ratio ** (overlap - 1) * by_last
        log_ratio = np.log(np.where(ratio > 0, ratio, 1.0))
        by_overlap = power / (1 + power) * log_ratio / overlap - np.log1p(power) / overlap**2
        residuals = log_step - self.log_step
        of_wait = [by_last * grad * self.doublings] if self.waits else []
        by_grad = self.grad_terms * (by_last * longer)[:, None]
        by_sync_terms = self.sync_terms * by_sync[:, None]
        slopes = np.column_stack([by_grad, by_sync_terms, *of_wait, by_overlap])
        if self.log_grad is not None:
            residuals = np.r_[residuals, np.log(grad) - self.log_grad]
            rest = np.zeros((len(grad), slopes.shape[1] - len(of_grad)))
            slopes = np.r_[slopes, np.column_stack([self.grad_terms / grad[:, None], rest])]
        return residuals, slopes * self.scale

    def _model(self, point: NDArray) -> StepTimes:
        """Make step times of a point's coefficients."""
        of_grad, of_sync, wait = self._parts(point)
        grad = of_grad * self.unit_s
        base_s, per_example_s = line_through(self.sizes, grad) if self.as_measured else grad
        knots = zip(self.sizes.tolist(), grad.tolist(), strict=True) if self.as_measured else ()
        tiers: dict[int, dict[str, float]] = {}
        for (start, name), value in zip(self.coefficients, of_sync * self.unit_s, strict=True):
            tiers.setdefault(start, {})[name] = float(value)
        return StepTimes(
            base_s=float(base_s),
            per_example_s=float(per_example_s),
            tiers=tuple(SyncTier(from_nodes=n, **values) for n, values in tiers.items()),
            overlap=float(np.clip(point[-1], 1, MAX_OVERLAP)),
            measured=tuple(knots),
            wait_per_doubling=wait,
        )


def line_through(sizes: NDArray, times: NDArray) -> tuple[float, float]:
    """Fit base and slope, neither negative, of the line nearest to the times, relatively."""
    from scipy.optimize import nnls

    terms = np.stack([np.ones_like(sizes), sizes], 1) / times[:, None]
    base, slope = nnls(terms / terms.max(0), np.ones_like(sizes))[0] / terms.max(0)
    return float(base), float(slope)


# ---------------------------------------------------------------- reading measured steps


def _check_measured(table: pd.DataFrame) -> None:
    """Refuse measured steps that are not positive numbers, and allocations that cannot be."""
    if table.empty:
        raise UsageError("there is not a single measured step")
    for column in [c for c in table if c != "allocation"]:
        values = table[column].to_numpy(float)
        if (wrong := ~(np.isfinite(values) & (values > 0))).any():
            row = int(np.flatnonzero(wrong)[0])
            what = "step_time - sync_time" if column == "compute_time_s" else column
            raise UsageError(
                f"row {row} of the measured steps: {what} must be a positive number, got "
                f"{values[row]:g}"
            )
    allocation_of(table["num_nodes"], table["num_gpus"])
