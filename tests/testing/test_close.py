"""assert_close: sizes and dtypes follow from arrays; honest outputs pass, wrong ones do not."""

import re
import subprocess
import sys

import numpy as np
import pytest

from kernelmark import ops
from kernelmark.core.dtype import TORCH_NAMES
from kernelmark.core.errors import ProblemError, UsageError
from kernelmark.numerics.floats import encode
from kernelmark.numerics.generate import Inputs
from kernelmark.ops.base import Op
from kernelmark.testing import assert_close
from kernelmark.testing import close as module

torch = pytest.importorskip("torch")
OWN = [name for name in ops.registry.names() if isinstance(ops.registry.get(name), Op)]
EXAMPLES = [
    text
    for name in OWN
    for text in ops.registry.get(name).examples
    if all(spec.dtype in TORCH_NAMES for spec in ops.registry.get(name).tensors(ops.parse(text)))
]


def tensor(bits, spec):
    """The array that a torch user has, of any dtype."""
    raw = np.array(bits).reshape(-1).view(f"i{bits.dtype.itemsize}")
    return torch.from_numpy(raw).view(getattr(torch, TORCH_NAMES[spec.dtype])).reshape(spec.shape)


def correct(text):
    """The problem, its inputs by name, and the correctly rounded output."""
    problem = ops.parse(text)
    op = ops.registry.get(problem.op)
    *specs, out = op.tensors(problem)
    inputs = Inputs(tuple(specs), 3, 1)
    arrays = {s.name: tensor(encode(inputs.whole(s.name).ravel(), s.dtype), s) for s in specs}
    values = op.reference(problem, inputs, np.arange(out.count)).value
    return problem, arrays, tensor(encode(values, out.dtype), out)


def unseen(problem):
    """The parameters that no array shows: options, the accumulator, and strides or padding."""
    op = ops.registry.get(problem.op)
    shown = {word for line in op.tensor_help for word in re.split("[×()]", line.shape)}
    dims = {name: size for name, size in problem.dims.items() if name not in shown}
    types = {line.dtype for line in op.tensor_help}
    dtypes = {name: kind for name, kind in problem.dtypes.items() if name not in types}
    return {**dims, **dtypes, **problem.options}


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_op_is_known_by_its_arrays(text):
    problem, arrays, out = correct(text)
    about = {"op": problem.op, "inputs": arrays, **unseen(problem)}
    result = assert_close(out, **about)
    assert result.worst <= 1
    assert result.compared == result.elements == out.numel()
    wrong = out.clone().reshape(-1)
    wrong[-1] = wrong[-1].float() * -2 + 3
    with pytest.raises(AssertionError, match=rf"^{problem.op} ") as caught:
        assert_close(wrong.reshape(out.shape), **about)
    assert str(caught.value).startswith(f"{problem.key}: 1 of {out.numel()} ")


def product(m=40, k=30, n=50, dtype=torch.float32):
    torch.manual_seed(m)
    a, b = torch.randn(m, k), torch.randn(k, n)
    return a.to(dtype), b.to(dtype), (a.to(dtype).double() @ b.to(dtype).double()).to(dtype)


def test_arrays_of_numpy_and_lists_in_order():
    a, b, d = (x.numpy() for x in product())
    assert assert_close(d, op="gemm", inputs=[a, b]).elements == d.size
    assert assert_close(d, op="gemm", inputs=[a, np.ascontiguousarray(b.T)], tb="t").worst <= 1
    assert assert_close(d[:, ::-1], op="gemm", inputs=[a, b[:, ::-1]]).worst <= 1  # views


def test_the_layout_is_not_guessed():
    a, b, d = product()
    with pytest.raises(ProblemError):
        assert_close(d, op="gemm", inputs=[a, b.T.contiguous()])


def test_large_outputs_are_projected_and_sampled(monkeypatch):
    monkeypatch.setattr(module, "EVERY", 1000)
    a, b, d = product(300, 64, 300, torch.float16)
    result = assert_close(d, op="gemm", inputs=[a, b])
    assert result.compared < result.elements == d.numel()
    assert result.rows == 300
    wrong = d.clone()
    for row in range(0, 300, 7):  # between the sampled positions, most likely
        wrong[row, 100:164] = 0
    with pytest.raises(AssertionError):
        assert_close(wrong, op="gemm", inputs=[a, b])
    one = d.clone()
    one[123, 45] = float("nan")
    with pytest.raises(AssertionError, match=r"d\[123, 45\] = nan"):
        assert_close(one, op="gemm", inputs=[a, b])


