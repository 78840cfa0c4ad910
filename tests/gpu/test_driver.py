"""The binding against a library made of Python functions: what is called, with which values."""

import ctypes

import pytest

from kernelmark.core.errors import OutOfMemory, UsageError
from kernelmark.gpu import driver as drivers
from kernelmark.gpu import rocm
from kernelmark.gpu.driver import Driver, GpuError, pack
from kernelmark.gpu.library import CUDA, HIP, HIP_ARCH_OFFSET
from kernelmark.gpu.objects import kernel_names
from kernelmark_dev.raising import raises, raises_code, tells

both = pytest.mark.parametrize("table", [CUDA, HIP], ids=["cuda", "hip"])

OUT = "out"  # a pointer that the function writes through


class Function:
    """One function of the library: `codes` and `writes` say what it returns and writes."""

    def __init__(self, library, symbol):
        self.restype = None
        self._library = library
        self._symbol = symbol

    def __call__(self, *arguments):
        library, symbol = self._library, self._symbol
        if "GetError" in symbol:
            return self._tell(symbol, arguments)
        library.calls.append((symbol, *map(plain, arguments)))
        code = library.codes.get(symbol, 0)
        if not code:
            self._write(arguments, library.writes.get(symbol, ()))
        return code

    @staticmethod
    def _write(arguments, values):
        targets = [a for a in arguments if is_out(a)]
        for target, value in zip(targets, values, strict=False):
            place = getattr(target, "_obj", target)
            if isinstance(place, ctypes.Array):
                place.raw = value.ljust(len(place), b"\0")
            else:
                place.value = value

    def _tell(self, symbol, arguments):
        text = (f"NAME_{arguments[0]}" if "Name" in symbol else f"text {arguments[0]}").encode()
        if symbol.startswith("hip"):
            assert self.restype is ctypes.c_char_p
            return text
        arguments[1]._obj.value = text
        return 0


class Library:
    """Stands for a ctypes library: any symbol, except those said to be missing."""

    def __init__(self):
        self.calls = []
        self.codes = {}
        self.writes = {}
        self.missing = set()
        self._name = ""

    def __getitem__(self, symbol):
        if symbol in self.missing:
            raise AttributeError(f"undefined symbol: {symbol}")
        return Function(self, symbol)


def is_out(argument):
    return hasattr(argument, "_obj") or (
        isinstance(argument, ctypes.Array) and argument._type_ is ctypes.c_char
    )


def plain(argument):
    """An argument as the C function sees it."""
    if is_out(argument):
        return OUT
    if isinstance(argument, ctypes.Array):
        return "array"
    if isinstance(argument, ctypes.c_void_p):
        return argument.value or 0
    return getattr(argument, "value", argument)


@pytest.fixture
def library():
    return Library()


@pytest.fixture
def driver(table, library):
    return Driver(table, library)


# What a method calls: our word, then the arguments. One of each form; the model GPU has the rest.
CALLS = [
    (lambda d: d.bus_id(1), ("device_bus_id", OUT, 32, 1)),
    (lambda d: d.peer_access(0, 1), ("can_access_peer", OUT, 0, 1)),
    (lambda d: d.memory_info(), ("memory_info", OUT, OUT)),
    (lambda d: d.allocate(2**40), ("allocate", OUT, 2**40)),
    (lambda d: d.ipc_handle(7), ("get_ipc_handle", OUT, 7)),
    (lambda d: d.host_allocate(4), ("host_allocate", OUT, 4, 2)),
    (lambda d: d.fill(1, 0xA5, 3, 4), ("fill_async", 1, 0xA5, 3, 4)),
    (lambda d: d.stream(), ("stream_create", OUT, 1)),
    (lambda d: d.begin_capture(6), ("capture_begin", 6, 2)),
    (lambda d: d.end_capture(6), ("capture_end", 6, OUT)),
    (lambda d: d.instantiate(9), ("graph_instantiate", OUT, 9, 0)),
    (lambda d: d.destroy("graph_exec", 6), ("graph_exec_destroy", 6)),
    (lambda d: d.destroy("module", 6), ("module_unload", 6)),
    (lambda d: d.load(b"\x7fELF\0\1"), ("module_load", OUT, b"\x7fELF")),
    (lambda d: d.occupancy(3, 128, 7), ("occupancy", OUT, 3, 128, 7)),
    (
        lambda d: d.launch(3, (4, 5, 6), (7, 8, 9), pack(ctypes.c_int(1)), 2, 10),
        ("launch", 3, 4, 5, 6, 7, 8, 9, 10, 2, "array", None),
    ),
]
cases = pytest.mark.parametrize(("act", "expected"), CALLS, ids=[c[1][0] for c in CALLS])


