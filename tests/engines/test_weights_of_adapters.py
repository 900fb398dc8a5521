"""Adapters on engines: the last file of the folder, as qed's own server then takes no complete weights any more."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import Engine, update
from test_contract import FREE, PROMPTS, assert_sampled_by, flatten

from qed.errors import QedError


def test_an_adapter_is_sampled_with_under_its_version(engine: Engine, tmp_path: Path) -> None:
    models, sampler = engine.models, engine.connect()
    (server,) = sampler.servers
    for version in (2, 3, 4):
        update(server, models.adapter, version, "policy")
        ((answer,),) = sampler.generate([PROMPTS[0]], [[version]], FREE)
        assert answer.version == version == server.read_version()
        assert_sampled_by(models.adapted_network, PROMPTS[0], answer, 4 * engine.tolerance)
    if engine.stand_in is not None:
        assert set(engine.stand_in.adapted) == {"policy@3", "policy@4"}
    with pytest.raises(QedError):
        update(server, tmp_path / "nothing", 9, "policy")
    assert_sampled_by(models.adapted_network, PROMPTS[0], flatten(sampler.generate([PROMPTS[0]], [[9]], FREE))[0], 1e-2)
