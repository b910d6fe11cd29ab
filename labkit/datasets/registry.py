"""The registry of published datasets, ``data/datasets.yaml``, validated and searchable."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    field_validator,
)

from labkit.errors import BadFile, BadValue, UsageError, did_you_mean, not_among, shown
from labkit.files import load_yaml, shipped, validate

REGISTRY = "data/datasets.yaml"


def _inside(path: str) -> str:
    """Refuse a path that could leave the folder it is joined to."""
    parts = PurePosixPath(path).parts
    if path != "/".join(parts) or path.startswith("/") or ".." in parts or "\\" in path:
        raise ValueError("not a plain relative path (no leading '/', '..', '.', '\\' or '//')")
    return path


Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
RelativePath = Annotated[str, StringConstraints(min_length=1), AfterValidator(_inside)]
Url = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]+/\S+$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Licence = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.+() -]+$")]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$")]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PublishedFile(_Record):
    """One file of a dataset: where it is published and what its bytes must be."""

    path: RelativePath = Field(description="a path inside the dataset's repository")
    url: Url = Field(description="an http or https address")
    sha256: Sha256 = Field(description="64 lower-case hexadecimal digits")
    size_bytes: int = Field(
        alias="bytes", strict=True, ge=0, description="a whole number of bytes, unquoted"
    )
    standin: RelativePath | None = Field(
        default=None, description="a path inside the workbook, such as data/profiles/x.csv"
    )


class Dataset(_Record):
    """A published dataset: origin, licence, the paper to cite, and its files."""

    title: Text = Field(description="one line")
    origin: Url = Field(description="the repository's http or https address")
    commit: Commit = Field(description="40 lower-case hexadecimal digits")
    licence: Licence = Field(description="an SPDX expression, such as Apache-2.0")
    citation: Text = Field(description="a key of data/papers.bib")
    notes: Text = Field(description="units and scaling, in words")
    files: tuple[PublishedFile, ...] = Field(min_length=1, description="at least one file")
    _name: str = PrivateAttr(default="")

    @property
    def name(self) -> str:
        return self._name

    @property
    def size_bytes(self) -> int:
        """How large all its files are together."""
        return sum(file.size_bytes for file in self.files)

    @property
    def repository(self) -> str:
        """The origin without its scheme and host: ``owner/name``."""
        return self.origin.split("//", 1)[1].split("/", 1)[1].removesuffix(".git")

    @field_validator("files")
    @classmethod
    def _paths_differ(cls, files: tuple[PublishedFile, ...]) -> tuple[PublishedFile, ...]:
        paths = Counter(file.path for file in files)
        if twice := [path for path, count in paths.items() if count > 1]:
            raise ValueError(f"two files with the path {twice[0]!r}")
        return files

    def file(self, path: str) -> PublishedFile:
        """Look up the file called ``path``, or the only one whose path ends so (at a ``/``).

        Raises:
            UsageError: there is none, or several; the message lists the nearest.
        """
        if not isinstance(path, str):
            raise BadValue(f"file must be a text, a published path; got {shown(path)}")
        exact = [file for file in self.files if file.path == path]
        ending = exact or [file for file in self.files if file.path.endswith(f"/{path}")]
        if len(ending) == 1:
            return ending[0]
        if ending:
            among = ", ".join(file.path for file in ending)
            raise UsageError(
                f"{path!r} names {len(ending)} files of {self.name}: {among}; "
                "write one more folder of the path"
            )
        names = {name for file in self.files for name in (file.path, Path(file.path).name)}
        near = did_you_mean(path, sorted(names))
        raise UsageError(
            f"dataset {self.name} has no file {path!r}; {near}{' ' if near else ''}"
            f"`labkit data show {self.name}` lists its {len(self.files)} files"
        )


class Registry(_Record):
    """Holds all the datasets by name."""

    datasets: dict[Name, Dataset]

    def model_post_init(self, _context: object) -> None:
        for name, dataset in self.datasets.items():
            dataset._name = name

    def dataset(self, name: str) -> Dataset:
        """Look up the dataset called ``name``.

        Raises:
            UsageError: there is none; the message has the nearest names.
        """
        if name in self.datasets:
            return self.datasets[name]
        raise not_among("dataset", name, self.datasets)

    def find(self, reference: str) -> tuple[Dataset, PublishedFile]:
        """Look up dataset and file of ``name/path``.

        Raises:
            UsageError: the reference does not name just one file.
        """
        if not isinstance(reference, str):
            raise BadValue(f"reference must be a text, name/path; got {shown(reference)}")
        name, slash, path = reference.partition("/")
        dataset = self.dataset(name)
        if not slash or not path:
            raise UsageError(
                f"{reference!r} names a dataset, not a file: write {name}/PATH; "
                f"`labkit data show {name}` lists its {len(dataset.files)} files"
            )
        return dataset, dataset.file(path)


def load_registry(root: Path | None = None) -> Registry:
    """Load the registry of the workbook at ``root`` (default: the one around the working
    directory).

    Raises:
        BadFile: it is missing or malformed; the message has the line and the field.
    """
    path = shipped(REGISTRY, root)
    try:
        state = path.stat()
    except FileNotFoundError:
        raise BadFile(path, "the file is missing") from None
    return _load(path, (state.st_mtime_ns, state.st_size, state.st_ino))


@lru_cache(maxsize=8)
def _load(path: Path, _version: tuple[int, ...]) -> Registry:
    tree = load_yaml(path)
    if not isinstance(tree, dict):
        raise BadFile(path, "not a registry", line=1, valid="a mapping with the key 'datasets'")
    return validate(path, tree, Registry)
