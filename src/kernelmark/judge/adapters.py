"""What the files of `judge.tasks` call: the code of a task as the functions of a kernel file.

The functions of `Definition` and `ModelTask` are executed by the judge, those of `Solution` and
`ModelSolution` in the kernel's process only.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelmark.core.dtype import BY_TORCH_NAME
from kernelmark.core.errors import CaseError, ProblemError
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config

Tensors = Mapping[str, Any]
Launch = Callable[[int], None]
_SEED = 42  # KernelBench's
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,  # sizes are whole numbers
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


class _Schema:
    """A definition of flashinfer-bench or SOL-ExecBench."""

    def __init__(self, folder: Path) -> None:
        self.document = json.loads((folder / "definition.json").read_text(encoding="utf-8"))
        self.inputs: dict[str, Any] = self.document["inputs"]
        ((self.output_name, self.output),) = self.document["outputs"].items()

    def sizes(self, parameters: Mapping[str, Any]) -> dict[str, int]:
        """Return the size of every axis."""
        sizes: dict[str, int] = {}
        axes = self.document["axes"].items()
        for name, axis in axes:
            if axis["type"] != "expr":
                sizes[name] = int(axis["value"] if axis["type"] == "const" else parameters[name])
        for name, axis in axes:
            if axis["type"] == "expr":
                sizes[name] = int(
                    _evaluated(ast.parse(axis["expression"], mode="eval").body, sizes)
                )
        return sizes

    def shape(self, tensor: Mapping[str, Any], parameters: Mapping[str, Any]) -> tuple[int, ...]:
        sizes = self.sizes(parameters)
        return tuple(sizes[axis] for axis in tensor["shape"])

    def arguments(self, values: Mapping[str, Any]) -> list[Any]:
        """Return the arguments of `run`: tensors and scalars, by the order of inputs."""
        return [values[name] for name in self.inputs]


def _evaluated(node: ast.AST, sizes: Mapping[str, int]) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.Name):
        return sizes[node.id]
    if isinstance(node, ast.BinOp):
        left, right = (_evaluated(side, sizes) for side in (node.left, node.right))
        return _OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)](_evaluated(node.operand, sizes))
    raise ProblemError("an axis has an expression that cannot be computed")


class Definition:
    """The op of a definition."""

    def __init__(self, file: str) -> None:
        self._schema = _Schema(Path(file).parent)
        self._module = ModuleType("definition")
        exec(compile(self._schema.document["reference"], file, "exec"), vars(self._module))

    def inputs(self, **parameters: Any) -> dict[str, Any]:
        schema, custom = self._schema, self._custom(parameters)
        tensors: dict[str, Any] = {}
        for name, tensor in schema.inputs.items():
            if tensor["shape"] is None:
                continue
            kind = BY_TORCH_NAME[tensor["dtype"]]
            if name in custom:
                tensors[name] = custom[name]
            elif kind.startswith("i"):
                raise ProblemError(
                    f"{name} has integers whose range the definition does not give",
                    hint="it needs a custom_inputs_entrypoint",
                )
            else:
                tensors[name] = (schema.shape(tensor, parameters), kind)
        return tensors

    def _custom(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        names = self._schema.document["custom_inputs"]
        if not names:
            return {}
        import torch

        make = vars(self._module)[self._schema.document["custom_inputs_entrypoint"]]
        made = make({**parameters, **self._schema.sizes(parameters)}, torch.device("cpu"))
        return {name: made[name] for name in names}

    def output(self, **parameters: Any) -> tuple[tuple[int, ...], str]:
        output = self._schema.output
        return self._schema.shape(output, parameters), BY_TORCH_NAME[output["dtype"]]

    def reference(self, **values: Any) -> Any:
        arguments = self._schema.arguments(values)
        run = self._module.run
        try:
            return _only_output(run(*arguments)).double().numpy()
        except (AssertionError, RuntimeError, TypeError, ValueError):
            # It insists on the declared dtypes; its own roundings then count as the kernel's.
            return _only_output(run(*self._declared(arguments))).double().numpy()

    def _declared(self, arguments: Sequence[Any]) -> list[Any]:
        import torch

        return [
            value.to(getattr(torch, tensor["dtype"])) if tensor["shape"] is not None else value
            for value, tensor in zip(arguments, self._schema.inputs.values(), strict=True)
        ]

    def prepare(self, problem: Problem, config: Config, sets: Sequence[Tensors]) -> Launch:
        return _returning(self._schema, self._module.run, problem, sets)


class Solution:
    """The kernel of a solution."""

    def __init__(self, file: str) -> None:
        folder = Path(file).parent
        self._schema = _Schema(folder)
        self._spec = json.loads((folder / "solution.json").read_text(encoding="utf-8"))["spec"]
        self._folder = folder / "sources"

    def prepare(self, problem: Problem, config: Config, sets: Sequence[Tensors]) -> Launch:
        path, _, name = self._spec["entry_point"].partition("::")
        run = getattr(_imported(self._folder / path, self._folder), name)
        if not self._spec.get("destination_passing_style", True):
            return _returning(self._schema, run, problem, sets)
        calls = [
            (*self._schema.arguments({**_parameters(problem), **tensors}), tensors["out"])
            for tensors in sets
        ]

        def launch(index: int) -> None:
            run(*calls[index])

        return launch


def _returning(
    schema: _Schema, run: Callable[..., Any], problem: Problem, sets: Sequence[Tensors]
) -> Launch:
    """Return a launch of a function that returns its output, which is copied."""
    calls = [schema.arguments({**_parameters(problem), **tensors}) for tensors in sets]
    outputs = [tensors["out"] for tensors in sets]

    def launch(index: int) -> None:
        _copy(outputs[index], run(*calls[index]))

    return launch


def _copy(output: Any, answer: Any) -> None:
    import torch

    answer = _only_output(answer)
    # Exactly: a subclass could be computed when it is looked at.
    if type(answer) not in (torch.Tensor, torch.nn.Parameter):
        raise CaseError(f"it returned {type(answer).__name__}, not a tensor")
    if answer.shape != output.shape or answer.dtype != output.dtype:
        raise CaseError(
            f"it returned {answer.dtype} of shape {tuple(answer.shape)}, not {output.dtype} of"
            f" {tuple(output.shape)}"
        )
    output.copy_(answer.detach())


def _only_output(answer: Any) -> Any:
    """Return the one output of a function that may return a tuple or a dict of it."""
    if isinstance(answer, dict):
        answer = list(answer.values())
    if isinstance(answer, list | tuple):
        if len(answer) != 1:
            raise CaseError(f"it returned {len(answer)} values, and an op has one output")
        answer = answer[0]
    return answer


def _parameters(problem: Problem) -> dict[str, Any]:
    return {**problem.options, **problem.dims}


def _imported(file: Path, folder: Path) -> ModuleType:
    """Import a file of a task; other modules are taken from `folder`, too."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    spec = importlib.util.spec_from_file_location(f"task_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise CaseError(f"{file.name} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Triton looks up a kernel's source through its module
    spec.loader.exec_module(module)
    return module


class _Models:
    """The models of a KernelBench task: `class_name` of one of its files, with the parameters as
    inputs."""

    def __init__(self, file: str, source: str, class_name: str) -> None:
        import torch

        folder = Path(file).parent
        self.torch = torch
        self.task = _imported(folder / "task_source.py", folder)
        module = self.task if source == "task_source.py" else _imported(folder / source, folder)
        self._class = getattr(module, class_name)

    def model(self) -> Any:
        """Return a new model; its initial parameters do not count."""
        self.torch.manual_seed(_SEED)
        initial = self.task.get_init_inputs()
        self.torch.manual_seed(_SEED)
        return (
            self._class(*initial) if isinstance(initial, list | tuple) else self._class(**initial)
        )

    def prepare(self, problem: Problem, config: Config, sets: Sequence[Tensors]) -> Launch:
        torch, model = self.torch, self.model()
        device = sets[0]["out"].device
        model = model.to(device)
        parameters = list(model.parameters())
        names = [_parameter_input(name) for name, _ in model.named_parameters()]
        wanted = [name for name in sets[0] if name.startswith("p_")]
        if sorted(names) != sorted(wanted):
            raise CaseError(
                f"its parameters are {', '.join(names) or 'none'}, those of Model are"
                f" {', '.join(wanted) or 'none'}: they cannot be set",
                hint="ModelNew needs the parameters of Model, under the same names",
            )
        values = [[tensors[name] for name in names] for tensors in sets]
        self.torch.manual_seed(_SEED)
        plain = [x.to(device) if isinstance(x, torch.Tensor) else x for x in self.task.get_inputs()]
        calls = [
            [tensors.get(f"x{at}", value) for at, value in enumerate(plain)] for tensors in sets
        ]

        def launch(index: int) -> None:
            for parameter, value in zip(parameters, values[index], strict=True):
                parameter.data = value
            with torch.no_grad():
                _copy(sets[index]["out"], model(*calls[index]))

        return launch


class ModelTask(_Models):
    """The op of a task: `Model`, in float64, on inputs of the shapes of `get_inputs`."""

    def __init__(self, file: str) -> None:
        super().__init__(file, "task_source.py", "Model")
        self._output: tuple[tuple[int, ...], str] | None = None

    def inputs(self) -> dict[str, Any]:
        torch = self.torch
        torch.manual_seed(_SEED)
        tensors: dict[str, Any] = {}
        for at, value in enumerate(self.task.get_inputs()):
            if isinstance(value, torch.Tensor):
                tensors[f"x{at}"] = _described(torch, value.cpu())
        for name, value in self.model().named_parameters():
            most = max(float(value.detach().abs().max()), 1e-3) if value.numel() else 1.0
            kind = _kind(value.dtype)
            tensors[_parameter_input(name)] = (tuple(value.shape), kind, -most, most)
        return tensors

    def output(self) -> tuple[tuple[int, ...], str]:
        if self._output is None:
            self.torch.manual_seed(_SEED)
            with self.torch.no_grad():
                answer = _only_output(self.model()(*self.task.get_inputs()))
            self._output = tuple(answer.shape), _kind(answer.dtype)
        return self._output

    def reference(self, **values: Any) -> Any:
        torch, model = self.torch, self.model().double()
        for name, parameter in model.named_parameters():
            parameter.data = values[_parameter_input(name)]
        torch.manual_seed(_SEED)
        arguments = [values.get(f"x{at}", value) for at, value in enumerate(self.task.get_inputs())]
        with torch.no_grad():
            return _only_output(model(*arguments)).double().numpy()


class ModelSolution(_Models):
    """`ModelNew`."""

    def __init__(self, file: str) -> None:
        super().__init__(file, "solution_source.py", "ModelNew")


def _parameter_input(name: str) -> str:
    return "p_" + name.replace(".", "_")


def _kind(torch_dtype: Any) -> str:
    name = str(torch_dtype).rpartition(".")[2]
    if name not in BY_TORCH_NAME:
        raise ProblemError(f"tensors of {name} are not checked")
    return BY_TORCH_NAME[name]


def _described(torch: Any, value: Any) -> Any:
    """Return an input's shape, dtype and range, so that it gets new values for each launch; its own
    values, if they have a structure that the op may rely on."""
    if not value.is_floating_point() or not value.numel() or _is_structured(torch, value):
        return value.contiguous()
    low, high = float(value.min()), float(value.max())
    if low >= 0.0 and high <= 1.0:
        return tuple(value.shape), _kind(value.dtype), 0.0, 1.0
    most = max(-low, high)
    return tuple(value.shape), _kind(value.dtype), -most, most


def _is_structured(torch: Any, value: Any) -> bool:
    """Return whether values are not independent: zeros (triangular, diagonal or sparse), symmetric,
    rows of one sum (a softmax), or all alike."""
    wide = value.double()
    if float((wide == 0).double().mean()) > 0.01 or float(wide.std()) == 0.0:
        return True
    if wide.ndim >= 2 and wide.shape[-1] == wide.shape[-2] > 1 and torch.equal(wide, wide.mT):
        return True
    sums = wide.sum(-1) if wide.ndim else wide
    return sums.numel() > 1 and wide.shape[-1] > 1 and float(sums.std()) < 1e-5 * float(wide.std())
