"""Where remote workers live: what a loader is given as `workers`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TOKEN = "PENSTOCK_AGENT_TOKEN"
"""Environment variable with the secret that agents and training share."""
SHORTEST = 16
"""Characters of a token."""


@dataclass(frozen=True)
class Agents:
    """Workers on other machines, on each of which `penstock agent` runs.

    Args:
        addresses: Of the agents, each "host:port".
        local: So many workers, the first ones, are processes of this machine.
        token: The secret that the agents were given. None: $PENSTOCK_AGENT_TOKEN.

    Raises:
        TypeError, ValueError: An argument cannot be meant; the message names it.

    The dataset is pickled and sent to each agent when an epoch begins; with `persistent_workers=True` only once. What
    it is made from (modules, files) must be there, too. Who knows the token can run any code on the agents' machines,
    and nothing is encrypted: use a network that you trust, or a tunnel.
    """

    addresses: Sequence[str]
    local: int = 0
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.addresses, str) or not self.addresses:
            raise ValueError(f'addresses must be a list of "host:port", but got addresses={self.addresses!r}')
        _check_local(self.local)
        for address in self.addresses:
            parsed(address)
        if len(set(self.addresses)) < len(self.addresses):
            raise ValueError(f"an agent is named twice: addresses={list(self.addresses)!r}")

    def secret(self) -> bytes:
        """The token as bytes; ValueError if there is none."""
        return checked_token(self.token if self.token is not None else os.environ.get(TOKEN), "Agents(token=…)")


@dataclass(frozen=True)
class RayWorkers:
    """Workers wherever a Ray cluster has room (`pip install 'penstock[ray]'`).

    Args:
        address: Of the cluster, as in `ray.init`.
        local: So many workers, the first ones, are processes of this machine.
        num_cpus: Processors that Ray reserves for each of the others.
        resources: What else it reserves for each.
        runtime_env: What each node is to set up first, as in `ray.init`: the user's code, say.

    Raises:
        TypeError, ValueError: An argument cannot be meant; the message names it.

    Ray only places: batches come over connections of our own. It lives in a process beside training.
    """

    address: str = "auto"
    local: int = 0
    num_cpus: float = 1
    resources: Mapping[str, float] | None = None
    runtime_env: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        _check_local(self.local)
        if not isinstance(self.num_cpus, int | float) or self.num_cpus < 0:
            raise ValueError(f"num_cpus must be a number and not negative, but got num_cpus={self.num_cpus!r}")
        if not self.bundle():
            raise ValueError("a worker must need something, or Ray has nothing to place: give num_cpus or resources")

    def bundle(self) -> dict[str, float]:
        """What each worker needs, as Ray names it."""
        wanted = {"CPU": float(self.num_cpus), **(self.resources or {})}
        return {name: float(amount) for name, amount in wanted.items() if amount}


Remote = Agents | RayWorkers
"""Where workers live that are not all here."""


def _check_local(local: object) -> None:
    if isinstance(local, bool) or not isinstance(local, int):
        raise TypeError(f"local must be an int, but got local={local!r}")
    if local < 0:
        raise ValueError(f"local must not be negative, but got local={local!r}")


def checked_token(token: str | None, where: str) -> bytes:
    """A token as bytes. `where`: how it is given, besides the environment."""
    if not token:
        raise ValueError(f"agents need a token: give {where} or ${TOKEN}, the same on all machines")
    if len(token) < SHORTEST:
        raise ValueError(f"the agents' token is too short to be a secret: it has {len(token)} of {SHORTEST} characters")
    return token.encode()


def parsed(address: str) -> tuple[str, int]:
    """Host and port of "host:port"; an IPv6 address stands in brackets."""
    if not isinstance(address, str):
        raise TypeError(f'an address must be a str like "host:port", but got {address!r}')
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise ValueError(f'an address must look like "host:port", but got {address!r}')
    return host.strip("[]"), int(port)
