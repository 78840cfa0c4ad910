"""Tuning specs: the root op of a dispatch, its lowering, and the transform module that applies it.

A spec is a transform-dialect module that `iree-compile --iree-codegen-tuning-spec-path` runs on
every dispatch before it chooses a lowering itself. It has one matcher per root op and one entry
point, `@__kernel_config`, with a single `foreach_match` over the pairs `@matcher -> @action`; the
first matcher that matches decides. IREE 3.13 applies specs on llvm-cpu and on GPUs.

A second entry point of the same file, `@__transform_main`, runs before dispatches are formed: it
replaces named convolutions by GEMMs, and marks the GEMMs whose operands are to be packed.
`--iree-preprocessing-transform-spec-filename` runs it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kernelmark.core.dtype import dtype
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.kernels.mlir.base import DTYPE_OF, affine_map

# The role of a loop in a matcher, by whether the left operand, the right one and the result are
# indexed by it. In a window of a convolution, p + r for example, p is `image` and r `filter`.
_ROLES: Mapping[str, Mapping[tuple[bool, bool, bool], str]] = {
    "contraction": {
        (True, True, True): "batch",
        (True, False, True): "m",
        (False, True, True): "n",
        (True, True, False): "k",
    },
    "convolution": {
        (True, True, True): "depth",
        (True, False, True): "batch",
        (False, True, True): "channels",
        (True, True, False): "terms",
    },
}
_IN_WINDOW = {"batch": "image", "terms": "filter"}
_ANY = "!transform.any_op"
_PARAM = "!transform.any_param"
_SIZES = "!transform.param<i64>"
_ENTRY = "__kernel_config"
MAIN = "__transform_main"
SPEC_FLAG = "--iree-codegen-tuning-spec-path"
PREPROCESSING_FLAG = "--iree-preprocessing-transform-spec-filename"
# The matcher op of each kind of root op, with its results in order.
_MATCHERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "contraction": ("contraction", ("batch", "m", "n", "k")),
    "convolution": (
        "convolution",
        ("batch", "image", "channels", "filter", "terms", "depth", "strides", "dilations"),
    ),
    # IREE has lowered attention to this op when specs are applied. There is no matcher for a masked
    # one.
    "attention": ("online_attention", ("batch", "m", "n", "k1", "k2")),
}
# Operands of a masked attention in order, and the prefix of their type in `Root.types`. The last
# three are the outputs.
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
_ACTIONS = {0: "keep_default", 1: "apply_config", 2: "apply_attention_config"}
_PACK = "pack_operands"
# With data tiling on, IREE packs the operands of the ops with this attribute; if neither the
# function nor any op in it has the attribute, those of all GEMMs of the function.
_HINT = "iree.opt.data_tiling"
_NOTE = "// kernelmark "
_SEQUENCE = re.compile(
    r"^ *(?:transform\.named_sequence|util\.func private)\s+@([\w$.-]+)", re.MULTILINE
)
_PAIR = re.compile(r"@([\w$.-]+)\s*->\s*@([\w$.-]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """The op of a dispatch that a lowering applies to, as a spec matches it.

    `types` and `maps` are attributes of the matcher; `sizes` are the loop sizes that it must
    return. `loops` are the loop names, and each of `reads` the loops that index an operand, both
    separated by commas. An attention with a `mask_type` is matched as a whole op. `prefix` begins
    the config names of this root if a problem has several."""

    kind: str
    types: Mapping[str, str]
    loops: str
    reads: tuple[str, ...]
    sizes: Mapping[str, tuple[int, ...]]
    prefix: str = ""

    def size(self, loop: str) -> int:
        """Return the iterations of a loop of a kind that occurs once in the op."""
        (size,) = self.sizes[loop]
        return size

    def bits(self, operand: str) -> int:
        """Return the bits per element of an operand."""
        return dtype(DTYPE_OF[self.types[operand]]).bits

    @property
    def roles(self) -> Mapping[str, str]:
        """Return the role of each loop of a contraction or convolution, a key of `sizes`."""
        return loop_roles(self.kind, self.loops, self.reads)

    @property
    def iterations(self) -> Mapping[str, int]:
        """Return the iterations of each loop of a contraction or convolution."""
        sizes = {role: iter(values) for role, values in self.sizes.items()}
        return {loop: next(sizes[role]) for loop, role in self.roles.items()}

    @property
    def maps(self) -> tuple[str, ...]:
        return tuple(affine_map(self.loops, read) for read in self.reads)

    @property
    def name(self) -> str:
        """Return the name of the matcher, a digest of its text: equal root ops have equal names."""
        return f"kernelmark_{hashlib.sha256(self.match.encode()).hexdigest()[:16]}"

    @property
    def match(self) -> str:
        """Return the body of the matcher."""
        if "mask_type" in self.types:
            return self._masked
        name, results = _MATCHERS[self.kind]
        types = ", ".join(f"{key} = {value}" for key, value in self.types.items())
        maps = ", ".join(self.maps)
        names = ", ".join(f"%{result}" for result in results)
        lines = [
            f"{names} = transform.iree.match.{name} %op, {types},"
            f" indexing_maps = [{maps}] : {_ANY} -> {_SIZES}"
        ]
        for operand, sizes in self.sizes.items():
            lines.append(f"transform.iree.match.dims_equal %{operand}, {list(sizes)} : {_SIZES}")
        return "\n".join(f"    {line}" for line in lines)

    @property
    def _masked(self) -> str:
        """Return the body of the matcher of a masked attention, which compares the whole op."""
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


@functools.cache
def loop_roles(kind: str, loops: str, reads: tuple[str, ...]) -> Mapping[str, str]:
    """Return the role of each loop of a contraction or convolution in its matcher."""
    names = [set(re.findall(r"[a-z]+", read)) for read in reads]
    windows = {name for part in reads[0].split(", ") if "+" in part for name in part.split()}
    roles = {}
    for loop in loops.split(", "):
        left, right, result = (loop in read for read in names)
        role = _ROLES[kind][left, right, result]
        roles[loop] = _IN_WINDOW.get(role, role) if loop in windows else role
    return FrozenDict(roles)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """How a root op is compiled, in IREE's printed form: attributes without their defaults, keys of
    dictionaries in alphabetical order. `parts` are the two GEMMs of an attention. Without a config
    the compiler chooses the tiles; `packed` operands are first laid out in those tiles."""

    config: str = ""
    translation: str = ""
    parts: str = ""
    packed: bool = False

    @property
    def info(self) -> str:
        return (
            f"#iree_codegen.compilation_info<lowering_config = {self.config}, "
            f"translation_info = {self.translation}>"
        )

    @property
    def constants(self) -> tuple[tuple[str, str], ...]:
        """Return the parameters that the matcher passes to the action, by name."""
        texts = (("info", self.info if self.config else ""), ("parts", self.parts))
        return tuple((name, value) for name, value in texts if value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """A named op, and the function that computes the same with the root op of an entry. The
    function is named `function_name(root)`."""

    root: Root
    function: str


def function_name(root: Root) -> str:
    """Return the name of the function that replaces a named op."""
    return f"{root.name}_rewritten"


@dataclass(frozen=True, slots=True, kw_only=True)
class RootEntry:
    """A root op with its lowering. `note` is written as a comment above the matcher, for kernelmark
    to read back. A convolution has `rewrites` of the named ops that become its root op."""

    root: Root
    lowering: Lowering
    note: Mapping[str, object] = field(default_factory=dict)
    rewrites: tuple[Rewrite, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A spec's named sequences by name, each with the comment lines above it, and the pairs of its
    entry points: `pairs` for dispatches, `rewrites` and `packs` for the preprocessing. `head` is
    the text before them."""

    head: str
    sequences: Mapping[str, str]
    pairs: tuple[tuple[str, str], ...]
    rewrites: tuple[tuple[str, str], ...] = ()
    packs: tuple[tuple[str, str], ...] = ()

    def with_entries(self, entries: Sequence[RootEntry]) -> Spec:
        """Return the spec with `entries` first, so that they take precedence; entries with the same
        root op are replaced."""
        new = {entry.root.name: _sequence(entry) for entry in entries}
        actions = {e.root.name: _ACTIONS[len(e.lowering.constants)] for e in entries}
        packs = {e.root.name: _PACK for e in entries if e.lowering.packed}
        rewrites = {}
        replaced: dict[str, str] = {}
        for rewrite in (rewrite for entry in entries for rewrite in entry.rewrites):
            name = rewrite.root.name
            rewrites[name] = f"{name}_call"
            replaced |= _rewriting(rewrite)
        shared = {
            name: _action(count) for count, name in _ACTIONS.items() if name in actions.values()
        }
        shared |= {_PACK: _pack_action()} if packs else {}
        for name, text in shared.items():
            if name in self.sequences and _squeezed(self.sequences[name]) != _squeezed(text):
                raise UsageError(f"the spec has another @{name}", hint="rename it there")
        if (rewrites or packs) and MAIN in self.sequences:
            raise UsageError(
                f"the spec has another @{MAIN}", hint="keep it in a separate file and merge both"
            )
        merged = replaced | new
        old = {name: text for name, text in self.sequences.items() if name not in merged}
        return Spec(
            head=self.head,
            sequences=shared | old | merged,
            pairs=(*actions.items(), *_without(self.pairs, new)),
            rewrites=(*rewrites.items(), *_without(self.rewrites, rewrites)),
            packs=(*packs.items(), *_without(self.packs, new)),
        )

    @property
    def preprocesses(self) -> bool:
        """Return whether the spec has an entry point for preprocessing."""
        return bool(self.rewrites or self.packs)

    @property
    def text(self) -> str:
        main = f"{_main(self.rewrites, self.packs)}\n" if self.preprocesses else ""
        return (
            f"{self.head}\n"
            + "".join(f"{text}\n" for text in self.sequences.values())
            + main
            + f"  transform.named_sequence @{_ENTRY}(%op: {_ANY} {{transform.consumed}})"
            f" -> {_ANY}\n"
            "      attributes {iree_codegen.tuning_spec_entrypoint} {\n"
            f"    %done = transform.foreach_match in %op\n{_listed(self.pairs)}\n"
            f"      : ({_ANY}) -> {_ANY}\n"
            f"    transform.yield %done : {_ANY}\n  }}\n}}\n"
        )

    @property
    def notes(self) -> Mapping[str, Mapping[str, object]]:
        """Return the notes of kernelmark's own matchers, by name."""
        notes = {}
        for name, text in self.sequences.items():
            first = text.lstrip().partition("\n")[0]
            if first.startswith(_NOTE):
                notes[name] = json.loads(first.removeprefix(_NOTE))
        return notes


