"""What the server's tools answer: the reports of the commands, as the data that ``--json`` writes.

Each tool is a plain function of typed, bounded arguments. A tool's signature is its schema, its
docstring its description (:mod:`labkit.mcp.server`); a name of a model, a profile or a trace is one
that labkit knows, never a path, so that nobody reads files through a tool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from labkit import extras
from labkit.errors import LabkitError, not_among
from labkit.files import project_root
from labkit.quantities import plain

if TYPE_CHECKING:
    from labkit.kit.report import Report
    from labkit.workbook.export.catalogue import Item

Answer = dict[str, Any]
Degree = Annotated[int, Field(ge=1, le=65_536)]
Status = Literal["queued", "reading", "reviewed", "presented", "dropped"]
Verdict = Literal[
    "reproduced", "same direction", "differs", "not earned", "not attempted", "not judged"
]
MOST_PAPERS = 200
MOST_CLAIMS = 200
_CLAIM = (
    *("id", "kind", "statement", "unit", "paper_value", "our_value", "verdict", "rule"),
    *("source", "verified", "dataset", "flip", "flip_value", "flip_verdict"),
)


def plan_memory(
    model: Annotated[str, Field(description="A preset, such as llama-2-7b or gpt3-175b.")],
    data_parallel: Annotated[Degree, Field(description="Data-parallel ranks.")] = 1,
    tensor_parallel: Annotated[Degree, Field(description="Tensor-parallel ranks.")] = 1,
    pipeline_parallel: Annotated[Degree, Field(description="Pipeline devices.")] = 1,
    sequence_parallel: Annotated[bool, Field(description="Cut activations as well.")] = False,
    zero_stage: Annotated[int, Field(ge=0, le=3, description="ZeRO's stage.")] = 0,
    tokens_per_sample: Annotated[
        int | None,
        Field(ge=1, le=10_000_000, description="Default: 2048, or the positions learnt."),
    ] = None,
    samples_per_micro_batch: Annotated[int, Field(ge=1, le=100_000)] = 1,
    recipe: Annotated[
        str | None, Field(description="Number formats and optimizer. Default: bf16-mixed.")
    ] = None,
    recompute: Annotated[
        Literal["none", "selective", "operators", "full"],
        Field(description="Which activations are computed again for the backward pass."),
    ] = "none",
    framework: Annotated[
        str | None, Field(description="Whose defaults hold, such as torchtitan. Default: none's.")
    ] = None,
    device: Annotated[
        str, Field(description="An accelerator such as A100-80GB, or bytes such as 24GiB.")
    ] = "H100-80GB",
    headroom_fraction: Annotated[
        float, Field(gt=0, le=1, description="The share of the device that may be filled.")
    ] = 0.9,
) -> Answer:
    """Plan the memory of one rank of a training job: the peak in bytes, its moment, whether it fits
    on the device, what each component takes, and what is sent in a step. Computed, not measured."""
    from labkit.memory.commands import plan
    from labkit.memory.commands.options import Job, Room
    from labkit.models import presets

    _known("model", model, presets())
    job = Job(
        model=model,
        dp=data_parallel,
        tp=tensor_parallel,
        pp=pipeline_parallel,
        sp=sequence_parallel,
        zero=zero_stage,
        seq=tokens_per_sample,
        micro_batch=samples_per_micro_batch,
        recipe=recipe,
        recompute=None if recompute == "none" else recompute,
        framework=framework,
    )
    return _data(plan(job, Room(device=device, headroom=headroom_fraction)))


def plan_pipeline(
    schedule: Annotated[str, Field(description="Such as 1f1b, gpipe, zb-h1 or zb-v.")],
    profile: Annotated[
        str, Field(description="Measured stages: a100/gpt3-175b, a100/bloom or a40/gpt3-175b.")
    ],
    num_microbatches: Annotated[int, Field(ge=1, le=128)],
    slowdown_fraction: Annotated[
        float | None,
        Field(ge=0, le=10, description="How much later the iteration may end: 0.05 is 5 %."),
    ] = None,
    method: Annotated[str, Field(description="The planner.")] = "optimal",
) -> Answer:
    """Plan the clock of every instruction of a pipeline schedule on measured stages: seconds and
    joules of an iteration beside those at the highest clock, and the bound that no plan can
    beat. Without a slowdown the iteration takes no longer than at the highest clock."""
    from labkit import pipeline
    from labkit.pipeline.commands import plan
    from labkit.pipeline.commands.options import Links, Measured, Order
    from labkit.pipeline.planning.plans import METHODS
    from labkit.pipeline.profiles.published import short_names

    _known("schedule", schedule, pipeline.schedules()["name"])
    _known("profile", profile, short_names())
    _known("planner", method, METHODS)
    slowdowns = None if slowdown_fraction is None else [slowdown_fraction]
    report = plan(
        Measured(profile=profile, slowdowns=slowdowns),
        Order(schedule=schedule, microbatches=num_microbatches),
        Links(),
        method=method,
    )
    return _data(report)


def compare_schedulers(
    num_gpus: Annotated[int, Field(ge=1, le=4096, description="GPUs of the cluster.")] = 64,
    gpus_per_node: Annotated[int, Field(ge=1, le=64)] = 8,
    policies: Annotated[
        list[str] | None,
        Field(max_length=12, description="Such as fifo, srsf, las2d:3250,7200. Default: all."),
    ] = None,
    trace: Annotated[
        str, Field(description="A published one, such as itp-elasticflow/06. Default: synthetic.")
    ] = "",
    num_jobs: Annotated[
        int, Field(ge=1, le=5000, description="Synthetic jobs, or the first ones of the trace.")
    ] = 500,
    offered_load: Annotated[
        float, Field(gt=0, le=3, description="What synthetic jobs ask for, of what there is.")
    ] = 0.9,
    seed: Annotated[int, Field(ge=0, le=2**31 - 1, description="Of synthetic jobs.")] = 0,
    placement: Literal["any", "consolidated"] = "any",
    restart_s: Annotated[
        float, Field(ge=0, le=86_400, description="What stopping a job costs.")
    ] = 0.0,
) -> Answer:
    """Compare scheduling policies of a GPU cluster on one trace of jobs: completion times in
    seconds, utilisation, preemptions, beside the bound that no policy can beat. Simulated."""
    from labkit.cluster.commands import ALL, ClusterOptions, TraceOptions, compare
    from labkit.cluster.inputs.published import PARTS

    if trace:
        published = [f"{name}/{part}" for name, parts in PARTS.items() for part in parts]
        _known("trace", trace, published)
    jobs = TraceOptions(
        trace=trace, first=num_jobs if trace else 0, jobs=num_jobs, load=offered_load, seed=seed
    )
    machines = ClusterOptions(
        gpus=str(num_gpus), gpus_per_node=gpus_per_node, placement=placement, restart=restart_s
    )
    chosen = ALL if policies is None else ",".join(policies)
    return _data(compare(jobs, machines, policies=chosen))


def find_claims(
    paper: Annotated[str, Field(description="A paper's key, such as zeus. Default: any.")] = "",
    words: Annotated[
        str, Field(max_length=200, description="All must occur in the claim. Default: none.")
    ] = "",
    verdict: Annotated[
        Verdict | None, Field(description="Only claims that were judged so. Default: any.")
    ] = None,
    most: Annotated[int, Field(ge=1, le=MOST_CLAIMS, description="Claims to list.")] = 50,
) -> Answer:
    """Look up what a paper claims, what we found in its place, and the verdict with the rule that
    judged it and what the nearest rival came to. Values are in the claim's unit."""
    papers = [_papers()[paper]] if paper else list(_papers().values())
    asked = words.casefold().split()
    found = [
        claim
        for item in papers
        for claim in map(_claim_of(item), item.claims)
        if all(word in str(claim).casefold() for word in asked)
        and verdict in (None, claim["verdict"])
    ]
    return {"num_found": len(found), "claims": found[:most]}


