"""Tuning specs: which root op of a dispatch a lowering is for, and the library that applies it.

A spec is a transform-dialect module that `iree-compile --iree-codegen-tuning-spec-path` runs on
every dispatch before it chooses a lowering itself. It holds one matcher per root op and one entry
point, `@__kernel_config`, with a single `foreach_match` over the pairs `@matcher -> @action`; the
first matcher that fits decides. IREE 3.13 applies specs on llvm-cpu and on GPUs alike.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kernelmark.core.dtype import dtype
from kernelmark.core.errors import UsageError
from kernelmark.kernels.mlir.base import DTYPE_OF, affine_map

_ANY = "!transform.any_op"
_PARAM = "!transform.any_param"
_SIZES = "!transform.param<i64>"
_ENTRY = "__kernel_config"
# What each kind of root op is matched by, with the results of the matcher in order.
_MATCHERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "contraction": ("contraction", ("batch", "m", "n", "k")),
    "convolution": (
        "convolution",
        ("batch", "image", "channels", "filter", "terms", "depth", "strides", "dilations"),
    ),
    # The attention op has become this one when specs are applied. A masked one has no such matcher.
    "attention": ("online_attention", ("batch", "m", "n", "k1", "k2")),
}
# Of a masked attention, in order: how they are called in the matcher, and whose type they have. The
# last three are the results.
_MASKED_OPERANDS: Mapping[str, str] = {
    "q": "query",
    "k": "key",
    "v": "value",
    "scale": "scale",
    "mask": "mask",
    "out": "output",
    "max": "max",
    "sum": "sum",
}
_ACTIONS = {1: "apply_config", 2: "apply_attention_config"}
_NOTE = "// kernelmark "
_SEQUENCE = re.compile(r"^ *transform\.named_sequence\s+@([\w$.-]+)", re.MULTILINE)
_PAIR = re.compile(r"@([\w$.-]+)\s*->\s*@([\w$.-]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """The op of a dispatch that a lowering belongs to, as a spec recognises it.

    `types` and `maps` are attributes of the matcher; `sizes` are the loop sizes that it must
    return. `loops` are named, and each of `reads` has those that an operand is indexed by, both
    separated by commas. An attention with a `mask_type` is matched as a whole op. `prefix` begins
    the config names of this root where a problem has several."""

    kind: str
    types: Mapping[str, str]
    loops: str
    reads: tuple[str, ...]
    sizes: Mapping[str, tuple[int, ...]]
    prefix: str = ""

    def size(self, loop: str) -> int:
        """The iterations of a kind of loop that the op has once."""
        (size,) = self.sizes[loop]
        return size

    def bits(self, operand: str) -> int:
        """The bits of an element of an operand."""
        return dtype(DTYPE_OF[self.types[operand]]).bits

    @property
    def maps(self) -> tuple[str, ...]:
        return tuple(affine_map(self.loops, read) for read in self.reads)

    @property
    def name(self) -> str:
        """Of the matcher: equal for equal root ops."""
        return f"kernelmark_{hashlib.sha256(self.match.encode()).hexdigest()[:16]}"

    @property
    def match(self) -> str:
        """The matcher's lines."""
        if "mask_type" in self.types:
            return self._masked
        name, results = _MATCHERS[self.kind]
        types = ", ".join(f"{key} = {value}" for key, value in self.types.items())
        maps = ", ".join(self.maps)
        lines = [
            f"{', '.join(f'%{one}' for one in results)} = transform.iree.match.{name} %op, {types},"
            f" indexing_maps = [{maps}] : {_ANY} -> {_SIZES}"
        ]
        for one, sizes in self.sizes.items():
            lines.append(f"transform.iree.match.dims_equal %{one}, {list(sizes)} : {_SIZES}")
        return "\n".join(f"    {line}" for line in lines)

    @property
    def _masked(self) -> str:
        """A masked attention, compared with the op as it is."""
        counts = (size for name in _MATCHERS["attention"][1] for size in self.sizes[name])
        size = dict(zip(self.loops.split(", "), counts, strict=True))

        def operand(of: str, read: str) -> str:
            dims = "".join(f"{size[loop]}x" for loop in read.split(", ") if loop)
            element = self.types[f"{of}_type"]
            return f"tensor<{dims}{element}>" if dims else element

        kinds = {
            name: operand(of, read)
            for (name, of), read in zip(_MASKED_OPERANDS.items(), self.reads, strict=True)
        }
        ins = dict(list(kinds.items())[:-3])
        outs = dict(list(kinds.items())[-3:])
        arguments = ", ".join(f"%{name}: {kind}" for name, kind in (ins | outs).items())
        operands = [
            f"{', '.join(f'%{x}' for x in y)} : {', '.join(y.values())}" for y in (ins, outs)
        ]
        lines = [
            "%ins, %outs = transform.iree.match.cast_compatible_dag_from_root %op {",
            f"^bb0({arguments}):",
            "  %done:3 = iree_linalg_ext.online_attention"
            f" <indexing_maps = [{', '.join(self.maps)}]>"
            f" ins({operands[0]}) outs({operands[1]}) {{",
            "  ^bb0(%score: f32):",
            "    iree_linalg_ext.yield %score : f32",
            f"  }} -> {', '.join(outs.values())}",
            f"}} : ({_ANY}) -> (!transform.any_value, !transform.any_value)",
        ]
        return "\n".join(f"    {line}" for line in lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """How a root op is compiled, as IREE prints it: attributes without their defaults, keys of
    dictionaries in alphabetical order. `parts` holds the two GEMMs of an attention."""

    config: str
    translation: str
    parts: str = ""

    @property
    def info(self) -> str:
        return (
            f"#iree_codegen.compilation_info<lowering_config = {self.config}, "
            f"translation_info = {self.translation}>"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A root op with its lowering; `note` is what kernelmark remembers of it in a file."""

    root: Root
    lowering: Lowering
    note: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A spec's named sequences by name, each with the comment lines above it, and the pairs of its
    entry point. `head` is the text before them."""

    head: str
    sequences: Mapping[str, str]
    pairs: tuple[tuple[str, str], ...]

    def with_entries(self, entries: Sequence[Entry]) -> Spec:
        """The spec with `entries` in front: they decide before what was there, and replace what
        they match themselves."""
        new = {entry.root.name: _sequence(entry) for entry in entries}
        actions = {entry.root.name: _ACTIONS[2 if entry.lowering.parts else 1] for entry in entries}
        used = {count: name for count, name in _ACTIONS.items() if name in actions.values()}
        shared = {name: _action(count) for count, name in used.items()}
        for name, text in shared.items():
            if name in self.sequences and _squeezed(self.sequences[name]) != _squeezed(text):
                raise UsageError(f"the spec has another @{name}", hint="rename it there")
        old = {name: text for name, text in self.sequences.items() if name not in new}
        kept = tuple(pair for pair in self.pairs if pair[0] not in new)
        return Spec(
            head=self.head,
            sequences=shared | old | new,
            pairs=(*actions.items(), *kept),
        )

    @property
    def text(self) -> str:
        pairs = ",\n".join(f"      @{matcher} -> @{action}" for matcher, action in self.pairs)
        return (
            f"{self.head}\n"
            + "".join(f"{text}\n" for text in self.sequences.values())
            + f"  transform.named_sequence @{_ENTRY}(%op: {_ANY} {{transform.consumed}})"
            f" -> {_ANY}\n"
            "      attributes {iree_codegen.tuning_spec_entrypoint} {\n"
            f"    %done = transform.foreach_match in %op\n{pairs}\n      : ({_ANY}) -> {_ANY}\n"
            f"    transform.yield %done : {_ANY}\n  }}\n}}\n"
        )

    @property
    def notes(self) -> Mapping[str, Mapping[str, object]]:
        """What kernelmark remembers of its own matchers, by name."""
        found = {}
        for name, text in self.sequences.items():
            first = text.lstrip().partition("\n")[0]
            if first.startswith(_NOTE):
                found[name] = json.loads(first.removeprefix(_NOTE))
        return found


EMPTY = Spec(
    head=(
        "module @kernelmark_spec attributes {iree_codegen.tuning_spec_with_default_entrypoint,"
        " transform.with_named_sequence} {"
    ),
    sequences={},
    pairs=(),
)


def parse_spec(text: str) -> Spec:
    """The parts of a spec with the default entry point, of whatever origin."""
    if "iree_codegen.tuning_spec_with_default_entrypoint" not in text:
        raise UsageError(
            "not a tuning spec with a default entry point",
            hint="a spec's module has the attribute tuning_spec_with_default_entrypoint",
        )
    chunks = dict(_chunks(text))
    entry = chunks.pop(_ENTRY, "")
    _, matched, rest = entry.partition("transform.foreach_match")
    if not matched:
        raise UsageError(f"the tuning spec has no @{_ENTRY} with a foreach_match")
    first = text.index(next(iter(chunks.values()), entry))
    head = text[:first].rstrip()
    pairs = tuple((found[1], found[2]) for found in _PAIR.finditer(rest.partition("!")[0]))
    return Spec(head=head, sequences=chunks, pairs=pairs)


def missing(dump: str, entries: Sequence[Entry]) -> list[Entry]:
    """Entries that no dispatch has taken over, in the module as `iree-compile
    --compile-to=executable-configurations` prints it: its function must have the translation
    info, and an op in it the lowering config, and the parts where there are any."""
    functions = [_squeezed(one) for one in re.split(r"(?=^ *func\.func )", dump, flags=re.M)]
    return [
        entry
        for entry in entries
        if not any(
            all(_squeezed(wanted) in one for wanted in _evidence(entry.lowering))
            for one in functions
        )
    ]


def _evidence(lowering: Lowering) -> tuple[str, ...]:
    parts = (f"decomposition_config = {lowering.parts}",) if lowering.parts else ()
    config = f"lowering_config = {lowering.config}"
    return (f"translation_info = {lowering.translation}", config, *parts)


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _chunks(text: str) -> Iterator[tuple[str, str]]:
    """Every named sequence with the comment lines above it, by its name."""
    for found in _SEQUENCE.finditer(text):
        start = found.start()
        while (line := text[: max(start - 1, 0)].rpartition("\n")[2]).lstrip().startswith("//"):
            start -= len(line) + 1
        yield found[1], text[start : _end(text, found.end())]


def _end(text: str, at: int) -> int:
    """Where the body of the op that begins before `at` ends: it is the last pair of braces that
    stands on the top level and is followed by a new line."""
    depth = 0
    for place in range(at, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if text[place] == "}" and not depth and text[place + 1 : place + 2] in ("\n", ""):
            return place + 1
    raise UsageError("the tuning spec is cut short: a named sequence does not end")


def _sequence(entry: Entry) -> str:
    parts = [("info", entry.lowering.info)]
    if entry.lowering.parts:
        parts.append(("parts", entry.lowering.parts))
    kinds = ", ".join([_ANY, *[_PARAM] * len(parts)])
    names = ", ".join(["%op", *(f"%{name}" for name, _ in parts)])
    constants = "".join(
        f"    %{name} = transform.param.constant {value} -> {_PARAM}\n" for name, value in parts
    )
    note = f"  {_NOTE}{json.dumps(entry.note, sort_keys=True)}\n" if entry.note else ""
    return (
        f"{note}  transform.named_sequence @{entry.root.name}(%op: {_ANY} {{transform.readonly}})"
        f" -> ({kinds}) {{\n{entry.root.match}\n{constants}"
        f"    transform.yield {names} : {kinds}\n  }}"
    )


def _action(count: int) -> str:
    """Annotates an op with `count` parameters."""
    names = ("compilation_info", "decomposition_config")[:count]
    arguments = "".join(f", %{name}: {_PARAM} {{transform.readonly}}" for name in names)
    lines = "".join(
        f'    transform.annotate %op "{name}" = %{name} : {_ANY}, {_PARAM}\n' for name in names
    )
    return (
        f"  transform.named_sequence @{_ACTIONS[count]}(%op: {_ANY} {{transform.readonly}}"
        f"{arguments}) {{\n{lines}    transform.yield\n  }}"
    )
