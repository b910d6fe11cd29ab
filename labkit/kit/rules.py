"""The rules that annotations declare: kinds, bounds, choices, and how a breach is worded.

Bounds are those of ``annotated_types``. Pydantic is not used for this: its strict mode refuses
NumPy's scalars, and the sentence is what users see.
"""

from __future__ import annotations

import math
import operator
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import annotated_types

from labkit.errors import BadValue, did_you_mean, shown

MOST = 1e150
"""The size of a finite number: the square of a larger one leaves what floats hold, and no quantity
is so large."""
LEAST = 1e-150
"""A number that must be above 0 is divided by, so it is no smaller, for the same reason."""
MOST_WHOLE = 2**63 - 1
"""The largest whole number, and the least but for its sign: what NumPy's integers hold."""
MOST_ITEMS = 10**7
"""Items of a range that is made a list; more would fill the memory of whoever asks."""


@dataclass(frozen=True)
class Unbounded:
    """Marks a float that may also be infinite."""


@dataclass(frozen=True)
class Distinct:
    """Marks a collection that holds each of its values once, such as seeds of independent runs."""


_COMPARISONS: dict[type, tuple[str, str, Callable[[Any, Any], bool]]] = {
    annotated_types.Ge: ("ge", "at least", operator.ge),
    annotated_types.Gt: ("gt", "above", operator.gt),
    annotated_types.Le: ("le", "at most", operator.le),
    annotated_types.Lt: ("lt", "below", operator.lt),
}


class Refused(Exception):
    """A value does not follow a rule; the caller knows the field and words the error.

    Its text, if it has one, says why a value of the right kind is refused.
    """


@dataclass(frozen=True, slots=True)
class Rule:
    """What a declaration allows: in words, and as a function that returns the plain value."""

    words: str
    accept: Callable[[Any], Any]
    choices: tuple[Any, ...] = ()

    def apply(self, name: str, value: Any) -> Any:
        """Convert the value to what is stored.

        Raises:
            BadValue: it breaks the rule; the message has ``name``.
        """
        try:
            return self.accept(value)
        except Refused as refusal:
            texts = [choice for choice in self.choices if isinstance(choice, str)]
            hint = did_you_mean(value, texts) if isinstance(value, str) else str(refusal)
            raise BadValue(
                f"{name} must be {self.words}; got {shown(value)}" + (f"; {hint}" if hint else "")
            ) from None


def rule(hint: Any) -> Rule:
    """Find the rule that an annotation declares.

    >>> rule(Annotated[int, annotated_types.Ge(1)]).words
    'a whole number, at least 1'
    >>> rule(Literal["none", "full"] | None).words
    "one of 'none', 'full', or None"
    >>> from enum import Enum
    >>> rule(Enum("Phase", {"FORWARD": "forward"})).accept("forward")
    <Phase.FORWARD: 'forward'>
    """
    origin = get_origin(hint)
    args = get_args(hint)
    if isinstance(hint, TypeVar):  # whatever it is, the function hands it on
        return _ANYTHING
    if hint in _PLAIN:
        return _PLAIN[hint]
    if origin is Annotated:
        return _bounded(rule(args[0]), args[1:])
    if origin in (Union, types.UnionType):
        if "_SupportsArray" in str(hint):  # NumPy's ArrayLike: protocols and plain numbers
            return _ARRAY
        return _either([rule(part) for part in args])
    if origin is Literal:
        return _choice(args)
    return _container(hint, origin, args)


def _container(hint: Any, origin: Any, args: tuple[Any, ...]) -> Rule:
    """Find the rule of an array, enum, function, collection, protocol or class."""
    kind = origin if isinstance(origin, type) else hint
    if not isinstance(kind, type):
        raise TypeError(f"no rule for the annotation {hint!r}")
    if kind.__name__ == "ndarray":
        if not args:  # of numbers or of truth values
            return _either([_ARRAY, _FLAGS])
        return _FLAGS if "bool" in str(args) else _ARRAY
    if issubclass(kind, Enum):
        return _member(kind)
    if kind is tuple and args and args[-1] is not Ellipsis:
        return _fixed([rule(part) for part in args])
    if kind is Callable or kind.__name__ == "Callable":
        return Rule("a function", _if(callable))
    if issubclass(kind, Mapping):
        return _mapping(kind, [rule(part) for part in args])
    plain = kind in (list, tuple, set, frozenset) or kind.__module__ == "collections.abc"
    if kind is not str and issubclass(kind, Iterable) and plain:
        return _items(kind, rule(args[0]) if args else _ANYTHING)
    if getattr(kind, "_is_protocol", False):
        names = (*vars(kind), *vars(kind).get("__annotations__", {}))
        wanted = [name for name in names if not name.startswith("_")]
        return Rule(_a(kind.__name__), _if(lambda v: all(hasattr(v, name) for name in wanted)))
    named = f", such as {kind.__name__}.preset(name)" if hasattr(kind, "preset") else ""
    return Rule(_a(kind.__name__) + named, _if(lambda value: isinstance(value, kind)))


