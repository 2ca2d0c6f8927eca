"""A second daemon with the name of a node, by an operator's mistake."""

from __future__ import annotations

import copy
from pathlib import Path

from support.daemons.cluster import Cluster, lasting_ports
from support.daemons.daemon import Daemon


def twin_of(cluster: Cluster, node: str, directory: Path) -> Daemon:
    """It has the settings of `node`, other ports, and a data directory of its own below
    `directory`, which the caller may fill before the start."""
    settings = copy.deepcopy(cluster.nodes[node].settings)
    [port] = lasting_ports(1)
    address = f"tcp://127.0.0.1:{port}"
    del settings["data_dir"]
    settings["pull"]["listen"] = [address]
    settings["cluster"]["advertise"] = address
    return Daemon(None, settings, directory=directory)
