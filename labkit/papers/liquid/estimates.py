"""Regressors of step times from a job's settings, judged on rows they have not learnt from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from labkit.datasets import Source
from labkit.tuning.goodput.tables import measurements

_SETTINGS = ["num_nodes", "num_gpus", "atomic_bsz"]


def _linear() -> Any:
    from sklearn.linear_model import LinearRegression

    return LinearRegression()


def _neighbours() -> Any:
    from sklearn.neighbors import KNeighborsRegressor

    return KNeighborsRegressor()


def _tree() -> Any:
    from sklearn.tree import DecisionTreeRegressor

    return DecisionTreeRegressor(random_state=0)


def _forest() -> Any:
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(20, random_state=0)


def _boosting() -> Any:
    from sklearn.ensemble import GradientBoostingRegressor

    return GradientBoostingRegressor(random_state=0)


REGRESSORS: Mapping[str, Callable[[], Any]] = {
    "linear": _linear,
    "neighbours": _neighbours,
    "tree": _tree,
    "forest": _forest,
    "boosting": _boosting,
}
"""Makers of each; the random forest is Liquid's."""


def read_steps(source: Source) -> pd.DataFrame:
    """Measured step times of all files of a source: nodes, GPUs, examples of a GPU, seconds."""
    return pd.concat([measurements(source.frame(name)) for name in source.files])


def estimation_errors(steps: pd.DataFrame, splits: Mapping[str, ArrayLike]) -> pd.DataFrame:
    """Mean relative error of every regressor's step times, by what was not learnt from.

    Times and settings are learnt as logarithms, in five folds.

    Args:
        steps: of :func:`read_steps`.
        splits: by name: a group a row; rows of a group are learnt from together or not at all.

    Returns:
        A row a regressor, a column a split.
    """
    from sklearn.model_selection import GroupKFold, cross_val_predict

    settings = np.log(steps[_SETTINGS])
    seconds = np.log(steps["step_time_s"])
    folds = GroupKFold(5)
    table = pd.DataFrame(index=pd.Index([*REGRESSORS]), columns=[*splits], dtype=float)
    for split, groups in splits.items():
        for name, make in REGRESSORS.items():
            predicted = cross_val_predict(make(), settings, seconds, cv=folds, groups=groups)
            error = np.expm1(np.abs(predicted - seconds)).mean()
            table.loc[name, split] = round(float(error), 3)
    return table
