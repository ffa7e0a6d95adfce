"""Save a model as a Hugging Face folder, for the vLLM server that samples and at the end of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel
from transformers.utils import logging


def save_model(model: PreTrainedModel, folder: Path, **options: Any) -> None:
    """Save a model by its method ``save_pretrained`` with the keywords ``options``, without showing a progress bar."""
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model.save_pretrained(folder, **options)
    finally:
        if bars:
            logging.enable_progress_bar()
