"""Compare sketches with exact gradients on one batch: the share of the gradient that they cover, and their errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import nn

from fspo.base.errors import UserError
from fspo.config import ScoreConfig
from fspo.policy.score_hooks import unwrap
from fspo.policy.scores import Batch, exact_scores, score

MEMORY_LIMIT = 8 * 2**30
"""Largest number of bytes that the exact gradients of a batch may take in `coverage`."""


@dataclass
class Coverage:
    """How a sketch compares with the exact gradient on one batch.

    Attributes
    ----------
    share : ndarray, shape (B,), float64
        For each response, the share of ||psi||^2 that lies on the parameters that the sketch covers; NaN where the
        score failed or psi is 0.
    uncovered : dict of str to str
        Each trainable parameter that the sketch does not cover, and the reason.
    uncovered_share : dict of str to float
        Share of each uncovered parameter in the sum of ||psi||^2 over the responses whose score did not fail.
    norm_ratio : ndarray, shape (B,), float64
        Norm of the sketch of psi, divided by the exact norm of psi.
    pair_cosine_rmse : float
        Root mean square difference between the cosines of sketches and of exact gradients, over all pairs i < j of
        responses whose score did not fail. NaN for fewer than 2 of these responses.
    subset_cosine_rmse : float
        The same error for cosines between an update and its clipped version, over 64 simulated updates
        (`drop_cosines`). An update is the sum of all scores with random weights of both signs; its clipped version
        leaves out 15 % of the responses, drawn at random.
    exact_pair_cosines, sketch_pair_cosines : ndarray, shape (pairs,), float64
        Cosines of the same pairs of responses, from exact gradients and from sketches.
    """

    share: Float64[np.ndarray, " B"]
    uncovered: dict[str, str]
    uncovered_share: dict[str, float]
    norm_ratio: Float64[np.ndarray, " B"]
    pair_cosine_rmse: float
    subset_cosine_rmse: float
    exact_pair_cosines: Float64[np.ndarray, " pairs"]
    sketch_pair_cosines: Float64[np.ndarray, " pairs"]


def coverage(
    model: nn.Module,
    batch: Batch,
    temperature: float = 1.0,
    *,
    config: ScoreConfig | None = None,
    seed: int = 0,
    rollout: int = 0,
    logits: int | None = None,
) -> Coverage:
    """Compare the sketch of a batch with the exact gradient of all trainable parameters.

    Parameters
    ----------
    model, batch, temperature, config, seed, rollout, logits
        As for `fspo.policy.scores.score`. The model must be small, because memory holds the gradients of B responses in
        P parameters, B x P numbers.

    Returns
    -------
    Coverage

    Raises
    ------
    UserError
        If the exact gradients would take more than `MEMORY_LIMIT`.
    """
    model = unwrap(model)
    sizes = {n: p.numel() for n, p in model.named_parameters() if p.requires_grad}
    need = 4 * sum(sizes.values()) * batch["input_ids"].shape[0]
    if need > MEMORY_LIMIT:
        raise UserError(
            f"exact gradients of {batch['input_ids'].shape[0]} responses take {need / 2**30:.0f} GiB: "
            "check the sketch on fewer responses or a smaller model"
        )
    taken = score(model, batch, temperature, config=config, seed=seed, rollout=rollout, logits=logits)
    exact, _ = exact_scores(model, batch, temperature, logits=logits)
    squares = {n: part.double().square().sum(1).cpu().numpy() for n, part in _split(exact, sizes)}
    total = sum(squares.values(), np.zeros(len(taken.norm)))
    missing = {n: squares[n] for n in taken.uncovered}
    good = np.array([status == "ok" for status in taken.status]) & (total > 0)
    with np.errstate(all="ignore"):
        share = np.where(good, 1.0 - sum(missing.values(), np.zeros(len(total))) / total, np.nan)
        norm_ratio = np.where(good, taken.norm.astype(np.float64) / np.sqrt(total), np.nan)
    rows = torch.from_numpy(np.flatnonzero(good)).to(exact.device)
    true_gram = (exact[rows] @ exact[rows].T).double().cpu().numpy()
    vectors = taken.norm[good, None].astype(np.float64) * taken.unit[good].astype(np.float64)
    sketch_gram = vectors @ vectors.T
    true_pairs, sketch_pairs = pair_cosines(true_gram), pair_cosines(sketch_gram)
    true_drops, sketch_drops = (drop_cosines(gram, seed) for gram in (true_gram, sketch_gram))
    return Coverage(
        share=share,
        uncovered=taken.uncovered,
        uncovered_share={n: float(v[good].sum() / total[good].sum()) for n, v in missing.items()},
        norm_ratio=norm_ratio,
        pair_cosine_rmse=_rms(sketch_pairs - true_pairs),
        subset_cosine_rmse=_rms(sketch_drops - true_drops),
        exact_pair_cosines=true_pairs,
        sketch_pair_cosines=sketch_pairs,
    )


def _split(exact: Float[torch.Tensor, "B P"], sizes: dict[str, int]) -> list[tuple[str, torch.Tensor]]:
    return list(zip(sizes, exact.split(list(sizes.values()), 1), strict=True))


def pair_cosines(gram: Float64[np.ndarray, "B B"]) -> Float64[np.ndarray, " pairs"]:
    """Return the cosines between all pairs i < j of n vectors, from their inner products ``gram`` (n, n)."""
    norms = np.sqrt(np.diag(gram))
    return (gram / np.outer(norms, norms))[np.triu_indices(len(gram), 1)]


def drop_cosines(
    gram: Float64[np.ndarray, "B B"], seed: int, draws: int = 64, share: float = 0.15
) -> Float64[np.ndarray, " _"]:
    """Return, for each of some simulated updates, its cosine with its clipped version.

    An update is the sum of the responses' scores, each times a random weight of either sign. Its clipped version leaves
    out some responses, drawn at random.

    Parameters
    ----------
    gram : ndarray, shape (n, n)
        Inner products of the responses' scores.
    seed : int
        The same seed gives the same weights and drops the same responses for every Gram matrix of this size.
    draws : int
        Number of simulated updates.
    share : float
        Share of responses that are dropped.

    Returns
    -------
    ndarray, shape (draws,); empty for fewer than 2 responses
    """
    random, n = np.random.default_rng(seed), len(gram)
    found = []
    for _ in range(draws if n > 1 else 0):
        u = random.standard_normal(n)
        v = u * (random.random(n) >= share)
        with np.errstate(all="ignore"):
            found.append(u @ gram @ v / np.sqrt((u @ gram @ u) * (v @ gram @ v)))
    return np.array(found, float)


def _rms(errors: Float64[np.ndarray, " _"]) -> float:
    return float(np.sqrt(np.nanmean(errors**2))) if np.isfinite(errors).any() else float("nan")
