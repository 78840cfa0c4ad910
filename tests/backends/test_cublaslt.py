"""cuBLASLt without cuBLASLt: a stand-in that multiplies column-major matrices as it is told to."""

import ctypes
import dataclasses

import numpy as np
import pytest

from kernelmark import ops
from kernelmark.backends import _lt, cublaslt
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CaseError, OutOfMemory, Unsupported, UsageError
from kernelmark.core.reason import Reason
from kernelmark.devices.fake import FakeDevice
from kernelmark.gpu.architectures import absent
from kernelmark.numerics.floats import decode, encode
from kernelmark.testing.backends import BackendContract, bench
from kernelmark_dev.raising import raises, raises_code

# The library's own numbers, from its header; not read from the table under test.
TYPES = {0: np.float32, 1: np.float64, 2: np.float16, 3: np.int8, 10: np.int32}
NARROW = {14: "bf16", 28: "f8e4m3", 29: "f8e5m2"}
TRANSA, TRANSB, EPILOGUE, BIAS, BIAS_TYPE = 3, 4, 7, 8, 26
A_SCALE, B_SCALE, D_SCALE, A_MODE, B_MODE = 17, 18, 20, 31, 32
DEFAULT, RELU, WITH_BIAS, GELU = 1, 2, 4, 32
VEC32_UE8M0, OUTER_VEC_32F = 2, 3
BATCH_COUNT, BATCH_STRIDE = 5, 6
NOT_SUPPORTED, INVALID = 15, 7
# Split k, reductions, tiles, the largest custom option, stages.
CAPS = {0: [1], 1: [2], 6: [20, 23, 24], 7: [3], 13: [35]}


def value_of(pointer, nbytes):
    raw = ctypes.string_at(ctypes.addressof(pointer._obj), nbytes)
    return int.from_bytes(raw, "little", signed=True)


def number(argument):
    return getattr(argument, "value", argument)