@both
@cases
def test_each_method_makes_one_call(driver, library, act, expected):
    act(driver)
    assert library.calls == [(driver.table.symbols[expected[0]], *expected[1:])]


@both
@cases
def test_a_failing_call_is_a_sentence(driver, library, act, expected):
    symbol = driver.table.symbols[expected[0]]
    library.codes[symbol] = 719
    fields = {"call": symbol, "status": 719, "name": "NAME_719", "text": "text 719"}
    with raises_code(GpuError, "driver-failed", **fields) as caught:
        act(driver)
    assert caught.value.code == 719
    library.codes[symbol] = driver.table.out_of_memory
    with raises_code(OutOfMemory, "driver-failed", call=symbol, name="NAME_2"):
        act(driver)


@both
@cases
def test_a_symbol_that_is_not_there_says_what_to_install(driver, library, act, expected):
    symbol = driver.table.symbols[expected[0]]
    library.missing.add(symbol)
    with raises(GpuError, name=symbol) as caught:
        act(driver)
    assert caught.value.hint == driver.table.install


@both
def test_device_attributes_go_by_the_vendors_number(driver, library):
    symbol = driver.table.symbols["device_attribute"]
    library.writes[symbol] = (132,)
    assert driver.attribute(3, "units") == 132
    number = {"cuda": 16, "hip": 63}[driver.table.vendor]
    assert library.calls == [(symbol, OUT, number, 3)]


@both
def test_managed_memory_is_never_more_than_free(driver, library):
    symbols = driver.table.symbols
    library.writes = {symbols["memory_info"]: (100, 200), symbols["allocate_managed"]: (64,)}
    with raises_code(OutOfMemory, "out-of-memory", needed=101, free=100):
        driver.allocate_managed(101)
    assert driver.allocate_managed(100) == 64
    assert library.calls[-1] == (symbols["allocate_managed"], OUT, 100, 1)


@both
def test_a_handle_of_another_process_is_passed_by_value(driver, library):
    symbol = driver.table.symbols["open_ipc_handle"]
    library.writes = {symbol: (4096,)}
    assert driver.open_ipc_handle(bytes(range(64))) == 4096
    ((name, out, handle, flags),) = library.calls
    assert (name, out, bytes(handle), flags) == (symbol, OUT, bytes(range(64)), 1)


@both
def test_count_is_zero_where_the_library_knows_no_device(driver, library):
    library.writes[driver.table.symbols["device_count"]] = (8,)
    assert driver.count() == 8
    library.codes[driver.table.symbols["device_count"]] = driver.table.no_device
    assert driver.count() == 0
    library.codes[driver.table.symbols["init"]] = driver.table.no_device
    library.calls.clear()
    assert driver.count() == 0
    cleared = [("hipGetLastError",)] if driver.table.vendor == "hip" else []
    assert library.calls == [(driver.table.symbols["init"], 0), *cleared]


# -- where the vendors differ


@both
def test_a_device_is_used_by_its_primary_context_or_its_number(driver, library):
    library.writes = {"cuDeviceGet": (1,), "cuDevicePrimaryCtxRetain": (4242,)}
    driver.use(1)
    driver.use(1)
    context = ("cuCtxSetCurrent", 4242)
    expected = {
        "cuda": [("cuDeviceGet", OUT, 1), ("cuDevicePrimaryCtxRetain", OUT, 1), context, context],
        "hip": [("hipSetDevice", 1)] * 2,
    }
    assert library.calls == expected[driver.table.vendor]


@both
def test_a_peer_is_enabled_by_its_context_or_its_number(driver, library):
    driver._contexts = {0: 1000, 1: 1001}
    driver.enable_peer(0, 1)
    expected = {
        "cuda": [("cuCtxSetCurrent", 1000), ("cuCtxEnablePeerAccess", 1001, 0)],
        "hip": [("hipSetDevice", 0), ("hipDeviceEnablePeerAccess", 1, 0)],
    }
    assert library.calls[-2:] == expected[driver.table.vendor]
    symbol = driver.table.symbols["peer_enable"]
    library.codes[symbol] = driver.table.peer_already_enabled
    driver.enable_peer(0, 1)  # again is no failure
    library.codes[symbol] = 217
    with raises_code(GpuError, "driver-failed", call=symbol, name="NAME_217", status=217):
        driver.enable_peer(0, 1)


@pytest.mark.parametrize("table", [CUDA])
def test_cuda_arch_is_its_capability(driver, library):
    answers = {75: 12, 76: 1}
    library.codes = {}

    class Attribute(Function):
        def __call__(self, *arguments):
            arguments[0]._obj.value = answers[arguments[1]]
            return 0

    driver._functions["device_attribute"] = Attribute(library, "cuDeviceGetAttribute")
    assert driver.arch(0) == "sm_121"


