"""The sentence of every code that a `Reason` may have; sentences are worded nowhere else.

A template names fields of its reason in braces, with an optional format after a colon: a format of
Python, one of `reason.FORMATS`, or

- `{name:if text}`: the text if the field is given and true, else nothing;
- `{@max_s}`: a setting, by its name on the command line or in Python;
- `{@store}`: the options that add the reader's store to a command.

A field that is itself a reason is formatted by its own template. A reason may have fields that its
template does not use: they are for programs.
"""

from __future__ import annotations

# A setting as a field of Timing, as it is given on the command line, and in Python.
_FILE = "--timing FILE.toml"
_CALL = 'km.run("gemm", m=512, n=512, k=512, dtype="f32"), or km.run(suite="demo")'
SETTINGS = {
    "max_s": ("max_s", "--max-s", "Timing.max_s"),
    "max_allocations": ("max_allocations", f"max_allocations in {_FILE}", "Timing.max_allocations"),
    "min_samples": ("min_samples", f"min_samples in {_FILE}", "Timing.min_samples"),
    "warmup_s": ("warmup_s", f"warmup_s in {_FILE}", "Timing.warmup_s"),
    "target_rel_ci": ("target_rel_ci", "--target-ci", "Timing.target_rel_ci"),
    "duty_burst": ("duty=burst", f'duty = "burst" in {_FILE}', 'Timing.duty="burst"'),
    "roofs_fresh": ("--roofs fresh", "--roofs fresh", 'roofs="fresh"'),
    **{
        name: (f"{name}=", option, f"{name}=")
        for name, option in {
            "backend": "-b",
            "device": "-d",
            "dtype": "--dtype",
            "filter": "--filter",
            "limit": "--limit",
            "op": "-o",
        }.items()
    },
    "axis": ("NAME=VALUE", "-a NAME=VALUE", "NAME=VALUE"),
    # After NAME=…, which is also the form in a problem's text and in a suite.
    "or_axis": ("", " (-a NAME=VALUE)", ""),
    "or_dtype": ("", " (--dtype DTYPE)", ""),
    "example": (
        _CALL,
        "kmark run -s demo, or kmark run -o gemm -a m=512 -a n=512 -a k=512 --dtype f32",
        _CALL,
    ),
}
_GAPS = "{sustained:if , or add idle gaps between samples ({@duty_burst})}"
_SCORE = "{ratio:.3f} × ({low:.3f} to {high:.3f})"
_REFERENCE = "{reference_fault:if ; the reference itself: {reference_fault}}"

