"""A second daemon with the name of a node, as by a mistake of an operator."""

from __future__ import annotations

import copy
from pathlib import Path

from support.daemons.cluster import Cluster, lasting_ports
from support.daemons.daemon import Daemon


def twin_of(cluster: Cluster, node: str, directory: Path) -> Daemon:
    """Return a daemon with the settings of `node`, other ports, and its own data directory below
    `directory`, which the caller may fill before the start."""
    settings = copy.deepcopy(cluster.nodes[node].settings)
    [port] = lasting_ports(1)
    address = f"tcp://127.0.0.1:{port}"
    del settings["data_dir"]
    settings["pull"]["listen"] = [address]
    settings["cluster"]["advertise"] = address
    return Daemon(None, settings, directory=directory)
