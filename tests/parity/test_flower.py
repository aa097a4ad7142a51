"""Every federated method gives the same bits in one process and over Flower's messages."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from letheon import registry
from letheon.methods.base import Method
from letheon.request import Scope
from letheon.runtimes.flower import Flower, client_app
from letheon.runtimes.mail import Terms
from letheon.runtimes.site import Site
from letheon.testing.grid import MemoryGrid
from letheon.testing.scene import Scene, digest, small


def over_flower(scene: Scene, folder: Path) -> tuple[Flower, MemoryGrid]:
    """The scene's clients as Flower nodes, each with an exclusion table of its own."""
    apps = {}
    for node, (name, data) in enumerate(scene.clients.items(), 10):
        site = Site(name, data, scene.task, folder / f"{name}.db")
        if scene.request.scope == "samples":
            from letheon.runtimes.exclusions import Exclusions

            Exclusions(site.table).file(scene.request)
        apps[node] = client_app(lambda context, site=site: site)
    grid = MemoryGrid(apps)
    runtime = Flower(grid, list(scene.clients), terms=Terms(deadline_s=60, gather_s=1, poll_s=0.01))
    runtime.admit([scene.request])
    return runtime, grid


CASES = [(name, scope) for name in registry.names("method") for scope in sorted(registry.get("method", name).scopes)]


@pytest.mark.parametrize(("name", "scope"), CASES)
def test_a_method_gives_the_same_bits_over_flower(name: str, scope: Scope, tmp_path: Path) -> None:
    scene = small(scope, norm=True)
    method: Method = registry.get("method", name)()
    start = scene.start(method)
    end = scene.run(method)
    runtime, _ = over_flower(scene, tmp_path)
    assert digest(scene.drive(method, scene.guarded(runtime), start=start)) == digest(end)
