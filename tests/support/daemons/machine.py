"""A daemon on a machine that can lose power."""

from __future__ import annotations

import random
from typing import Any

from support.clients.ingesting import until
from support.clients.ledger import PATIENCE
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.disks.losefs import LoseFsHandle, Reboots


class Machine:
    """A daemon whose data are on the forgetful disk. The machine can lose power and start again."""

    def __init__(self, server: NatsServer, disk: LoseFsHandle, settings: dict[str, Any]) -> None:
        self.disk = disk
        self._cuts = 0
        self.reboots = Reboots(disk.path.parent)
        data_dir = disk.path / "data"
        self.daemon = Daemon(
            server.url,
            {**settings, "data_dir": str(data_dir)},
            directory=disk.path.parent,
            wrapper=self.reboots.wrapper,
            boot_id=self.reboots.boot_id,
        )
        self.daemon.data_dir = data_dir

    def lose_power(self, seed: int, *, reboot: bool = True) -> None:
        """Cut the power, unless `cut_after` has done it already. Without `reboot`, only the volume
        fails and loses its unsynced data, as if it were detached by force."""
        self.disk.cut("none" if seed % 4 == 0 else "some", seed)
        self.daemon.kill()
        # The log of a daemon on a machine without power counts for nothing; it is kept for
        # debugging.
        self._cuts += 1
        self.daemon.log_path.rename(self.daemon.log_path.with_suffix(f".{self._cuts}.log"))
        if reboot:
            self.reboots.reboot()
        self.disk.mount()

    def start(self, chance: random.Random) -> None:
        """Start again. With the probability `chance`, the power fails again before the recovery
        ends."""
        if chance.random() < 0.4:
            self.daemon.spawn()
            self.disk.cut_after(chance.randint(1, 40))
            until(lambda: not self.disk.mounted or not self.daemon.running or self.ready, PATIENCE)
            self.disk.cut_after(None)  # the daemon may have been faster
            if not self.disk.mounted:
                self.lose_power(chance.randrange(1 << 30))
                self.daemon.start()
        else:
            self.daemon.start()

    @property
    def listening(self) -> bool:
        return self.daemon.read_addresses()

    @property
    def ready(self) -> bool:
        try:
            return self.daemon.read_addresses() and self.daemon.ready
        except KeyError:  # not of this life of it: nothing was read yet
            return False