EMPTY = Spec(
    head=(
        "module @kernelmark_spec attributes {iree_codegen.tuning_spec_with_default_entrypoint,"
        " transform.with_named_sequence} {"
    ),
    sequences={},
    pairs=(),
)


def parse_spec(text: str) -> Spec:
    """Parse any spec with the default entry point, including one not written by kernelmark."""
    if "iree_codegen.tuning_spec_with_default_entrypoint" not in text:
        raise UsageError(
            "not a tuning spec with a default entry point",
            hint="a spec's module has the attribute tuning_spec_with_default_entrypoint",
        )
    chunks = dict(_chunks(text))
    first = min((text.index(chunk) for chunk in chunks.values()), default=0)
    entry = chunks.pop(_ENTRY, "")
    _, matched, rest = entry.partition("transform.foreach_match")
    if not matched:
        raise UsageError(f"the tuning spec has no @{_ENTRY} with a foreach_match")
    head = text[:first].rstrip()
    before = [(match[1], match[2]) for match in _PAIR.finditer(chunks.get(MAIN, ""))]
    packs = tuple(pair for pair in before if pair[1] == _PACK)
    rewrites = tuple(pair for pair in before if pair[1] != _PACK)
    if MAIN in chunks and _squeezed(chunks[MAIN]) == _squeezed(_main(rewrites, packs)):
        del chunks[MAIN]
    else:
        packs, rewrites = (), ()  # another one is kept like any sequence
    pairs = tuple((match[1], match[2]) for match in _PAIR.finditer(rest.partition("!")[0]))
    return Spec(head=head, sequences=chunks, pairs=pairs, rewrites=rewrites, packs=packs)


