"""The interface of a task: examples as a pure function of their index, verifiable rewards, prompts as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np

from fspo.base.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Split = Literal["train", "eval"]
Prompt = str | list[dict[str, str]]
Status = Literal["ok", "timeout", "error"]
STATUSES: tuple[str, ...] = get_args(Status)


@dataclass(frozen=True)
class Example:
    """One prompt with the reference answer that its verifier needs.

    Attributes
    ----------
    prompt_id : str
        Unique within the task and stable between runs, for example ``"train-17"``.
    prompt : str or list of dict
        Plain text, or chat messages with the keys ``role`` and ``content``.
    answer : str
        The reference answer.
    info : dict
        Numbers and labels for the log (difficulty, number of steps, ...).
    """

    prompt_id: str
    prompt: Prompt
    answer: str
    info: dict[str, float | int | str] = field(default_factory=dict)


@dataclass
class Rewards:
    """The rewards of N responses, and how each verification ended.

    Attributes
    ----------
    values : numpy.ndarray
        Float64 (N,), finite; 0 where the status is not ``"ok"``.
    status : list of str
        N times ``"ok"``, ``"timeout"`` or ``"error"``, so that a verifier that hung or raised is not counted as a
        wrong answer.
    messages : dict
        Message of a failed verification -> number of responses with this message in this call.
    """

    values: np.ndarray
    status: list[str]
    messages: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise UserError for rewards of a wrong shape, NaN or infinite ones, which would spoil an update without
        notice."""
        self.values = np.asarray(self.values, dtype=np.float64)
        if self.values.shape != (len(self.status),):
            raise UserError(
                f"rewards have shape {self.values.shape} but {len(self.status)} statuses: return one of each "
                "per response"
            )
        unknown = sorted(set(self.status) - set(STATUSES))
        if unknown:
            raise UserError(f"unknown reward status {unknown[0]!r}: use one of {', '.join(STATUSES)}")
        if not np.isfinite(self.values).all():
            bad = int(np.flatnonzero(~np.isfinite(self.values))[0])
            raise UserError(f"reward of response {bad} is {self.values[bad]}: a task must return finite rewards")


@runtime_checkable
class Task(Protocol):
    """The interface of a task, by which the trainer gets its examples and the rewards of responses to them."""

    name: str

    def size(self, split: Split) -> int | None:
        """Return the number of examples in a split ("train" or "eval"); None when the split is endless."""
        ...

    def example(self, split: Split, index: int) -> Example:
        """Return the example at ``index``, a pure function of the task's options, the split and the index."""
        ...

    def score(self, examples: Sequence[Example], responses: Sequence[str], finished: Sequence[bool]) -> Rewards:
        """Return the rewards of ``responses[i]`` to ``examples[i]``; ``finished[i]`` is False for a truncated one."""
        ...


@runtime_checkable
class TeachingTask(Task, Protocol):
    """A task with worked solutions, from which the embedded model (a small one that needs no files) first learns by
    supervised training."""

    def data_options(self) -> dict[str, Any]:
        """Return the options on which the warm-up texts depend; they identify the warmed-up model in the cache."""
        ...

    def build_tokenizer(self) -> PreTrainedTokenizerFast:
        """Build the tokenizer of the task's prompts and worked solutions; it adds no special token to a text."""
        ...

    def max_response_tokens(self) -> int:
        """Return the limit of tokens in a response: at least the longest worked solution with its end token."""
        ...

    def warmup_text(self, seed: int, index: int, slips: bool = True) -> tuple[str, str]:
        """Return the prompt and the worked solution, without its end token, of the warm-up's example ``index``.

        The prompt is never a held-out one. With ``slips`` some steps of the solution may be wrong."""
        ...


def check_prompt(prompt: Any) -> str | None:
    """Return what is wrong with a prompt, in words; None when it is non-empty text or well-formed chat messages."""
    if isinstance(prompt, str):
        return None if prompt.strip() else "the prompt is empty"
    if not isinstance(prompt, list):
        return f"the prompt is {type(prompt).__name__}, not text or a list of chat messages"
    if not prompt:
        return "the prompt has no messages"
    for position, message in enumerate(prompt):
        if not isinstance(message, dict):
            return f"message {position} is {type(message).__name__}, not a mapping with 'role' and 'content'"
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                return f"message {position} has no text under {key!r}"
    if not any(message["content"].strip() for message in prompt):
        return "every message of the prompt is empty"
    return None


def encode_prompt(tokenizer: Any, prompt: Prompt, chat_template: bool | None = None) -> list[int]:
    """Return the token ids of a prompt, ready for generation.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerBase
        With or without a chat template.
    prompt : str or list of dict
        Plain text counts as one user message if a template is applied.
    chat_template : bool or None
        True applies the tokenizer's template, False never does (messages are then joined by blank lines);
        None applies it when the tokenizer has one.

    Returns
    -------
    list of int
        At least one id. If the last message is the assistant's, the response continues that message; after any
        other message the template's generation prompt is added. Plain text gets the tokenizer's special tokens,
        except a closing end-of-sequence token, after which a model generates nothing.

    Raises
    ------
    UserError
        No template where one is needed, a template that refuses the messages, or an empty prompt.
    """
    problem = check_prompt(prompt)
    if problem:
        raise UserError(f"{problem}: give text or a list of {{'role': ..., 'content': ...}} messages")
    has_template = getattr(tokenizer, "chat_template", None) is not None
    if chat_template and not has_template:
        raise UserError(
            "the tokenizer has no chat template: set chat_template to false, or use an instruction-tuned model"
        )
    if has_template and chat_template is not False:
        ids = _encode_chat(tokenizer, prompt)
    elif isinstance(prompt, str) or chat_template is False:
        text = prompt if isinstance(prompt, str) else "\n\n".join(message["content"] for message in prompt)
        ids = list(tokenizer(text)["input_ids"])
        eos = tokenizer.eos_token_id
        # Some tokenizers append an end token to each text. Remove it: a model would generate nothing after it.
        if (
            len(ids) > 1
            and ids[-1] == eos
            and _trailing(ids, eos) > _trailing(tokenizer(text, add_special_tokens=False)["input_ids"], eos)
        ):
            ids.pop()
    else:
        raise UserError(
            "the prompt is a list of chat messages but the tokenizer has no chat template: set chat_template "
            "to false to join the messages as plain text, or use an instruction-tuned model"
        )
    if not ids:
        raise UserError(f"the tokenizer gives no token for the prompt {str(prompt)[:60]!r}: remove this prompt")
    return [int(token) for token in ids]


def _trailing(ids: Sequence[int], token: int) -> int:
    return next((n for n, other in enumerate(reversed(ids)) if other != token), len(ids))


def _encode_chat(tokenizer: Any, prompt: Prompt) -> list[int]:
    from jinja2 import TemplateError

    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    goes_on = messages[-1]["role"] == "assistant"
    try:
        return list(
            tokenizer.apply_chat_template(
                messages,
                tokenize=True,
                add_generation_prompt=not goes_on,
                continue_final_message=goes_on,
                return_dict=False,
            )
        )
    except TemplateError as error:
        raise UserError(
            f"the tokenizer's chat template refuses the prompt ({error}): change its roles or set "
            "chat_template to false"
        ) from error
