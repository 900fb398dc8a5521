"""The engines of the contract suite: qed's own server, stand-ins that speak SGLang and vLLM, and a real vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from engine_models import Models, make_models
from running import Engine, start_native
from stand_in import StandIn


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """The models that all engines serve."""
    return make_models(tmp_path_factory.mktemp("engine-models"))


@pytest.fixture(scope="session")
def _native(models: Models) -> Iterator[Engine]:
    """qed's own server, in processes of its own; it takes seconds to start, so that one serves all tests."""
    with start_native(models) as engine:
        yield engine


@pytest.fixture
def native(_native: Engine) -> Iterator[Engine]:
    """qed's own server with its first weights; once it has adapters it takes no complete weights any more."""
    _native.reset()
    yield _native
    for sampler in _native.samplers:
        sampler.close()


@pytest.fixture(scope="session")
def vllm(models: Models) -> Iterator[Engine]:
    """A real vLLM on this machine, installed on request."""
    real: Any = pytest.importorskip("real_vllm")
    with real.start(models) as url:
        yield Engine("vllm", url, models, 1e-3)


@pytest.fixture(scope="session")
def _stand_ins(models: Models) -> Iterator[dict[str, StandIn]]:
    servers = {dialect: StandIn(dialect, models) for dialect in ("vllm", "sglang")}
    with servers["vllm"].run(), servers["sglang"].run():
        yield servers


@pytest.fixture(
    params=[
        pytest.param("native", marks=pytest.mark.xdist_group("native server")),
        "sglang",
        "spoken vllm",
        pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.xdist_group("vllm")]),
    ]
)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Each engine in turn, with its first weights."""
    found: Engine
    assert request.param != "vllm" or request.node.get_closest_marker("vllm"), "a real vLLM needs the mark"
    if request.param in ("native", "vllm"):
        found = request.getfixturevalue(request.param)
    else:
        dialect = request.param.removeprefix("spoken ")
        server = request.getfixturevalue("_stand_ins")[dialect]
        server.on_token, server.stale = (lambda: None), False
        found = Engine(dialect, server.url, server.models, 2e-5, server)
    found.reset()
    yield found
    for sampler in found.samplers:
        sampler.close()
