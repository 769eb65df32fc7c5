"""Lines of vLLM and its libraries at INFO and WARNING that nobody who serves this model can act on.

They describe what vLLM cannot know to be right here (no Triton on a CPU, no chunked prefill), or repeat for every
tensor what the settings say once (its dtype). `VLLM_LOGGING_LEVEL=DEBUG` shows them all. Imports neither vLLM nor
torch, so that it can act before them.
"""

import atexit
import logging
import os
import sys
import warnings

HIDDEN: dict[str, tuple[str, ...]] = {
    "config.kernel": ("Final IR op priority",),
    "config.model": ("Encoder-decoder model detected", "Model does not support mm_device_do_normalize"),
    "config.scheduler": ("Encoder-decoder models do not support chunked prefill",),
    "config.vllm": (
        "Enforce eager set",
        "Inductor compilation was disabled by user settings",
        "Model Runner V2 requires Triton",
        "max_num_scheduled_tokens is set to",
    ),
    "engine.arg_utils": ("The global random seed is set to",),
    "model_executor.model_loader.weight_utils": (
        "Filesystem type for checkpoints",
        "Auto-prefetch is disabled",
    ),
    "model_executor.models.utils": ("Attempted to load weight",),
    "platforms.cpu": ("Triton is not installed", "Reset SSM cache type"),
    "plugins": ("Available plugins for group", "- ", "All plugins in this group will be loaded"),
    "triton_utils.importing": ("Triton is installed, but", "Triton not installed or not compatible"),
    "v1.core.kv_cache_utils": ("Add %d padding layers",),
    "v1.engine.async_llm": ("AsyncLLM output_handler failed",),
    "v1.sample.logits_processor": ("min_p and logit_bias parameters won't work",),
    "v1.spec_decode.llm_base_proposer": ("Draft model %s does not support external", "Detected EAGLE model"),
    "v1.worker.cpu_worker": ("CPU backend doesn't allow to use",),
    "v1.worker.gpu.spec_decode.speculator": ("Draft model %s does not support external",),
}
"""Module of vLLM -> how the texts of its hidden lines begin, before their arguments are put in."""


class Unactionable(logging.Filter):
    """Drops the listed lines of one logger; of errors only the front end's traceback about an engine that ended, whose
    own lines say why and whose end the server tells itself.
    """

    def __init__(self, beginnings: tuple[str, ...]) -> None:
        super().__init__()
        self._beginnings = beginnings

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.exc_info[0] if record.exc_info else None
        if record.levelno >= logging.ERROR and (kind is None or kind.__name__ != "EngineDeadError"):
            return True
        return not str(record.msg).startswith(self._beginnings)


def hide() -> None:
    """Hides them in this process, once, unless vLLM's DEBUG level asks for everything."""
    if os.environ.get("VLLM_LOGGING_LEVEL", "").upper() == "DEBUG":
        return
    for module, beginnings in HIDDEN.items():
        logger = logging.getLogger(f"vllm.{module}")
        if not any(isinstance(known, Unactionable) for known in logger.filters):
            logger.addFilter(Unactionable(beginnings))
    warnings.filterwarnings("ignore", "`torch.distributed.reduce_op` is deprecated", FutureWarning)


def hide_leaks_at_exit() -> None:
    """nanobind counts Triton's functions as leaked when the interpreter ends, in C, past all loggers, so that standard
    error is closed before it does.
    """
    if os.environ.get("VLLM_LOGGING_LEVEL", "").upper() != "DEBUG":
        atexit.register(_close_standard_error)


def _close_standard_error() -> None:
    sys.stderr.flush()
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.close(nothing)