def search_papers(
    words: Annotated[str, Field(min_length=1, max_length=200, description="All must occur.")],
    most: Annotated[int, Field(ge=1, le=MOST_PAPERS, description="Papers to list.")] = 20,
) -> Answer:
    """Find papers of the reading queue by key, title, author, venue, year, tag or the reason why we
    want to read them. Case and accents do not matter."""
    catalogue = _queue()
    found = catalogue.search(words)
    return {"num_found": len(found), "papers": _listed(catalogue, found[:most])}


def reading_queue(
    status: Annotated[
        list[Status] | None, Field(description="Default: queued and being read.")
    ] = None,
    most: Annotated[int, Field(ge=1, le=MOST_PAPERS, description="Papers to list.")] = 20,
) -> Answer:
    """List the reading queue in reading order: what is being read, what comes next and why."""
    catalogue = _queue()
    chosen = catalogue.select(status=status or ("reading", "queued"))
    return {"num_found": len(chosen), "papers": _listed(catalogue, chosen[:most])}


TOOLS: Mapping[str, Callable[..., Answer]] = {
    tool.__name__: tool
    for tool in (
        plan_memory,
        plan_pipeline,
        compare_schedulers,
        find_claims,
        search_papers,
        reading_queue,
    )
}


def answer(name: str, arguments: Mapping[str, Any]) -> tuple[Answer | None, str]:
    """Call a tool in a worker process: its data as JSON holds them, or else what is wrong."""
    try:
        return plain(TOOLS[name](**arguments)), ""
    except LabkitError as error:
        return None, str(error)