def missing(dump: str, entries: Sequence[RootEntry]) -> list[RootEntry]:
    """Return the entries that no dispatch uses in `dump`, the module as `iree-compile
    --compile-to=executable-configurations` prints it. A dispatch uses an entry if its function has
    the translation info and an op in it the lowering config (and the parts, if any). Without a
    config, the function must have the root op's sizes in its name and, if operands are to be
    packed, a packed GEMM in it."""
    functions = [_squeezed(word) for word in re.split(r"(?=^ *func\.func )", dump, flags=re.M)]
    return [
        entry
        for entry in entries
        if not any(
            all(_squeezed(evidence) in function for evidence in _evidence(entry))
            for function in functions
        )
    ]


def _evidence(entry: RootEntry) -> tuple[str, ...]:
    lowering = entry.lowering
    if not lowering.config:
        every = (size for item in entry.root.sizes.values() for size in item)
        sizes = "x".join(str(size) for size in every if size > 1)
        return (f"_{sizes}_", *["mmt4d {"] * lowering.packed)
    parts = (f"decomposition_config = {lowering.parts}",) if lowering.parts else ()
    config = f"lowering_config = {lowering.config}"
    return (f"translation_info = {lowering.translation}", config, *parts)


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _chunks(text: str) -> Iterator[tuple[str, str]]:
    """Yield every named sequence: its name, and its text with the comment lines above it."""
    for match in _SEQUENCE.finditer(text):
        start = match.start()
        while (line := text[: max(start - 1, 0)].rpartition("\n")[2]).lstrip().startswith("//"):
            start -= len(line) + 1
        yield match[1], text[start : _end(text, match.end())]


