"""torchgpipe's module paths over lib's files, as a plugin of pytest: they exist nowhere else.

`pytest -p tests.lib.pipeline.torchgpipe_modules FOLDER` runs torchgpipe's own public suite on lib.pipeline.
"""

import sys
from importlib import import_module
from types import ModuleType

from lib.pipeline import blockpartition

#: torchgpipe's modules, and the files of lib that hold their names.
HOMES = {
    "torchgpipe": ["lib.pipeline"],
    "torchgpipe.balance": ["lib.pipeline.balance"],
    "torchgpipe.balance.blockpartition": [],
    "torchgpipe.balance.profile": ["lib.pipeline.balance"],
    "torchgpipe.batchnorm": ["lib.pipeline.batchnorm"],
    "torchgpipe.checkpoint": ["lib.pipeline.checkpoint"],
    "torchgpipe.copy": ["lib.pipeline.copy"],
    "torchgpipe.dependency": ["lib.runtime.dependency"],
    "torchgpipe.gpipe": ["lib.pipeline.gpipe", "lib.runtime.partitions"],
    "torchgpipe.microbatch": ["lib.runtime.microbatch"],
    "torchgpipe.phony": ["lib.runtime.dependency"],
    "torchgpipe.pipeline": ["lib.pipeline.pipeline"],
    "torchgpipe.skip": ["lib.pipeline.skip", "lib.pipeline.skip_tracker"],
    "torchgpipe.skip.layout": ["lib.pipeline.skip_layout"],
    "torchgpipe.skip.namespace": ["lib.pipeline.skip_tracker"],
    "torchgpipe.skip.portal": ["lib.pipeline.portal"],
    "torchgpipe.skip.skippable": ["lib.pipeline.skip"],
    "torchgpipe.skip.tracker": ["lib.pipeline.skip_tracker", "lib.pipeline.portal_tracker"],
    "torchgpipe.stream": ["lib.runtime.device"],
    "torchgpipe.worker": ["lib.pipeline.worker"],
}

#: The public names of torchgpipe 0.0.7, by module.
NAMES = {
    "torchgpipe": "GPipe is_checkpointing is_recomputing",
    "torchgpipe.balance": "balance_by_size balance_by_time blockpartition",
    "torchgpipe.balance.blockpartition": "solve",
    "torchgpipe.balance.profile": "layerwise_sandbox profile_sizes profile_times",
    "torchgpipe.batchnorm": "DeferredBatchNorm",
    "torchgpipe.checkpoint": "Checkpoint Checkpointing Recompute checkpoint enable_checkpointing enable_recomputing "
    "is_checkpointing is_recomputing restore_rng_states",
    "torchgpipe.copy": "Copy Wait",
    "torchgpipe.dependency": "Fork Join fork join",
    "torchgpipe.gpipe": "BalanceError GPipe split_module verify_module",
    "torchgpipe.microbatch": "Batch check gather scatter",
    "torchgpipe.phony": "get_phony",
    "torchgpipe.pipeline": "Pipeline clock_cycles copy wait",
    "torchgpipe.skip": "Namespace pop skippable stash verify_skippables",
    "torchgpipe.skip.layout": "SkipLayout inspect_skip_layout",
    "torchgpipe.skip.namespace": "Namespace",
    "torchgpipe.skip.portal": "Portal PortalBlue PortalCopy PortalOrange",
    "torchgpipe.skip.skippable": "Skippable pop skippable stash verify_skippables",
    "torchgpipe.skip.tracker": "SkipTracker SkipTrackerThroughPotals current_skip_tracker use_skip_tracker",
    "torchgpipe.stream": "AbstractStream CPUStream as_cuda current_stream default_stream get_device is_cuda new_stream "
    "record_stream use_device use_stream wait_stream",
    "torchgpipe.worker": "Task spawn_workers worker",
}


def module(path: str) -> ModuleType:
    """Make a module of torchgpipe from lib's names."""
    made = ModuleType(path)
    made.__path__ = []  # a package, as far as `import` asks
    for home in HOMES[path]:
        for name, value in vars(import_module(home)).items():
            if not name.startswith("_"):
                setattr(made, name, value)
    if path == "torchgpipe.balance.blockpartition":
        vars(made).update(vars(blockpartition))
    return made


def pytest_configure() -> None:
    modules = {path: module(path) for path in HOMES}
    for path, made in modules.items():
        sys.modules[path] = made
        parent, _, name = path.rpartition(".")
        if parent and not callable(getattr(modules[parent], name, None)):
            setattr(modules[parent], name, made)  # but torchgpipe.skip.skippable is the function, as it is there