@pytest.mark.parametrize("table", [HIP])
@pytest.mark.parametrize("name", [b"gfx942:sramecc+:xnack-", b"gfx90a:sramecc+:xnack-", b"gfx1100"])
def test_hip_arch_comes_from_the_properties(driver, library, name):
    library.writes["hipGetDevicePropertiesR0600"] = (b"\1" * HIP_ARCH_OFFSET + name + b"\0trash",)
    assert driver.arch(0) == name.decode().partition(":")[0]


@both
def test_driver_version(driver, library):
    number, text = {"cuda": (12090, "12.9"), "hip": (60443484, "6.4")}[driver.table.vendor]
    library.writes[driver.table.symbols["driver_version"]] = (number,)
    assert driver.driver_version() == text


@both
def test_only_cuda_asks_for_more_shared_memory(driver, library):
    driver.allow_shared(3, 100_000)
    expected = {"cuda": [("cuFuncSetAttribute", 3, 8, 100_000)], "hip": []}
    assert library.calls == expected[driver.table.vendor]


def test_both_tables_name_each_function_once():
    for table in (CUDA, HIP):
        assert all(symbol.startswith(table.prefix) for symbol in table.symbols.values())
        assert len(set(table.symbols.values())) == len(table.symbols)
        assert len(set(table.attributes.values())) == len(table.attributes)
    assert CUDA.attributes.keys() <= HIP.attributes.keys()


@both
def test_old_drivers_have_no_kernel_names(driver):
    assert kernel_names(driver, 5) == ()


# -- arguments of kernels


def test_pack_keeps_the_values_in_order():
    packed = pack(ctypes.c_void_p(2**45), ctypes.c_uint32(7), ctypes.c_float(0.5))
    kinds = (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_float)
    read = [kind.from_address(place).value for kind, place in zip(kinds, packed, strict=True)]
    assert read == [2**45, 7, 0.5]
    assert len(pack()) == 1


# -- finding the library


@pytest.fixture
def loads(monkeypatch):
    """Names that are tried; no library is there."""
    tried = []

    def refuse(name):
        tried.append(name)
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    monkeypatch.setattr(rocm, "mapped", lambda stem: [])
    for function in (drivers.driver, rocm._choice):
        function.cache_clear()
    yield tried
    for function in (drivers.driver, rocm._choice):
        function.cache_clear()


@pytest.mark.parametrize(("vendor", "library"), [("cuda", "libcuda.so"), ("hip", "libamdhip64.so")])
def test_a_missing_library_is_one_sentence(loads, vendor, library):
    with raises_code(UsageError, "library-missing", vendor=vendor, library=library) as caught:
        drivers.driver(vendor)
    reason = drivers.unavailable(vendor)
    assert reason is not None
    assert caught.value.message in reason
    assert caught.value.hint in reason


def test_rocm_path_is_looked_into(loads, monkeypatch):
    monkeypatch.setenv("ROCM_PATH", "/somewhere/rocm")
    for first, other in (
        ("/somewhere/rocm/lib/libamdhip64.so.7", "libamdhip64.so.6"),
        ("libamdhip64.so.7", "/opt/rocm/lib/libamdhip64.so.6"),
    ):
        assert drivers.find_library(HIP) is None
        assert loads[0] == first
        assert other in loads
        monkeypatch.delenv("ROCM_PATH", raising=False)
        loads.clear()
    assert drivers.find_library(CUDA) is None
    assert loads == ["libcuda.so.1", "libcuda.so"]


@pytest.fixture
def found(table, library, monkeypatch):
    """The library, as it is found at some place."""
    library._name = "/somewhere/libvendor.so.9"
    monkeypatch.setattr(drivers, "find_library", lambda wanted: library)
    drivers.driver.cache_clear()
    yield library
    drivers.driver.cache_clear()


@both
@pytest.mark.parametrize("word", ["init", "device_count"])
@pytest.mark.parametrize("code", [3, 999, CUDA.out_of_memory])
def test_a_library_that_cannot_start_says_why(table, found, word, code):
    symbol = table.symbols[word]
    found.codes[symbol] = code
    reason = drivers.unavailable(table.vendor)
    assert tells(reason, library="/somewhere/libvendor.so.9")
    assert (reason.fields["call"], reason.fields["status"]) == (symbol, code)
    error = OutOfMemory if code == CUDA.out_of_memory else GpuError
    with raises_code(error, "driver-failed", call=symbol):
        drivers.driver(table.vendor).count()


@both
def test_a_library_without_devices_is_one_sentence(table, found):
    found.codes[table.symbols["init"]] = table.no_device
    assert tells(drivers.unavailable(table.vendor), library="/somewhere/libvendor.so.9")
