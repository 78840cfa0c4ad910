"""Reasons that several backends give: one sentence each, the same words everywhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, config_key


def wrong_device(backend: str, kinds: Collection[str], info: DeviceInfo) -> str | None:
    """Why a backend cannot run on a device of this kind, or None."""
    if info.kind in kinds:
        return None
    return f"{backend} runs on {' and '.join(kinds)}, not on {info.kind}"


def unknown_op(backend: str, ops: Collection[str], problem: Problem) -> str | None:
    """Why a backend cannot do this op at all, or None."""
    return None if problem.op in ops else f"{backend} has no {problem.op} (it has {', '.join(ops)})"


def refuse_unknown(
    backend: str,
    config: Config,
    known: Collection[str] = (),
    elsewhere: Mapping[str, str] | None = None,
    why: str = "",
) -> None:
    """Refuse a config with a name that the backend does not read: it would be silently ignored.
    `elsewhere` are names that it reads for other problems, and why not for this one; `why` says
    how the `known` ones are known, if not because the backend lists them."""
    unknown = sorted(config.keys() - set(known))
    if unknown:
        knows = why or (f"it knows {', '.join(known)}" if known else "it has nothing to choose")
        knows = (elsewhere or {}).get(unknown[0], knows)
        raise Unsupported(
            Reason(
                "config-unknown-name",
                backend=backend,
                name=unknown[0],
                config=config_key(config),
                known=tuple(known),
                why=knows,
            )
        )


def arithmetic(problem: Problem) -> str:
    """The dtypes of a problem in words: a=f16 b=f16 c=f16 acc=f32."""
    return " ".join(f"{name}={value}" for name, value in problem.dtypes.items())
