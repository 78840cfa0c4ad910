"""Reasons for refusing a problem that several backends share, each with one code."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, config_key
from kernelmark.core.units import join_and, join_commas, join_or
from kernelmark.ops.gemm_epilogue import usual_bias_type

# Added to the summary of each backend that runs on AMD GPUs; docs/amd.md lists what was tested.
ON_AMD = "not yet run on AMD hardware"
_FNUZ = ("f8e4m3fnuz", "f8e5m2fnuz")
_OCP = ("f8e4m3", "f8e5m2")
# Floats below 16 bits that AMD's matrix units multiply: FNUZ on MI300, OCP on later GPUs.
AMD_NARROW_TYPES: Mapping[str, tuple[str, ...]] = {
    "gfx940": _FNUZ,
    "gfx941": _FNUZ,
    "gfx942": _FNUZ,
    "gfx950": (*_OCP, "f4e2m1"),
    "gfx1200": _OCP,
    "gfx1201": _OCP,
    "gfx1250": (*_OCP, "f4e2m1"),
}


def wrong_device(backend: str, kinds: Collection[str], info: DeviceInfo) -> Reason | None:
    """Return why a backend cannot run on a device of this kind, or None."""
    if info.kind in kinds:
        return None
    return Reason(
        f"{backend} runs on {join_and(tuple(kinds))}, not on {info.kind}",
        "device-unsupported",
        backend=backend,
        kinds=tuple(kinds),
        kind=info.kind,
    )


def not_installed(backend: str, name: str, hint: str) -> Reason:
    """Return the reason that a backend lacks a package; `hint` is how to install it."""
    return Reason(f"the backend {backend} needs {name}: not installed; {hint}")


def wrong_acc(backend: str, problem: Problem, sums: Collection[str]) -> Reason | None:
    """Return why a backend cannot accumulate in the problem's type, or None."""
    acc = problem.dtypes["acc"]
    if acc in sums:
        return None
    return Reason(f"{backend}'s {problem.op} accumulates in {join_or(tuple(sums))}, not in {acc}")


def unknown_op(
    backend: str, ops: Collection[str], problem: Problem, *, reads_tiles: bool = False
) -> Reason | None:
    """Return why a backend cannot compute this op at all, or None. `reads_tiles` is whether it
    reads weights in aiter's tiles."""
    if problem.op in ops and problem.options.get("w_order") == "tiled" and not reads_tiles:
        return Reason(f"{backend} reads weights by rows, not w_order=tiled")
    if problem.op in ops:
        return None
    return Reason(
        f"{backend} has no {problem.op} (it has {join_commas(ops)})",
        "op-unsupported",
        backend=backend,
        op=problem.op,
        known=tuple(ops),
    )


def wrong_narrow_type(backend: str, problem: Problem, info: DeviceInfo) -> Reason | None:
    """Return which sub-16-bit float an AMD GPU cannot multiply, or None."""
    native = AMD_NARROW_TYPES.get(info.arch, ())
    for kind in problem.dtypes.values():
        if kind.startswith(("f8", "f4")) and kind not in native:
            return no_narrow_float(backend, kind, info.arch)
    return None


def no_narrow_float(backend: str, kind: str, arch: str) -> Reason:
    """Return the reason for refusing a dtype on a GPU, with the FNUZ or OCP type it has instead."""
    other = kind.removesuffix("fnuz") if kind.endswith("fnuz") else f"{kind}fnuz"
    instead = other if other in AMD_NARROW_TYPES.get(arch, ()) else ""
    return Reason(f"{backend} has no {kind} on {arch}" + (f"; it has {instead}" if instead else ""))