def _if(test: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """Accept a value that passes the test."""

    def accept(value: Any) -> Any:
        if not test(value):
            raise Refused
        return value

    return accept


def _as_bool(value: Any) -> bool:
    """Accept Python's and NumPy's truth values."""
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    raise Refused


def _as_whole(value: Any) -> int:
    """Accept whole numbers that are no truth values and that 64 bits hold."""
    if _numpy_kind(value) in ("i", "u"):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused
    if not -MOST_WHOLE <= value <= MOST_WHOLE:
        raise Refused(f"whole numbers go up to {MOST_WHOLE}")
    return value


def _as_number(value: Any) -> int | float:
    """Accept a number that is not NaN; infinities are left to :func:`_as_finite`."""
    if _numpy_kind(value) in ("i", "u", "f"):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise Refused
    size = abs(value)
    if MOST < size < math.inf:
        raise Refused(f"a finite number is {MOST:g} at most")
    if not size:
        return size  # no library need be told of -0.0
    return float(value) if size > MOST_WHOLE else value  # NumPy has no integer so large


def _as_finite(value: Any) -> int | float:
    """Accept a number that is neither NaN nor infinite."""
    number = _as_number(value)
    if not math.isfinite(number):
        raise Refused
    return number


def _as_flags(value: Any) -> Any:
    """Accept truth values of any shape, as they are given; a range holds none."""
    import numpy as np

    if isinstance(value, range):
        raise Refused
    try:
        is_right = np.asarray(value).dtype.kind == "b"
    except (ValueError, TypeError, OverflowError):
        raise Refused from None
    if not is_right or np.ma.isMaskedArray(value):
        raise Refused
    return value


def _as_array(value: Any) -> Any:
    """Accept numbers of any shape, as they are given; truth values and texts are none."""
    import numpy as np

    if isinstance(value, range):
        _check_range(value)
    try:
        kind = np.asarray(value).dtype.kind
    except (ValueError, TypeError, OverflowError):
        raise Refused from None
    if kind not in "iuf" or isinstance(value, str) or np.ma.isMaskedArray(value):
        raise Refused
    if isinstance(value, list | tuple) and _holds_truth_values(value):
        raise Refused
    return value


def _check_range(value: range) -> None:
    """Refuse a range that makes a list which would fill the memory."""
    if value[MOST_ITEMS:]:
        raise Refused(f"a list holds {MOST_ITEMS} items at most")


def _holds_truth_values(items: Collection[Any]) -> bool:
    """Tell whether a list of numbers, or of lists of them, has truth values, which NumPy takes for
    0 and 1."""
    return any(
        _holds_truth_values(item) if isinstance(item, list | tuple) else isinstance(item, bool)
        for item in items
    )


def _as_text(value: Any) -> str:
    """Accept a text that can be written; half of a surrogate pair cannot."""
    if not isinstance(value, str):
        raise Refused
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused("half of a surrogate pair is no letter") from None
    return value


def _numpy_kind(value: Any) -> str:
    """Tell NumPy's scalars by ``i``, ``u`` or ``f``; all else is empty, and so is a masked one."""
    dtype = getattr(value, "dtype", None)
    is_scalar = getattr(value, "shape", None) == () and not hasattr(value, "mask")
    return getattr(dtype, "kind", "") if is_scalar else ""


_ANYTHING = Rule("anything", lambda value: value)
_ARRAY = Rule("a number or an array of numbers", _as_array)
_FLAGS = Rule("an array of truth values", _as_flags)
_NUMBER = Rule("a finite number", _as_finite)
_PLAIN: dict[Any, Rule] = {
    Any: _ANYTHING,
    object: _ANYTHING,
    types.NoneType: Rule("None", _if(lambda value: value is None)),
    bool: Rule("true or false", _as_bool),
    int: Rule("a whole number", _as_whole),
    float: _NUMBER,
    str: Rule("a text", _as_text),
}


def _bounded(base: Rule, metadata: Collection[Any]) -> Rule:
    """Add bounds to ``base``; other metadata (an option's help) says nothing."""
    if any(isinstance(part, Unbounded) for part in metadata):
        base = Rule("a number", _as_number)
    bounds = [
        (words, test, getattr(part, name))
        for part in metadata
        for kind, (name, words, test) in _COMPARISONS.items()
        if isinstance(part, kind)
    ]
    least = [part.min_length for part in metadata if isinstance(part, annotated_types.MinLen)]
    once = any(isinstance(part, Distinct) for part in metadata)
    if not bounds and not least and not once:
        return base

    divides = any(test is operator.gt and bound == 0 for _, test, bound in bounds)

    def accept(value: Any) -> Any:
        value = base.accept(value)
        for _, test, bound in bounds:
            if not test(value, bound):
                raise Refused
        if divides and value < LEAST:
            raise Refused(f"what is above 0 is {LEAST:g} or more")
        if least and len(value) < least[0]:
            raise Refused
        if once and len(set(value)) < len(value):
            raise Refused
        return value

    words = [base.words, *(f"{text} {bound:g}" for text, _, bound in bounds)]
    words += [f"{count} or more" for count in least if count > 1] or ["not empty"] * bool(least)
    words += ["each once"] * once
    return Rule(", ".join(words), accept, base.choices)


def _either(rules: Sequence[Rule]) -> Rule:
    """Accept what one of the rules accepts, the first of them first."""

    def accept(value: Any) -> Any:
        reasons = []
        for alternative in rules:
            try:
                return alternative.accept(value)
            except Refused as refusal:
                reasons.append(str(refusal))
        raise Refused(max(reasons, key=len))

    words = list(dict.fromkeys(alternative.words for alternative in rules))
    choices = tuple(choice for alternative in rules for choice in alternative.choices)
    return Rule(
        f"{', '.join(words[:-1])}, or {words[-1]}" if words[1:] else words[0], accept, choices
    )


def _choice(values: tuple[Any, ...]) -> Rule:
    """Accept one of the values, and nothing that only equals it."""

    def accept(value: Any) -> Any:
        value = value.item() if _numpy_kind(value) else value
        for choice in values:  # 1 == True, so kinds are compared too
            if type(value) is type(choice) and value == choice:
                return choice
        raise Refused

    words = ", ".join(map(repr, values))
    return Rule(f"one of {words}" if values[1:] else words, accept, values)


def _member(kind: type[Enum]) -> Rule:
    """Accept a member of an enum, which its value stands for as well."""
    values = tuple(member.value for member in kind)

    def accept(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if type(value) in {str, int}:
            for member in kind:
                if type(value) is type(member.value) and value == member.value:
                    return member
        raise Refused

    return Rule(f"one of {', '.join(map(repr, values))}", accept, values)


def _items(kind: type, item: Rule) -> Rule:
    """Accept a collection of items; for a tuple any sequence will do. A text is no collection of
    texts.
    """

    is_ordered = kind in (list, tuple, Sequence)

    def accept(value: Any) -> Any:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise Refused
        if hasattr(value, "iterrows"):  # a table, which would give the names of its columns
            raise Refused
        if hasattr(value, "tolist"):
            value = value.tolist()
            if not isinstance(value, list):  # one number, as NumPy has it
                raise Refused
        elif not isinstance(value, Collection):  # an iterator: read only by who asked for it
            if is_ordered or kind is Collection:
                raise Refused
            return value
        if is_ordered and isinstance(value, Set):
            raise Refused
        if isinstance(value, range):
            _check_range(value)
            if item in (_ANYTHING, _NUMBER, _PLAIN[int]):
                return tuple(value) if kind is tuple else value
        items = [item.accept(part) for part in value]
        if kind is tuple:
            return tuple(items)
        same = all(new is old for new, old in zip(items, value, strict=True))
        return value if same and isinstance(value, kind) else items

    return Rule(
        f"a list of items, each {item.words}" if item is not _ANYTHING else "a list", accept
    )


def _fixed(rules: Sequence[Rule]) -> Rule:
    """Accept so many values, each by a rule of its own."""

    def accept(value: Any) -> Any:
        if isinstance(value, str | bytes | Mapping | Set) or hasattr(value, "iterrows"):
            raise Refused
        if not isinstance(value, Collection) or not _has_length(value, len(rules)):
            raise Refused
        return tuple(part.accept(item) for part, item in zip(rules, value, strict=True))

    words = ", ".join(part.words for part in rules)
    return Rule(f"{len(rules)} values: {words}", accept)


def _has_length(value: Collection[Any], length: int) -> bool:
    """Tell whether a collection has so many items; a single number of NumPy's, or a range beyond
    64 bits, has no length that Python can say."""
    try:
        return len(value) == length
    except (TypeError, OverflowError):
        return False


def _mapping(kind: type, rules: Sequence[Rule]) -> Rule:
    """Accept a mapping whose keys and values follow a rule each."""
    key, item = rules or (_ANYTHING, _ANYTHING)

    def accept(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise Refused
        if key is item is _ANYTHING:
            return value
        return {key.accept(name): item.accept(part) for name, part in value.items()}

    return Rule(f"a mapping from {key.words} to {item.words}" if rules else "a mapping", accept)


def _a(name: str) -> str:
    """Put the article before a class's name."""
    return f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}"
