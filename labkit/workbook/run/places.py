"""Where ``--cluster`` points: a scheduler's address, ``local``, or a file of options.

A file says what to start for this run::

    kind: slurm            # or kubernetes, or local
    workers: 8             # Slurm jobs, pods or processes
    options:               # of dask_jobqueue.SLURMCluster, dask_kubernetes.operator.KubeCluster
      queue: short         # or distributed.LocalCluster
      cores: 4
      memory: 16GB

Options are checked against the constructor before anything is started.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from labkit import extras
from labkit.errors import BadFile, LabkitError, UsageError, did_you_mean
from labkit.files import bad_field, load_yaml, validate

if TYPE_CHECKING:
    from distributed import Client

CONNECT_S = 10
"""How long a scheduler may take to answer."""
_KINDS = {
    "local": ("cluster", "distributed", ("LocalCluster", "Nanny", "Worker")),
    "slurm": ("cluster", "dask_jobqueue.slurm", ("SLURMCluster", "SLURMJob", "Job")),
    "kubernetes": ("kubernetes", "dask_kubernetes.operator", ("KubeCluster",)),
}
"""The extra that each kind needs, the module, and the classes whose arguments are its options."""
_NOT_OPTIONS = {"self", "n_workers", "asynchronous", "loop", "job_cls", "scheduler", "config_name"}
_NOT_OPTIONS |= {"scheduler_cls", "worker_class", "scheduler_ip", "scheduler_file", "quiet"}
"""Arguments that labkit gives, or that a file cannot."""
_NO_INTERRUPT = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
"""Ctrl-C reaches every process of the terminal; the client alone acts on it, and ends the rest."""
_NO_DASHBOARD = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}


class Cluster(BaseModel):
    """A scheduler to connect to at ``address``, or the cluster to start for a run."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    address: str = ""
    kind: Literal["local", "slurm", "kubernetes"] = Field(
        default="local", description="local, slurm or kubernetes"
    )
    workers: int = Field(default=2, ge=1, description="how many workers to ask for, at least 1")
    options: dict[str, Any] = Field(default={}, description="arguments of Dask's cluster, by name")


def read(where: str, num_workers: int) -> Cluster:
    """What ``--cluster where`` asks for; ``num_workers`` is the default for ``local``. Raises
    UsageError where it is neither an address nor a file, or that is wrong (its line and field)."""
    if "://" in where or where == "local":
        _part("local", "LocalCluster")
        return Cluster(workers=num_workers) if where == "local" else Cluster(address=where)
    path = Path(where)
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(
            f"--cluster {where!r} is no cluster; valid: a scheduler's address such as "
            "tcp://10.0.0.1:8786, `local`, or a YAML file with `kind: slurm` or `kind: kubernetes`"
        )
    tree = load_yaml(path)
    cluster = validate(path, tree, Cluster)
    if cluster.address:
        raise bad_field(path, tree, ("address",), "an address is given without a file")
    _check_options(path, tree, cluster)
    return cluster


def _part(kind: str, name: str) -> Any:
    """A class of the libraries that start clusters of this kind."""
    extra, module, _ = _KINDS[kind]
    try:
        return getattr(import_module(module), name)
    except ImportError as missing:
        raise UsageError(f"--cluster needs {missing.name}: {extras.command(extra)}") from None


def _check_options(path: Path, tree: Any, cluster: Cluster) -> None:
    """Each option against the constructor: its name, its kind where that is annotated, the whole;
    raises BadFile with the line, the option and what would be valid."""
    known: dict[str, Any] = {}
    for name in reversed(_KINDS[cluster.kind][2]):
        constructor = _part(cluster.kind, name).__init__
        hints = get_type_hints(constructor) if cluster.kind == "kubernetes" else {}
        for parameter in inspect.signature(constructor).parameters.values():
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                known[parameter.name] = hints.get(parameter.name, Any)
    for name, value in cluster.options.items():
        if name not in known or name in _NOT_OPTIONS:
            valid = sorted(set(known) - _NOT_OPTIONS)
            hint = did_you_mean(name, valid) or f"{', '.join(valid)}"
            problem = "the number is `workers`" if name == "n_workers" else "no such option"
            raise bad_field(path, tree, ("options", name), problem, value=value, valid=hint)
        try:
            if not isinstance(value, dict):  # what dask-kubernetes says of those is too narrow
                TypeAdapter(known[name]).validate_python(value)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]["msg"]
            raise bad_field(path, tree, ("options", name), problem, value=value) from None
    try:
        described(cluster)
    except LabkitError:
        raise
    except Exception as error:  # whatever the constructor makes of the values
        raise BadFile(path, f"options are refused: {error}", field="options") from None


def described(cluster: Cluster) -> str:
    """What would be started, as far as can be said without a connection: job script, pods."""
    options = _options(cluster)
    if cluster.address:
        return f"the Dask scheduler {cluster.address}"
    if cluster.kind == "slurm":
        of_cluster = inspect.signature(_part("slurm", "JobQueueCluster").__init__).parameters
        shared = {"name", "interface", "protocol", "security"}
        ours = {k: v for k, v in options.items() if k not in of_cluster or k in shared}
        job = _part("slurm", "SLURMJob")(**{"name": "labkit", **ours}, scheduler="tcp://HOST:PORT")
        return f"{cluster.workers} Slurm jobs, each of\n{job.job_script()}"
    if cluster.kind == "kubernetes":
        import json

        make = _part("kubernetes", "make_cluster_spec")
        fields = inspect.signature(make).parameters
        given = {k: v for k, v in options.items() if k in fields}
        spec = make(**{"name": "labkit", **given}, n_workers=cluster.workers)
        return json.dumps(options.get("custom_cluster_spec") or spec, indent=1)
    return f"{cluster.workers} Dask workers on this machine"


def _options(cluster: Cluster) -> dict[str, Any]:
    """The options with our defaults: no dashboards, and servers on loopback where that will do."""
    options = dict(cluster.options)
    if cluster.kind == "local":
        ours = {"host": "127.0.0.1", "threads_per_worker": 1, "scheduler_kwargs": _NO_DASHBOARD}
        ours |= {"worker_dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}
        return ours | {"preload": _NO_INTERRUPT} | options
    if cluster.kind == "slurm":
        options["scheduler_options"] = _NO_DASHBOARD | options.get("scheduler_options", {})
    return options


@contextmanager
def opened(cluster: Cluster, root: Path) -> Iterator[Callable[[], Client]]:
    """Start what ``cluster`` asks for, as long as the context lasts; yields how to connect. Raises
    LabkitError where it cannot be started."""
    client = _part("local", "Client")
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # the run says it better
    if cluster.address:
        yield lambda: client(cluster.address, timeout=CONNECT_S, set_as_default=False)
        return
    options = _options(cluster)
    try:
        if cluster.kind == "kubernetes":
            pods = options | {"n_workers": cluster.workers, "quiet": True}
            started = _part("kubernetes", "KubeCluster")(**pods)
        elif cluster.kind == "slurm":
            started = _part("slurm", "SLURMCluster")(**options)
            started.scale(jobs=cluster.workers)
        else:
            env = {"LABKIT_ROOT": str(root)} | options.pop("env", {})
            started = _part("local", "LocalCluster")(**options, env=env, n_workers=cluster.workers)
    except Exception as error:
        what = f"the {cluster.kind} cluster did not start"
        raise LabkitError(f"{what}: {type(error).__name__}: {error}") from error
    try:
        yield lambda: client(started, timeout=CONNECT_S, set_as_default=False)
    finally:
        with suppress(OSError, RuntimeError):
            started.close()