def test_values_of_any_size_and_order():
    """Sorted values keep partial sums far from 0, so that the error of a sum is larger than where
    they walk at random."""
    a = torch.sort(torch.randn(8, 8192), dim=1).values * 100
    b = torch.ones(8192, 4)
    d = torch.zeros(8, 4)
    for t in range(8192):
        d += a[:, t, None] * b[t]
    assert assert_close(d, op="gemm", inputs=[a, b]).worst <= 1


def test_infinities_are_right_where_the_format_ends():
    a, b = torch.full((4, 32), 200.0).half(), torch.full((32, 4), 200.0).half()
    assert assert_close(torch.full((4, 4), torch.inf).half(), op="gemm", inputs=[a, b]).worst == 0
    with pytest.raises(AssertionError):
        assert_close(torch.full((4, 4), -torch.inf).half(), op="gemm", inputs=[a, b])


@pytest.mark.parametrize("terms", [1024, 65536])
def test_equal_terms_drift_and_random_ones_do_not(terms):
    """Roundings of equal terms have one direction. A bound that allows for it still finds what is
    missing from a long sum of random terms."""
    total = np.cumsum(np.full(terms, 0.1, np.float32))[-1]
    a, b = np.full((2, terms), 0.1, np.float32), np.ones((terms, 2), np.float32)
    assert assert_close(np.full((2, 2), total), op="gemm", inputs=[a, b]).worst <= 1
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=shape).astype(np.float16) for shape in ((8, terms), (terms, 8)))
    exact = a.astype(float) @ b.astype(float)
    about = {"op": "gemm", "inputs": [a, b]}
    assert assert_close(exact.astype("f4"), **about).worst <= 1
    for wrong in (0 * exact, 1.03 * exact, a[:, :-256].astype(float) @ b[:-256].astype(float)):
        with pytest.raises(AssertionError):
            assert_close(wrong.astype("f4"), **about)


def softmax(x):
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def test_any_function_by_its_reference():
    x = torch.randn(7, 33, requires_grad=True)
    for inputs in ([x], {"x": x}):
        assert assert_close(torch.softmax(x, -1), reference=softmax, inputs=inputs).worst <= 1
    with pytest.raises(AssertionError):
        assert_close(torch.softmax(x, 0), reference=softmax, inputs=[x])
    near = torch.softmax(x, -1) * 1.001
    assert assert_close(near, reference=lambda x: softmax(x), inputs=[x], rtol=1e-2).worst <= 0.2
    with pytest.raises(AssertionError):
        assert_close(near, reference=softmax, inputs=[x])


@pytest.mark.parametrize(
    ("about", "error"),
    [
        ({}, UsageError),
        ({"op": "gemm", "reference": softmax}, UsageError),
        ({"op": "no_such"}, UsageError),
        ({"op": "gemm", "rtol": 1e-3}, UsageError),
        ({"reference": softmax, "rtol": float("inf")}, UsageError),
        ({"reference": softmax, "atol": -1.0}, UsageError),
        ({"op": "gemm", "tb": "x"}, ProblemError),
        ({"op": "gemm", "nope": 1}, ProblemError),
        ({"op": "gemm", "m": 3}, ProblemError),
        ({"op": "gemm", "bias": True}, ProblemError),
        ({"op": "copy"}, UsageError),
        ({"reference": softmax, "tb": "t"}, UsageError),
    ],
)
def test_what_does_not_fit_is_an_error_and_no_failed_test(about, error):
    a, b, d = product()
    with pytest.raises(error):
        assert_close(d, inputs=[a, b], **about)


@pytest.mark.parametrize(
    "value", [None, [1.0], np.zeros(3, "complex64"), np.zeros(3, "datetime64")]
)
def test_what_is_no_array_of_a_known_dtype(value):
    with pytest.raises(ProblemError):
        assert_close(value, op="copy", inputs=[value])


def test_pytest_is_not_needed():
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'pytest' else find(name, *a)\n"
        "import numpy as np\n"
        "from kernelmark.testing import assert_close\n"
        "x = np.ones(3, 'f4')\n"
        "print(assert_close(x, op='copy', inputs=[x]).elements)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "3\n"
