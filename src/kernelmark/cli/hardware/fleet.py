"""`kmark ray`: start the nodes of a Ray cluster; the nodes of `kmark doctor --ray`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelmark.cli import options as o
from kernelmark.cli.output import put, say
from kernelmark.core.errors import UsageError
from kernelmark.core.units import counted
from kernelmark.report.tables import Column, Table

if TYPE_CHECKING:
    from kernelmark.runners.ray import Node

Address = Annotated[str, typer.Argument(metavar="HOST:PORT", help="The head of the cluster.")]
Block = Annotated[
    bool, o.option("--block", help="Stay until the node is ended, as a job of Slurm must.")
]
Head = Annotated[
    str | None,
    o.option("--address HOST:PORT", help="Add nodes to this cluster. Default: start a new one."),
]
Port = Annotated[int, o.option("--port PORT", help="Let the head listen on this port.")]
Ssh = Annotated[
    list[str] | None,
    o.option("--ssh HOST", help="Start nodes on these hosts, separated by commas. Repeatable."),
]
Slurm = Annotated[int, o.option("--slurm N", min=0, help="Submit a job of N nodes by sbatch.")]
Sbatch = Annotated[
    str,
    o.option(
        "--sbatch OPTIONS",
        help="Pass these options to sbatch: '--gpus-per-node=8 --time=60 --partition=h200'.",
    ),
]
Program = Annotated[
    str, o.option("--program COMMAND", help="Run kmark on the nodes by this command.")
]


def up(
    *,
    address: Head = None,
    port: Port = 6379,
    ssh: Ssh = None,
    slurm: Slurm = 0,
    sbatch: Sbatch = "",
    program: Program = "kmark",
) -> int:
    """Start a Ray cluster: a head here, nodes by ssh or Slurm.

    For example: kmark ray up --ssh gpu1,gpu2

    Or: kmark ray up --slurm 4 --sbatch '--gpus-per-node=8 --time=120'

    Each node needs kernelmark and Ray in the same versions. End the nodes by 'ray stop' on the
    hosts, or scancel; without a head they end after a minute.
    """
    from kernelmark.runners import launch

    if sbatch and not slurm:
        raise UsageError("--sbatch needs --slurm")
    if address is None:
        launch.start(launch.head_command(port))
        address = launch.own_address(port)
        say(f"the head listens at {address}")
    launched = launch.by_ssh(hosts, address, program) if (hosts := o.comma_list(ssh)) else []
    if slurm:
        launched.append(launch.by_slurm(slurm, address, program, sbatch))
    for node in launched:
        say(f"{node.host}: {node.error or 'started'}")
    put(f"{address}\n")
    failed = [node for node in launched if node.error]
    if failed:
        raise UsageError(
            f"{counted(len(failed), 'launch')} of {len(launched)} failed",
            hint="the cluster works without them; try again: kmark ray up --address " + address,
        )
    say(f"use it: kmark run --runner {address}; look at it: kmark doctor --ray {address}")
    return 0


def join(*, address: Address, block: Block = False) -> int:
    """Start Ray on this machine as a node of a cluster.

    It gets a custom resource for each model of devices, such as gpu_model:NVIDIA-H200.
    """
    from kernelmark.runners import launch

    command = launch.join_command(address, block=block)
    if block:
        launch.replace_by(command)
    launch.start(command)
    return 0


app = typer.Typer(no_args_is_help=True, help="Start the nodes of a Ray cluster.")
app.command("up")(up)
app.command("join")(join)


def read_nodes(address: str) -> list[Node]:
    """Return the nodes of a cluster."""
    from kernelmark.runners.ray import Cluster

    cluster = Cluster(address)
    try:
        return cluster.nodes()
    finally:
        cluster.close()


def advice(node: Node) -> str:
    """Return what is wrong with a node; "" if nothing is."""
    if node.reason:
        return node.reason
    if node.niceness > 0:
        return f"Ray runs it at nice {node.niceness}: start it by kmark ray join"
    return ""


def nodes_table(nodes: Sequence[Node]) -> Table:
    """Return a table of the nodes, their devices, versions and problems."""
    names = ("node", "kernelmark", "Python", "CPUs", "devices", "held by", "state")
    rows = tuple(
        (
            node.name,
            node.kernelmark or "–",
            node.python or "–",
            f"{node.cpus:g}",
            _devices(node) or "–",
            ", ".join(node.holders) or "–",
            advice(node) or "ready",
        )
        for node in nodes
    )
    return Table(title="nodes", columns=tuple(Column(name=name) for name in names), rows=rows)


def _devices(node: Node) -> str:
    models = Counter(f"{info.model} ({info.kind})" for info in node.infos if info.kind != "fake")
    models.update(f"{info.kind}" for info in node.infos if info.kind == "fake")
    return ", ".join(f"{count} x {model}" for model, count in models.items())


def nodes_document(nodes: Sequence[Node]) -> dict[str, Any]:
    """Return the same as JSON values."""
    from kernelmark.core import codec

    return {
        "kernelmark": "doctor-ray",
        "version": 1,
        "nodes": [
            {
                "node": node.name,
                "kernelmark": node.kernelmark or None,
                "python": node.python or None,
                "cpus": node.cpus,
                "niceness": node.niceness,
                "devices": [codec.plain(info) for info in node.infos],
                "held_by": list(node.holders),
                "reason": advice(node) or None,
            }
            for node in nodes
        ],
    }