class Library:
    """The functions that the backend calls, over host memory."""

    def __init__(self):
        self.made = {}  # by handle: what was told of it
        self.count = 0
        self.calls = []
        self.codes = {}
        self.algorithms = [(66, 20, 1, 0, 1, 3, 35, 0, 2), (21,) + (0,) * 8]
        self.state = 0
        self.workspace = 8320 * 1024  # PyTorch's on most GPUs

    def __getitem__(self, name):
        assert name.startswith("cublasLt")
        function = getattr(self, name.removeprefix("cublasLt"))

        def call(*arguments):
            self.calls.append((name.removeprefix("cublasLt"), *arguments))
            return self.codes.get(name.removeprefix("cublasLt")) or function(*arguments) or 0

        return call

    @property
    def cublasLtGetVersion(self):
        return type("Function", (), {"__call__": lambda self: 120908})()

    def _new(self, handle, **facts):
        self.count += 1
        handle._obj.value = 1000 + self.count
        self.made[1000 + self.count] = facts

    def _set(self, handle, attribute, pointer, nbytes):
        self.made[handle.value][attribute] = value_of(pointer, nbytes.value)

    def _drop(self, handle):
        del self.made[handle.value]

    def Create(self, handle):
        handle._obj.value = 7

    def MatmulDescCreate(self, handle, compute, scale):
        self._new(handle, compute=compute, scale=scale)

    def MatrixLayoutCreate(self, handle, kind, rows, columns, ld):
        self._new(handle, kind=kind, rows=rows.value, columns=columns.value, ld=ld.value)

    def MatmulPreferenceCreate(self, handle):
        self._new(handle)

    MatmulDescSetAttribute = MatrixLayoutSetAttribute = MatmulPreferenceSetAttribute = _set
    MatmulDescDestroy = MatrixLayoutDestroy = MatmulPreferenceDestroy = _drop

    # -- algorithms: 64 bytes, of which the first nine hold the attributes

    def MatmulAlgoGetHeuristic(self, *arguments):
        handle, *described, preference, most, results, found = arguments
        assert handle.value == 7
        assert all(one.value in self.made for one in described)
        assert self.made[preference.value] == {1: self.workspace}
        some = self.algorithms[:most]
        for i, algorithm in enumerate(some):
            raw = bytes(algorithm).ljust(72, b"\0") + self.state.to_bytes(4, "little")
            ctypes.memmove(ctypes.addressof(results) + 96 * i, raw, len(raw))
        found._obj.value = len(some)

    def MatmulAlgoConfigGetAttribute(self, algorithm, field, out, nbytes, written):
        if algorithm.raw[0] == 21 and field == 8:
            return INVALID  # an older algorithm has no clusters
        out._obj.value = algorithm.raw[field]
        written._obj.value = nbytes.value
        return 0

    def MatmulAlgoInit(self, *arguments):
        *_, identity, algorithm = arguments
        if identity > 100:
            return NOT_SUPPORTED
        algorithm[0] = identity
        return 0

    def MatmulAlgoConfigSetAttribute(self, algorithm, field, pointer, nbytes):
        algorithm[field] = value_of(pointer, nbytes.value)

    # -- capabilities: 66 has two tiles with two custom options, clusters and a split k; 21 nothing

    def MatmulAlgoGetIds(self, *arguments):
        *_, numbers, count = arguments
        numbers[:2] = [66, 21]
        count._obj.value = 2

    def MatmulAlgoCapGetAttribute(self, algorithm, capability, values, nbytes, written):
        of = CAPS if algorithm.raw[0] == 66 else {}
        listed = of.get(capability, [])[: nbytes // 4]
        values[: len(listed)] = listed
        written._obj.value = 4 * len(listed)

    def MatmulAlgoCheck(self, *arguments):
        *_, algorithm, _ = arguments
        number, tile, split, _, _, custom, stages, _, cluster = algorithm.raw[:9]
        if number == 21:
            return NOT_SUPPORTED
        good = (tile, custom) in ((20, 0), (20, 3), (24, 0)) and stages == 35 and 2 <= cluster <= 4
        return 0 if good and split <= 3 else NOT_SUPPORTED

    # -- the product

    def Matmul(self, *arguments):
        handle, desc, alpha, a, la, b, lb, beta, c, lc, d, ld, *rest = arguments
        algorithm, ws, ws_bytes, _ = rest
        assert handle.value == 7
        assert algorithm.raw[0] in (66, 21, 5)
        assert ws.value
        assert ws_bytes.value == self.workspace
        if c.value == d.value and self.made[lc.value]["kind"] != self.made[ld.value]["kind"]:
            return INVALID  # as cuBLASLt 13 on an H200
        told = self.made[desc.value]
        scale = TYPES[told["scale"]]
        factors = [self._factor(f, scale) for f in (alpha, beta)]
        for index in range(self.made[ld.value].get(BATCH_COUNT, 1)):
            left = self._scaled(self._matrix(a, la, index), told, A_SCALE, A_MODE)
            right = self._scaled(self._matrix(b, lb, index), told, B_SCALE, B_MODE)
            left = left.T if told[TRANSA] else left
            right = right.T if told[TRANSB] else right
            out = factors[0] * (left @ right)
            if factors[1]:
                out += factors[1] * self._matrix(c, lc, index)
            epilogue = told.get(EPILOGUE, DEFAULT)
            assert epilogue in (DEFAULT, RELU, WITH_BIAS, RELU | WITH_BIAS, GELU, GELU | WITH_BIAS)
            if epilogue & WITH_BIAS:
                out += self._vector(told[BIAS], told[BIAS_TYPE], out.shape[0])[:, None]
            if epilogue & RELU:
                out = np.maximum(out, 0)
            if epilogue & GELU:
                out *= 0.5 * (1 + np.tanh(0.7978845608028654 * (out + 0.044715 * out**3)))
            if D_SCALE in told:
                out = np.clip(out * self._vector(told[D_SCALE], 0, 1), -448, 448)
            self._write(d, ld, index, out)
        return 0

    @staticmethod
    def _factor(pointer, kind):
        raw = ctypes.string_at(ctypes.addressof(pointer._obj), np.dtype(kind).itemsize)
        return float(np.frombuffer(raw, kind)[0])

    def _scaled(self, matrix, told, pointer, mode):
        """A stored matrix, of which k is innermost where its blocks have scales."""
        if told.get(mode, 0) == OUTER_VEC_32F:
            return matrix * self._vector(told[pointer], 0, matrix.shape[1])
        if told.get(mode, 0) != VEC32_UE8M0:
            return matrix * (self._vector(told[pointer], 0, 1) if pointer in told else 1)
        k, lines = matrix.shape
        tiles = -(-lines // 128), -(-k // 128)
        raw = (ctypes.c_uint8 * (tiles[0] * tiles[1] * 512)).from_address(told[pointer])
        swizzled = np.frombuffer(raw, np.uint8).reshape(*tiles, 32, 4, 4)
        scales = swizzled.transpose(0, 3, 2, 1, 4).reshape(tiles[0] * 128, -1)
        return matrix * np.repeat(2.0 ** (scales[:lines, : k // 32].T - 127.0), 32, axis=0)

    def _stored(self, address, layout, index):
        """A matrix's memory: a row for each column, in bytes where NumPy lacks the type."""
        told = self.made[layout.value]
        kind = TYPES.get(told["kind"], np.uint16 if told["kind"] == 14 else np.uint8)
        place = address.value + index * told.get(BATCH_STRIDE, 0) * np.dtype(kind).itemsize
        nbytes = told["ld"] * told["columns"] * np.dtype(kind).itemsize
        raw = (ctypes.c_char * nbytes).from_address(place)
        return np.frombuffer(raw, kind).reshape(told["columns"], told["ld"])

    def _matrix(self, address, layout, index):
        told = self.made[layout.value]
        held = self._stored(address, layout, index)
        name = NARROW.get(told["kind"])
        return (decode(held, name) if name else held.astype(np.float64)).T[: told["rows"]]

    def _write(self, address, layout, index, values):
        name = NARROW.get(self.made[layout.value]["kind"])
        held = self._stored(address, layout, index)
        held[...] = encode(values.T, name) if name else values.T

    @staticmethod
    def _vector(address, kind, count):
        stored = np.dtype(TYPES.get(kind, np.uint16))
        raw = (ctypes.c_char * (count * stored.itemsize)).from_address(address)
        held = np.frombuffer(raw, stored)
        return decode(held, NARROW[kind]) if kind in NARROW else held.astype(np.float64)


@pytest.fixture
def library(monkeypatch):
    stand_in = Library()
    monkeypatch.setattr(cublaslt, "_shared_object", lambda: stand_in)
    cublaslt._library.cache_clear()
    cublaslt._listed.cache_clear()
    yield stand_in
    cublaslt._library.cache_clear()
    cublaslt._listed.cache_clear()


CUDA = DeviceInfo(name="cuda:0", kind="cuda", model="none", arch="sm_90", index=0, units=132)


# -- the row-major problem as column-major calls


SWIZZLED = "scale=mx scale_layout=swizzle_32_4_4"
PRODUCTS = [
    "gemm m=5 n=7 k=3 dtype=f32",
    "gemm m=5 n=7 k=3 dtype=f16 alpha=0.5 beta=2.0 bias=yes",
    "gemm m=1 n=7 k=3 dtype=f64 alpha=-0.25",
    "gemm m=4 n=8 k=16 dtype=i8 alpha=2.0 beta=-3.0",
    "gemm m=4 n=8 k=16 dtype=f16 c=f32 beta=1.0",
    "batched_gemm batch=3 m=5 n=7 k=3 dtype=f32 beta=-1.5 bias=yes",
    "batched_gemm batch=2 m=4 n=6 k=8 dtype=f16",
]
EPILOGUES = [
    "m=5 n=7 k=33 dtype=f32 act=relu ta=t",
    "m=5 n=7 k=33 dtype=f16 act=gelu bias=yes tb=t",
    "m=5 n=7 k=33 dtype=bf16 bias=yes",
    "m=5 n=7 k=32 dtype=f8e4m3 c=f32 act=relu bias=yes tb=t scale=tensor",
    "m=5 n=7 k=32 a=f8e5m2 b=f8e4m3 c=f8e4m3 act=gelu bias=yes tb=t scale=tensor",
    f"m=130 n=7 k=160 dtype=f8e4m3 act=gelu bias=yes {SWIZZLED}",
    f"m=5 n=140 k=96 dtype=f8e5m2 b=f8e4m3 c=f16 act=relu {SWIZZLED}",
]


@pytest.mark.parametrize(
    ("key", "info"),
    [
        *((f"{key} ta={ta} tb={tb}", CUDA) for key in PRODUCTS for ta in "nt" for tb in "nt"),
        *((f"gemm_epilogue {rest}", absent("sm_100")) for rest in EPILOGUES),
        ("gemm_epilogue m=5 n=7 k=32 dtype=f8e4m3 bias=yes tb=t scale=row", CUDA),
    ],
)
def test_the_product_is_the_problems(library, key, info):
    problem = ops.parse(key)
    assert cublaslt.backend.supports(problem, info) is None
    with bench(cublaslt.backend, problem, FakeDevice()) as made:
        BackendContract().check(made)
    assert library.made == {}, "a description was not given back"


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("dtype=bf16", {}),
        ("dtype=bf16 bias=yes", {EPILOGUE: 4, BIAS: "bias", BIAS_TYPE: 14}),
        ("dtype=bf16 act=relu", {EPILOGUE: 2}),
        ("dtype=bf16 act=relu bias=yes", {EPILOGUE: 6, BIAS: "bias", BIAS_TYPE: 14}),
        ("dtype=bf16 act=gelu", {EPILOGUE: 32}),
        ("dtype=bf16 act=gelu bias=yes", {EPILOGUE: 36, BIAS: "bias", BIAS_TYPE: 14}),
        # The library's A is our B. Factors of whole tensors are the default mode.
        ("dtype=f8e4m3 tb=t scale=tensor", {A_SCALE: "b_scale", B_SCALE: "a_scale"}),
        (
            "dtype=f8e4m3 c=f8e4m3 bias=yes tb=t scale=tensor",
            {A_SCALE: "b_scale", B_SCALE: "a_scale", D_SCALE: "d_scale", EPILOGUE: 4, BIAS: "bias",
             BIAS_TYPE: 14},
        ),
        (
            f"dtype=f8e4m3 {SWIZZLED}",
            {A_SCALE: "b_scale", B_SCALE: "a_scale", A_MODE: 2, B_MODE: 2},
        ),
    ],
)  # fmt: skip
def test_the_description_holds_epilogue_and_scales(library, rest, expected):
    problem = ops.parse(f"gemm_epilogue m=4 n=8 k=32 {rest}")
    with bench(cublaslt.backend, problem, FakeDevice()) as made:
        for index, arguments in enumerate(made.sets):
            made.kernel.launch(0, index)
            told = dict(library.made[library.calls[-1][2].value])
            for name in ("compute", "scale", TRANSA, TRANSB):
                del told[name]
            assert told == {
                number: arguments[value].address if isinstance(value, str) else value
                for number, value in expected.items()
            }


def test_c_of_an_8_bit_d_is_bf16(library):
    """cuBLASLt has no other combination, though C is not read."""
    rest = "m=4 n=8 k=32 dtype=f8e4m3 c=f8e4m3 tb=t scale=tensor"
    matmul = _lt.LtMatmul(cublaslt._library(), ops.parse(f"gemm_epilogue {rest}"))
    assert [library.made[one.value]["kind"] for one in (matmul.c, matmul.d)] == [14, 28]
    cublaslt.parse("id=5", matmul)
    init = next(call for call in library.calls if call[0] == "MatmulAlgoInit")
    assert [number(a) for a in init[2:8]] == [68, 0, 28, 28, 14, 28]
    matmul.close()


def test_the_space_is_that_of_the_epilogue(library):
    library.workspace = 32 * 2**20
    problem = ops.parse("gemm_epilogue m=4 n=8 k=32 dtype=bf16 act=gelu bias=yes")
    cublaslt.backend.space(problem, CUDA)
    asked = next(call for call in library.calls if call[0] == "MatmulAlgoGetHeuristic")
    before = library.calls[: library.calls.index(asked)]
    told = [call for call in before if call[0] == "MatmulDescSetAttribute"]
    assert asked[2].value == told[-1][1].value
    assert [value_of(call[3], 4) for call in told if call[2] == EPILOGUE] == [36]


def test_the_numbers_behind_a_transposed_problem(library):
    problem = ops.parse("batched_gemm batch=3 m=5 n=7 k=4 dtype=f16 ta=t tb=n")
    matmul = _lt.LtMatmul(cublaslt._library(), problem)
    told = library.made
    # The library's A is our B: column-major n × k; its B is our A, stored k × m.
    assert told[matmul.a.value] == {
        "kind": 2,
        "rows": 7,
        "columns": 4,
        "ld": 7,
        BATCH_COUNT: 3,
        BATCH_STRIDE: 28,
    }
    assert {k: told[matmul.b.value][k] for k in ("rows", "columns", "ld")} == {
        "rows": 5,
        "columns": 4,
        "ld": 5,
    }
    assert told[matmul.d.value]["rows"] == 7
    assert told[matmul.d.value][BATCH_STRIDE] == 35
    assert told[matmul.desc.value] == {"compute": 68, "scale": 0, TRANSA: 0, TRANSB: 1}
    matmul.close()


@pytest.mark.parametrize(
    ("key", "compute", "scale"),
    [
        ("gemm m=4 n=4 k=4 dtype=f16 acc=f16", 64, 2),
        ("gemm m=4 n=4 k=4 dtype=bf16", 68, 0),
        ("gemm m=4 n=4 k=4 dtype=f64", 70, 1),
        ("gemm m=4 n=4 k=4 dtype=i8", 72, 10),
    ],
)
def test_compute_and_scale_types(library, key, compute, scale):
    matmul = _lt.LtMatmul(cublaslt._library(), ops.parse(key))
    assert library.made[matmul.desc.value]["compute"] == compute
    assert library.made[matmul.desc.value]["scale"] == scale
    half = _lt.scalar(matmul.scale_type, 2.0)
    raw = ctypes.string_at(ctypes.addressof(half), ctypes.sizeof(half))
    assert np.frombuffer(raw, TYPES[scale])[0] == 2
    matmul.close()


def test_launches_are_put_on_the_stream_and_allocate_nothing(library):
    device = FakeDevice()
    with bench(cublaslt.backend, ops.parse("gemm m=4 n=4 k=4 dtype=f32"), device) as made:
        before = device.free_bytes()
        library.calls.clear()
        made.kernel.launch(55, 1)
        assert [call[0] for call in library.calls] == ["Matmul"]
        assert library.calls[0][-1].value == 55
        assert device.free_bytes() == before


# -- algorithms


def test_the_heuristics_first_choice_is_the_default(library):
    with bench(cublaslt.backend, ops.parse("gemm m=4 n=4 k=4 dtype=f32"), FakeDevice()) as made:
        assert made.kernel.info.name == (
            "id=66 tile=20 split_k=1 reduction=0 swizzle=1 custom=3 stages=35 inner=0 cluster=2"
        )
        assert made.kernel.info.resources["workspace_bytes"] == library.workspace


@pytest.mark.parametrize(
    ("arch", "kib"), [("sm_80", 8320), ("sm_90", 32768), ("sm_103", 32768), ("sm_120", 32768)]
)
def test_the_workspace_is_that_of_pytorch(library, monkeypatch, arch, kib):
    info = dataclasses.replace(CUDA, arch=arch)
    assert _lt.workspace_bytes(cublaslt.TABLE, {}, info) == kib * 1024
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", str(kib))
    assert cublaslt.backend.settings(info) == {}
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "4096")
    assert cublaslt.backend.settings(info) == {"workspace_kib": 4096}
    assert _lt.workspace_bytes(cublaslt.TABLE, {"workspace_kib": 64}, info) == 64 * 1024
    library.workspace = 4096 * 1024
    space = cublaslt.backend.space(ops.parse("gemm m=4 n=4 k=4 dtype=f16"), info)
    assert {config["workspace_kib"] for config in space} == {4096}


def test_algorithms_are_read_back_from_their_text(library):
    matmul = _lt.LtMatmul(cublaslt._library(), ops.parse("gemm m=4 n=4 k=4 dtype=f16 c=f32"))
    for one in matmul.heuristics(10, library.workspace):
        text = cublaslt.describe(one[:64])
        assert cublaslt.parse(text, matmul) == one[:64]
        assert cublaslt.describe(cublaslt.parse(text, matmul)) == text
    init = next(call for call in library.calls if call[0] == "MatmulAlgoInit")
    # compute, scale, then the types of the library's A, B, C, D
    assert [number(a) for a in init[2:9]] == [68, 0, 2, 2, 0, 0, 66]
    matmul.close()


def test_the_space_lists_each_algorithm_once(library):
    library.workspace = 32 * 2**20  # PyTorch's on an H200
    library.algorithms.append(library.algorithms[0])
    space = cublaslt.backend.space(ops.parse("gemm m=4 n=4 k=4 dtype=f16"), CUDA)
    algorithms = space.parameters["algo"]
    # Three tiles with options, three clusters, no split or one by 2 or 3; and 21 of the heuristic.
    assert len(algorithms) == len(set(algorithms)) == 3 * 3 * 3 + 1 + 1
    assert space.default == {"algo": algorithms[0]}
    assert "id=66 tile=24 split_k=3 reduction=2 swizzle=0 custom=0 stages=35 inner=0 cluster=4" in (
        algorithms
    )
    rows, columns, *_ = space.traits["algo"](algorithms[-1])
    assert (rows, columns) == (256, 128)
    assert library.made == {}
    library.algorithms.clear()
    cublaslt._listed.cache_clear()
    assert cublaslt.backend.space(ops.parse("gemm m=4 n=4 k=4 dtype=f16"), CUDA) is None


def test_a_config_chooses_the_algorithm(library):
    problem = ops.parse("gemm m=4 n=4 k=4 dtype=f32")
    with bench(cublaslt.backend, problem, FakeDevice(), config={"algo": "id=5 tile=9"}) as made:
        assert made.kernel.info.name.startswith("id=5 tile=9 split_k=0")
        BackendContract().check(made)


@pytest.mark.parametrize(
    ("config", "kind", "fields"),
    [
        ({"algo": "tile=3"}, UsageError, {"algorithm": "tile=3"}),
        ({"algo": "nonsense"}, UsageError, {"algorithm": "nonsense"}),
        ({"algo": "id=x"}, UsageError, {"algorithm": "id=x"}),
        ({"tile": 3}, Unsupported, {"name": "tile", "known": ("algo",)}),
        ({"algo": "id=200"}, Unsupported, {"call": "cublasLtMatmulAlgoInit"}),
    ],
)
def test_bad_configs_are_refused(library, config, kind, fields):
    problem, device = ops.parse("gemm m=4 n=4 k=4 dtype=f32"), FakeDevice()
    before = device.free_bytes()
    with raises(kind, **fields):
        cublaslt.backend.prepare(problem, config, device, [])
    assert library.made == {}, "a refused config leaves descriptions behind"
    assert device.free_bytes() == before


def test_failures_name_the_call(library):
    problem, device = ops.parse("gemm m=4 n=4 k=4 dtype=f32"), FakeDevice()
    library.codes = {"MatmulAlgoGetHeuristic": 15}
    with raises(Unsupported, call="cublasLtMatmulAlgoGetHeuristic", status=15):
        cublaslt.backend.prepare(problem, {}, device, [])
    library.codes = {"MatrixLayoutCreate": INVALID}
    create = "cublasLtMatrixLayoutCreate"
    with raises_code(CaseError, "library-failed", call=create, status=INVALID):
        cublaslt.backend.prepare(problem, {}, device, [])
    library.codes = {"MatrixLayoutCreate": 3}
    with pytest.raises(OutOfMemory):
        cublaslt.backend.prepare(problem, {}, device, [])
    library.codes = {}
    library.state = 14
    with raises_code(CaseError, "library-failed", call="cublasLtMatmulAlgoGetHeuristic", status=14):
        cublaslt.backend.prepare(problem, {}, device, [])
    library.algorithms.clear()
    with pytest.raises(Unsupported):
        cublaslt.backend.prepare(problem, {}, device, [])
    assert library.made == {}


# -- what it can and cannot


def test_version_and_availability(library, monkeypatch):
    assert cublaslt.backend.available() is None
    assert cublaslt.backend.version() == "12.9.8"
    monkeypatch.setattr(cublaslt, "_shared_object", lambda: None)
    reason = Reason.of(cublaslt.backend.available() or "")
    assert reason.root.fields["library"] == "libcublasLt.so"
    cublaslt._library.cache_clear()
    with raises_code(UsageError, "library-missing", library="libcublasLt"):
        cublaslt._library()