def wrong_scales(backend: str, problem: Problem, info: DeviceInfo) -> Reason | None:
    """Return why a GPU's BLAS library does not apply the scales of a problem, or None.

    NVIDIA GPUs multiply 8-bit floats from sm_89 (Ada) on, and MX operands from sm_100 (Blackwell)
    on; AMD GPUs that have f4e2m1 multiply MX operands. `wrong_narrow_type` covers the 8-bit floats
    of AMD GPUs. cuBLASLt scales f4e2m1 only by one e4m3 per 16 elements (NVFP4)."""
    scale = problem.options["scale"] if problem.op == "gemm_epilogue" else "none"
    if scale == "none":
        return None
    if scale == "block" and (backend, info.arch) != ("torch", "sm_90"):
        return Reason(f"{backend} has no factors for blocks of 128 elements")
    if info.kind == "hip":
        least, layout = "gfx950", "linear"
        fits = scale in ("tensor", "row") or "f4e2m1" in AMD_NARROW_TYPES.get(info.arch, ())
    else:
        least, layout = "sm_100" if scale == "mx" else "sm_89", "swizzle_32_4_4"
        fits = _sm(info.arch) >= _sm(least)
    if not fits:
        return Reason(f"{backend} applies scale={scale} from {least} on, not on {info.arch}")
    if info.kind != "hip" and problem.dtypes["a"] == "f4e2m1":
        return Reason(f"{backend} has no scale={scale} for {problem.dtypes['a']} on NVIDIA GPUs")
    scale_layout = problem.options.get("scale_layout", layout)
    if scale_layout != layout:
        return Reason(f"{backend} reads block scales as scale_layout={layout}, not {scale_layout}")
    return None


def wrong_bias_type(backend: str, problem: Problem) -> Reason | None:
    """Return why cuBLASLt, or a library on top of it, cannot add the bias of a gemm_epilogue, or
    None."""
    bias_type = problem.dtypes.get("bias_type")
    if bias_type is None or bias_type == usual_bias_type(problem.dtypes):
        return None
    adds = usual_bias_type(problem.dtypes)
    return Reason(f"{backend} adds a bias of {adds} to {problem.dtypes['c']}, not of {bias_type}")


def _sm(arch: str) -> int:
    """Return the number of an architecture: 90 for sm_90 and sm_90a."""
    return int("0" + "".join(filter(str.isdigit, arch)))


def refuse_unknown(
    backend: str,
    config: Config,
    known_names: Collection[str] = (),
    elsewhere: Mapping[str, str] | None = None,
    why: str = "",
) -> None:
    """Raise Unsupported for a config name that the backend does not read: it would be silently
    ignored. `elsewhere` maps names that are read for other problems to why not for this one; `why`
    explains the list of `known_names` names, if the backend does not define it."""
    unknown = sorted(config.keys() - set(known_names))
    if unknown:
        knows = why or (
            f"it knows {', '.join(known_names)}" if known_names else "it has nothing to choose"
        )
        knows = (elsewhere or {}).get(unknown[0], knows)
        raise Unsupported(
            Reason(
                f"{backend} has no setting {unknown[0]!r} (config {config_key(config)}); {knows}",
                "config-unknown-name",
                backend=backend,
                name=unknown[0],
                config=config_key(config),
                known=tuple(known_names),
                why=knows,
            )
        )


def get_flag(backend: str, config: Config, name: str, *, default: bool) -> bool:
    """Return a yes/no value of a config. Refuse any other value: Python treats most as True."""
    value = config.get(name, default)
    if not isinstance(value, bool):
        raise Unsupported(
            f"{backend}: {name}={value!r} in the config is neither yes nor no (in"
            " Python: True, False)"
        )
    return value


def wrong_dtypes(backend: str, problem: Problem, where: str = "") -> Reason:
    """Return the reason for refusing a combination of dtypes, which `where` (a CPU, a GPU)
    lacks."""
    dtypes = " ".join(f"{name}={value}" for name, value in problem.dtypes.items())
    return Reason(
        f"{backend} has no {problem.op} with {dtypes}" + (f" on {where}" if where else ""),
        "dtypes-unsupported",
        backend=backend,
        op=problem.op,
        dtypes=dtypes,
        where=where,
    )