def _end(text: str, at: int) -> int:
    """Return the end of the body of the op that begins before `at`: after the first top-level
    closing brace that is followed by a line end."""
    depth = 0
    for position in range(at, len(text)):
        depth += (text[position] == "{") - (text[position] == "}")
        if text[position] == "}" and not depth and text[position + 1 : position + 2] in ("\n", ""):
            return position + 1
    raise UsageError("the tuning spec is cut short: a named sequence does not end")


def _without(
    pairs: Sequence[tuple[str, str]], matchers: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    return tuple(pair for pair in pairs if pair[0] not in matchers)


def _listed(pairs: Sequence[tuple[str, str]]) -> str:
    return ",\n".join(f"      @{matcher} -> @{action}" for matcher, action in pairs)


def _sequence(entry: RootEntry) -> str:
    note = f"  {_NOTE}{json.dumps(entry.note, sort_keys=True)}\n" if entry.note else ""
    return note + _matcher(entry.root, entry.lowering.constants)


def _matcher(root: Root, constants: Sequence[tuple[str, str]]) -> str:
    kinds = ", ".join([_ANY, *[_PARAM] * len(constants)])
    names = ", ".join(["%op", *(f"%{name}" for name, _ in constants)])
    lines = "".join(
        f"    %{name} = transform.param.constant {value} -> {_PARAM}\n" for name, value in constants
    )
    return (
        f"  transform.named_sequence @{root.name}(%op: {_ANY} {{transform.readonly}})"
        f" -> ({kinds}) {{\n{root.match}\n{lines}"
        f"    transform.yield {names} : {kinds}\n  }}"
    )


def _rewriting(rewrite: Rewrite) -> dict[str, str]:
    """Return the sequences of a rewrite by name: the function, the matcher of the named op, and the
    action that replaces the op by a call of the function."""
    name, function = rewrite.root.name, function_name(rewrite.root)
    call = (
        f"  transform.named_sequence @{name}_call(%op: {_ANY} {{transform.readonly}}) {{\n"
        f"    %module = transform.util.get_nearest_symbol_table %op : ({_ANY}) -> {_ANY}\n"
        f"    %function = transform.util.import_symbol @{function} into %module if undefined"
        f" : ({_ANY}) -> {_ANY}\n"
        f"    %ins = transform.get_operand %op[all] : ({_ANY}) -> !transform.any_value\n"
        f"    %out = transform.get_result %op[all] : ({_ANY}) -> !transform.any_value\n"
        "    transform.util.cast_and_call %function(%ins) -> %out before %op {\n"
        "      transform.type_conversion.tensor.cast_shape_dynamic_dims\n"
        f"    }} : ({_ANY}, !transform.any_value, !transform.any_value, {_ANY}) -> {_ANY}\n"
        "    transform.yield\n  }"
    )
    return {function: rewrite.function, name: _matcher(rewrite.root, ()), f"{name}_call": call}


def _main(rewrites: Sequence[tuple[str, str]], packs: Sequence[tuple[str, str]]) -> str:
    """Return the entry point of the preprocessing: it replaces convolutions by GEMMs, then marks
    GEMMs. Functions are marked too, so that IREE packs no other GEMM in them."""
    lines = [
        f"  // Give this file to {PREPROCESSING_FLAG}, too.",
        f"  transform.named_sequence @{MAIN}(%module: {_ANY}) {{",
    ]
    if rewrites:
        lines += [
            *_in_functions(f"      transform.foreach_match in %f\n{_listed(rewrites)}", "calls"),
            f"    transform.apply_dce to %module : {_ANY}",
            '    %inlined = transform.apply_registered_pass "inline" to %module'
            f" : ({_ANY}) -> {_ANY}",
        ]
    if packs:
        mark = f'      transform.annotate %f "{_HINT}" : {_ANY}\n'
        module = "%inlined" if rewrites else "%module"
        lines += _in_functions(
            f"{mark}      transform.foreach_match in %f\n{_listed(packs)}", "packs", module
        )
    return "\n".join([*lines, "    transform.yield", "  }"])


def _in_functions(text: str, name: str, module: str = "%module") -> list[str]:
    """Return lines that apply `text`, which ends in the pairs of a foreach_match, to every function
    `%f`."""
    return [
        f'    %{name} = transform.structured.match ops{{["util.func"]}} in {module}'
        f" : ({_ANY}) -> {_ANY}",
        f"    transform.foreach %{name} : {_ANY} {{",
        f"    ^bb1(%f: {_ANY}):",
        f"{text}\n      : ({_ANY}) -> {_ANY}",
        "    }",
    ]


def _pack_action() -> str:
    return (
        f"  transform.named_sequence @{_PACK}(%op: {_ANY} {{transform.readonly}}) {{\n"
        f'    transform.annotate %op "{_HINT}" : {_ANY}\n    transform.yield\n  }}'
    )


def _action(count: int) -> str:
    """Return the action that annotates an op with `count` parameters."""
    names = ("compilation_info", "decomposition_config")[:count]
    arguments = "".join(f", %{name}: {_PARAM} {{transform.readonly}}" for name in names)
    lines = "".join(
        f'    transform.annotate %op "{name}" = %{name} : {_ANY}, {_PARAM}\n' for name in names
    )
    return (
        f"  transform.named_sequence @{_ACTIONS[count]}(%op: {_ANY} {{transform.readonly}}"
        f"{arguments}) {{\n{lines}    transform.yield\n  }}"
    )
