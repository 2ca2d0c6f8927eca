"""The reference page of every name of `liftlog.client`, made from signatures and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, ForwardRef, get_args

from liftlog import client
from liftlog.client.reading import read_options

_HEAD = """\
# Client API

<!-- Made by `make pages`; a test fails when this page is out of date. -->

This page lists all public names of `liftlog.client`, with their signatures and docstrings. [The
client](client.md) explains how to use them together. [Consume](../how-to/consume.md) begins with
an example.

`SyncClient`, `SyncConsumer`, `SyncWorker`, `SyncBatchReader` and `SyncRecordReader` have the same
methods as the classes below. Call these methods without `await`, and `close` instead of `aclose`.
Only one thread at a time may use such an object. If a signal handler interrupts a call with an
exception, the object stays usable.
"""

_CLASSES: tuple[type, ...] = (
    client.Client,
    client.Consumer,
    client.GroupConsumer,
    client.Worker,
    client.WorkBatch,
    client.RecordReader,
    client.BatchReader,
    client.RecordBatch,
    client.FetchAnswer,
)
_VALUES: tuple[type, ...] = (
    client.Record,
    client.WorkMessage,
    client.ReadOptions,
    client.ConsumerOptions,
    client.Filter,
    client.Reset,
    client.StreamInfo,
    client.StreamExtent,
    client.StreamUpdate,
    client.Removal,
    client.LeaseInfo,
    client.ErasureInfo,
    client.ErasureProof,
    client.ErasedOffsets,
    client.ProvenFile,
    client.Checkpoint,
    client.GroupInfo,
    client.ConsumerInfo,
    client.DaemonInfo,
    client.ClusterInfo,
    client.ClusterNode,
    client.ClusterStream,
)
_ALIASES = {
    "Start": (
        "an offset, `earliest`, `latest`, or a `datetime` (the first record with this or a later "
        "timestamp)"
    ),
    "Until": (
        "the end (exclusive): an offset, `end` (the high watermark at the time of the call), or "
        "None (no end)"
    ),
    "Deliver": "`all`, `new`, `last`, `last_per_subject`, an offset, or a `datetime`",
    "Column": f"one of {', '.join(f'`{name}`' for name in get_args(read_options.Column))}",
    "OnCorrupt": "`raise`, `skip`, or a callable that is called with each CorruptRange",
    "OnReset": f"one of {', '.join(f'`{name}`' for name in get_args(read_options.OnReset))}",
}
TWINS = (
    *("SyncClient", "SyncConsumer", "SyncGroupConsumer", "SyncWorker"),
    *("SyncBatchReader", "SyncRecordReader"),
)


def render() -> str:
    """The page as Markdown."""
    return "\n".join([_HEAD, *_functions(), *_classes(), *_values(), *_aliases()])


def _functions() -> Iterator[str]:
    yield "## Connecting\n"
    for function in (client.connect, client.connect_sync):
        yield f"### {function.__name__}\n"
        yield _signature(function, function.__name__)
        yield _doc(function)


def _classes() -> Iterator[str]:
    for cls in _CLASSES:
        yield f"## {cls.__name__}\n"
        yield _doc(cls)
        properties = [(name, item) for name, item in _public(cls) if isinstance(item, property)]
        if properties:
            yield _table(
                "attribute", [(name, _annotation(item), _line(item)) for name, item in properties]
            )
        for name, item in _public(cls):
            if inspect.isfunction(item):
                yield f"### {cls.__name__}.{name}\n"
                yield _signature(item, name)
                yield _doc(item)


def _values() -> Iterator[str]:
    yield "## Values\n"
    for cls in _VALUES:
        yield f"### {cls.__name__}\n"
        yield _doc(cls)
        if dataclasses.is_dataclass(cls):
            fields = [(field.name, str(field.type)) for field in dataclasses.fields(cls)]
        else:
            fields = [(name, _text(kind)) for name, kind in inspect.get_annotations(cls).items()]
        yield _table("field", [(name, kind, "") for name, kind in fields])


def _aliases() -> Iterator[str]:
    yield "## Types of arguments\n"
    yield "| name | meaning |\n|---|---|"
    for name, meaning in _ALIASES.items():
        yield f"| `{name}` | {meaning} |"
    yield ""


def _public(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield methods and properties in the order of the source, those of the class itself before
    those of its bases."""
    seen = set()
    for one in cls.__mro__[:-1]:
        for name, item in vars(one).items():
            wanted = inspect.isfunction(item) or isinstance(item, property)
            if wanted and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, item


def _signature(function: Callable[..., Any], name: str) -> str:
    """Return the signature in the form of a call, on one line or with one line for each
    argument."""
    arguments, starred = [], False
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            arguments.append("*")
            starred = True
        arguments.append(_argument(parameter))
    called = "await " if inspect.iscoroutinefunction(function) else ""
    returns = signature.return_annotation
    answer = "" if returns in ("None", signature.empty) else f" -> {_text(returns)}"
    line = f"{called}{name}({', '.join(arguments)}){answer}"
    if len(line) > 92:
        inner = "".join(f"    {argument},\n" for argument in arguments)
        line = f"{called}{name}(\n{inner}){answer}"
    return f"```\n{line}\n```\n"


def _argument(parameter: inspect.Parameter) -> str:
    text = f"{parameter.name}: {_text(parameter.annotation)}"
    if parameter.kind is parameter.VAR_KEYWORD:
        return "**" + re.sub(r"Unpack\[(\w+)\]", r"\1", text)
    if parameter.default is not parameter.empty:
        text += f" = {parameter.default!r}"
    return text


def _doc(item: Any) -> str:
    return f"{inspect.cleandoc(item.__doc__ or '')}\n"


def _line(item: property) -> str:
    return " ".join(inspect.cleandoc(item.__doc__ or "").split())


def _annotation(item: property) -> str:
    return _text(inspect.signature(item.fget).return_annotation) if item.fget else ""


def _text(annotation: Any) -> str:
    """Return an annotation as it is written in the source."""
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _table(title: str, rows: list[tuple[str, str, str]]) -> str:
    told = any(meaning for _, _, meaning in rows)
    lines = [f"| {title} | type |" + " meaning |" * told, "|---|---|" + "---|" * told]
    for name, kind, meaning in rows:
        kind = kind.replace("|", "\\|")
        lines.append(f"| `{name}` | `{kind}` |" + f" {meaning} |" * told)
    return "\n".join(lines) + "\n"