def _data(report: Report | None) -> Answer:
    """What a command's report holds for ``--json``."""
    return dict(report.data) if report is not None else {}


def _known(what: str, name: str, names: Iterable[str]) -> None:
    """Raise UsageError where ``name`` is none of ``names``; the message has the nearest."""
    if name not in (known := list(names)):
        raise not_among(what, name, known)


def _workbook() -> Path:
    """The workbook's folder; raises UsageError where there is none, or what reads it lacks."""
    extras.need("looking a paper up", "workbook", "nbformat", "pybtex")
    return project_root()


def _papers() -> dict[str, Item]:
    """Every paper of the workbook by its key; one that is asked for by another name is refused."""
    from labkit.workbook.export import catalogue

    return _ByKey({item.paper.key: item for item in catalogue.load(_workbook()).items})


class _ByKey(dict[str, Any]):
    """A mapping whose keys are papers'."""

    def __missing__(self, key: str) -> Any:
        raise not_among("paper", key, self)


def _claim_of(item: Item) -> Callable[[Mapping[str, Any]], Answer]:
    """How a claim of this paper is told."""

    def told(claim: Mapping[str, Any]) -> Answer:
        shown = {"paper": item.paper.key} | {name: claim.get(name) for name in _CLAIM}
        return shown | {"standin_warning": item.standin}

    return told


def _queue() -> Any:
    from labkit.workbook.queue import reading_queue as queue

    return queue.load(_workbook())


def _listed(catalogue: Any, papers: Iterable[Any]) -> list[Answer]:
    """What is said of each paper: its entry of the bibliography and of the queue."""
    rows = []
    for paper in papers:
        entry = catalogue.library[paper.key]
        rows.append(
            {
                "key": paper.key,
                "title": entry.title,
                "authors": list(entry.authors),
                "venue": entry.venue,
                "year": entry.year,
                "link": entry.link,
                "status": paper.status,
                "priority": paper.priority,
                "why": paper.why,
                "tags": list(paper.tags),
                "companions": list(paper.companions),
            }
        )
    return rows
