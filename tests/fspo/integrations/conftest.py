# pyright: reportMissingImports=false
"""Fixtures of the tests inside verl; they import verl when a test asks for them."""

import os

import pytest


@pytest.fixture(scope="module")
def verl_process(tmp_path_factory):
    """verl's worker in this process: its platform, its process group, its environment."""
    import torch
    from verl.plugin.platform import platform_manager

    from tests.fspo.integrations.verl_worker import CpuPlatform

    names = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577"}
    earlier, platform = dict(os.environ), platform_manager._current_platform
    os.environ.update(names)
    platform_manager._current_platform = CpuPlatform()
    store = f"file://{tmp_path_factory.mktemp('gloo') / 'store'}"  # a port may be taken by another run of the tests
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
    platform_manager._current_platform = platform
    os.environ.clear()
    os.environ.update(earlier)


@pytest.fixture
def unwatched():
    """verl's own training worker is its actor again after the test."""
    yield
    from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

    ActorRolloutRefWorker.actor_worker_cls = TrainingWorker