TEMPLATES = {
    # Refusals
    "op-unsupported": "{backend} has no {op} (it has {known:list})",
    "device-unsupported": "{backend} runs on {kinds:and}, not on {kind}{arch:if  ({arch})}",
    "dtypes-unsupported": "{backend} has no {op} with {dtypes}{where:if  on {where}}",
    "operand-unsupported": "{backend} has no kernel for operands of {dtype}",
    "operands-mixed": "{backend} has {op} only for {operands:list} of one dtype, not {dtypes}",
    "narrow-float-unsupported": "{backend} has no {dtype} on {arch}{instead:if ; it has {instead}}",
    "file-computes": "{file} computes {ops:list}, not {asked:list}",
    "no-grouped-gemm": (
        "{backend} has no grouped GEMM: of {op} it would compute all {experts} experts for every"
        " token, not {top_k}"
    ),
    "torch-build": (
        "torch {version} is not built for {device} devices: install a build for them from"
        " pytorch.org/get-started"
    ),
    "torch-no-gpu": "torch {version} sees no GPU",
    "validator-differs": "tunableop: validator {name} differs: {known} and {found}",
    "epilogue-unknown": "{backend} has no epilogue that applies {act}",
    "scale-arch": "{backend} applies scale={scale} from {least} on, not on {arch}",
    "scale-dtype": "{backend} has no scale={scale} for {dtype} on NVIDIA GPUs",
    "scale-layout": "{backend} reads block scales as scale_layout={reads}, not {layout}",
    "dtype-emulated": "{backend} emulates {dtype} ({name}) in software on CPUs",
    "onednn-f16": "oneDNN sums f16 convolutions in f16 on Arm, but the problem requires f32",
    "library-missing": "{vendor:if {vendor}: }{library} not found",
    "library-too-old": "{vendor}: {library} is too old",
    "library-refused": "{call}: the library does not support this (status {status})",
    "library-no-algorithm": "{call} offers no algorithm for this problem",
    "format-scale": (
        "its call has scaleA={scale_a} and scaleB={scale_b}, which the tuned kernel does not apply"
        "{needs:if  (_{needs}_ is not in its name)}"
    ),
    "call-differs": "its call has {name}={logged}, but the tuned GEMM has {tuned}",
    "format-op": "{format} has no entries for {op}",
    "bias-type": "{backend} adds a bias of {adds} to {c}, not of {given}",
    "config-unknown-name": "{backend} has no setting {name!r} (config {config}); {why}",
    "config-not-whole": "{backend}: {name}={value!r} in the config is not a whole number ≥ 0",
    "config-not-in-space": (
        "{backend}: {name} is one of {known:list}{more:if  or {more} more}, not {value}"
    ),
    "config-not-for-kernel": "{name} in the config is for {only}, not for {kernel}",
    "config-not-yes-or-no": (
        "{backend}: {name}={value!r} in the config is neither yes nor no (in Python: True, False)"
    ),
    "config-tiles": "{backend}: give all tile sizes or none: {names:list}",
    "algorithm-form": "{algorithm!r} is not a cuBLASLt algorithm",
    "algorithm-without-id": "{algorithm!r} names no algorithm",
    "descriptors-unfit": "descriptors cannot address these operands on {arch}",
    "descriptors-alignment": "rows are not a multiple of 16 bytes, as descriptors need",
    "descriptors-split": "the kernel that splits keys does not read them by descriptors",
    "persistent-split": "the persistent kernel does not split k",
    "persistent-swap": "the persistent kernel does not swap its operands",
    "not-persistent": "only the persistent kernel gives its warps different work",
    "no-slices": "there are no slices of k to sum",
    "one-slice": "k={k} is a single block of {block_k}: it cannot be split",
    "upcast-split": "values are only upcast first where keys are not split (split_kv=0)",
    "dynamic-unknown-dim": (
        "dynamic={given} in the config: {op} has no such dim in the shapes of its tensors; give"
        " all, or dims separated by commas, of {listed}"
    ),
    "dynamic-with-tiles": (
        "iree cannot use tile sizes together with dynamic dims: a tuning spec matches sizes that"
        " the compiler knows"
    ),
    "tiles-with-packing": "iree cannot use tile sizes together with data_tiling",
    "spec-flags": (
        "it was tuned with {flag}={value}, and most of the file's gain is with {flag}={file}: all"
        " its winners are compiled with one set of flags"
    ),
    "ukernels-unpacked": "iree has microkernels for packed operands only: add data_tiling=yes",
    "timer-of-iree": "timer={timer} is for the backend iree, not for {backend}",
    "timer-unsupported": "{device} has no {timer} timer",
    "timer-one-thread": "timer={timer} needs one thread, and the device has {threads}",
    "needs-gpu": "{setting} needs a GPU: on a CPU, a launch ends before the next begins",
    "needs-device-stream": (
        "{setting} needs launches on the device's stream, and this backend's runtime has a queue of"
        " its own"
    ),
    "gate-timed-out": (
        "a launch waits for the stream, or its kernels are too many for the queue: a gate cannot"
        " time it"
    ),
    "timer-hot-only": (
        "timer={timer} calls one argument set again and again: caches are hot, and nothing runs"
        " between calls"
    ),
    "not-gpu-arch": "{arch!r} is not a GPU architecture",
    "arch-unknown": "the architecture {arch} is unknown",
    "iree-timeout": "iree-compile did not end within {limit_s:duration} in {tries} attempts",
    "iree-target-unknown": "IREE's compiler has no target {target}: {cause}",
    "iree-no-target": "iree has no target for {kind} {arch}",
    "iree-compiler-missing": (
        "iree-base-compiler is not installed{bundle:if  and no bundle in KERNELMARK_PACK has this"
        " problem in {bundle}}"
    ),
    "compiled-not-run": "compiled, not run: {cause}",
    "variant-diverges": (
        "output {output} diverges from {against} in {fraction:.2%} of its elements, first at"
        " {first}; the tolerance is {tolerance:g}"
    ),
    "solution-unknown": (
        "the library has no solution called {name!r} among its {count} for this problem: it is of"
        " another build, or of another problem"
    ),
    "solution-unnamed": (
        "solution index {index} alone is no config, as indices change with every build of the"
        " library: give the solution's name{now:if , which is {now!r} here}"
    ),
    "solution-moved": (
        "solution index {index} is {now:if {now!r} in this build of the library}{absent:if of no"
        " solution for this problem}, not {name!r}: indices change with every build; give the"
        " solution's name alone"
    ),
    "config-refused": "{side} refuses its config for every problem: {cause}",
    "timing-below": "timing: {field:setting} must be at least {least}",
    "timing-above": "timing: {field:setting} must be below {most}",
    "timing-blocks": (
        "timing: {@max_allocations} must not be below {least}, the blocks that are always measured"
    ),
    "timing-not-positive": "timing: {@max_s} and {@target_rel_ci} must be positive",
    "timing-warmup-negative": "timing: {@warmup_s} must not be negative",
    "push-incomplete": "the server lacks {count} results of run {run} after the push",
    "push-failed": "{url} does not answer: {cause}",
    "push-refused": "the dashboard refused ({status}): {cause}",
    "run-differs": "the store has another run with the id {run}",
    "hinted": "{cause}{hint:aside}",
    "at": "{where}: {cause}",
    "not-installed": "{needs} needs {name}, which is not installed",
    "variable-unset": "the variable {name} is not set",
    "nothing-to-merge": "there is no measurement to merge",
    "argument-type": "{name}{given:if ={given}} is not {wanted}{type:if , but {type}}",
    "unknown-name": "unknown {what} {name!r}{of:if  of {of}}",
    "module-lacks": "{file} has no `{name}`",
    "plugin-not-loaded": "the plugin that offers {what} {name!r} cannot be loaded: {error}",
    # Kernel files, own ops and backends
    "launch-undescribed": "{file} has no kmark comment that describes its launch",
    "comment-not-toml": "{file}: its kmark comment is not valid TOML: {error}",
    "too-many-dimensions": "{file}: {key} has {count} dimensions, and at most 3 are possible",
    "size-not-positive": "{file}: {key}=[{sizes:list}] is not positive",
    "argument-kind": "{file}: {name!r} in args cannot be a parameter of type {type}",
    "formula-unreadable": "{file}: {key} has {formula!r}, which cannot be computed",
    "numpy-on-gpu": "NumPy arrays cannot be on a GPU",
    "parameters-unnamed": "inputs(*{name}) does not name its parameters",
    "function-returned": "{name} returned {given}, not {wanted}",
    "function-failed": "{name} failed: {error}",
    "input-name-reserved": "an input cannot be called {name!r}",
    "reference-shape": "the reference's shape is ({shape:list}), the output's ({output:list})",
    "library-lacks": "{library} has no {name}{error:if : {error}}",
    "library-not-imported": "{library} is installed but cannot be imported: {error}",
    "config-not-number": "{backend}: {name}={value!r} in the config is not a number ≥ 0",
    "config-below": "{backend}: {name}={value} is below {least}",
    "acc-unsupported": "{backend}'s {op} accumulates in {sums:or}, not in {acc}",
    "layout-unsupported": "{backend} multiplies {dtype} only as {layout}",
    "order-unsupported": "{backend} has no scheme={scheme} with {order}",
    "epilogue-missing": "{backend} applies no {names:or} to {op}{given:if  with {given}}",
    "rounds-twice": "{backend} would round this {op} to {dtype} before it applies {names:or}",
    "dtype-converted": (
        "{backend} converts the operands of this {dtype} {op} to f32 first{where:if  on {where}}"
        "{unequal:if , as {unequal:and} differ}"
    ),
    "f32-narrowed": "{name}={value} lets torch compute f32 in a narrower type; unset it",
    "no-kernel": "{backend} has no kernel for this problem: {error}",
    "no-device-found": "{library} reports no {kind} device",
    "bundle-unusable": (
        "{unsafe:if a bundle is not used: {unsafe:list}; }{damaged:if damaged: {damaged:and}; }"
        "{cause}"
    ),
    "device-arch": "{device} is {arch} here, not {wanted}",
    "solutions-unnamed": "rocBLAS could not list its solutions: {cause}",
    "clusters-unsupported": "{kernel} uses thread-block clusters, which cannot be launched here",
    "shared-memory-exceeded": (
        "{kernel} needs {needed} bytes of shared memory, {arch} has {most} a block"
    ),
    "iree-workers": "iree starts at most {most} workers, not {threads}",
    "not-tuning-spec": "not a tuning spec with a default entry point",
    "spec-without-matches": "the tuning spec has no @{name} with a foreach_match",
    "spec-cut": "the tuning spec is cut short: a named sequence does not end",
    "spec-sequence-taken": "the spec has another @{name}",
    "program-timed-out": "{program} did not end within {limit_s:duration}",
    "program-failed": (
        "{program} failed{exit_code:if  with exit code {exit_code}}{error:if : {error}}"
    ),
    "program-signalled": "{program} was ended by {signal}{error:if : {error}}",
    "fake-too-large": (
        "fake computes the whole output by the reference, and {op} has {flops} operations, more"
        " than {most}"
    ),
    "fake-failure": "fake: {behaviour}, as the config demands",
    "arch-of-kernels": "{arch} is a target of single kernels; the GPU's architecture is {gpu}",
    "arch-not-compiled": "the compiler{compiler:if  {compiler}} has no target {arch}",
    "not-gpu-object": (
        "neither a cubin nor an AMD code object{machine:if  (ELF machine {machine})}"
    ),
    "object-damaged": "the object file is cut short or damaged: {error}",
    # Axes, problems and parameters of ops
    "problem-empty": "an empty problem",
    "problem-not-name-value": "{word!r} in the problem is not name=value",
    "problem-with-axes": "a problem given as text takes no axes and no dtype",
    "parameter-twice": "{name!r} is given twice in the problem",
    "parameter-not-named": "{name!r} is not a name (a-z, 0-9, _)",
    "parameter-missing": "{name} is missing",
    "integer-too-long": "{start}… is too long for an integer",
    "not-finite": "{name}={value} is not finite",
    "not-a-value": "{name}={given} is not a word, number or truth value",
    "not-possible": "{name}={value} is not possible{why:if  {why}}",
    "count-below": "the number of {what} must be at least {least}, not {given}",
    "not-positive": "{name}={value} must be positive",
    "not-multiple": "{name}={value} is not a multiple of {of:if {of}=}{multiple}",
    "tensor-too-large": "tensor {tensor} ({shape:list}) is too large",
    "output-overflows": "values of the output would overflow {dtype} (up to {largest:.2g})",
    "option-ambiguous": "{name}={value!r} would read back as something else",
    "of-op": "{op}: {cause}",
    "dim-below": "{given} must be at least {least}",
    "dim-too-large": "{given} is too large",
    "filter-too-large": (
        "a filter that spans {span} does not fit {side}={size} with pad_{side}={pad}"
    ),
    "not-an-axis": "{name}={given} is not an axis",
    "axis-backwards": "axis {axis!r} ends before it begins",
    "axis-form": "axis {axis!r} is not name=values",
    "axis-bracket": "axis {axis!r} has a bracket that does not close",
    "axis-range": (
        "axis {axis!r} is not a range of integers first:last, first:last:step or first:last:*factor"
    ),
    "axis-below": "axis {axis!r} needs a {name} of at least {least}",
    "axis-value": "axis {axis!r}: {value!r} is not a finite number or a word",
    "axis-value-empty": "axis {axis!r} has an empty value",
    "axis-value-long": "axis {axis!r} has a value of more than {most} characters",
    "dtype-twice": "the dtype is given twice, as an axis and as an option",
    "too-many-problems": "{what} makes {count:,} problems, more than {most:,}",
    "generator-no-op": "no generator makes {op} problems",
    "generator-no-category": "generator: {op} has no category {name!r}",
    "generator-no-grid": "generator: a grid needs the dims m, n and k, which {op} does not have",
    "generator-bounds": "generator: low={low} and high={high} are not 1 ≤ low ≤ high",
    "generator-below": "generator: {name}={value} is not at least {least}",
    "generator-none-found": (
        "generator: no {found:if further }{category} {op} problem was found between {low} and"
        " {high} in {draws} draws"
    ),
    "model-size": "{model}: {name}={value} is not a number of {of}",
    "model-not-divisible": "{model}: {what} ({size}) cannot be divided by tp={tp}",
    # What a run is asked for
    "nothing-asked": "nothing was asked for",
    "suite-with-axes": "a suite has its own axes",
    "suite-without-op": "suite {suites:list} has no problem of {ops:list}",
    "filter-matches-none": "no problem matches {filter!r}",
    "regex-too-long": "a regular expression of {length} characters is too long",
    "regex-too-slow": "the regular expression {pattern!r} takes more than {limit_s:g} s",
    "not-a-regex": "{pattern!r} is not a regular expression: {error}",
    "limit-too-small": "a limit of {limit} leaves nothing to measure",
    "no-backend": "no backend that is available on {device} can do any of these problems",
    "backend-unavailable": "backend {backend} is not available: {cause}",
    "timing-unknown": "timing: {field}={given} is unknown",
    "timing-field": "{name} is a field of the timing, not an argument of run",
    "bench-several-dtypes": (
        "the function returned arrays of {dtypes:list}: they are checked as one, and need one dtype"
    ),
    "name-illegal": "{name!r} cannot be the name of a {what}",
    "name-like-file": "{what} {name!r} would be taken for a file",
    "run-without-store": "{name!r} is not a file, and there is no store to look in",
    "workload-empty": "{file} has no problems",
    "group-empty": "{where}: the group holds no problem",
    "threshold-not-percent": "a threshold is from 0 to 100 percent, not {given:g}",
    "figure-no-points": "{name} has no points to draw",
    "figure-not-shared": "{names:list} cannot share one figure",
    # Options and arguments of commands
    "option-outside": (
        "{option} must be above {above:g}{below:if  and below {below:g}}, not {given:g}"
    ),
    "option-needs": "{options:or} needs {other}",
    "options-exclusive": "{options:or} cannot be combined with {other}",
    "argument-count": "{of} takes {most:n {what}}, not {given}",
    "list-empty": "an empty list names nothing",
    "stdout-shared": "only one of {options:and} can go to stdout",
    "nothing-matches": "no {what} matches{run:if  in run {run}}",
    "nothing-to-run": "there is nothing left to run",
    "no-unfinished-run": "there is no unfinished run of kmark run",
    "run-not-resumable": (
        "kmark run cannot resume run {run}{command:if , which was made by kmark {command}}"
    ),
    "run-unfinished": "run {run} is still running",
    "run-without-results": "run {run} has no results",
    "deletion-unconfirmed": "deleting cannot be undone: nothing was deleted",
    "name-taken": "{name!r} is already the name of run {run}",
    "rows-ambiguous": "{count} rows have a case that begins with {case!r}",
    "base-missing": "there is nothing to compare with",
    "backends-unpaired": (
        "{side} has {backends:list}, and {other} has {others:list}: backends are compared one with"
        " one"
    ),
    "sides-equal": "both sides would measure {backends:list}: nothing differs",
    "side-without-backend": "no backend is given for {side}",
    "ab-preset": "--timing {timing}: kmark ab has no presets",
    "tests-refused": "--rounds {rounds} --alpha {alpha}: {error}",
    "budget-before-start": (
        "--budget {budget_s:g} ends before the first round: starting both sides takes about"
        " {start_s:duration}"
    ),
    "micro-not-stored": "no {benchmark} is stored",
    "roofs-not-measured": "no roof of {device} could be measured",
    "roofs-not-stored": (
        "no roofs of {device}{threads:if  with {threads:n thread}} are stored for this host"
        "{others:if ; there are some of {others:list} (-d)}"
    ),
    "token-missing": "there is no token to push with",
    "folder-without": "{folder} has no {what}",
    "format-writes-folder": "{format} writes a folder of files",
    "none-kept": "{folder}: none of {outcomes:n outcome} is kept",
    "no-winner-fits": "no winner can be written in this format",
    # Commits, builds and nights
    "not-in-repository": "{folder} is not in a git repository",
    "no-commit": "{repository} has no commit {ref!r}",
    "not-an-ancestor": "{good} is not an ancestor of {bad}",
    "build-failed": "building {side} ({commit}) failed with exit code {exit_code}: {command}",
    "build-timed-out": "building {side} ({commit}) did not end within {limit_s:g} s: {command}",
    "bisect-nothing-between": "there is nothing between the good and the bad end",
    "bisect-not-slower": "{bad} is not slower than {good}: {cause}",
    "setup-failed": "set-up failed with exit code {exit_code}: {command}",
    "setup-timed-out": "set-up did not end within {limit_s:g} s: {command}",
    "night-running": "a night of {file} is running already{process:if  (process {process})}",
    "webhook-failed": "the webhook did not accept the message: {error}",
    "mail-not-started": "{program} cannot send mail: {error}",
    # Arguments in Python, nightly files and plots
    "inputs-mixed": "inputs are arrays of {kinds:and}",
    "inputs-without-array": "none of the inputs is an array",
    "input-empty": "input {index} has the shape {shape}: it has no elements",
    "array-dtype": "{what}: arrays of {dtypes:list} cannot be checked",
    "tensor-device": "tensors on {device} cannot be measured",
    "output-missing": "the function returned None, and its only array is an input",
    "output-shape": (
        "the function returned {type}{shape:if  of shape {shape}}, the first function an array of"
        " shape {expected}"
    ),
    "output-sizes": ("{side} returned arrays of {sizes:list} elements, {other} of {expected:list}"),
    "nothing-to-compare": "there is nothing to compare",
    "axes-without-op": "axes and dtypes need an op",
    "kernel-name-twice": "{other} and {file} both have the name {name!r}",
    "file-not-op": "{file} is a kernel file, not an op",
    "not-kernel-file": "{file} is no kernel file",
    "stdin-format": "stdin is read as kernelmark's own JSON only, not as {format}",
    "no-runs": "there is no run to look back at",
    "no-result-matches": "no stored result matches",
    "no-micro-runs": "no run of kmark micro is stored{roofs:if , only of kmark roofs}",
    "too-few-micro-runs": (
        "there are too few runs of kmark micro: {count}{roofs:if , not counting kmark roofs}"
    ),
    "figure-takes": "{figure} takes {wanted}",
    "dashboard-address": "{url!r} is not the address of a dashboard",
    "address-with-password": "an address with a user name or password is not accepted",
    "webhook-address": "the webhook's address does not begin with https://",
    "git-failed": "git {command} failed: {error}",
    "git-timed-out": "git {command} did not end within {limit_s:g} s",
    "worktrees-in-use": "{count} other commands use worktrees of this repository",
    "wheel-not-installed": "pip cannot install {wheel}: {error}",
    "no-earlier-commit": "run {run} has no commit, or that of tonight's runs",
    "night-without-results": "tonight's runs have no results",
    # Hints
    "give-parameter": "give {name}=…{short:if  or {short}=…}{@or_axis}",
    "give-dtype": "give dtype=…{@or_dtype}, one of {allowed:list}",
    "see-runs": "`kmark list runs{@store}` shows what there is",
    "see-results": (
        "'kmark run --json FILE' and 'kmark export --json FILE' write such files; 'kmark list"
        " runs{@store}' lists what is stored"
    ),
    "show-micro": (
        "`kmark micro show{@store}` shows the newest of them; `kmark run` adds runs of cases"
    ),
    "measure-micro": "measure it: kmark micro {names}{@store}",
    "free-space": (
        "free some space, or choose another path with --store; what was stored before is intact"
    ),
    "free-space-and-resume": (
        "free some space, then: kmark run --resume {run}{@store}; what was stored before is intact"
    ),
    "fill-store": "`{command}` adds results",
    "ask-for": "for example: {@example}",
    "choose-from-suite": "choose from it by {@op}, {@dtype}, {@filter} or {@limit}",
    "leave-out-filter": "leave {@filter} out to get all problems",
    "choose-device": "{@device} chooses a device",
    "name-backend": "{@backend} takes the name of a backend or of a kernel file (.py, .cu, .hip)",
    "file-is-no-op": "give it by {@backend}: a file that defines its own op needs no {@op}",
    "unknown-device": "unknown device {device!r}",
    "known-devices": "{meant:if did you mean {meant}? }known kinds: {kinds:list}, or all",
    "choose-reference": "{hint:if {hint}; }--reference chooses another",
    "op-of-file": (
        "{file} defines its own op, {op}: leave {@op} out; {@axis} sets its parameters"
        " ({parameters:list})"
    ),
    "leave-out-op": "leave {@op} out, or choose another backend by {@backend}",
    # Devices, workers and the environments of both sides
    "device-missing": "there is no device {device!r}",
    "device-form": "{device!r} is not a device",
    "device-several": "{device!r} names several devices, but one is needed",
    "device-range": "{device!r} is not a device: its range goes down",
    "device-unusable": "{device} cannot be used: {cause}",
    "devices-differ": "{device} ({arch}) and {other} ({other_arch}) cannot share a run",
    "no-device-given": "no device was given",
    "too-many-threads": "{threads} threads were asked for and {cores:n core} can be used",
    "variable-not-number": "${variable} is {value!r}, not a number",
    "limit-not-positive": "a time limit must be a positive number of seconds",
    "jobs-negative": "jobs must not be negative",
    "program-missing": "{program!r} is not a program",
    "message-unreadable": "not a message: {line}",
    "message-without-kind": "a message without a kind: {line}",
    "environment-count": "two environments are compared, not {count}",
    "environment-twice": "both environments are called {name!r}",
    "environment-form": "{given!r} is not an environment",
    "environment-unknown": "there is no environment {name!r} to set {variable} in",
    "interpreter-missing": "{environment}: there is no interpreter {python}",
    "interpreter-failed": "{environment}: no worker runs under {python}: {cause:brief}",
    "pair-differs": "both sides of a pair compute the same problem",
    "effect-not-positive": "an effect of {delta} cannot be the least that counts",
    "rounds-odd": "a look after {rounds} rounds would see one order more often than the other",
    # Profilers
    "profiler-missing": "{profiler} is not on the PATH{folder:if  and not in {folder}}",
    "profiler-no-kernel": "{profiler} saw no kernel{launch:if  in launch {launch}}",
    "profiler-no-trace": "{profiler} wrote no kernel trace",
    "profiler-kernels": (
        "{profiler} recorded {seen} {kernel:if {kernel} }kernels, but {started} were launched"
    ),
    "profiler-column": "{profiler}'s table has no column {column}",
    "profiler-row": "{profiler}'s table has a row of {cells} cells where {columns} belong",
    "profiler-cell": "{profiler}'s table has {cell!r} where a number belongs",
    "not-started": "{program} cannot be started: {error}",
    # Microbenchmarks
    "micro-unknown": "unknown benchmark {name!r}",
    "micro-mode-unknown": "unknown mode {mode!r}",
    "micro-device": "there are no microbenchmarks for {device}",
    "micro-parameter-unknown": "{benchmark} has no parameter {name!r}",
    "micro-value-unknown": "{benchmark}: {name}={value} is not known",
    "micro-too-small": "{benchmark}: {name}={value} is too small",
    "micro-too-large": "{benchmark}: {name}={value} is too large",
    "micro-does-not-fit": "{size:bytes} does not fit: {most:bytes} can be used, {share}",
    "metric-unknown": "{op} has no metric {name!r}",
    "micro-unreadable": "{where}: {name!r} with {given} is no microbenchmark",
    "instruction-missing": "{where} has no instruction for: {names:list}",
    "matrix-missing": "{arch} has no matrix instructions that are used here",
    "managed-memory-missing": "{device} has no managed memory",
    "device-single": "there is only one {kind} device here",
    "cycles-wrap": "{arch} counts core cycles in 20 bits, which pass within a millisecond",
    "grid-missing": "there is no passing grid for {kernels:list} on {device}",
    "threads-not-started": "{threads} threads could not be started",
    "no-build-folder": "no folder can be written to build the kernels in: {error}",
    "no-host-compiler": "there is no C++ compiler here; install g++ or clang++, or set CXX",
    "kernel-unknown": "{file} has no kernel {kernel!r}",
    "kernel-arguments": "{kernel} takes {wanted} arguments, {given} were given",
    "kernel-address": "{kernel}: {name} is an address, not {value}",
    "kernel-argument-range": "{kernel}: {name}={value} does not fit {type}",
    # Files
    "in-file": "{file}: {cause}",
    "file-missing": "there is no file {file}",
    "no-folder": "there is no folder {folder}",
    "file-is-folder": "{file} is a folder, not a file",
    "file-not-regular": "{file} is not a regular file",
    "one-option-of": "exactly one of {options:list} is needed{given:if , not {given:and}}",
    "given-twice": "{what} {name!r} is given twice",
    "file-twice": "{file} is given twice",
    "file-unreadable": "{file}: cannot be read: {error}",
    "file-unwritable": "{file} cannot be written: {error}",
    "file-without-folder": "{file} cannot be written: there is no folder {folder}",
    "file-not-utf8": "{file}: is not UTF-8 text",
    "file-not-toml": "{file}: is not valid TOML: {error}",
    "file-suffix": "{file}: the file name must end in one of {known:list}",
    "file-not-imported": "{file} cannot be imported{error:if : {error}}",
    "file-lacks": "{file} defines no {name!r}",
    "file-op-name": "{file}: op={given} is not a valid name",
    "file-op-built-in": "{file}: op {op!r} is built in",
    "file-op-twice": "op {op!r} is defined by {file} and by {other}",
    "file-tensors": "{file}: tensors={given} is unknown",
    "file-devices": "{file}: devices={given} is unknown",
    "file-space": "{file}: space is not a table of names and their values",
    "file-bound": "{file}: {name}={given} is not a number of at least 0",
    "file-not-function": "{file}: {name} is {type}, not a function",
    "file-signature": "{file}: {name}({parameters:list}) cannot be called with {arguments:list}",
    "file-returned": "{file}: {name} returned {type}, not {wanted}",
    # Documents in JSON
    "document-empty": "it is empty",
    "document-not-text": "it is not text",
    "document-not-json": "not JSON: {error}",
    "document-cut": "is the file cut short?",
    "document-changed": (
        "it is a kernelmark file, but was changed, or written by another version; export the run"
        " again: kmark export RUN --json FILE"
    ),
    "not-a-document": "not a kernelmark {wanted} document: no 'kernelmark' field",
    "document-of-other-kind": "a kernelmark {found!r} document, not a {wanted!r} one",
    "document-version": ("{what}: version {version!r} is not known; this kernelmark reads {known}"),
    "field-unknown": "{where}: unknown field {name!r}",
    "field-missing": "{where}: field {name!r} is missing",
    "field-type": "{where}: {given} has the wrong type",
    "field-expected": "{where}: expected {expected}, found {found}",
    "field-not-one-of": "{where}: {given} is not one of {known:list}",
    "field-impossible": "{where}: {given} is not possible",
    "field-too-large": "{where}: the number is too large",
    "block-empty": "samples_s is empty: a block has at least one time",
    "block-no-time": "samples_s has {value}, and a time is positive and finite",
    "mode-impossible": "a mode of {value_s} s with a share of {share} is not possible",
    "measurement-empty": "blocks is empty: a measurement has at least one block",
    # Tables and logs of calls; a sentence on a line follows "line 3"
    "column-missing": "{file}: there is no column {column}",
    "column-twice": "{file}: has a column twice",
    "row-cells": "{where} has {cells} cells for {columns} columns",
    "count-not-whole": "{where}: count {given!r} is not a whole number",
    "format-of-other": "{format} is a format of {of}, not of {asked}",
    "format-ambiguous": "format {name!r} may be {candidates:or}",
    "log-empty": "{file}: is empty",
    "log-without-calls": "{file}: holds no call{cause:if ; {cause}}",
    "log-without-rows": "{file}: has columns and no rows",
    "log-broken": "{file}: holds no call that can be read; line {line} {cause}",
    "of-operator": "{operator} {cause}",
    "no-shapes": "has no shapes; record the profile with record_shapes=True",
    "call-lacks": "has no {name}",
    "call-empty": "{name}=0 is an empty GEMM",
    "cell-no-size": "has {name}={given}, which is {cause}",
    "field-no-size": "{name}={given} is {cause}",
    "size-not-whole": "not a whole number",
    "size-negative": "negative",
    "size-too-large": "too large",
    "field-not-finite": "{name}={given} is not a finite number",
    "field-not-transpose": "{name}={given} is neither N nor T",
    "field-not-boolean": "{name}={given} is neither true nor false",
    "field-no-type": "{name}={given} is no type that can be computed with",
    "field-unknown-value": "{name}={given} is unknown",
    "no-call": "is not a call in a known form",
    "file-cut": "the compressed file is truncated",
    "file-damaged": "the compressed file is damaged",
    "file-not-json-object": "{file} is no JSON object",
    "not-a-folder": "{path} is not a folder{of:if  of {of}}",
    "unreadable": "cannot be read{by:if  by {by}}: {error}",
    "not-json": "is not JSON: {error}",
    # Calls in logs
    "call-expected": "has {found!r} where {expected} should be",
    "call-unknown": "has the unknown {what} {given!r}",
    "call-unreadable": "has {what} that cannot be read{given:if : {given!r}}",
    "call-cut": "ends before its {part}",
    "call-values": "has {given} values where {wanted} belong",
    "call-twice": "gives {name} twice: {first} and {second}",
    "call-unsupported": "has the {name} {given}, which no op has",
    "call-no-op": "is a {kind}{name:if  ({name})}, which no op computes",
    "call-shapes": "has shapes that do not fit: {shapes:list}",
    "call-strides": "has strides or dtypes that do not fit its sizes",
    "call-output": "has an output of {given}, but its input gives {computed}",
    "call-of-other-arch": "is of {arch}, not of {asked}",
    "call-without-dtype": (
        "names no dtype{output:if  but that of its output}: give that of its inputs with --dtype"
    ),
    "cell-not-one-of": "has {name}={given}, which is not one of {known:list}",
    "dtype-not-blas": "has the dtype {dtype}, which BLAS libraries have no name for",
    "group-members": "gives {name} {count} times for {members} GEMMs",
    "math-mode-set": "sets the math mode to xf32; calls of f32 below it were read as f32",
    "option-without-value": "has no value for {name}",
    "trace-cut": "is where the trace ends, before its end",
    "trace-second": ("begins another trace, which is not read; give each trace in a separate file"),
    "tuned-key-names": (
        "has a key of {values} values, and --key names {names}; name them, as in --key 'gemm m,n,k'"
    ),
    "tuned-key-dtypes": "has arguments of several dtypes ({dtypes:list}): name them in --key too",
    "dtype-assumed": "names no dtype: read as {dtype}; another: --dtype",
    "fp8-assumed": "fp8 was read as {dtype}, OCP's; for gfx940 to gfx942: --arch gfx942",
    "read-as-one": "{format} logs have no {names:or}: read as 1",
    "columns-not-read": "columns that were not read: {columns:list}",
    "letters-of-blas": (
        "transA and transB were read as in BLAS, of matrices stored by columns; if they are stored"
        " by rows, name the columns ta and tb"
    ),
    "archs-several": (
        "rows of {archs:and}: a shape counts once for each dtype, and fp8 of gfx942 is another than"
        " OCP's; --arch reads the rows of one"
    ),
    "kernels-of-no-op": (
        "{share:.1%} of {total_s:time} of kernel time is of no op that was read"
        "{replayed_share:if , {replayed_share:.1%} in replayed graphs}: {kernels:each}"
        "{more:if  and {more} more}"
    ),
    "kernel-share": "{kernel} {share:.1%}",
    "no-log-given": "no log was given",
    "log-columns": (
        "{file}: has columns that make no problem: {columns:list}{more:if  and {more} more}"
    ),
    "log-of-other-format": "{file}: holds no call in {format}, but looks like {found}",
    "log-of-times": "{file}: holds timings ({format}), not problems",
    "log-without-sizes": "{file}: holds calls of {library} by their pointers, without sizes",
    "file-encoding": "{file}: {encoding} files are not read",
    "file-expands": (
        "the compressed file expands to more than {most:bytes} and {ratio} times its size: the rest"
        " is not read"
    ),
    "workload-exists": (
        "{file} exists{sources:if , and is from {sources:list}{more:if  and {more} more}}"
    ),
    "workload-changed": "{file} was changed since it was imported",
    # Warnings of a measurement
    "no-reference": "no reference was given: the values of the output are not checked",
    "interval-above-target": (
        "interval: {width:spread} is above the target of {target:spread}: allow more time"
        " ({@max_s}) or more blocks ({@max_allocations})"
    ),
    "interval-one-sample": "interval: one sample: there is no interval; allow more time",
    "interval-one-block": (
        "interval: only one block: the interval is over its {samples} samples and does not cover"
        " other allocations"
    ),
    "other-load": (
        "other work used up to {load:.1f} of {cores:n timed core}: close it"
        "{threads:if , or measure with fewer threads}"
    ),
    "clock-moved": (
        "the clock moved between {low_mhz:.0f} and {high_mhz:.0f} MHz while timing: lock it, warm"
        " up longer ({@warmup_s})" + _GAPS
    ),
    "throttled": "throttled in {count} of {blocks} blocks by {by:list}: cool the device" + _GAPS,
    "not-settled": (
        "times had not settled after {seconds:.2g} s of warm-up: raise {@warmup_s}"
        " (now {warmup_s:g})"
    ),
    "few-samples": (
        "{@max_s}={max_s:g} allowed only {samples} of {wanted} samples in a block: raise {@max_s}"
    ),
    "few-blocks": (
        "unreliable: {blocks} of {wanted} blocks were measured, so it is not ranked: allow more"
        " time ({@max_s})"
    ),
    "blocks-disagree": (
        "unreliable: blocks took from {low_s:time} to {high_s:time}{interval_high_s:if , which"
        " leaves an interval from {interval_low_s:time} to {interval_high_s:time}}, so it is not"
        " ranked: measure on a quiet machine, or allow more blocks ({@max_allocations})"
    ),
    "audited-slower": (
        "unreliable: a block whose work was audited took {audited_s:time}, the median block"
        " {median_s:time}, so it is not ranked: measure on a quiet machine"
    ),
    "fixed-cost": (
        "{samples:n sample} included a replay's fixed cost, because 2N launches took no longer than"
        " N: allow more time ({@max_s}), which makes samples longer"
    ),
    "cache-evicted": (
        "memory holds {sets} of the {wanted} argument sets that keep the cache cold: the cache is"
        " evicted before each sample instead"
    ),
    "not-cross-checked": "not cross-checked: {cause}",
    "profiler-unstable": (
        "runs under the profiler differ by {spread:.1%}, more than {limit:.0%}: its time is no"
        " cross-check"
    ),
    "above-roof": (
        "{count:n result} above 100 % of the roof: the kernel found data in a cache, or the roof"
        " was measured while other work ran; measure it again with {@roofs_fresh}"
    ),
    "multimodal": "multimodal: {problem} by {backend}: {modes}",
    "multimodal-more": "multimodal: {count} more; kmark show --samples has all values",
    "warnings-more": "{count:n more warning}; kmark show has all of them",
    "worst-of": "{cause} (the worst of {count} results)",
    # Files of other tools
    "file-size": "{where}: {file} holds {size} bytes where {expected} belong",
    "number-missing": "{where}: a number is missing",
    "launch-ends-early": "{where}: the launch ends {early_ns:.0f} ns before it starts",
    "database-unreadable": "{file}: is not {what} that can be read ({error})",
    "no-dispersion": "a mean without dispersion: for history and threshold rules only",
    "times-left-out": "{count} of {every} times in the file left out: {first:g} s is no time",
    "no-times": "the file has no time of it",
    "may-be-cut": (
        "the file ends without a line end: if it is truncated, so may be its last value"
    ),
    "graphs-untraced": (
        "{share:.0%} of the GPU time in the file is of replayed graphs: nsys profile"
        " --cuda-graph-trace=node names their kernels"
    ),
    "doubtful": "{cause}; {doubt}",
    # Importers
    "format-unknown": "{file}: is in no format that can be read",
    "results-compressed": "{file}: is compressed, and this format is read only uncompressed",
    "file-not-whole": "{file}: is not a whole {format} file ({error})",
    "file-without-results": "{file}: there are no results in it",
    "file-without-kernels": "{file}: there are no GPU kernels in it",
    "no-kernel-table": "{file}: there is no table of kernels in it",
    "statistics-not-of-kernels": "{file}: has statistics of something other than kernels",
    "devices-several": "{file}: has results of {count} devices, and {device} is one device",
    "hosts-several": "{file}: has launches of {count} hosts",
    "table-damaged": "{file}: the table is damaged ({error})",
    "table-cut": "{file}: ends in line {line} without a row",
    "table-twice": "{file}: line {line} begins a second table with the same columns",
    "line-refused": "{where} {cause}",
    "row-without-problem": "{where}: is neither a GEMM, an attention nor a convolution",
    "call-types-unknown": "{where}: a call without types occurs twice, and its types may differ",
    "choices-mixed": "{where}: is a choice of another block than the line before it",
    "launch-times-differ": "{where}: {name} differs from that in an earlier row of the launch",
    "decimal-comma": "{where}: {given!r} has or seems to have a decimal comma",
    "size-impossible": "{op}: a size of {given} is not possible",
    "time-impossible": "{problem}: a time of {seconds:g} s is not possible",
    "failure-unexplained": "no reason was recorded in the file",
    "not-timed": "{tool} could not time it",
    "queries-as-keys": (
        "measured with as many queries as keys ({keys} instead of {queries}), which is another"
        " problem"
    ),
    "times-dropped": (
        "{count:n time} of 0 or less left out: {cases:each}"
        "{more:if ; and those of {more:n more result}}"
    ),
    "times-dropped-of": "{count} of {problem} by {backend}",
    "doubt-of": "{cause} ({problem} by {backend})",
    # Wrong outputs; several of them are joined in `check-failed`
    "check-failed": "{findings:failures {more:if {more}}}",
    "late-write": "the output was written after the launch had ended",
    "inputs-changed": "{count} elements of the inputs were changed",
    "stray-write": "a launch wrote to outputs that are not its own (set {sets:list})",
    "not-written": "set {set}: {count} of {elements} elements of {tensor} not written",
    "guards-overwritten": "set {set}: memory next to {tensor} was overwritten",
    "projection-wrong": (
        "set {set}: a random projection of {tensor} is wrong in {bad} of {rows}{unit:if  {unit}s}"
        "{ratio:excess}{nonfinite:if , {nonfinite} of them NaN or infinite}"
    ),
    "values-wrong": (
        "set {set}: {bad} of {positions} checked positions are wrong; worst is"
        " {tensor}[{index:list}] = {got:.6g}, expected {expected:.6g} ± {allowed:.2g}"
    ),
    "less-work": (
        "a launch takes {fresh_s:time} when its inputs were rewritten and its output poisoned"
        " before, and {timed_s:time} when timed: timed launches skip work"
    ),
    "output-wrong": "the output is wrong",
    "above-limit": (
        "{rate:rate {unit}} is {times:.3g} × the measured {roof} roof of {limit:rate {unit}}, and"
        " at most {margin:g} × is accepted: the kernel skips work, or the roof was measured at a"
        " lower clock ('kmark roofs' measures it again)"
    ),
    "point-not-finite": "{op}: {column} is {value}; leave it out instead",
    "no-measurement": "{name} is {value} {unit}, which is no measurement",
    "above-physical": (
        "{name} is {value:.6g} {unit}, above the physical limit of {limit:.6g}{why:if  ({why})}"
    ),
    "below-physical": (
        "{name} is {value:.6g} {unit}, below the least that is possible, {limit:.6g}"
        "{why:if  ({why})}"
    ),
    # Compilers, whose log is in `output`
    "source-refused": "{error}",
    "source-not-compiled": "{file} does not compile: {error}",
    "linker-missing": "clang {version} has no lld to link with",
    "compiler-not-finished": "{compiler} did not run to its end: {error}",
    "function-missing": "{function} is not in the library: it is too old",
    "hiprtc-no-code": "hipRTC returned no code for {arch}",
    "hiprtc-ended": "hipRTC ended abnormally ({exit_code}) compiling for {arch}: {error}",
    "hiprtc-timeout": "hipRTC did not end within {limit_s} s for {arch}",
    "triton-refused": "Triton cannot compile {kernel} for {arch}: {error}",
    "iree-refused": (
        "iree-compile: {error}{line:if  (line {line} of {file}{source:if : {source}})}"
    ),
    "iree-signalled": "iree-compile was ended by {signal}{error:if , after: {error}}",
    "iree-failed": "iree-compile failed with exit code {exit_code}: {error}",
    # Failures of a case, and losses of a worker, whose standard error is in `output`
    "process-failed": "process {process} of {processes}: {cause}",
    "raised": "{text}{place:if  ({place})}",
    "out-of-memory": (
        "{needed:bytes} needed{what:if  for {what}}{device:if  on {device}}, {free:bytes} free"
        "{cause:if  ({cause})}"
    ),
    "host-memory": "the host is out of memory{error:if : {error}}",
    "iree-out-of-memory": "iree: not enough memory for intermediate results: {error}",
    "library-failed": "{call} failed with status {status}{error:if  ({error})}",
    "library-out-of-memory": "{call}: the library could not allocate memory",
    "driver-failed": "{call} failed: {name} ({text})",
    "clock-stalled": "the clock did not advance during a sample",
    "below-noise": "kernel time is below the noise of the background load",
    "worker-signalled": "killed by signal {signal} ({name}){phase:phase}",
    "worker-out-of-memory": "killed (signal 9), by the kernel, out of memory{phase:phase}",
    "worker-killed": "killed (signal 9), perhaps out of memory{phase:phase}",
    "worker-exited": "the worker ended by itself with exit code {exit_code}{phase:phase}",
    "worker-closed": "the worker closed its output and did not end{phase:phase}",
    "worker-spoilt": "the worker's output is corrupted: {cause}{phase:phase}",
    "worker-unasked": "the worker sent a reply to no request{phase:phase}",
    "worker-failed": "{cause}{phase:phase}",
    "worker-only-compiles": "this worker only compiles",
    "worker-protocol": (
        "the worker under {python} uses protocol {spoken}, this kernelmark {wanted}{phase:phase}"
    ),
    "worker-not-started": "cannot start {python}: {error}{phase:phase}",
    "worker-not-ready": "the worker was not ready within {limit_s:duration}{phase:phase}",
    "no-answer": "no reply within {limit_s:duration}{phase:phase}",
    "line-too-long": "a line of more than {most:bytes}",
    "environment-unreadable": "the worker's environment cannot be read: {cause}",
    "result-unreadable": "the worker's result cannot be read: {cause}",
    "stored-damaged": "the stored {name} is damaged: {cause}",
    "result-of-another-case": "the worker answered with another case's result",
    "result-of-another-device": "the worker answered with a result of {device} ({arch})",
    "no-device-left": "no device is left: {cause}",
    "given-up": "{cause:brief}",
    "fails-alone": "it failed {count} cases in a row that pass on {device}: {cause:brief}",
    # IREE modules, rules of comparison, figures and pages
    "variant-file": "{file} is neither a spec nor a kernel object",
    "quote-open": "a quote in {given!r} is not closed",
    "not-of-form": "{given!r} is not {form}",
    "input-count": (
        "--input was given {given:n time}, but the function has {wanted:n argument}: {types:list}"
    ),
    "input-type": "{given!r} does not fit the type {type}",
    "input-shape": "{file} has the shape {shape}, not {wanted}",
    "input-dynamic": "the type {type} has a dynamic dim",
    "input-unreadable": "{given!r} cannot be read: {error}",
    "scalar-without-value": "a scalar {dtype} needs a value",
    "tensor-dtype": "kernelmark cannot read or write tensors of {dtype}",
    "function-types": "the types of {function} cannot be read: {declaration}",
    "module-not-mlir": "the module cannot be parsed: {error}",
    "compile-only": "--compile-only was given",
    "reference-not-asked": "none was asked for",
    "source-not-dumped": "its source was not dumped",
    "root-missing": "no contraction, convolution or attention",
    "roots-several": "several contractions",
    "dims-dynamic": "it has dynamic dims",
    "conv-not-2d": "a convolution that is not 2-D",
    "conv-dtypes": "a convolution of {dtypes:and}",
    "dispatches-untimed": "iree reports no times of dispatches on {target}",
    "verdict-size": "{given!r} is not a verdict with a size",
    "verdict-size-tiny": ("{given!r} means {percent:g} %, which is less than any rule can detect"),
    "selector-missing": "it fits every row",
    "warn-above-fail": "warn={warn:g} is above fail={fail:g}",
    "runs-disjoint": "runs {base} and {head} have nothing in common",
    "nothing-to-draw": "no {what} has {needs} to draw",
    "figure-one-backend": (
        "no problem was measured by two backends{base:if , one of which is {base}}"
    ),
    "figure-no-cells": "{base} and {head} share no problem with {x} and {y}",
    "figure-no-dim": "no result has a dim {name!r}",
    "figure-dims": "{varying} of {needed} dims vary",
    "backend-without-times": "{backend!r} measured nothing here",
    "page-failed": "this page could not be made",
    "page-without-figure": "this page has no figure",
    "figure-failed": "the figure could not be drawn",
    "not-stored": "there is no such {what}",
    "not-served": "cannot serve at {host}:{port}: {error}",
    # Verdicts
    "only-in-base": "head has no such result",
    "only-in-head": "base has no such result",
    "failed": "{status}{cause:if : {cause:brief}}",
    "failed-before": "it was {cause}",
    "both-failed": "both: {cause}",
    "each-failed": "base: {base}; head: {head}",
    "without-time": "ok without a time",
    "side-failed": "{side} is {status}: {cause:brief}",
    "sides-failed": "both fail: {cause}{other:if ; {other}}",
    "changed": "{ratio:percent} ({low:to {high}}){rounds:if  over {rounds} rounds}",
    "within": "within {limit:share} ({low:to {high}}){rounds:if  over {rounds} rounds}",
    "perhaps-within": "changed, but perhaps by less than {limit:share} ({low:to {high}})",
    "too-few-rounds": "{rounds} rounds can show nothing at this level; it takes {least}",
    "open": "{rounds} rounds leave {low:to {high}} open",
    "perhaps-chance": "{cause}: significant alone, but may be chance among all {rows}",
    "span": "{low:to {high}}",
    "not-detectable": "{low:to {high}}; detectable from {detectable:detectable}",
    "beside-load": (
        "{cause}, but other work used up to {load:.1f} cores during {side}: measure {side} again"
    ),
    "sides-unreliable": "{cause}, but {sides:and} unreliable: measure again",
    "medians-disagree": "medians changed by {ratio:percent}, means over blocks by {judged:percent}",
    "perhaps-run": (
        "{low:to {high}}: runs may differ as much; detectable from {detectable:detectable}"
    ),
    "one-block": "one block on a side: the variation between allocations is unknown",
    "sides-without-dispersion": (
        "{sides:and}: a mean without dispersion, for history and threshold rules only"
    ),
    "by-block-means": (
        "{cause}; multimodal: judged by block means"
        "{medians:if , while medians changed by {medians:percent}}"
    ),
    "at-equal-clock": "{cause} at equal clocks, {apart:percent} as measured",
    "ratio-above": "{warning:if warning: }{ratio:against {limit}} is above {limit:exact}",
    "ratio-below": "{ratio:against {inverse}} is below 1/{limit:g}",
    "ratio-not-above": "{ratio:against {limit}} is not above {limit:exact}",
    "golden-too-short": "golden {time_us:against {limit_us}} µs is under {limit_us:g} µs",
    "unstable": (
        "unstable: {few:if fewer than {runs:g} runs of {few:and}}{few_and_apart:if ; }"
        "{apart:if no {runs:g} runs of {apart:and} agree within {within:share}}"
    ),
    "above-threshold": (
        "{side} {time_us:against {limit_us}} µs is above {factor:g} × {other} + {slack_us:g} µs ="
        " {limit_us:against {time_us}} µs{unknown:if  (stability not known)}"
    ),
    "not-above-threshold": (
        "{side} {time_us:against {limit_us}} µs is not above {limit_us:against {time_us}} µs"
        "{unknown:if  (stability not known)}"
    ),
    "stopped-early": "stopped after {rounds:n round}, before the first test",
    "over-budget": (
        "left out after {rounds:n round}: in {budget_s:duration} only {kept} of {pairs:n pair} can"
        " be decided"
    ),
    "few-points": "{points} points at this level, {least} are needed",
    "point-wide": "unreliable: its interval goes from {low_s:time} to {high_s:time}",
    "expected": "{modes:if multimodal: }expected {low_s:time} to {high_s:time}",
    "metric-expected": "expected {low:value {unit}} to {high:value {unit}}",
    "metric-changed": "{better} is better",
    "metric-within": "within {limit:share}",
    "samples-spread": "its samples spread by {spread:.0%}",
    "runs-differ": "runs differ by {limit:share}",
    "taken-otherwise": "measured differently: {ways:list}",
    "none-better": "neither a higher nor a lower value is better",
    "base-zero": "base is 0",
    "no-metric-in-common": "no metric in common",
    "canary-change": "{problem}: {verdict}",
    "canary-moved": "a canary moved: the machine has changed",
    # The answer to a comparison
    "answer-broken": (
        "{broken} of {rows:n kernel} stopped working{slower:if  and {slower} got slower}; first"
        " {problem} by {backend}: {cause:brief}"
    ),
    "answer-slower": (
        "{slower} of {rows:n kernel} got slower; {problem} by {backend} costs the most:"
        " {base:value {unit}} → {head:value {unit}}, {ratio:percent}"
        "{level:if  ({low:to {high}} with {level:level} confidence)}"
    ),
    "answer-held": (
        "{held} of {rows:n kernel} changed, but so did a canary: the machine is different, and no"
        " change of a time counts"
    ),
    "answer-new": "there is nothing yet to compare {rows:n kernel} with",
    "answer-undecided": (
        "no slowdown was found; {unsure} of {rows:n kernel} undecided"
        "{faster:if ; {faster} got faster}"
    ),
    "answer-same": (
        "nothing got slower in {rows:n kernel}{faster:if ; {faster} got faster}"
        "{unsure:if ; {unsure} undecided}{gone:if ; {gone} missing in head}"
    ),
    "no-level": "no earlier run has it",
    "not-confirmed": "looked {verdict}; measured again, that was not confirmed",
    "answer-empty": "nothing was compared: no kernel ran on both sides",
    "bisected": (
        "{undecided:if not decided; most probable: }{culprit}{several:if  ({candidates} candidates"
        " not distinguished)}: {problem} by {backend}, {cause}; {probability:.0%} probable"
        "{unconfirmed:if , but the direct comparison with the candidate before does not show it}"
    ),
    "no-list-of-wheels": "{path}: is a {kind}; --wheels takes a text file that lists wheels",
    "list-wheels": "order them from good to bad, by version: ls -1v {folder}/*.whl > wheels.txt",
    "no-wheel": "{path}: there is no such wheel",
    "wheel-paths": "paths in the list are absolute, or relative to the folder of the list",
    # Stores
    "store-missing": "there is no store at {store} yet",
    "store-not-opened": "the store {store} cannot be opened{error:if : {error}}",
    "store-not-a-path": "{given!r} is not the path or URL of a store",
    "store-url-unreadable": "the store's URL cannot be read",
    "store-unsafe": "the store {store} is not used: {error}",
    "store-of-another-program": "{store} is a database of another program",
    "store-empty": "the store{store:if  {store}} has no runs yet",
    "store-conflict": "the store {store} refused a row: {error}",
    "store-not-sqlite": "the store {store} is not an SQLite file",
    "store-without-schema": "the store {store} has no schema version",
    "store-too-new": "the store {store} has schema {schema}, newer than the {newest} known here",
    "store-locked": "another process keeps the store {store} locked",
    "store-unwritable": "the store {store} cannot be written to",
    "store-folder-unwritable": "the folder of {store} cannot be written to",
    "store-opened-to-read": "the store {store} was opened for reading only",
    "store-damaged": "the store {store} is damaged",
    "store-disk-full": "the disk under the store {store} is full",
    "store-disk-fails": "the disk under the store {store} fails to read or write",
    "store-connections": "the store {store} takes no more connections",
    "store-refuses-user": "the store {store} refuses this user",
    "store-refuses-login": "the store {store} refuses the login",
    "store-replica": "the store {store} can only be read",
    "store-no-database": "the store {store} does not exist",
    "store-disconnected": "the connection to the store {store} failed",
    "store-server-down": "the server of the store {store} is shutting down or starting",
    "store-no-answer": "the store {store} does not answer: {error}",
    "store-failed": "the store {store} failed: {error}",
    "stored-result-damaged": "stored result {number} is damaged: {error}",
    "stored-format": "a stored result has format {version}, which this kernelmark cannot read",
    "store-read-only": "{store} is read-only",
    "store-folder-read-only": (
        "the folder of {store} cannot be written to, and SQLite needs that to add results"
    ),
    "served-read-only": "{store} is read-only here: every push is rejected",
    "run-in-store": "run {run} is already in the store {store}",
    "run-ambiguous": "{count} runs have an id that begins with {ref!r}",
    "run-unknown": "no run has the {by:or} {ref!r}",
    "run-before-first": (
        "latest~{back} is before the first run: the store has {count}, not counting"
        " microbenchmarks and roofs"
    ),
    "only-micro-runs": "the store has only runs of microbenchmarks",
    "token-exists": "there is already a token {name!r}",
    # Problems without a plan
    "backend-refuses": "{reference:if the reference }{backend}: {cause}",
    "backend-failed": "{reference:if the reference }{backend} {status}: {cause}",
    "nothing-to-tune": "{backend} has nothing to tune for it on {arch}{cause:if : {cause}}",
    "plan-nothing-to-tune": (
        "{place}: {backend} has nothing to tune for this problem on {device}{cause:if : {cause}}"
    ),
    "lowering-refused": "iree cannot use this lowering: {cause}",
    "lowering-not-size": "{name}={value!r} is not a size",
    "lowering-nesting": (
        "tile_{dim}={tile} ⊇ cache_{dim}={cache} ⊇ vector_{dim}={vector} must fit"
    ),
    "lowering-cache-levels": "cache_m and cache_n go together, and cache_k goes with them",
    "lowering-cache-k": "cache_k={cache_k} is not a multiple of vector_k={vector_k}",
    "lowering-vector": "{tile} exceeds the compiler's largest vector",
    "lowering-subgroups": "the subgroups do not divide the tile",
    "lowering-shared-memory": "the tiles exceed shared memory",
    "lowering-arch": "kernelmark has lowering configs for CPUs and for {known:list} only",
    "lowering-op": "kernelmark has no lowering configs for {op}",
    "lowering-unit-loop": (
        "a loop of its root op has one iteration ({loop}): IREE folds it away, and a tuning spec"
        " would not match"
    ),
    "lowering-layout": (
        "kernelmark has no lowering configs for {op} in the layout {layout}"
        "{several:if  with several images}, but for nhwc"
    ),
    "lowering-groups": "kernelmark has no lowering configs for grouped convolutions",
    "lowering-pointwise": (
        "kernelmark has no lowering configs for a 1 × 1 convolution with strides or padding"
    ),
    "lowering-acc": "IREE's attention op sums in f32, not in {acc}",
    "lowering-mixed": (
        "kernelmark has no lowering configs for an attention whose q is {q} and whose kv is {kv}"
    ),
    "lowering-named-conv": "a convolution can be tuned only as im2col",
    "lowering-instruction": (
        "IREE has no matrix instruction of {arch} for {operands:list} that sums in {acc}"
        "{attention:if  and fits an attention}"
    ),
    "lowering-tile": "{dim}={size} of its root op is not a multiple of {least}",
    "lowering-none-fits": "every combination of tiles is ruled out; most often, {cause}",
    "space-unknown-here": (
        "{backend} cannot list its candidates here ({cause}): plan it on the machine with the GPU"
    ),
    # Whether a tuned config is kept
    "not-verified": "not verified: {cause}",
    "fails-in-step": "it is {status} in {step}: {cause}",
    "fails-on": "it is {status} on {problem}: {cause}",
    "reference-without-time": "the reference has no time: {cause}",
    "nothing-measured": "nothing was measured",
    "disturbed": "too noisy to judge: {cause}; time it again on a quiet machine",
    "load-in-final": "other work used {load:.1f} of {cores:n core} during the final",
    "slower-than-searched": (
        "it takes {final_s:time} in the final, and took {searched_s:time} in the search"
    ),
    "too-small": (
        "too small to judge: the reference takes {reference_s:time}, under {least_us:g} µs"
    ),
    "slower": "slower: " + _SCORE + " over {rounds} rounds" + _REFERENCE,
    "not-faster": (
        "not significantly faster: " + _SCORE + " over {rounds} rounds"
        "{least:if ; it takes {least} rounds to decide}" + _REFERENCE
    ),
    "too-noisy": (
        "too noisy to judge: "
        + _SCORE
        + " over {rounds} rounds; more rounds in its plan may decide"
        + _REFERENCE
    ),
    "ratio-too-small": (
        "gains too little: {ratio:.3f} × ({low:.3f} to {high:.3f}), {least:g} × is required"
        + _REFERENCE
    ),
    "gain-too-small": (
        "gains too little: {gain_s:time} per call, {least_s:time} is required" + _REFERENCE
    ),
    "faster": "faster: " + _SCORE + ", {gain_s:time} per call" + _REFERENCE,
    "few-neighbours": (
        "{cause}; verified on {ran} of {asked} neighbouring sizes: the config supports no others"
    ),
    "another-kernel": "another kernel runs now: {now}, not {was}",
    "kernel-spills": "spills {spilled:bytes} a thread, above {allowed:bytes}",
    "kernel-shared-memory": "needs {used:bytes} of shared memory, a block has {most:bytes}",
    "none-went-well": (
        "none of {evaluations} candidates succeeded{last:if ; the last one is {status}: {cause}}"
        "{machine:if  ('kmark tune run --retry-failed' tries them again)}"
    ),
    # Tuning folders, and the files in them
    "not-tuning-folder": "{folder} is no tuning folder: {cause}",
    "folder-missing": "there is no such folder",
    "folder-is-file": "it is a file",
    "folder-lacks": "it has no {name}",
    "folder-not-made": "{folder} cannot be made: {error}",
    "state-unknown": "{file}: was not written by kmark",
    "line-not-csv": "{file}: line {line} is no CSV: {error}",
    "cell-not-number": "{file}: line {line}: {column} is {given!r}, not a number",
    "cell-not-whole": "{file}: line {line}: {column} is {given!r}, not a whole number",
    "cell-not-yes-or-no": "{file}: line {line}: {column} is {given!r}, not yes or no",
    "cell-unknown": "{file}: line {line}: {column} is {given!r}, not one of {known:list}",
    "cell-refused": "{file}: line {line}: {column}: {cause}",
    "key-unknown": "{file}: {key} is unknown",
    "key-missing": "{file}: {key} is missing",
    "value-unknown": "{file}: {key} = {given} is unknown",
    "value-refused": "{file}: {key}: {cause}",
    "value-not-table": "{file}: {key} is not a table",
    "value-not-tables": "{file}: {key} is not a list of tables",
    "value-not-text": "{file}: {key} = {given} is not text",
    "value-not-whole": "{file}: {key} = {given} is not a whole number of at least {least}",
    "value-not-number": "{file}: {key} = {given} is not a number of at least {least}",
    "value-not-positive": "{file}: {key} = {given:g} must be positive",
    "value-out-of-range": "{file}: {key} = {given} is not a number from {least} to {most:g}",
    "value-not-list": "{file}: {key} = {given} is not a list of values",
    "value-not-simple": "{file}: {key}: {given} is not a word, number or truth value",
    "value-not-in-space": "{file}: {key}: {given} is not in the space",
    "value-of-another-type": "{file}: {key} cannot be {given}",
    "not-in-space": "{file}: {key} is no parameter of this space",
    "not-a-parameter": "{file}: {key} is no parameter of {backend} for this problem",
    "space-empty": "{file}: space: every combination of these values is forbidden",
    "plan-name-differs": "{file}: name = {given!r} is not the name of the file",
    "final-too-few-rounds": (
        "{rounds} rounds are too few: with less than {least} nothing can be concluded at"
        " {level:level}"
    ),
    "journal-in-use": "{file} is being written by another kmark tune run",
    "journal-differs": (
        "{file} was made for another {what}{shown:if : {there} there, {here} here}"
    ),
    "journal-without-header": "{file}: line 1 is not a journal's header",
    "line-not-json": "line {line} is not JSON",
    "line-not-of-journal": "line {line} is no line of a journal",
    "line-impossible-time": "line {line}: a time of {seconds:g} s is not possible",
    "plans-of-backend": "{folder} has plans for {planned}, not for {backend}",
    "plans-of-arch": "{folder} has plans for {backend} on {planned}, not on {arch}",
    "plan-of-arch": "{plan} was planned for {planned}, and {device} is {arch}",
    "plan-not-for-gpu": (
        "{plan} is planned for {arch}{no_arch:if no architecture}, which is no GPU's"
    ),
    "plan-refused": "{plan}: {cause}",
    "compiles-nothing-ahead": "{plan}: {backend} compiles no kernels ahead of time",
    "budget-too-small": (
        "a budget is at least 1 evaluation and no negative time, not {evaluations} and {minutes:g}"
        " minutes"
    ),
    "no-compile-worker": "no compile worker can be started: {cause}",
    "trials-of-another": (
        "{file} has trials of {tried_backend}{tried_arch:if  on {tried_arch}}, not of {backend}"
        "{arch:if  on {arch}}"
    ),
    "plans-without-gpu": "the plans are for {arch}, and no such GPU is here: {cause}",
    "threshold-without-shares": "a threshold needs the problems' shares, which are not known yet",
    "none-selected": "no problem of {folder} is selected",
    "arch-and-device": (
        "an architecture stands for a device that is not here: --arch and -d do not go together"
    ),
    "as-reference": "{cause}; it is the reference{by_summary:if  that summary.csv names}",
    "no-reference-backend": "no reference is available on {device}",
    "no-tuning-results": "{folder} has no results yet",
    # Files of libraries that winners are written to
    "option-unknown": "{format} has no option {name!r}",
    "option-not-yes-or-no": "{name}={given} is neither yes nor no",
    "file-of-another-format": "{file}: is not a {format} file",
    "file-version": "{file}: version {given} is not known",
    "file-changed-meanwhile": "{file} has changed meanwhile",
    "file-exists": "{file} exists",
    "file-not-read-back": "{file} does not read back as it was written",
    "proof-failed": (
        "{format}: reading it back does not give what was tuned: {cause}"
        "{more:if  (and {more} more)}"
    ),
    "winner-not-found": "{name}: {lookup} finds {found}, not {wanted}",
    "lookup-changed": "{lookup} was {before} and would become {after}",
    "tuned-on-another-arch": "{device} is {arch}, but the kernel was tuned for {tuned}",
    "hipblaslt-own-cache": (
        "hipblaslt: the file is a tuning cache of the library's own, with a longer key"
    ),
    "archs-mixed": "{format}: winners and rows of the file are of {archs:and}",
    "revisions-differ": "the git revisions of hipBLASLt differ: {revisions:list}",
    "revision-unknown": "{format}: the library's git revision is not known",
    "library-versions-mixed": "algorithms of cuBLASLt {versions:and} do not go into one file",
    "library-version-unknown": "{format}: the library's version is not known",
    "params-unknown": "params={given} is neither ld nor short",
    "validators-unknown": "tunableop: {names:list} not known, and PyTorch would refuse the file",
    "validators-missing": (
        "tunableop: the file has no validators, and PyTorch would refuse the file"
    ),
    "validator-arch": "tunableop: GCN_ARCH_NAME is {arch}, but the kernels were tuned for {tuned}",
    "algo-missing": "its config names no algorithm",
    "algo-unreadable": "its algorithm {algo!r} is not name=number …",
    "file-without-entries": "{file}: has no entries or no cublaslt version",
    "entry-not-object": "{file}: entry {entry} is not an object",
    "entry-lacks": "{file}: entry {entry} has no {name}",
    "entry-algo": "{file}: entry {entry} has no algo of whole numbers",
    "file-not-python": "{file}: is not Python: {error}",
    "configs-missing": "{file}: has no CONFIGS",
    "configs-unreadable": "{file}: CONFIGS cannot be read: {error}",
    "configs-not-dict": "{file}: CONFIGS is not a dict of configs",
    "configs-share-line": "{file}: CONFIGS shares line {line} with other code",
    "bucket-missing": "no bucket for m={m}",
    "buckets-not-object": "is not an object of buckets",
    "bucket-not-object": "{name} is {given} and not an object of settings",
    "aiter-config-missing": "{folder} has no config of {family} for {arch}",
    "aiter-not-persistent": "aiter's kernels have no persistent form",
    "aiter-no-split-k": "aiter's kernel for {family} does not split k",
    "aiter-split-k-strides": (
        "aiter's kernel for {family} adds up its parts with strides in wrong order"
    ),
    "aiter-bucket-changes": "every bucket for it would also change the config of m={m}",
    "config-lacks": "its config has no {name}",
    # Emitters
    "format-not-read": "no library reads {format} files by itself",
    "format-backend": "it was tuned with {backend}, whose configs are not for {format}",
    "format-arch": "{format} has no entries for {arch}",
    "format-dtype": "{format} has no entries for {op} of {dtype}",
    "format-one-type": "{format} has the same type for {operands:and}, not {types:list}",
    "format-compute": "{format} has no entries that compute in {compute}",
    "format-bias": "{format} has no entries for {op} with a bias of {dtype}",
    "format-layout": (
        "{format} has entries only for weights of n×k (ta=n tb=t), not for ta={ta} tb={tb}"
    ),
    "format-no-setting": "{format}'s configs have no {name}",
    "format-device-name": (
        "{format}: device_name={given!r} is not the name of a GPU, which file names contain"
    ),
    "block-k-of-scales": "block_k={block_k} does not fit scales of {scale_k} along k",
    "new-file-changes": ("m={m} did not gain, and the new file {file} would change its config too"),
    "winner-not-verified": "its result was not verified",
    "default-won": "the backend's own default won: there is nothing to write",
    "entry-shared": "{name} looks up the same entry and did not gain",
    "entry-of-unwritten": "{name} looks up the same entry and cannot be written",
    "entry-contested": "{names:and} look up the same entry and gained with different configs",
    "tuned-with-another-version": (
        "it was tuned with {backend} {tuned}, here is {here}: tune again"
    ),
    "index-unknown": "its solution_index is not known",
    "index-unnamed": "its kernel's name is not known, and its index alone may change its meaning",
    "index-differs": "its index {index} is {known} in the file, not {name}",
    "index-skipped": "the library's reader skips the index {index}",
    "kernel-name-separator": "its kernel's name has a comma or a line break: {name!r}",
    "solution-not-tensile": (
        "the file has only Tensile's solutions, and solution {index} is not known to be one"
        "{own:if : it is rocBLAS's own}"
    ),
    "library-not-built": "{folder} has no built library ({pattern})",
    "config-no-lowering": "its config is no lowering that a spec could apply",
    "file-arch": "the file is for {archs:list}, not for {arch}",
    "root-op-shared": "a problem that did not gain has the same root op",
    "root-op-contested": "another winner has the same root op with another config",
    "spec-not-compiled": "it does not compile with the spec: {cause:brief}",
    "spec-not-applied": "its compiled dispatch does not have the spec's config",
    "spec-comment-unreadable": "{file}: a kernelmark comment cannot be read: {error}",
    # Tensile's logic files
    "file-not-yaml": "{file}: is not YAML: {error}",
    "not-logic": "{file}: is no logic file",
    "no-logic-files": "{folder}: there are no logic files (*.yaml) in it",
    "logic-parts": "{file}: a logic file has 12 parts, this one {parts}",
    "logic-without-problem-type": "{file}: has no problem type",
    "logic-without-solutions": "{file}: has no solutions or no table of sizes",
    "solution-without-index": "{file}: a solution has no SolutionIndex",
    "solution-without-name": "{file}: solution {index} has no SolutionNameMin",
    "logic-row": "{file}: {row} is no [size, [solution, efficiency]]",
    "logic-form-differs": "{file}: is of another form than {base}",
    "logic-problem-differs": (
        "{file}: its problem type has {name}={given}, that of {base} {there}"
    ),
    "logic-default-differs": "{file}: its DefaultSolution is another than that of {base}",
    "logic-type-differs": "{file}: is of type {given}, {base} of {there}",
    "logic-folder": "{file}: is of type {given} and does not belong into {folder}",
    "logic-target-ambiguous": "{file} may go into {first} or {second}",
    "winner-without-efficiency": (
        "no_eff=no is not possible: a winner has a time, not an efficiency, and 0 is written"
    ),
    "solution-not-in-logic": "no logic file for {arch} has a solution called {name!r}",
    "solution-ambiguous": "{count} different solutions are called {name}",
    "size-in-file": "its size is in the file already, and force=no leaves it",
    # Measured spaces, for simulated searches
    "search-budget-or-seed": (
        "a search needs a budget above 0 and a seed that is not negative: {budget} and {seed} were"
        " given"
    ),
    "not-measured-space": "it is no measured space",
    "measured-space-unreadable": "{file} cannot be read as a measured space: {error}",
    "measured-space-without-time": "{file} has no configuration that worked",
    "table-does-not-fit": "{table} does not fit the parameters",
    "objective-not-time": "its objective is {objective!r}, which is no time",
}
